"""What people call GPUs, links and networks, by what their texts contain (hardware_specs/words.toml).

One table for logs of collectives and for measured runs: a text that no table of exact names knows is told by its words.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

from simulator.specs import Name, Spec, data_roots, load_spec

__all__ = ["Words", "generation_in", "load_words"]

Section = Literal[
    "generations", "vendors", "generations_of_links", "without_nccl", "inside", "bridged", "networks", "cards"
]


class Words(Spec):
    """The content of hardware_specs/words.toml: regular expression -> what is meant; the first that matches counts."""

    generations: dict[str, Name]
    vendors: dict[str, Name]
    generations_of_links: dict[str, Name]
    without_nccl: dict[str, Name]
    inside: dict[str, Name]
    bridged: dict[str, Name]
    networks: dict[str, Name]
    cards: dict[str, Name]
    usual_cards: dict[str, Name]
    usual_efa: dict[str, Name]
    xgmi: dict[str, Name]
    nvlink: dict[str, Name]
    sources: dict[str, str]

    def find(self, section: Section, text: str) -> str:
        """Return what a text means by one of the sections, "" for nothing.

        >>> load_words().find("generations", "NVIDIA A100-SXM4-80GB"), load_words().find("networks", "abacus")
        ('ampere', '')
        """
        table: dict[str, str] = getattr(self, section)
        lowered = text.lower()
        return next((meant for pattern, meant in table.items() if re.search(pattern, lowered)), "")


@functools.lru_cache(maxsize=1)
def load_words() -> Words:
    """Return the table shipped with the simulator."""
    return load_spec(data_roots()[-1] / "hardware_specs" / "words.toml", Words)


def generation_in(text: str) -> str:
    """Return the generation of the GPU that a text names, "" where it names none.

    >>> generation_in("NVIDIA RTX PRO 6000 Blackwell"), generation_in("MI355X"), generation_in("abacus")
    ('blackwell', 'cdna4', '')
    """
    return load_words().find("generations", text)
