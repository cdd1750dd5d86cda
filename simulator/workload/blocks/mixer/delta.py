"""The gated delta rule: linear attention that replaces what a key held before.

K K' and Q K' [Q, Q, 2 n];  transformed keys and values [Q, n + P, Q];  with the state [Q, P, 2 n];
the state itself [n, P, Q];  output [Q, P, Q], per value head

Normed queries and keys, values, of as many heads all of them, and the chunks' products are kept; the backward makes all else again
(fla/ops/gated_delta_rule/chunk.py at bc3b101d: l2norm_fwd; recompute_w_u_fwd and chunk_gated_delta_rule_fwd_h).
"""

from __future__ import annotations

from simulator.workload.blocks.mixer.state_space import StateSpace, moving, pass_states
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Keep, Tensor
from simulator.workload.model import Model

__all__ = ["Delta"]


class Delta(StateSpace):
    """Gated delta rule."""

    name = "delta"
    source = "Yang et al. 2024, arXiv 2412.06464, section 3.3; chunks as in flash-linear-attention"
    chunk = 64
    per_head, constants = 2, 2
    bias, shares_norm, remakes_channels = False, True, False

    def products(self, model: Model, length: int) -> float:
        """See `StateSpace.products`."""
        inside = min(self.chunk, length) * model.ssm_heads * (3 * model.ssm_state + 2 * model.ssm_head_dim)
        return float(inside + 3 * model.ssm_inner * model.ssm_state)

    def scan(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `StateSpace.scan`."""
        m = g.m
        chunks, chunk = self.chunks(g)
        earlier, heads = Dim("earlier", chunk.size), Dim("state_heads", m.ssm_heads)
        state, width = Dim("state", m.ssm_state), Dim("state_head_dim", m.ssm_head_dim)
        twice, both = (
            Dim("state_of_keys_and_queries", 2 * m.ssm_state),
            Dim("keys_and_values", m.ssm_state + m.ssm_head_dim),
        )
        inside = g.tensor("chunk products", chunks, heads, chunk, earlier)
        normed = g.tensor("normed queries and keys", *g.tokens, heads, twice)
        moving(g, "norm of queries and keys", (x,), normed, None, None, normed.dims, 1)
        kept = [normed, x.view(*g.tokens, heads, width), inside.view(*g.tokens, heads, earlier)]
        left, right = normed.view(chunks, heads, chunk, twice), normed.view(chunks, heads, earlier, twice)
        g.product("chunk products", (left, right), inside, *(Keep(tensor=tensor) for tensor in kept))
        changed = g.tensor("transformed keys and values", chunks, heads, chunk, both)
        right = x.view(chunks, heads, earlier, both)
        g.product("chunk transform", (inside, right, normed), changed, remade=True)
        read = g.tensor("what the state held", chunks, heads, chunk, width)
        left, right = normed.view(chunks, heads, chunk, twice), changed.view(chunks, heads, twice, width)
        g.product("reading of states", (left, right), read, remade=True)
        states = g.tensor("states of chunks", chunks, heads, state, width)
        left, right = changed.view(chunks, heads, chunk, state), changed.view(chunks, heads, chunk, width)
        g.product("chunk states", (left, right), states, remade=True)
        passed = pass_states(g, states)
        out = g.tensor("scan output", chunks, heads, chunk, width)
        return g.product("chunk output", (inside, changed.view(chunks, heads, earlier, width), passed, read), out)
