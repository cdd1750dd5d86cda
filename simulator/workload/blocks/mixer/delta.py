"""The gated delta rule: linear attention that replaces what a key held before.

K K' and Q K' [Q, Q, 2 n];  transformed keys and values [Q, n + P, Q];  with the state [Q, P, 2 n];
the state itself [n, P, Q];  output [Q, P, Q], per value head
"""

from __future__ import annotations

from simulator.workload.blocks.mixer.state_space import StateSpace, pass_states
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
    bias, shares_norm = False, True

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
        g.product(
            "chunk products", (x.view(chunks, heads, chunk, twice), x.view(chunks, heads, earlier, twice)), inside
        )
        changed = g.tensor("transformed keys and values", chunks, heads, chunk, both)
        kept = Keep(tensor=changed.view(*g.tokens, heads, both))
        g.product("chunk transform", (inside, x.view(chunks, heads, earlier, both)), changed, kept)
        read = g.tensor("what the state held", chunks, heads, chunk, width)
        left, right = x.view(chunks, heads, chunk, twice), changed.view(chunks, heads, twice, width)
        g.product("reading of states", (left, right), read)
        states = g.tensor("states of chunks", chunks, heads, state, width)
        left, right = changed.view(chunks, heads, chunk, state), changed.view(chunks, heads, chunk, width)
        g.product("chunk states", (left, right), states)
        passed = pass_states(g, states)
        out = g.tensor("scan output", chunks, heads, chunk, width)
        return g.product("chunk output", (inside, changed.view(chunks, heads, earlier, width), passed, read), out)
