"""Rows of products: with a weight (a forward product and its two gradients), or of two activations.

Under tensor parallelism (Shoeybi et al., arXiv 1909.08053) a product divided by columns needs its input gradient summed, one divided by
rows its output; with sequence parallelism (Korthikanti et al., arXiv 2205.05198) these all_reduces become reduce_scatter and all_gather.
Which it is the layout says (`division.py`), and whether operands come as a whole or in panels (`panels.py`).
"""

from __future__ import annotations

import math

from simulator.lowering.layers.attention import exchange_keys, heads_held
from simulator.lowering.layers.casts import TRANSPOSED, add_casts
from simulator.lowering.layers.division import Division, Hops
from simulator.lowering.layers.gradients import accumulate
from simulator.lowering.layers.joins import sum_input_gradients
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.overlapped_gemm import write_in_pieces
from simulator.lowering.layers.panels import in_panels, input_gradient_panels, product_panels, weight_gradient_panels
from simulator.lowering.layers.ring_scores import goes_round, round_backward, round_forward
from simulator.lowering.layers.rows import fetch
from simulator.lowering.layers.writer import Writer
from simulator.units import BYTES_PER_ELEMENT, FP32
from simulator.workload.blocks.experts import LAUNCHES_PER_EXPERT
from simulator.workload.graph import Convolution, Product
from simulator.workload.operator import Operator

__all__ = ["product_backward", "product_forward"]


def product_forward(w: Writer, op: Product) -> None:
    """Write a product, what brings its input together and what sums its output."""
    ctx, o = w.ctx, w.o
    d = ctx.division(o)
    _fetch(w, op, d)
    if goes_round(ctx, o, op):
        round_forward(w, op, d.shape)
        return
    whole = op.adapted and bool(d.around.gathers)
    piecewise = _piecewise(ctx, op, d) and not whole
    gathered, scattered = _gathered(ctx, o, op, o.shape[3], whole), o.shape[1] * o.shape[2] * ctx.e
    panels = in_panels(ctx, d)
    if not piecewise and not panels:
        for _ in d.widths if ctx.style.gathers_by_product else d.widths[:1]:
            w.move(o.label, d.around.gathers, gathered)
    b, m, _, k = d.shape
    narrow = o.has_weight and op.quantised
    if narrow:
        # a norm stands before a product divided by columns (LayerNormLinear of Transformer Engine)
        norm = d.around.columns and not d.around.experts and not whole
        narrowed = () if whole else d.around.gathers
        _quantise(w, o.label, op, d, float(b * m * k), narrowed, after_norm=norm)
    _widen(w, op, d)
    if ctx.style.autocast and o.has_weight and not op.frozen:
        _cast_weights(w, d)
    if piecewise:
        before, after = gathered if d.around.gathers else 0.0, scattered if d.around.sums else 0.0
        write_in_pieces(w, o.label, d.shape, "TN", before, after, narrow=narrow)
        return
    order = "TN" if o.has_weight or op.makes_scores else "NN"
    launches = _launches(ctx, op, b) if d.around.experts else o.launches
    if panels:
        row = product_panels(w, d, gathered, order, narrow)
    for i, width in enumerate(() if panels else d.widths):
        w.move(f"{o.label} weight", d.around.weights, _matrix(ctx, o, op, i))
        each = (b, m, width, k)
        row = w.product(o.label, each, order, launches=launches, narrow=narrow, windows=_windows(op))
    if op.makes_scores:
        exchange_keys(w, heads_held(ctx, o, op.inputs[1].dims), o.shape[3], row)
    w.move(o.label, d.around.sums, scattered)
    if op.gathers and d.around.columns and ctx.tensor > 1:
        w.collective(f"{o.label} output", "all_gather", scattered)


def product_backward(w: Writer, op: Product) -> None:
    """Write the gradients of a product."""
    ctx, o = w.ctx, w.o
    if o.has_weight:
        _linear_backward(w, op)
        return
    b, m, n, k = shape = ctx.division(o).shape
    if goes_round(ctx, o, op):
        round_backward(w, op, shape)
        return
    launches = max(1, o.backward_launches // 2)
    if not op.fixed:
        order = "NN" if op.makes_scores else "TN"
        row = w.product(f"{o.label} gradient", (b, m, k, n), order, launches=launches)
    if op.makes_scores:
        exchange_keys(w, heads_held(ctx, o, op.inputs[1].dims), o.shape[3], row)
    w.product(f"{o.label} gradient", (b, k, n, m), "NT", launches=launches)


def _fetch(w: Writer, op: Product, d: Division) -> None:
    """Have the hooks of a product's modules run: one module per weight, and per expert.

    Weights of experts are small enough to be gathered several together, and gradients to be scattered so: each is then put together from
    every rank's part, and cut into such, in a loop (DeepSpeed, AllGatherCoalescedHandle.wait and reduce_scatter_coalesced).
    """
    o = w.o
    if w.ctx.fetches and o.has_weight:
        modules = len(o.widths) * (d.shape[0] if d.around.experts else 1)
        passes = 0 if not op.looped else 2 if w.backward else 1
        fetch(w.rows, o.label, modules, w.phase, passes * modules * w.ctx.fetches)


def _launches(ctx: LayerContext, op: Product, experts: int) -> int:
    """What the host starts for one product of each of some experts: in a loop each is an operator of its own, else one of a group."""
    return experts if op.looped else 1 if ctx.style.grouped_kernel else experts * LAUNCHES_PER_EXPERT


def _piecewise(ctx: LayerContext, op: Product, d: Division) -> bool:
    """Whether a product is cut in pieces, beside which its collectives run: those of Transformer Engine's modules, which quantise."""
    return ctx.splits > 1 and bool(d.around.gathers or d.around.sums) and op.quantised


def _element_gathered(ctx: LayerContext, op: Product) -> float:
    """Bytes of an element of a product's operand as it is gathered: quantised first where it is in 8 bits
    (Transformer Engine, distributed.py: gather_along_first_dim of quantised tensors)."""
    narrow = op.quantised and BYTES_PER_ELEMENT[ctx.precision.gemm] == 1 and ctx.precision.gathers_narrow
    return ctx.precision.quantised_element if narrow else ctx.e


def _matrix(ctx: LayerContext, o: Operator, op: Product, i: int) -> float:
    """Bytes of the i-th weight as it is gathered."""
    return o.shape[3] * o.widths[i] * _element_gathered(ctx, op)


def _gathered(ctx: LayerContext, o: Operator, op: Product, width: int, wide: bool = False) -> float:
    """Bytes of all rows of `width` values as a product's operand is gathered, in 16 bits where something else reads it `wide`."""
    return o.shape[1] * width * (ctx.e if wide else _element_gathered(ctx, op))


def _quantise(
    w: Writer, label: str, op: Product, d: Division, elements: float, gathers: Hops, after_norm: bool = False
) -> None:
    """Make narrow copies of a product's operand, where no kernel that runs anyway does it; before what gathers it.

    Fused products of experts make those of what lies between them: the second's input, and the gradient of the first's output.
    """
    ctx = w.ctx
    between = d.around.columns if w.backward else d.around.rows
    if not (ctx.style.fuses_experts and d.around.experts and between):
        shards = math.prod(hop.ranks for hop in gathers) if ctx.precision.gathers_narrow else 1
        experts = d.shape[0] if d.around.experts else 1
        add_casts(
            w.rows,
            label,
            elements,
            ctx.precision,
            after_norm,
            shards,
            ctx.style.casts_apart,
            experts,
            across=not op.frozen,
            phase=w.phase,
        )


def _linear_backward(w: Writer, op: Product) -> None:
    """Input gradient (NN), weight gradient (NT, added into the gradient buffer), bias gradient; of each product."""
    ctx, o = w.ctx, w.o
    d = ctx.division(o)
    _fetch(w, op, d)
    _widen(w, op, d)
    _transpose(w, op, d)
    b, m, _, k = d.shape
    piecewise = _piecewise(ctx, op, d) and bool(d.around.gathers_back)
    panels, around = in_panels(ctx, d), d.around
    if not piecewise:
        w.move(o.label, around.gathers_back, _gathered(ctx, o, op, o.shape[2]))
    wide = o.shape[1] * o.shape[3] * ctx.e
    if panels:
        _gradient_panels(w, op)
    for i, width in enumerate(() if panels else d.widths):
        w.move(f"{o.label} weight", _again(ctx, around.weights), _matrix(ctx, o, op, i))
        each = (b, m, width, k)
        wgrad = _gradients(w, op, each, i, piecewise)
        if _sums_apart(ctx, around.sums_back) or i + 1 == len(o.widths):
            w.move(o.label, around.sums_back, wide, beside=wgrad)
    if not panels:
        sum_input_gradients(w, wide / _divided(ctx, d))
    if o.backward_read:
        w.moves(
            f"{o.label} bias gradient",
            o.backward_read / _bias_share(ctx, op, d),
            0.0,
            launches=2 * (d.shape[0] if op.looped else 1),
            part="weight",
        )


def _sums_apart(ctx: LayerContext, sums: Hops) -> bool:
    """Whether each product has the gradient of what all of them read summed over ranks by itself, not their sum once."""
    whole = any(hop.collective != "reduce_scatter" for hop in sums)
    return ctx.style.gathers_by_product or (whole and ctx.style.sums_by_product)


def _again(ctx: LayerContext, gathers: Hops) -> Hops:
    """What of a product's operands is gathered again for its gradients."""
    return () if ctx.layout.keeps_gathered else gathers


def _divided(ctx: LayerContext, d: Division) -> int:
    """How many ways the gradient of a product's left operand is divided where several are added: as it comes out of the product, along
    axes that are its own, or scattered."""
    sums = d.around.sums_back
    scattered = [h.ranks for h in sums if ctx.style.gathers_by_product and h.collective == "reduce_scatter"]
    return math.prod([hop.ways for hop in sums[:1]] + scattered)


def _gradient_panels(w: Writer, op: Product) -> None:
    """Both gradients by panels, and what adds those of the weights into their buffer."""
    ctx, o = w.ctx, w.o
    d = ctx.division(o)
    b, m, n, _ = d.shape
    narrow = op.quantised
    if narrow:
        _quantise(w, f"{o.label} output gradient", op, d, float(b * m * n), d.around.gathers_back)
    input_gradient_panels(w, d, _gathered(ctx, o, op, o.shape[3]), narrow)
    if op.frozen:
        return
    weight_gradient_panels(w, d, _gathered(ctx, o, op, o.shape[3]), narrow)
    accumulate(w, o.label, float(b * n * d.shape[3]), ctx.e, d.around.scatters)


def _bias_share(ctx: LayerContext, op: Product, d: Division) -> float:
    """How many ways the output gradient that a bias gradient sums is divided."""
    if d.around.experts or len(ctx.layout.tensor) > 1:
        return ctx.ways(op.outputs[0].dims)
    return ctx.tensor if d.around.columns else 1


def _gradients(w: Writer, op: Product, shape: tuple[int, int, int, int], place: int, piecewise: bool) -> int:
    """Write both gradients of one of an operation's products, the first as its inputs arrive; returns the second's row.

    Args:
        place: number of the product; the first gathers what all read.
    """
    ctx, o = w.ctx, w.o
    b, m, n, k = shape
    d, narrow = ctx.division(o), op.quantised
    launches = _launches(ctx, op, b) if d.around.experts else 1
    if narrow:
        label = f"{o.label} output gradient"
        _quantise(w, label, op, d, float(b * m * n), d.around.gathers_back)
    name, dgrad = f"{o.label} input gradient", -1
    if piecewise:
        gathered = _gathered(ctx, o, op, o.shape[2])
        write_in_pieces(w, name, (b, m, k, n), "NN", gathered, 0.0, narrow=narrow)
    elif not op.fixed:
        into, windows = _into_input(op, shape)
        dgrad = w.product(name, into, "NN", narrow=narrow, launches=launches, windows=windows)
    if narrow:
        _rescale(w, name, float(b * m * k), "input")
    if op.frozen:
        return dgrad
    if place == 0 and not ctx.style.keeps_gathered_inputs:
        again = _gathered(ctx, o, op, o.shape[3])
        w.move(f"{o.label} input", _again(ctx, d.around.gathers), again, beside=dgrad)
    fused = ctx.style.fused_wgrad_accumulation and not d.around.scatters
    wgrad = w.product(
        f"{o.label} weight gradient",
        (b, n, k, m),
        "NT",
        part="weight",
        accumulates=fused,
        narrow=narrow,
        launches=launches,
        windows=_windows(op),
    )
    if narrow:
        _rescale(w, f"{o.label} weight gradient", float(b * n * k), "weight")
    w.move(f"{o.label} weight gradient", d.around.scatters, o.shape[3] * o.widths[place] * ctx.e, part="weight")
    if op.looped and ctx.style.expert_loop == "slices":
        _slice_gradients(w, (b, n, k))
    if not fused:
        accumulate(w, o.label, float(b * n * k), ctx.e, d.around.scatters)
    return wgrad


def _windows(op: Product) -> tuple[float, float] | None:
    """`shared` and `saved` of a convolution (see `calls.Convolved`); of one that reads every number once nothing: it is a product."""
    return (op.shared, op.saved) if isinstance(op, Convolution) and op.shared != 1.0 else None


def _into_input(
    op: Product, shape: tuple[int, int, int, int]
) -> tuple[tuple[int, int, int, int], tuple[float, float] | None]:
    """The shape of an input gradient, and its windows: of the output's gradient, of which each number stands in as many as there are taps.

    Of a convolution rows are positions of the input and columns its channels; the depth are the outputs that read a position, of which
    none with a stride wider than the window (Dumoulin and Visin, arXiv 1603.07285, chapter 4).
    """
    b, m, n, k = shape
    if not isinstance(op, Convolution):
        return (b, m, k, n), None
    read, windows = max(1.0, op.shared), (float(op.taps), op.saved) if op.taps > 1 else None
    return (b, round(m * op.taps / read), k // op.taps, round(n * read)), windows


def _slice_gradients(w: Writer, shape: tuple[int, int, int]) -> None:
    """Make the gradient of all experts' tensor out of each one's: zeros of the whole, the slice copied in, the sum with the others'."""
    experts, n, k = shape
    one = w.ctx.e * float(n * k)
    w.moves(
        f"{w.o.label} gradients of slices",
        (2 * experts + 1) * experts * one,
        (2 * experts + 1) * experts * one,
        launches=3 * experts,
        part="weight",
    )


def _cast_weights(w: Writer, d: Division) -> None:
    """Copy fp32 weights into the format of the product: once per forward pass, which autocast keeps for the backward pass."""
    b, _, _, k = d.shape
    elements = float(b * sum(d.widths) * k)
    w.moves(f"{w.o.label} weight cast", FP32 * elements, w.ctx.e * elements, launches=len(d.widths))


def _widen(w: Writer, op: Product, d: Division) -> None:
    """Make weights that stand in 4 bits as wide as the product needs them (bitsandbytes' dequantize_4bit, before each product)."""
    if not op.matrices or op.matrices[0].element >= 1.0:
        return
    b, _, _, k = d.shape
    elements = float(b * sum(d.widths) * k)
    w.moves(
        f"{w.o.label} weight widened", op.matrices[0].element * elements, w.ctx.e * elements, launches=len(d.widths)
    )


def _transpose(w: Writer, op: Product, d: Division) -> None:
    """Make the copy of weights in 8 bits that the gradient of the input reads, where products take one layout only; nobody keeps it.

    NVIDIA/TransformerEngine 1.6 to 1.13, pytorch/module/linear.py: transpose_2d, of which Megatron-Core's
    disable_parameter_transpose_cache lets nothing stand.
    """
    if not (op.frozen and op.quantised and w.ctx.precision.copies_alike and op.matrices[0].element == 1.0):
        return
    b, _, _, k = d.shape
    size = float(b * sum(d.widths) * k)
    w.moves(f"{w.o.label} weight transposed", size, size, call=TRANSPOSED)


def _rescale(w: Writer, label: str, elements: float, part: str) -> None:
    """Multiply a product by the scales of its rows and columns, where it is made without them."""
    if w.ctx.precision.rescales:
        moved = w.ctx.e * elements
        w.moves(f"{label} rescaled", moved, moved, part=part)
