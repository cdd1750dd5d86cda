"""Embeddings as products: one-hot rows times the table, for T tokens, V rows of the table and width h.

    forward    one-hot rows written [T, V]    product [T, V] x [V, h]
    backward   written again                  product of one-hot rows and the gradient, [V, T] x [T, h]

Under tensor parallelism every rank has a part of the V.  Token numbers have no gradient, so there is one product backward.
Source: MaxText, layers/embeddings.py (use_iota_embed); praxis, layers/embedding_softmax.py (lookup_style = "matmul"); the profiled
step of MaxText/configs/a3/llama_2_70b/bf16/pgle holds five products as large as the head's.
"""

from __future__ import annotations

import math

from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.rows import Rows
from simulator.partition.propagate import look_up_along
from simulator.workload.graph import Lookup
from simulator.workload.operator import Operator

__all__ = ["look_up_by_product"]


def look_up_by_product(ctx: LayerContext, rows: Rows, o: Operator, op: Lookup, phase: str) -> None:
    """Write the rows of an embedding that is a product; none for one that looks its rows up.

    Args:
        o: the embedding; its shape is (1, T, h, V), or zeros.
        phase: forward, recompute or backward.
    """
    tokens = o.shape[1]
    if not tokens:
        return
    table = ctx.layout.local_tensor(op.weights[0]).dims
    own, hidden = table[0].size, table[1].size
    along = look_up_along(ctx.layout, op.weights[0], op.outputs[0])
    tokens //= math.prod(ctx.layout.ranks(axis) for axis, divided in along.items() if divided.name == "batch")
    part = "weight" if phase == "backward" else ""
    rows.moves(f"{o.label} one-hot rows", ctx.dtype, 8.0 * tokens, float(tokens) * own * ctx.e, phase, part=part)
    if phase == "backward":
        ctx.product(rows, f"{o.label} weight gradient", (1, own, hidden, tokens), "NT", phase, part=part)
    else:
        ctx.product(rows, o.label, (1, tokens, hidden, own), "NN", phase)
