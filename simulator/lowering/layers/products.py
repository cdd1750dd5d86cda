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
from simulator.lowering.layers.rows import Rows, fetch
from simulator.units import BYTES_PER_ELEMENT, FP32
from simulator.workload.blocks.experts import LAUNCHES_PER_EXPERT
from simulator.workload.graph import Convolution, Product
from simulator.workload.operator import Operator

__all__ = ["product_backward", "product_forward"]


def product_forward(ctx: LayerContext, rows: Rows, o: Operator, op: Product, phase: str) -> None:
    """Write a product, what brings its input together and what sums its output."""
    d = ctx.division(o)
    _fetch(ctx, rows, o, op, d, phase)
    if goes_round(ctx, o, op):
        round_forward(ctx, rows, o, op, d.shape, phase)
        return
    whole = op.adapted and bool(d.around.gathers)
    piecewise = _piecewise(ctx, op, d) and not whole
    gathered, scattered = _gathered(ctx, o, op, o.shape[3], whole), o.shape[1] * o.shape[2] * ctx.e
    panels = in_panels(ctx, d)
    if not piecewise and not panels:
        for _ in d.widths if ctx.style.gathers_by_product else d.widths[:1]:
            ctx.move(rows, d.around.gathers, gathered, phase, o.label)
    b, m, _, k = d.shape
    narrow = o.has_weight and op.quantised
    if narrow:
        # a norm stands before a product divided by columns (LayerNormLinear of Transformer Engine)
        norm = d.around.columns and not d.around.experts and not whole
        narrowed = () if whole else d.around.gathers
        _quantise(ctx, rows, o.label, op, d, float(b * m * k), phase, narrowed, after_norm=norm)
    _widen(ctx, rows, o, op, d, phase)
    if ctx.style.autocast and o.has_weight and not op.frozen:
        _cast_weights(ctx, rows, o, d, phase)
    if piecewise:
        before, after = gathered if d.around.gathers else 0.0, scattered if d.around.sums else 0.0
        write_in_pieces(ctx, rows, o.label, d.shape, "TN", phase, before, after, narrow=narrow)
        return
    order = "TN" if o.has_weight or op.makes_scores else "NN"
    launches = _launches(ctx, op, b) if d.around.experts else o.launches
    if panels:
        row = product_panels(ctx, rows, o, d, gathered, order, phase, narrow)
    for i, width in enumerate(() if panels else d.widths):
        ctx.move(rows, d.around.weights, _matrix(ctx, o, op, i), phase, f"{o.label} weight")
        each = (b, m, width, k)
        row = ctx.product(rows, o.label, each, order, phase, launches=launches, narrow=narrow, windows=_windows(op))
    if op.makes_scores:
        exchange_keys(ctx, rows, o, heads_held(ctx, o, op.inputs[1].dims), o.shape[3], phase, row)
    ctx.move(rows, d.around.sums, scattered, phase, o.label)
    if op.gathers and d.around.columns and ctx.tensor > 1:
        ctx.collective(rows, "all_gather", scattered, phase, f"{o.label} output")


def product_backward(ctx: LayerContext, rows: Rows, o: Operator, op: Product) -> None:
    """Write the gradients of a product."""
    if o.has_weight:
        _linear_backward(ctx, rows, o, op)
        return
    b, m, n, k = shape = ctx.division(o).shape
    if goes_round(ctx, o, op):
        round_backward(ctx, rows, o, op, shape)
        return
    launches = max(1, o.backward_launches // 2)
    if not op.fixed:
        order = "NN" if op.makes_scores else "TN"
        row = ctx.product(rows, f"{o.label} gradient", (b, m, k, n), order, "backward", part="input", launches=launches)
    if op.makes_scores:
        exchange_keys(ctx, rows, o, heads_held(ctx, o, op.inputs[1].dims), o.shape[3], "backward", row)
    ctx.product(rows, f"{o.label} gradient", (b, k, n, m), "NT", "backward", part="input", launches=launches)


def _fetch(ctx: LayerContext, rows: Rows, o: Operator, op: Product, d: Division, phase: str) -> None:
    """Have the hooks of a product's modules run: one module per weight, and per expert.

    Weights of experts are small enough to be gathered several together, and gradients to be scattered so: each is then put together from
    every rank's part, and cut into such, in a loop (DeepSpeed, AllGatherCoalescedHandle.wait and reduce_scatter_coalesced).
    """
    if ctx.fetches and o.has_weight:
        modules = len(o.widths) * (d.shape[0] if d.around.experts else 1)
        passes = 0 if not op.looped else 2 if phase == "backward" else 1
        fetch(rows, o.label, modules, phase, passes * modules * ctx.fetches)


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
    ctx: LayerContext,
    rows: Rows,
    label: str,
    op: Product,
    d: Division,
    elements: float,
    phase: str,
    gathers: Hops,
    after_norm: bool = False,
) -> None:
    """Make narrow copies of a product's operand, where no kernel that runs anyway does it; before what gathers it.

    Fused products of experts make those of what lies between them: the second's input, and the gradient of the first's output.
    """
    between = d.around.columns if phase == "backward" else d.around.rows
    if not (ctx.style.fuses_experts and d.around.experts and between):
        shards = math.prod(hop.ranks for hop in gathers) if ctx.precision.gathers_narrow else 1
        experts = d.shape[0] if d.around.experts else 1
        add_casts(
            rows,
            label,
            elements,
            ctx.precision,
            after_norm,
            shards,
            ctx.style.casts_apart,
            experts,
            across=not op.frozen,
            phase=phase,
        )


def _linear_backward(ctx: LayerContext, rows: Rows, o: Operator, op: Product) -> None:
    """Input gradient (NN), weight gradient (NT, added into the gradient buffer), bias gradient; of each product."""
    d = ctx.division(o)
    _fetch(ctx, rows, o, op, d, "backward")
    _widen(ctx, rows, o, op, d, "backward")
    _transpose(ctx, rows, o, op, d)
    b, m, _, k = d.shape
    piecewise = _piecewise(ctx, op, d) and bool(d.around.gathers_back)
    panels, around = in_panels(ctx, d), d.around
    if not piecewise:
        ctx.move(rows, around.gathers_back, _gathered(ctx, o, op, o.shape[2]), "backward", o.label)
    wide = o.shape[1] * o.shape[3] * ctx.e
    if panels:
        _gradient_panels(ctx, rows, o, op)
    for i, width in enumerate(() if panels else d.widths):
        ctx.move(rows, _again(ctx, around.weights), _matrix(ctx, o, op, i), "backward", f"{o.label} weight")
        each = (b, m, width, k)
        wgrad = _gradients(ctx, rows, o, op, each, i, piecewise)
        if _sums_apart(ctx, around.sums_back) or i + 1 == len(o.widths):
            ctx.move(rows, around.sums_back, wide, "backward", o.label, beside=wgrad)
    if not panels:
        sum_input_gradients(ctx, rows, o, wide / _divided(ctx, d))
    if o.backward_read:
        rows.moves(
            f"{o.label} bias gradient",
            ctx.dtype,
            o.backward_read / _bias_share(ctx, op, d),
            0.0,
            "backward",
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


def _gradient_panels(ctx: LayerContext, rows: Rows, o: Operator, op: Product) -> None:
    """Both gradients by panels, and what adds those of the weights into their buffer."""
    d = ctx.division(o)
    b, m, n, _ = d.shape
    narrow = op.quantised
    if narrow:
        _quantise(ctx, rows, f"{o.label} output gradient", op, d, float(b * m * n), "backward", d.around.gathers_back)
    input_gradient_panels(ctx, rows, o, d, _gathered(ctx, o, op, o.shape[3]), narrow)
    if op.frozen:
        return
    weight_gradient_panels(ctx, rows, o, d, _gathered(ctx, o, op, o.shape[3]), narrow)
    accumulate(ctx, rows, o.label, float(b * n * d.shape[3]), ctx.e, d.around.scatters)


def _bias_share(ctx: LayerContext, op: Product, d: Division) -> float:
    """How many ways the output gradient that a bias gradient sums is divided."""
    if d.around.experts or len(ctx.layout.tensor) > 1:
        return ctx.ways(op.outputs[0].dims)
    return ctx.tensor if d.around.columns else 1


def _gradients(
    ctx: LayerContext,
    rows: Rows,
    o: Operator,
    op: Product,
    shape: tuple[int, int, int, int],
    place: int,
    piecewise: bool,
) -> int:
    """Write both gradients of one of an operation's products, the first as its inputs arrive; returns the second's row.

    Args:
        place: number of the product; the first gathers what all read.
    """
    b, m, n, k = shape
    d, narrow = ctx.division(o), op.quantised
    launches = _launches(ctx, op, b) if d.around.experts else 1
    if narrow:
        label = f"{o.label} output gradient"
        _quantise(ctx, rows, label, op, d, float(b * m * n), "backward", d.around.gathers_back)
    name, dgrad = f"{o.label} input gradient", -1
    if piecewise:
        gathered = _gathered(ctx, o, op, o.shape[2])
        write_in_pieces(ctx, rows, name, (b, m, k, n), "NN", "backward", gathered, 0.0, part="input", narrow=narrow)
    elif not op.fixed:
        into, windows = _into_input(op, shape)
        dgrad = ctx.product(
            rows, name, into, "NN", "backward", part="input", narrow=narrow, launches=launches, windows=windows
        )
    if narrow:
        _rescale(ctx, rows, name, float(b * m * k), "input")
    if op.frozen:
        return dgrad
    if place == 0 and not ctx.style.keeps_gathered_inputs:
        again = _gathered(ctx, o, op, o.shape[3])
        ctx.move(rows, _again(ctx, d.around.gathers), again, "backward", f"{o.label} input", beside=dgrad)
    fused = ctx.style.fused_wgrad_accumulation and not d.around.scatters
    wgrad = ctx.product(
        rows,
        f"{o.label} weight gradient",
        (b, n, k, m),
        "NT",
        "backward",
        part="weight",
        accumulates=fused,
        narrow=narrow,
        launches=launches,
        windows=_windows(op),
    )
    if narrow:
        _rescale(ctx, rows, f"{o.label} weight gradient", float(b * n * k), "weight")
    ctx.move(
        rows,
        d.around.scatters,
        o.shape[3] * o.widths[place] * ctx.e,
        "backward",
        f"{o.label} weight gradient",
        part="weight",
    )
    if op.looped and ctx.style.expert_loop == "slices":
        _slice_gradients(ctx, rows, o, (b, n, k))
    if not fused:
        accumulate(ctx, rows, o.label, float(b * n * k), ctx.e, d.around.scatters)
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


def _slice_gradients(ctx: LayerContext, rows: Rows, o: Operator, shape: tuple[int, int, int]) -> None:
    """Make the gradient of all experts' tensor out of each one's: zeros of the whole, the slice copied in, the sum with the others'."""
    experts, n, k = shape
    one = ctx.e * float(n * k)
    rows.moves(
        f"{o.label} gradients of slices",
        ctx.dtype,
        (2 * experts + 1) * experts * one,
        (2 * experts + 1) * experts * one,
        "backward",
        launches=3 * experts,
        part="weight",
    )


def _cast_weights(ctx: LayerContext, rows: Rows, o: Operator, d: Division, phase: str) -> None:
    """Copy fp32 weights into the format of the product: once per forward pass, which autocast keeps for the backward pass."""
    b, _, _, k = d.shape
    elements = float(b * sum(d.widths) * k)
    rows.moves(f"{o.label} weight cast", ctx.dtype, FP32 * elements, ctx.e * elements, phase, launches=len(d.widths))


def _widen(ctx: LayerContext, rows: Rows, o: Operator, op: Product, d: Division, phase: str) -> None:
    """Make weights that stand in 4 bits as wide as the product needs them (bitsandbytes' dequantize_4bit, before each product)."""
    if not op.matrices or op.matrices[0].element >= 1.0:
        return
    b, _, _, k = d.shape
    elements = float(b * sum(d.widths) * k)
    rows.moves(
        f"{o.label} weight widened",
        ctx.dtype,
        op.matrices[0].element * elements,
        ctx.e * elements,
        phase,
        launches=len(d.widths),
    )


def _transpose(ctx: LayerContext, rows: Rows, o: Operator, op: Product, d: Division) -> None:
    """Make the copy of weights in 8 bits that the gradient of the input reads, where products take one layout only; nobody keeps it.

    NVIDIA/TransformerEngine 1.6 to 1.13, pytorch/module/linear.py: transpose_2d, of which Megatron-Core's
    disable_parameter_transpose_cache lets nothing stand.
    """
    if not (op.frozen and op.quantised and ctx.precision.copies_alike and op.matrices[0].element == 1.0):
        return
    b, _, _, k = d.shape
    size = float(b * sum(d.widths) * k)
    rows.moves(f"{o.label} weight transposed", ctx.dtype, size, size, "backward", call=TRANSPOSED)


def _rescale(ctx: LayerContext, rows: Rows, label: str, elements: float, part: str) -> None:
    """Multiply a product by the scales of its rows and columns, where it is made without them."""
    if ctx.precision.rescales:
        moved = ctx.e * elements
        rows.moves(f"{label} rescaled", ctx.dtype, moved, moved, "backward", part=part)
