"""Measured kernels and layers: matrix products, attention, streams, whole layers (columns of gemm_measurements.csv)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from simulator.accuracy.layers import layer_seconds, unfused_attention_seconds
from simulator.accuracy.scores import Outcome
from simulator.accuracy.streams import STREAMS, stream_seconds
from simulator.costs.attention import attention_seconds, attention_sigma
from simulator.costs.gemm import BENCHMARK_REPEATS, gemm_seconds, gemm_sigma
from simulator.errors import SimulatorError
from simulator.hardware.compute_coefficients import load_attention_coefficients, load_gemm_coefficients
from simulator.hardware.gpu import Gpu, load_gpu
from simulator.importers.table.row_cluster import row_gpu
from simulator.importers.table.row_framework import row_precision, torch_kernel
from simulator.importers.table.rows import CannotPlace, Row, count, flag, number, text
from simulator.importers.vocabulary.names import load_names, words_of
from simulator.importers.vocabulary.words import kernel_by_words
from simulator.plan.framework import load_framework
from simulator.program.calls import ORDERS
from simulator.report.prediction import QUANTILE
from simulator.specs import names
from simulator.units import in_unit
from simulator.workload.blocks.experts import LAUNCHES_PER_EXPERT
from simulator.workload.precision import precision_named

__all__ = ["gemm_outcomes"]

BACKWARD_WORK = 2.5
"""FLOP of attention's backward over its forward: five products in place of two (FlashAttention's own count)."""
_NARROW = ("flash3", "cudnn", "cudnn_2024", "aiter")
"""Kernels of attention that have editions for operands of 8 bits."""
_OF_GROUPS = "megatron_core"
"""The framework whose host launches the products of a group."""
_PRODUCTS, _LAYERS = ("gemm", "bmm", "grouped_gemm"), ("transformer_layer", "moe_layer")
_GRADIENT_OF_INPUT, _GRADIENT_OF_WEIGHT = ("bwd_grad_act", "dgrad"), ("bwd_grad_w", "wgrad")
_BACKWARD = ("bwd", "bwd_grad", "backward")


def gemm_outcomes(rows: Sequence[Row], everything: bool = False) -> Iterator[list[Outcome]]:
    """Yield the outcome of each row: tflops, or time_ms or gbps where the table has only these.

    Args:
        everything: also rows of quality C.
    """
    for i, row in enumerate(rows, 1):
        yield [_outcome(row, text(row, "id") or text(row, "case_id") or f"row-{i:04d}", everything)]


def _outcome(row: Row, case: str, everything: bool) -> Outcome:
    group = text(row, "source") or "all rows"
    measured, predicted, factor, reason, counts = None, None, 1.0, "", True
    assumed: tuple[str, ...] = ()
    quantity = "tflops"
    try:
        measured = number(row, "tflops")
        if measured is None and number(row, "time_ms") is not None:
            quantity, measured = "time_ms", number(row, "time_ms")
        if measured is None and number(row, "gbps") is not None:
            quantity, measured = "gbps", number(row, "gbps")
        if text(row, "quality").upper() == "C" and not everything:
            raise CannotPlace("quality C: its inputs are incomplete (--all predicts it)", counts=False)
        seconds, work, sigma, assumed = _priced(row)
        rates = {"tflops": ("TFLOP/s", "FLOP/s"), "gbps": ("GB/s", "B/s")}
        predicted = in_unit(work / seconds, *rates[quantity]) if quantity in rates else in_unit(seconds, "ms", "s")
        factor = math.exp(QUANTILE * sigma)
    except CannotPlace as why:
        reason, counts = why.reason, why.counts
    except SimulatorError as error:
        reason = str(error)
    return Outcome(
        case_id=case,
        quantity=quantity,
        group=group,
        measured=measured,
        predicted=predicted,
        low=None if predicted is None else predicted / factor,
        high=None if predicted is None else predicted * factor,
        reason=reason or ("" if measured is not None else "nothing was measured"),
        counts=counts and measured is not None,
        assumed=assumed,
    )


def _priced(row: Row) -> tuple[float, float, float, tuple[str, ...]]:
    """Return (seconds, FLOP as the table counts them or bytes moved, sigma, what was assumed)."""
    kind = text(row, "op") or "gemm"
    if kind in STREAMS:
        gpu, assumed = _gpu(row)
        seconds, moved, sigma, more = stream_seconds(row, gpu)
        return seconds, moved, sigma, (*assumed, *more)
    if kind in _PRODUCTS:
        return _gemm(row)
    if kind == "attention":
        return _attention(row)
    if kind in _LAYERS:
        if number(row, "tflops") is not None:
            raise CannotPlace(
                f"TFLOP/s of {kind!r}: which operations were counted is not known, only times are predicted"
            )
        seconds, sigma, assumed = layer_seconds(row)
        return seconds, 0.0, sigma, assumed
    raise CannotPlace(f"{kind[:40]!r} is not modelled: {', '.join((*_PRODUCTS, 'attention', *_LAYERS, *STREAMS))} are")


def _gemm(row: Row) -> tuple[float, float, float, tuple[str, ...]]:
    gpu, from_gpu = _gpu(row)
    precision, from_dtype = row_precision({"precision": text(row, "dtype")})
    dtype = precision_named(precision).gemm
    sizes = [count(row, name) for name in ("m", "n", "k")]
    if None in sizes:
        raise CannotPlace("the row gives no m, n or k", counts=False)
    batch = (count(row, "batch") or 1) * (count(row, "groups") or 1)
    shape = (batch, *(int(size) for size in sizes if size is not None))
    layout = text(row, "layout").upper()
    grouped = text(row, "op") == "grouped_gemm"
    if not layout and grouped:
        shape, layout = _of_direction(shape, text(row, "direction").lower())
    layout = layout or "TN"
    if layout not in ORDERS:
        raise CannotPlace(f"layout {layout[:20]!r} is none of {', '.join(ORDERS)}")
    accumulates = (number(row, "accumulate") or 0) > 0 and (grouped or text(row, "out_dtype") == "fp32")
    coefficients = load_gemm_coefficients(gpu, _own(row, gpu, "gemm"))
    seconds = float(gemm_seconds([shape], [layout], [dtype], [accumulates], gpu, coefficients, _repeats(row, gpu))[0])
    sigma = float(np.ravel(gemm_sigma([shape], [dtype], gpu, coefficients))[0])
    assumed: tuple[str, ...] = (*from_gpu, *from_dtype)
    host = shape[0] * LAUNCHES_PER_EXPERT * load_framework(_OF_GROUPS).launch_time if grouped else 0.0
    if host > seconds:
        seconds, assumed = host, (*assumed, f"bound by the host: a launch per group, as in {_OF_GROUPS}")
    return seconds, 2.0 * math.prod(shape), sigma, assumed


def _gpu(row: Row) -> tuple[Gpu, tuple[str, ...]]:
    """(GPU, what was assumed); a kernel runs on one die where a module has two and its driver shows each as a GPU."""
    gpu, assumed = row_gpu(row)
    die = f"{gpu.name}_gcd"
    if die not in names("gpus"):
        return gpu, assumed
    return load_gpu(die), (*assumed, f"one of the two dies of {gpu.name}")


def _own(row: Row, gpu: Gpu, kind: str) -> str | None:
    """The calibration of this kind that was measured on the row's own machine, if there is one."""
    machine = load_names().fact(text(row, "source"), "calibration", gpu.name)
    return next((name for name in machine.calibration if name.startswith(f"{kind}_")), None) if machine else None


def _repeats(row: Row, gpu: Gpu) -> float:
    library = load_names().fact(text(row, "software"), "repeats", gpu.name)
    return number(row, "repeats") or (library and library.repeats) or BENCHMARK_REPEATS


def _of_direction(shape: tuple[int, ...], direction: str) -> tuple[tuple[int, ...], str]:
    """(shape, layout) of a product in one direction; the sizes are those of the forward, y [m, n] = x [m, k] w [n, k]^T."""
    batch, m, n, k = shape
    if direction in _GRADIENT_OF_INPUT:
        return (batch, m, k, n), "NN"
    if direction in _GRADIENT_OF_WEIGHT:
        return (batch, n, k, m), "NT"
    return shape, "TN"


def _attention(row: Row) -> tuple[float, float, float, tuple[str, ...]]:
    gpu, assumed = _gpu(row)
    precision = precision_named(row_precision({"precision": text(row, "dtype")})[0])
    length, heads, width = count(row, "seq_len"), count(row, "heads"), count(row, "head_dim")
    if length is None or heads is None or width is None:
        raise CannotPlace("the row gives no seq_len, heads or head_dim", counts=False)
    value_width = count(row, "v_head_dim") or width
    kv_heads, batch, causal = count(row, "kv_heads") or heads, count(row, "batch") or 1, bool(flag(row, "causal"))
    coefficients = load_attention_coefficients(gpu, _own(row, gpu, "attention"))
    kernel, more = _kernel(row)
    halved = "flashattention" in text(row, "source").lower().replace(" ", "")
    work = 2.0 * batch * heads * length**2 * (width + value_width) * (0.5 if causal and halved else 1.0)
    if causal:
        more += ("FLOP of causal attention counted " + ("by half" if halved else "in full"),)
    direction = text(row, "direction").lower() or "fwd"
    passes = [("forward", 1.0)] if direction in ("fwd", "forward") else [("backward", BACKWARD_WORK)]
    if direction in ("fwd+bwd", "forward+backward"):
        passes = [("forward", 1.0), ("backward", BACKWARD_WORK)]
    elif passes[0][0] == "backward" and not direction.startswith(_BACKWARD):
        raise CannotPlace(f"direction {direction[:20]!r} is neither fwd, bwd nor fwd+bwd")
    if kernel == "unfused":
        seconds, sigma, said = unfused_attention_seconds(row, [name for name, _ in passes])
        return seconds, work * sum(part for _, part in passes), sigma, (*said, *more)
    narrow = "fp8" in text(row, "dtype").lower() and coefficients.libraries.get(kernel, kernel) in _NARROW
    dtype = "fp8" if narrow else precision.compute
    shape = (batch, heads, kv_heads, length, length, (width + value_width) / 2)
    common = (kernel, dtype, gpu, coefficients)
    seconds = sum(float(attention_seconds(*shape, causal, p, *common, repeats=_repeats(row, gpu))) for p, _ in passes)
    sigma = float(np.ravel(attention_sigma(length, length, kernel, dtype, gpu, coefficients))[0])
    return seconds, work * sum(part for _, part in passes), sigma, (*assumed, *more)


def _kernel(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return (kernel, what was assumed), from the software's name; PyTorch's of the row's release."""
    found, more = _named_kernel(row)
    return torch_kernel(text(row, "version")) if found == "sdpa" else found, more


def _named_kernel(row: Row) -> tuple[str, tuple[str, ...]]:
    name = text(row, "software") or text(row, "attn_kernel")
    found = load_names().find("attention", name)
    if found is None:
        version = next((v for v in "321" if f"flashattention{v}" in "".join(words_of(name))), "")
        found = f"flash{version}" if version else None
    if found is not None:
        return found, ()
    said = kernel_by_words(name)
    if said is not None:
        return said, (f"attention {name!r} taken for {said}",)
    return "sdpa", (f"attention of {name!r} taken for sdpa: what that library takes on this architecture",)
