"""The model that a build function makes, as a model file: read from one recorded forward, checked by its number of parameters.

What is read is what ran: products before the attention kernel are its projections, the first one after it is its output, the rest
are the MLP's.  A model that does not come out with as many parameters as it has is refused, with what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from simulator.capture.record import Capture, Event
from simulator.capture.rows import block_of
from simulator.errors import SpecError
from simulator.specs import validate_spec
from simulator.workload.model import Model

__all__ = ["model_fields"]

Shapes = Mapping[str, tuple[int, ...]]


def model_fields(capture: Capture, name: str) -> tuple[dict[str, object], list[str]]:
    """Return the fields of a model file, and what was assumed.

    Args:
        capture: of one forward.

    Raises:
        SpecError: the model is none of a known family; says what was found.
    """
    events, shapes = [event for event in capture.events if event.phase == "forward"], capture.shapes
    vocabulary, hidden, places = _tables(events, shapes, capture.script)
    blocks = sorted({_number(event.path) for event in events if _repeats(event)}, key=int)
    if not blocks:
        raise SpecError(
            f"{capture.script}: no repeated block: expected layers in a list, such as layers.0, layers.1, ..."
        )
    first = [event for event in events if _repeats(event) and _number(event.path) == blocks[0]]
    fields = _layer(first, hidden, capture.script)
    own = {key: shape for key, shape in shapes.items() if block_of(key)[0].endswith("*") and _number(key) == blocks[0]}
    length = next((event.shape[2] for event in first if event.work == "attention"), 0)
    matrices = {key.removesuffix(".weight") for key, shape in own.items() if len(shape) == 2}
    products = [event.path for event in first if event.work == "gemm"]
    biased = [path for path in products if f"{path}.bias" in own]
    norms = [key for key, shape in own.items() if len(shape) == 1 and key.rpartition(".")[0] not in matrices]
    assumed = [] if places else ["positions = rotary: no table of positions was looked up"]
    fields |= {
        "qk_norm": sum(shapes[key] == (fields["head_dim"],) for key in norms if shapes[key] != (hidden,)) == 2,
        "name": name,
        "family": name,
        "layers": len(blocks),
        "hidden": hidden,
        "vocabulary": vocabulary,
        "sequence_length": places or int(length),
        "norm": "layer_norm" if any(key.endswith(".bias") for key in norms) else "rms_norm",
        "positions": "learned" if places else "rotary",
        "tied_embeddings": sum(shape == (vocabulary, hidden) for shape in shapes.values()) == 1,
        "qkv_bias": bool(biased) and biased[0] == products[0],
        "linear_bias": bool(biased) and biased[-1] == products[-1],
    }
    model = validate_spec(fields, Model, capture.script)
    there = sum(math.prod(shape) for shape in shapes.values())
    if model.parameters != there:
        raise SpecError(
            f"{capture.script}: a transformer of {len(blocks)} such layers has {model.parameters:,} parameters, but it has {there:,} "
            f"({there - model.parameters:+,}): something in it is of no known family. A layer has {_named(own)}; outside of layers are "
            f"{_named({key: shape for key, shape in shapes.items() if not block_of(key)[0].endswith('*')})}. Way out: dtsim capture, "
            "which needs none"
        )
    return fields, assumed


def _repeats(event: Event) -> bool:
    return block_of(event.path)[0].endswith("*")


def _number(path: str) -> str:
    return path.split(".")[block_of(path)[0].count(".")]


def _tables(events: list[Event], shapes: Shapes, script: str) -> tuple[int, int, int]:
    """Vocabulary and width of the largest table that is looked up, and rows of the next one of that width: places; 0 without."""
    found = {event.path: shapes.get(f"{event.path}.weight", ()) for event in events if event.name == "aten.embedding"}
    tables = sorted((shape for shape in found.values() if len(shape) == 2), reverse=True)
    if not tables:
        raise SpecError(f"{script}: no embedding: expected a model that looks tokens up in a table")
    return tables[0][0], tables[0][1], next((shape[0] for shape in tables[1:] if shape[1] == tables[0][1]), 0)


def _layer(events: list[Event], hidden: int, script: str) -> dict[str, object]:
    """Heads and widths of a layer, from its products around the attention kernel."""
    kernel = next((place for place, event in enumerate(events) if event.work == "attention"), None)
    if kernel is None:
        raise SpecError(
            f"{script}: no attention kernel in a layer: expected scaled_dot_product_attention, or flash_attn"
        )
    _, heads, _, width = events[kernel].shape
    before = [event.shape for event in events[:kernel] if event.work == "gemm"]
    after = [event.shape for event in events[kernel:] if event.work == "gemm"]
    kv = sum(shape[2] for shape in before) - heads * width
    ups, down = after[1:-1], after[-1] if after else (0, 0, 0, 0)
    into = sum(shape[2] for shape in ups)
    if len(after) < 3 or kv % (2 * width) or into not in (down[3], 2 * down[3]) or down[2] != hidden:
        raise SpecError(
            f"{script}: a layer of no known family: products {_shown(before)} before its attention and {_shown(after)} after it; expected "
            "queries, keys and values; then the output, one or two up and one down"
        )
    return {
        "heads": heads,
        "kv_heads": kv // (2 * width),
        "head_dim": width,
        "ffn": down[3],
        "gated_mlp": into == 2 * down[3],
    }


def _named(shapes: Shapes) -> str:
    """Weights by name and size, `layers.0.` and the like left out."""
    return (
        ", ".join(
            f"{block_of(key)[1] if block_of(key)[0].endswith('*') else key} {'x'.join(map(str, shape))}"
            for key, shape in shapes.items()
        )
        or "none"
    )


def _shown(shapes: list[tuple[int, int, int, int]]) -> str:
    return ", ".join(f"{k} to {n}" for _, _, n, k in shapes) or "none"
