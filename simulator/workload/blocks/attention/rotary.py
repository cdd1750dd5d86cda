"""Rotary embedding of queries and keys: one kernel that reads and writes them once, plain tensor operations, or complex numbers.

Plain, in reads and writes of the rotated tensors (x cos + half-swapped x sin; half = one of the two halves):

    forward   x cos 1, 1; negated half 1/2, 1/2; join 1, 1; times sin 1, 1; sum 2, 1           = 5.5, 4.5
    backward  times sin 1, 1; negated half 1/2, 1/2; each half set into zeros 1, 3; their sum 2, 1;
              times cos 1, 1; sum of both ways 2, 1                                            = 7.5, 7.5

Of a part of each head alone that share of them; then it is joined with the rest (1, 1), and backward both parts are set into zeros and
summed (3, 4).  So it is of the whole head where a kernel that takes no scaled cosines leaves a scaled model to plain operations
(Megatron-Core, rope_utils.py: the rest is empty, but joined).  Source: Su et al., arXiv 2104.09864.

Latent attention has the part that is turned by itself, and joins it with the rest after it (1, 1), backward takes it apart (1, 1).

Megatron makes cosines and sines from angles in every layer, for queries and for keys, by kernels on numbers of places
(`rotary_tables`): two functions, their products with a scale (since it has YaRN), two casts.  What was turned it joins with a rest, be it
empty (1, 1).  In latent attention it puts the pairs of numbers apart before it turns them: a strided copy (1, 1), whose gradient is two
parts set into zeros and summed (3, 4).  Source: NVIDIA/Megatron-LM core_v0.16, models/common/embeddings/rope_utils.py and
transformer/multi_latent_attention.py, recorded with PyTorch.

Complex: queries and keys are widened to fp32, pairs of numbers multiplied by complex ones, and the product is narrowed again; three
kernels each way, of which inductor, which has no complex numbers, joins none (pytorch/torchtitan issue 15).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.units import FP32
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Moves, Tensor

__all__ = ["rotary"]

_TABLES = 4
"""Cosines and sines, for queries and for keys."""


def rotary(
    g: LayerBuilder,
    given: tuple[Tensor, ...],
    read: tuple[Dim, ...],
    written: tuple[Dim, ...],
    alone: tuple[Dim, ...] = (),
) -> tuple[Tensor, Tensor]:
    """Add the rotation; return queries and keys.

    Args:
        given: queries, keys (and a part of the keys that all heads share).
        read, written: dimensions of all that is read and of all that is written.
        alone: of the parts that are turned, where the rest of queries and keys is a tensor of its own; () = all are turned.
    """
    e, share = g.e, g.m.rotary_share
    without = g.style.fused_rotary and g.m.rotary_scale != 1.0 and not g.style.scales_rotary
    turned = g.style.complex_rotary
    fused, part = g.style.fused_rotary and not without and not turned, share < 1.0 or without
    makes = 0 if fused or turned else g.style.rotary_tables
    joined, apart_pairs = part or makes > 0, makes > 0 and bool(alone)
    forward = (1.0, 1.0) if fused else (5.5 * share + joined + apart_pairs, 4.5 * share + joined + apart_pairs)
    rest = part + apart_pairs
    backward = (1.0, 1.0) if fused else (7.5 * share + 3 * rest, 7.5 * share + 4 * rest)
    if turned:
        forward = backward = (1.0 + 2.0 * FP32 / e, 1.0 + 2.0 * FP32 / e)
    apart: tuple[Moves, ...] = ()
    if alone and not fused:  # both parts are joined then
        there, back = (e * forward[0], e * forward[1]), (e * backward[0], e * backward[1])
        apart = (Moves(dims=alone, read=there[0], written=there[1], backward_read=back[0], backward_written=back[1]),)
        forward = backward = (1.0, 1.0)
    q, k = (replace(t, name=f"{t.name}, turned") for t in given[:2])
    tables = g.tensor("cosines and sines", *g.tokens, Dim("tables", 4), g.head_dim)
    gathers = g.style.gathers_rotary
    made: tuple[Moves, ...] = ()
    if makes:
        width = alone[-1].size // (g.m.heads + 1) if alone else round(g.m.head_dim * share)
        angles = (g.sequence, Dim("angles", _TABLES * width))
        made = (Moves(dims=angles, read=FP32 * makes / 2, written=FP32 * makes / 2 - e),)
    g.kernel(
        "rotary",
        given,
        (q, k, *((tables,) if gathers else ())),
        Moves(dims=read, read=e * forward[0], backward_written=e * backward[1]),
        Moves(dims=written, written=e * forward[1], backward_read=e * backward[0]),
        *apart,
        *made,
        keeps=(Keep(tensor=tables, whole=True),) if gathers else (),
        again=(q.name, k.name, tables.name),
        access="" if fused else "strided",
        launches=(6 if turned else 2 if fused else 10 + 2 * joined + 2 * makes + 2 * apart_pairs) + 2 * len(apart),
        backward_launches=(6 if turned else 2 if fused else 18 + 10 * rest) + 2 * len(apart),
    )
    return q, k
