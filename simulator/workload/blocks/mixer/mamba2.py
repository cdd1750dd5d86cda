"""Mamba-2: a state-space layer whose scan is matrix products inside chunks.

C B' in chunks [Q, Q, n] per group;  states B' X [n, P, Q], passed on from chunk to chunk;
output (masked C B') X and C state [Q, P, Q + n], per head

What goes into the convolution and what comes out of the scan is kept; the backward makes the convolved channels, C B' and the states
again (mamba_ssm/ops/triton/ssd_combined.py at e9594ce1, MambaSplitConv1dScanCombinedFn and _mamba_chunk_scan_combined_bwd, which also
forms the output's gradient times X twice; that is counted once here).
"""

from __future__ import annotations

from simulator.workload.blocks.mixer.state_space import StateSpace, pass_states
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, Tensor
from simulator.workload.model import Model

__all__ = ["Mamba2"]


class Mamba2(StateSpace):
    """State-space duality."""

    name = "mamba2"
    source = "Dao & Gu 2024, arXiv 2405.21060, section 6; chunks as in mamba_ssm (chunk_size)"
    chunk = 256
    per_head, constants = 1, 3
    bias, shares_norm, remakes_channels = True, False, True

    def products(self, model: Model, length: int) -> float:
        """See `StateSpace.products`."""
        inside = min(self.chunk, length) * (model.ssm_groups * model.ssm_state + model.ssm_inner)
        return float(inside + 2 * model.ssm_inner * model.ssm_state)

    def scan(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `StateSpace.scan`."""
        m = g.m
        chunks, chunk = self.chunks(g)
        earlier = Dim("earlier", chunk.size)
        groups, heads = Dim("state_groups", m.ssm_groups), Dim("state_heads", m.ssm_heads)
        state, width = Dim("state", m.ssm_state), Dim("state_head_dim", m.ssm_head_dim)
        both = Dim("earlier_and_state", chunk.size + m.ssm_state)
        inside = g.tensor("chunk products", chunks, groups, chunk, earlier)
        left, right = x.view(chunks, groups, chunk, state), x.view(chunks, groups, earlier, state)
        g.product("chunk products", (left, right), inside, remade=True)
        states = g.tensor("states of chunks", chunks, heads, width, state)
        left, right = x.view(chunks, heads, chunk, width), x.view(chunks, heads, chunk, state)
        g.product("chunk states", (left, right), states, remade=True)
        passed = pass_states(g, states)
        out = g.tensor("scan output", chunks, heads, chunk, width)
        left, right = inside.view(chunks, heads, chunk, both), passed.view(chunks, heads, both, width)
        return g.product("chunk scan", (left, right, x), out)
