"""Embeddings as products: one-hot rows times the table, for T tokens, V rows of the table and width h.

    forward    one-hot rows written [T, V]    product [T, V] x [V, h]
    backward   written again                  product of one-hot rows and the gradient, [V, T] x [T, h]

Under tensor parallelism every rank has a part of the V.  Token numbers have no gradient, so there is one product backward.
Source: MaxText, layers/embeddings.py (use_iota_embed); praxis, layers/embedding_softmax.py (lookup_style = "matmul"); the profiled
step of MaxText/configs/a3/llama_2_70b/bf16/pgle holds five products as large as the head's.
"""

from __future__ import annotations

import math

from simulator.lowering.layers.writer import Writer
from simulator.partition.propagate import look_up_along
from simulator.workload.graph import Lookup

__all__ = ["look_up_by_product"]


def look_up_by_product(w: Writer, op: Lookup) -> None:
    """Write the rows of an embedding that is a product, of shape (1, T, h, V); none for one that looks its rows up, of zeros."""
    ctx, o = w.ctx, w.o
    tokens = o.shape[1]
    if not tokens:
        return
    table = ctx.layout.local_tensor(op.weights[0]).dims
    own, hidden = table[0].size, table[1].size
    along = look_up_along(ctx.layout, op.weights[0], op.outputs[0])
    tokens //= math.prod(ctx.layout.ranks(axis) for axis, divided in along.items() if divided.name == "batch")
    part = "weight" if w.backward else ""
    w.moves(f"{o.label} one-hot rows", 8.0 * tokens, float(tokens) * own * ctx.e, part=part)
    if w.backward:
        w.product(f"{o.label} weight gradient", (1, own, hidden, tokens), "NT", part=part)
    else:
        w.product(o.label, (1, tokens, hidden, own), "NN")
