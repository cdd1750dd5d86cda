"""Attention of sequences whose tokens are shared out over ranks that pass keys and values round (context parallelism, ring).

A rank holds two pieces of each sequence, one from its front and one from its end, so that causal attention is equal work on
all (Megatron-LM, torch.distributed context parallelism).  Of the p blocks of keys its own comes first, under the mask; each of
the other p - 1 counts half: all queries against half of its keys, or half of the queries against all.  Every block gives
partial results, which are joined: per block of L tokens and q (keys and values: g) values a token, bytes per value

    fused, 16 bits   forward  joined into an fp32 output          10 q,  and once more  6 q
                     backward gradients added                      6 q +  6 g
    plain, fp32      forward  cast, subtract, scale, subtract     38 q,  and once more  6 q
                     backward added, cut into halves and put back 26 q + 26 g, keys' and values' gradients travel in fp32

of which three quarters run, since half of the blocks touch half of the queries or keys only.
Source: NVIDIA TransformerEngine, context_parallel.py (fused); torch.distributed.tensor.experimental._attention (plain).
"""

from __future__ import annotations

from typing import Any

from simulator.lowering.rows import Rows
from simulator.program.program import COLLECTIVE

__all__ = ["ring_attention"]

_TOUCHED = 0.75
"""Share of the queries, or of the keys, that a block of another rank touches on average."""
_JOIN = {False: (10.0, 6.0, 6.0), True: (38.0, 26.0, 26.0)}
"""Bytes per value of a block: forward, gradients of queries, of keys and values; by whether the runtime joins in plain fp32."""
_LAST = 6.0
_LAUNCHES = {False: (4, 6), True: (8, 16)}


def ring_attention(rows: Rows, core: dict[str, Any], o: Any, split: Any, phase: str) -> None:
    """Write the attention of one rank, its exchanges and the joining of partial results.

    Args:
        core: what all rows of the attention kernel share; `shape` is (sequences, heads, tokens of this rank, width).
        o: the operator; split: the `Splitter`.
    """
    sequences, heads, length, width = core["shape"]
    groups, plain = max(1, o.kv_heads // split.t // split.inner), split.style.ring_in_fp32
    backward = phase == "backward"
    passes = 2.5 if backward else 1.0
    work = 4.0 * passes * sequences * heads * float(length) * width
    peers = o.peers // split.inner
    blocks = peers - 1
    own = rows.add(**core, label=o.label, layout=f"{o.kernel}:causal:{groups}:{length}", flops=work * length)
    others = {**core, "shape": (sequences * blocks, heads, length, width), "launches": core["launches"] * blocks}
    rest = rows.add(
        **others,
        label=f"{o.label} to other ranks' keys",
        layout=f"{o.kernel}:full:{groups}:{length // 2}",
        flops=work * length * blocks,
    )
    queries, keys = float(sequences * length * heads * width), 2.0 * sequences * length * groups * width
    out, grad_q, grad_kv = _JOIN[plain]
    moved = _TOUCHED * blocks * (grad_q * queries + grad_kv * keys if backward else out * queries)
    moved += 0.0 if backward else _LAST * queries
    rows.add(
        label=f"{o.label} joining of partial results",
        work="memory_bound",
        dtype=core["dtype"],
        read=moved / 2,
        written=moved / 2,
        phase=phase,
        launches=_LAUNCHES[plain][backward] * blocks,
        part="input" if backward else "",
    )
    shared = keys * peers * split.e
    # gathered at once, keys hide beside the rank's own block only; passed on block by block, beside the blocks of others
    wanted = [("all_gather", shared, own if plain or blocks == 1 else rest)]
    if backward:
        wanted.append(("reduce_scatter", shared * (4.0 / split.e if plain else 1.0), rest))
    for name, message, beside in wanted:
        rows.add(
            label=f"{o.label} keys and values {name}",
            kind=COLLECTIVE,
            work=name,
            message=message,
            group=split.groups.ring or split.groups.context,
            dtype=core["dtype"],
            phase=phase,
            beside=beside,
        )
