"""An MLP: up (and gate), activation function, down; on a layer's tokens, or on the rows of experts."""

from __future__ import annotations

import contextlib

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Dim, HostWait, Keep, Moves, Tensor

__all__ = ["mlp", "weights_apart"]

_WRITTEN_OUT = {"gelu_new": ((10, 8, 17, 11), (8, 11), 3), "gelu_python": ((6, 5, 14, 10), (5, 10), 2)}
"""Activation functions in plain tensor operations: passes read and written forward and backward, kernels, and results kept beside the
input.  gelu_new, x / 2 (1 + tanh(c (x + a x^3))): half, cube, times a, sum, times c, tanh, one more, product; backward two products,
tanh, times c, times a, the cube's square, times 3 and product, half, and two sums of x's three gradients.  gelu_python, x / 2 (1 +
erf(x / c)): half, quotient, erf, one more, product; backward two products, square, negative, exponential, constant and product of erf,
quotient, half and a sum."""
_WRITTEN_OUT_WIDE = (40.0, 36.0, 70.0, 48.0, 12.0)
"""Bytes of the first, and of what it keeps, under autocast, which widens powers to fp32 and so all that follows."""


def weights_apart(g: LayerBuilder) -> bool:
    """Whether the router's weights scale experts' inner activation in kernels of their own: the fused one is for gates."""
    return g.style.weights_in_experts and not (g.m.gated_mlp and g.style.fused_bias_activation)


def mlp(g: LayerBuilder, name: str, x: Tensor, width: Dim, expert: bool = False, keeps_input: bool = True) -> Tensor:
    """Add an MLP of inner width `width`; return its output.

    Args:
        name: what its operations are called after.
        expert: on the rows of experts, each with weights of its own.
        keeps_input: whether its input is kept for it; not where another operation keeps the same tensor.
    """
    m, style = g.m, g.style
    rows = x.dims[:-1]
    before = "" if name == "mlp" else f"{name} "
    layer = not expert and keeps_input  # the layer's own MLP, not one of its experts
    first = f"{before}{'gate output' if m.gated_mlp else 'activation function input'}"
    made = [g.tensor(first, *rows, width)] + ([g.tensor(f"{before}up output", *rows, width)] if m.gated_mlp else [])
    apart = m.gated_mlp and not _joined(g, expert)
    whole = style.keeps_gathered_inputs and not expert
    grouped = expert and style.expert_loop == "none"  # of these products per-operator recompute keeps none
    # rows that experts got are kept as they came, where putting them in order runs again
    cheap = False if grouped else None
    kept = Keep(tensor=x, name=f"{name} input", element=g.kept, whole=whole, cheap=cheap, sent=grouped)
    gathered = Keep(tensor=x, name=f"{name} input, gathered", element=g.kept, gathered=True) if whole else None
    each = (g.experts,) if expert else ()
    inner = g.linear(
        f"{name} up",
        x,
        tuple(made),
        (g.hidden,),
        keep=kept if keeps_input else gathered,
        bias=m.linear_bias,
        again=tuple(t.name for t in made[0 if grouped else 1 :]),
        kernels=(1, 1) if apart else (),
        each=each,
        role="mlp_up" if layer else "",
        parts=("gate", "up") if m.gated_mlp else ("up",),
    )
    with g.module("moe_act") if expert else contextlib.nullcontext():
        inner = _clamps(g, name, inner, expert)
        down_in = _activation(g, before, inner, expert)
        if expert and weights_apart(g):
            down_in = _weighted(g, down_in)
    out = g.tensor(f"{name} down output", *rows, g.hidden)
    # the seventh product of a layer, so one of those whose output is kept
    idle = (Keep(tensor=out, idle=True),) if m.gated_mlp and style.keeps_idle_products and not expert else ()
    return g.linear(
        f"{name} down",
        down_in,
        (out,),
        (width,),
        keep=Keep(tensor=down_in, name=f"{name} down input", element=g.kept, cheap=True),
        more_keeps=idle,
        bias=m.linear_bias,
        again=(out.name,) if grouped else (),
        each=each,
        role="mlp_down" if layer else "",
        parts=("down",),
    )[0]


def _joined(g: LayerBuilder, expert: bool) -> bool:
    """Whether gate and up projection are one product."""
    return g.style.joined_expert_gate if expert else g.style.joined_gate


def _clamps(g: LayerBuilder, name: str, given: tuple[Tensor, ...], expert: bool) -> tuple[Tensor, ...]:
    """The clamps of both inputs of a gate, where they are kernels of their own.

    Megatron-Core (fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl) clamps and joins in plain tensor operations,
    then makes a number on the GPU, for which the host waits.  Of both inputs together, per element of one:

        forward   two clamps, joining                       reads 4 e        writes 4 e
        backward  parting; masks of one and of two limits,
                  two choices by mask                       reads 7 e + 4    writes 4 e + 4
    """
    style, e = g.style, g.e
    if not g.m.clamped_gate or (style.fused_bias_activation and not style.weights_in_experts):
        return given
    dims = given[0].dims
    out = tuple(g.tensor(f"{t.name}, clamped", *t.dims) for t in given)
    both = given[0].view(Dim("gate_and_up", 2), *dims)
    g.kernel(
        f"{name} clamp",
        given,
        out,
        Moves(dims=dims, read=4 * e, written=4 * e, backward_read=7 * e + 4, backward_written=4 * e + 4),
        keeps=(Keep(tensor=both, name=f"{name} gate clamped", cheap=True),),
        again=(out[1].name,),
        absorbed="grouped" if expert else "",
        access="stream",
        launches=3,
        backward_launches=7,
    )
    if style.weights_in_experts:
        absorbed = "grouped" if expert else ""
        g.add(
            HostWait(label=f"{name} gate offset", inputs=out[1:], outputs=(), read=e, dims=g.tokens, absorbed=absorbed)
        )
    return out


def _activation(g: LayerBuilder, before: str, given: tuple[Tensor, ...], expert: bool) -> Tensor:
    """The activation function, or the gate.

    A gate in plain tensor operations, in passes over one half of its input: the function 1, 1 and the product 2, 1 forward;
    backward the product's two gradients 4, 2 and the function's 2, 1, and joining the halves 2, 2 where they are one tensor.
    Biases are added before, 2 and 2 for both halves; their gradient is summed by the linear layer.
    """
    m, style, e = g.m, g.style, g.e
    fused = style.fused_bias_activation and not (m.gated_mlp and style.plain_gate)
    passes = 1 if fused or not m.gated_mlp else 2  # the bias is added by the product (cublasLt's epilogue)
    halves = len(given)
    traffic = [halves * passes, passes, (halves + 1) * passes, halves * passes]
    plain, access = m.gated_mlp and passes > 1, ""  # an error function takes longer than its bytes
    if plain:
        joined, biases = 2 if _joined(g, expert) else 0, 2 if m.linear_bias else 0
        traffic = [3 + biases, 2 + biases, 6 + joined, 3 + joined]
        access = "strided" if joined else "stream"
    kernels, kept, moved = (passes, passes), 0.0, [e * n for n in traffic]
    if m.activation and not fused:
        units, kernels, more = _WRITTEN_OUT[m.activation]
        moved, kept, access = [e * n for n in units], e * more, "stream"
        if style.autocast and m.activation == "gelu_new":
            *moved, kept = _WRITTEN_OUT_WIDE
    keeps_gate = plain or (m.gated_mlp and style.keeps_inner_results)
    read, written, back_read, back_written = moved
    if keeps_gate and not plain:  # in passing
        written, back_read = written + e, back_read + e
    dims = given[0].dims
    names = ("gate output", "up output") if m.gated_mlp else ("activation function input",)
    inner = []
    if expert and weights_apart(g):
        inner.append(g.tensor(f"{before}output unweighted", *dims))
    if keeps_gate:
        inner.append(g.tensor(f"{before}silu output", *dims))
    if kept:
        inner.append(g.tensor(f"{before}parts of the activation function", *dims, element=kept))
    out = g.tensor(f"{before}down input", *dims)
    stays = _narrowed(g, before, given, expert) if style.narrow_gate_input else given
    return g.kernel(
        f"{before}{'swiglu' if m.gated_mlp else 'gelu'}",
        given,
        (out, *inner),
        Moves(dims=dims, read=read, written=written, backward_read=back_read, backward_written=back_written),
        keeps=(
            *(Keep(tensor=t, name=f"{before}{name}") for t, name in zip(stays, names, strict=True)),
            *(Keep(tensor=t) for t in inner),
        ),
        again=tuple(t.name for t in (out, *inner)),
        absorbed="grouped" if expert else "",
        access=access,
        launches=kernels[0],
        backward_launches=kernels[1],
    )


def _narrowed(g: LayerBuilder, before: str, given: tuple[Tensor, ...], expert: bool) -> tuple[Tensor, ...]:
    """The inputs of a gate in 8 bits, which are made for its backward pass alone and widened there (Megatron-Core,
    fusions/fused_bias_swiglu.py: fp8_input_store)."""
    n, e = float(len(given)), g.e
    out = tuple(g.tensor(f"{t.name} in 8 bits", *t.dims, element=1.0) for t in given)
    moved = Moves(dims=given[0].dims, read=n * e, written=n, backward_read=n, backward_written=n * e)
    g.kernel(
        f"{before}gate input in 8 bits",
        given,
        out,
        moved,
        again=tuple(t.name for t in out),
        absorbed="grouped" if expert else "",
        access="stream",
    )
    return out


def _weighted(g: LayerBuilder, x: Tensor) -> Tensor:
    """Behind the activation function of experts the router's weights, where no kernel applies both (Megatron-Core,
    TEGroupedMLP.bias_act_func): they are in fp32, so the product is too and is cast back, for n values of e bytes:

        forward   product, cast                                   reads (e + 4) n       writes (e + 4) n
        backward  cast, product and cast for the activation,
                  product and sum for the weights                 reads (2 e + 16) n    writes (e + 12) n
    """
    e = g.e
    moved = Moves(dims=x.dims, read=e + 4, written=e + 4, backward_read=2 * e + 16, backward_written=e + 12)
    out = g.tensor(f"{x.name}, weighted", *x.dims)
    return g.kernel(
        "expert weighted activation",
        (x,),
        (out,),
        moved,
        absorbed="grouped",
        access="stream",
        launches=2,
        backward_launches=5,
    )
