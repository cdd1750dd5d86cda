"""A layout as a file: a mesh, rules by dimension, and places of single tensors.

name = "megatron_by_hand"

[mesh]                       # ranks of the last axis are neighbours
rows = 8
cols = 8

[rules]                      # dimension = axis, or several in the order in which they cut it
batch = "rows"
ffn = "cols"

[weights]                    # the same for weights alone; [activations] likewise
hidden = "rows"

[tensors."mlp up weight"]    # one tensor: dimension = axis, instead of the rules
ffn = "cols"

[sbp]                        # the same as OneFlow writes it, one word per mesh axis
"mlp down weight" = ["B", "S(0)"]
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from simulator.specs import Count, Listed, Name, Spec, load_spec

__all__ = ["LayoutFile", "load_layout_file"]

Axes = Annotated[
    tuple[Name, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Listed,
    Field(min_length=1, max_length=16),
]
"""One axis, or several."""
Places = dict[Name, Axes]


class LayoutFile(Spec):
    """A layout's file; what its keys mean says the module."""

    name: Name
    notes: str | None = None
    source: str | None = None
    mesh: Annotated[dict[Name, Count], Field(min_length=1, max_length=16)]
    rules: Places = Field(default_factory=dict)
    weights: Places = Field(default_factory=dict)
    activations: Places = Field(default_factory=dict)
    tensors: dict[Name, Places] = Field(default_factory=dict)
    sbp: dict[Name, Annotated[tuple[Name, ...], Listed]] = Field(default_factory=dict)


def load_layout_file(path: str) -> LayoutFile:
    """Return the layout of a file.

    Raises:
        SpecError: it cannot be read, or is wrong; every error is told with its line.
    """
    return load_spec(path, LayoutFile)
