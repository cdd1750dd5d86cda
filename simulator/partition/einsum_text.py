"""An operation as an einsum, one letter per dimension."""

from __future__ import annotations

from simulator.workload.graph import Attention, Dim, Lookup, Op, Product, Tensor

__all__ = ["LETTERS", "einsum_text"]

LETTERS = {
    "batch": "b",
    "sequence": "s",
    "source_sequence": "t",
    "keys": "k",
    "hidden": "h",
    "heads": "n",
    "kv_heads": "g",
    "head_dim": "d",
    "value_dim": "e",
    "ffn": "f",
    "expert_ffn": "f",
    "vocabulary": "v",
    "experts": "x",
    "expert_rows": "r",
    "copies": "c",
    "positions": "p",
}
"""Letters of dimensions that most models have; others get what is free, capitals."""
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum_text(op: Op) -> str:
    """Return an operation in the notation of numpy.einsum, products one behind the other; of a look-up that with one-hot rows.

    A dimension that another one serves has that one's letter: key/value heads run along with the heads that they serve.

    >>> x, w = Tensor("x", (Dim("batch", 2), Dim("hidden", 4)), 2.0), Tensor("w", (Dim("hidden", 4), Dim("ffn", 8)), 2.0, "weight")
    >>> y = Tensor("y", (Dim("batch", 2), Dim("ffn", 8)), 2.0)
    >>> einsum_text(Product(label="up", inputs=(x,), weights=(w,), outputs=(y,)))
    'bh,hf->bf'
    """
    known: dict[str, str] = {}
    if isinstance(op, Product):
        texts = [_text(pair[:2], pair[2:], known) for pair in op.pairs]
    elif isinstance(op, Attention):
        keys = [
            t.view(*(Dim("keys", 1) if d.name in ("sequence", "source_sequence") else d for d in t.dims))
            for t in op.inputs[1:3]
        ]
        texts = [_text((op.inputs[0], *keys), op.outputs[:1], known)]
    elif isinstance(op, Lookup):
        rows = op.inputs[0].view(*op.inputs[0].dims, op.weights[0].dims[0])
        texts = [_text((rows, op.weights[0]), op.outputs[:1], known)]
    else:
        texts = [_text((*op.inputs, *op.weights), op.outputs, known)]
    return "; ".join(dict.fromkeys(texts))


def _text(given: tuple[Tensor, ...], made: tuple[Tensor, ...], known: dict[str, str]) -> str:
    sides = [",".join("".join(_letter(d, known) for d in t.dims) for t in side) for side in (given, made)]
    return "->".join(sides)


def _letter(dim: Dim, known: dict[str, str]) -> str:
    name = dim.serves or dim.name
    if name not in known:
        free = [c for c in (LETTERS.get(name, ""), *_CAPITALS) if c and c not in known.values()]
        known[name] = free[0]
    return known[name]
