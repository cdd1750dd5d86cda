"""Layers that carry a state along the sequence in place of attention: Mamba-2 and the gated delta rule, chunk by chunk.

With inner width d = H P (H heads of P), state n, g groups, chunks of Q tokens, T tokens in B sequences:

    norm - in [h -> 2 d + 2 g n + H (2 H)] - convolution of d + 2 g n channels - scan - gated norm - out [d -> h] - residual

    scan, mamba2   C B' in chunks [Q, Q, n] per group;  states B' X [n, P, Q], passed on from chunk to chunk;
                   output (masked C B') X and C state [Q, P, Q + n], per head
    scan, delta    K K' and Q K' [Q, Q, 2 n];  transformed keys and values [Q, n + P, Q];  with the state [Q, P, 2 n];
                   the state itself [n, P, Q];  output [Q, P, Q], per value head

All heads see groups of keys and queries as their own; the order of chunks, in which the delta rule's states follow each other, costs
nothing here beside its products.  Sources: Dao & Gu, arXiv 2405.21060, section 6; Yang et al., arXiv 2412.06464, section 3.3.
"""

from __future__ import annotations

from simulator.workload.architectures.pieces import Pieces
from simulator.workload.operator import Operator, Saved

__all__ = ["CHUNK", "state_space"]

CHUNK = {"mamba2": 256, "delta": 64}
"""Tokens of a chunk: the defaults of mamba_ssm (chunk_size) and of flash-linear-attention (gated delta rule)."""


def state_space(p: Pieces) -> list[Operator]:
    """Return the operators between a layer's norm and its residual."""
    m, kind = p.m, p.kind.mixer
    inner, wide = m.ssm_inner, m.ssm_projected(kind)
    convolved = m.ssm_convolved
    given = Saved(name="state space input", bytes=p.t * m.hidden * p.kept, region=p.gathered, cheap=True)
    made = Saved(name="state space output", bytes=p.t * inner * p.kept, region="tensor")
    first = p.linear("state space in", "column", wide, m.hidden, given, False)
    small = m.ssm_small_parameters(kind)
    e = p.e
    convolution = _moving(
        "convolution",
        p.t * convolved * e,
        p.t * convolved * e,
        Saved(name="state space projections", bytes=p.t * wide * e, region="tensor"),
        small,
    )
    gate = _moving(
        "gated norm",
        2 * p.t * inner * e,
        p.t * inner * e,
        Saved(name="scan output", bytes=p.t * inner * e, region="tensor"),
        m.ssm_inner if kind == "mamba2" else m.ssm_head_dim,
    )
    scan = _mamba2(p) if kind == "mamba2" else _delta(p)
    return [first, convolution, *scan, gate, p.linear("state space out", "row", m.hidden, inner, made, False)]


def _moving(label: str, read: float, written: float, saved: Saved, parameters: int) -> Operator:
    return Operator(
        label=label,
        work="memory_bound",
        split="tensor",
        read=read,
        written=written,
        backward_read=read + written,
        backward_written=read,
        parameters=parameters,
        small_parameters=parameters,
        saved=(saved,),
        again=1.0,
        backward_launches=2,
    )


def _product(label: str, batch: int, m: int, n: int, k: int, saved: tuple[Saved, ...] = ()) -> Operator:
    """A product inside chunks; both sides are activations."""
    return Operator(
        label=label,
        work="gemm",
        split="heads",
        shape=(batch, m, n, k),
        has_weight=False,
        saved=saved,
        backward_launches=2,
    )


def _chunks(p: Pieces) -> tuple[int, int]:
    """Return (chunks of all sequences, tokens of one)."""
    length = min(CHUNK[p.kind.mixer], p.length)
    return p.sequences * -(-p.length // length), length


def _states(p: Pieces, count: int) -> Operator:
    """Passing states from chunk to chunk: fp32 states of every chunk read and written."""
    m = p.m
    states = 4.0 * count * m.ssm_heads * m.ssm_head_dim * m.ssm_state
    kept = Saved(name="chunk states", bytes=states, region="tensor")
    return _moving("passing of states", states, states, kept, 0)


def _mamba2(p: Pieces) -> list[Operator]:
    m = p.m
    count, length = _chunks(p)
    heads = count * m.ssm_heads
    return [
        _product("chunk products", count * m.ssm_groups, length, length, m.ssm_state),
        _product("chunk states", heads, m.ssm_head_dim, m.ssm_state, length),
        _states(p, count),
        _product("chunk scan", heads, length, m.ssm_head_dim, length + m.ssm_state),
    ]


def _delta(p: Pieces) -> list[Operator]:
    m = p.m
    count, length = _chunks(p)
    heads = count * m.ssm_heads
    transformed = float(p.t * m.ssm_heads * (m.ssm_state + m.ssm_head_dim)) * p.e
    kept = Saved(name="transformed keys and values", bytes=transformed, region="tensor")
    return [
        _product("chunk products", heads, length, length, 2 * m.ssm_state),
        _product("chunk transform", heads, length, m.ssm_state + m.ssm_head_dim, length, (kept,)),
        _product("reading of states", heads, length, m.ssm_head_dim, 2 * m.ssm_state),
        _product("chunk states", heads, m.ssm_state, m.ssm_head_dim, length),
        _states(p, count),
        _product("chunk output", heads, length, m.ssm_head_dim, length),
    ]
