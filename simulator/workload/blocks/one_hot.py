"""Rows to their experts and back by products with one-hot masks, in place of copies that a gather makes.

T tokens lie in groups of S; every expert takes at most C rows of each group, k choices per token and a capacity factor c of the k T rows:

    C = k c S / E, at least one row, whole

    masks       [G, S, E C]                     T E C numbers, twice: which row a token is, and with what weight
    dispatch    GSR, GSM -> GRM    R = E C      2 R M FLOP per token, whatever the number of experts: R = k c S
    combine     GSR, GRM -> GSM                 as many

So both grow with the group and with the capacity.  Backward dispatch has one gradient (of the tokens; nobody needs that of a mask),
combine two.  Both masks are kept, and what the experts return for the gradient of the weights.  A running sum over each group says
which row of its expert a token gets: one per choice, over T E numbers in fp32.
Source: Lepikhin et al., GShard, arXiv 2006.16668, algorithms 1 and 2; tensorflow/mesh mesh_tensorflow/transformer/moe.py
(transformer_moe_layer_v1, _split_into_groups; group_size = 1024); tensorflow/lingvo gshard_layers.py (Top2GatingOnLogits).
"""

from __future__ import annotations

import math

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["GROUP_SIZE", "combine", "dispatch", "group_sizes"]

GROUP_SIZE = 1024
"""Tokens of a group where a plan says nothing: Mesh-TensorFlow's."""

_SUM = 4.0
"""Bytes of a number of a running sum, fp32."""


def group_sizes(tokens: int, most: int) -> tuple[int, int]:
    """Return (groups, tokens of each): as few equal groups as can be of at most `most` tokens.

    >>> group_sizes(4096, 1024), group_sizes(1000, 300), group_sizes(512, 1024)
    ((4, 1024), (4, 250), (1, 512))
    """
    groups = -(-tokens // most)
    while tokens % groups:
        groups += 1
    return groups, tokens // groups


def dispatch(g: LayerBuilder, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Add the masks and the product that makes rows of tokens; return (rows, the weights to combine them with)."""
    m, e = g.m, g.e
    number, size = group_sizes(g.t, g.style.expert_group)
    capacity = max(1, math.ceil(m.experts_per_token * m.capacity_factor * size / m.experts - 1e-9))
    groups, group, slots = Dim("groups", number), Dim("group", size), Dim("slots", m.experts * capacity)
    mask, weights = (g.tensor(name, groups, group, slots) for name in ("dispatch mask", "combine weights"))
    summed = m.experts_per_token * _SUM
    g.kernel(
        "dispatch masks",
        (chosen,),
        (mask, weights),
        Moves(dims=mask.dims, written=2 * e, backward_read=2 * e),
        Moves(dims=chosen.dims, read=2 * summed, written=2 * summed),
        access="stream",
        launches=6,
        backward_launches=2,
    )
    rows = g.tensor("copied rows", groups, slots, g.hidden)
    g.product(
        "dispatch to slots",
        (mask, x.view(groups, group, g.hidden)),
        rows,
        Keep(tensor=mask),
        fixed=True,
        backward_launches=1,
    )
    return rows.view(Dim("copies", number * slots.size), g.hidden), weights


def combine(g: LayerBuilder, x: Tensor, back: Tensor, weights: Tensor) -> Tensor:
    """Add the product that sums the rows of each token with its weights; return the experts' output.

    Args:
        x: the layer's tokens; `back`: rows that came back from the experts.
    """
    groups, group, slots = weights.dims
    made = g.tensor("experts' output", *x.dims)
    g.product(
        "combine from slots",
        (weights, back.view(groups, slots, g.hidden)),
        made.view(groups, group, g.hidden),
        Keep(tensor=weights),
        Keep(tensor=back, name="expert output"),
    )
    return made
