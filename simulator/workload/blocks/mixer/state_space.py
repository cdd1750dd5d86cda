"""Layers that carry a state along the sequence in place of attention, chunk by chunk: what Mamba-2 and the gated delta rule share.

With inner width d = H P (H heads of P), state n, g groups, chunks of Q tokens, T tokens in B sequences:

    norm - in [h -> 2 d + 2 g n + H (2 H)] - convolution of d + 2 g n channels - scan - gated norm - out [d -> h] - residual

Between p ranks that share sequences each has all tokens of H / p heads from before the convolution to behind the scan, as many numbers as
T / p tokens of all heads are: gate, channels, keys, queries and steps go there in an all_to_all each, the result comes back in one.
Around them are copies (parts of a tensor put behind each other, results joined, the order of tokens made plain and made the one of balanced
attention again): three passes on the way there, two on the way back, backward as many.
Source: NVIDIA/Megatron-LM at 00caa53a, megatron/core/ssm/mamba_context_parallel.py (pre_conv_ssm, post_conv_ssm) and mamba_mixer.py.

All heads see groups of keys and queries as their own; the order of chunks, in which the delta rule's states follow each other, costs
nothing here beside its products.
"""

from __future__ import annotations

import abc

from simulator.workload.blocks.mixer.base import Mixer
from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, HeadSwap, Keep, Moves, Tensor
from simulator.workload.model import Model

__all__ = ["StateSpace", "moving", "pass_states"]


class StateSpace(Mixer):
    """A mixer that scans the sequence in chunks."""

    state = True
    chunk: int
    """Tokens of a chunk."""
    per_head: int
    """Numbers per head that the first product makes beside channels and gate: step sizes, rates."""
    constants: int
    """Learned numbers per head."""
    bias: bool
    """Whether the convolution has one."""
    shares_norm: bool
    """Whether all heads share the weights of the norm behind the scan."""
    remakes_channels: bool
    """Whether the backward convolves again, so that nobody keeps the convolved channels."""

    @abc.abstractmethod
    def products(self, model: Model, length: int) -> float:
        """Return the multiplications of the scan per token, all of a chunk's square counted.

        Args:
            length: tokens per sequence.
        """

    @abc.abstractmethod
    def scan(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """Add the scan; return its output.

        Args:
            x: the convolved channels.
        """

    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """See `Mixer.build`."""
        m, tokens = g.m, g.tokens
        wide = Dim("state_channels", m.ssm_convolved + m.ssm_inner + m.ssm_heads * self.per_head)
        convolved, inner = Dim("convolved", m.ssm_convolved), Dim("state_inner", m.ssm_inner)
        projected = g.tensor("state space projections", *tokens, wide)
        given = Keep(tensor=x, name="state space input", element=g.kept, whole=g.style.keeps_gathered_inputs)
        g.linear("state space in", x, (projected,), (g.hidden,), keep=given, bias=False)
        if g.peers > 1:
            keys = m.ssm_groups * m.ssm_state
            widths = (m.ssm_inner, m.ssm_convolved - 2 * keys, keys, keys, m.ssm_heads * self.per_head)
            projected = _swapped(g, projected, widths, passes=3)
        channels = g.tensor("convolved channels", *tokens, convolved)
        constants = Dim("state_channels", m.ssm_convolved * (m.conv_width + self.bias) + m.ssm_heads * self.constants)
        kept = Keep(tensor=projected)
        moving(
            g, "convolution", (projected,), channels, kept, constants, channels.dims, 1, remade=self.remakes_channels
        )
        scanned = self.scan(g, channels)
        if g.peers > 1:
            scanned = _swapped(g, scanned.view(*tokens, inner), (m.ssm_inner,), passes=2)
        gated = g.tensor("gated state space output", *tokens, inner)
        kept = Keep(tensor=scanned.view(*tokens, inner), name="scan output")
        scale = Dim("state_head_dim", m.ssm_head_dim) if self.shares_norm else inner
        moving(g, "gated norm", (scanned, projected), gated, kept, scale, gated.dims, 2)
        out = g.tensor("state space out output", *tokens, g.hidden)
        kept = Keep(tensor=gated, name="state space output", element=g.kept, cheap=False)
        return g.linear("state space out", gated, (out,), (inner,), keep=kept, bias=False)[0]

    def chunks(self, g: LayerBuilder) -> tuple[Dim, Dim]:
        """Return (chunks of all sequences, tokens of one)."""
        length = min(self.chunk, g.sequence.size)
        return Dim("chunks", g.batch.size * -(-g.sequence.size // length)), Dim("chunk", length)


def _swapped(g: LayerBuilder, x: Tensor, widths: tuple[int, ...], passes: int) -> Tensor:
    """Add the exchanges of heads for tokens, or back; return what comes of them.

    Args:
        widths: numbers per token that go in an exchange each.
        passes: over all of them, to copy them.
    """
    e, out = g.e, g.tensor(f"{x.name} of other tokens", *x.dims)
    g.add(
        HeadSwap(
            label=f"{x.name} swapped",
            inputs=(x,),
            outputs=(out,),
            moves=(Moves.copies(x.dims, passes * e, passes * e),),
            access="stream",
            launches=len(widths) + passes - 1,
            backward_launches=len(widths) + passes - 1,
            parts=tuple(width / sum(widths) for width in widths),
        )
    )
    return out


def pass_states(g: LayerBuilder, states: Tensor) -> Tensor:
    """Add the passing of states from chunk to chunk: fp32 states of every chunk read and written, and again in the backward."""
    out = g.tensor("passed states", *states.dims, element=4.0)
    moving(g, "passing of states", (states,), out, None, None, states.dims, 1, 4.0, remade=True)
    return out


def moving(
    g: LayerBuilder,
    label: str,
    inputs: tuple[Tensor, ...],
    out: Tensor,
    keep: Keep | None,
    weights: Dim | None,
    dims: tuple[Dim, ...],
    reads: int,
    element: float = 0.0,
    remade: bool = False,
) -> None:
    """Add a kernel that reads so many tensors and writes one, backward all of them and the inputs' gradients.

    Args:
        keep: what it keeps.
        weights: what it owns of the model.
        dims: of which it reads so many and writes one [elements].
        element: bytes of an element; 0 = the precision's.
        remade: whether the backward runs it again.
    """
    e = element or g.e
    g.kernel(
        label,
        inputs,
        (out,),
        Moves(dims=dims, read=reads * e, written=e, backward_read=(reads + 1) * e, backward_written=reads * e),
        weights=(g.weight(f"{label} weights", weights, role="vector"),) if weights else (),
        keeps=(keep,) if keep else (),
        again=() if remade else (out.name,),
        remade=remade,
        backward_launches=2,
    )
