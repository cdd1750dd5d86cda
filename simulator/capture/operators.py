"""What an operator of PyTorch is to a price: a product, attention or memory traffic, with its shape, FLOP, bytes and kernels.

Nothing here needs torch: an operator comes as its name and its arguments by name, tensors as `Facts`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulator.capture.convolutions import Shaped, convolution, convolution_gradients
from simulator.capture.facts import Facts, tensors_in
from simulator.plan.values import sdpa_of
from simulator.program.calls import STREAM, AttentionCall, Call, Product, Traffic

__all__ = ["WHOLE", "Work", "describe"]

WHOLE = {"aten::to", "aten::reshape", "aten::contiguous", "aten::flatten"}
"""Operators written in others, which come whole where autograd is not in between: they are taken apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a kernel is; columns as in `simulator.program.program.OperatorTable`.  `known` is False for a kernel of no known kind."""

    work: str
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    call: Call = STREAM
    dtype: str
    flops: float = 0.0
    read: float
    written: float
    launches: int = 1
    known: bool = True


class Moved(NamedTuple):
    """Bytes of memory that an operator reads and writes."""

    read: float
    written: float


def describe(
    name: str,
    arguments: Mapping[str, Any],
    outputs: Sequence[Facts],
    written: Sequence[Facts] = (),
    again: Sequence[Facts] = (),
) -> list[Work]:
    """Return what an operator does: of several products (a convolution's gradients) one after the other.

    Args:
        name: without its overload, such as `aten.mm`.
        arguments: by the names of its schema; tensors as `Facts`, also inside lists.
        outputs: tensors that it makes.
        written: arguments that it writes to.
        again: arguments that it has been given before, which are read once.

    >>> a, b = Facts((4, 8), (8, 1), "bf16", 2), Facts((8, 6), (1, 8), "bf16", 2)
    >>> (work,) = describe("aten.mm", {"self": a, "mat2": b}, [Facts((4, 6), (6, 1), "bf16", 2)])
    >>> work.shape, work.call, work.flops, work.read, work.written
    ((1, 4, 6, 8), Product(order='TN'), 384.0, 160.0, 48.0)
    """
    space, _, short = name.partition(".")
    made = written if short.rstrip("_") in _OVERWRITES else tensors_in(arguments.get("out"))
    read = float(sum(t.bytes for t in tensors_in(arguments)) - sum(t.bytes for t in (*again, *made)))
    moved = Moved(read, float(sum(t.bytes for t in (*outputs, *written))))
    first = next((t for t in (*tensors_in(arguments), *outputs)), None)
    dtype = first.dtype if first else "fp32"
    product = _PRODUCTS.get(name)
    if product is not None:
        return [_product(product(arguments, outputs), moved)]
    if name == "aten.convolution_backward":
        return _gradients(arguments)
    direction = _direction(space, short)
    if direction and isinstance(arguments.get(_QUERY.get(space, "query")), Facts):
        return [_attention(arguments, _QUERY.get(space, "query"), direction, moved)]
    launches = _list_kernels(short, arguments) if short.startswith("_foreach_") or short.startswith("_fused_") else 1
    access = _ACCESS.get(short.rstrip("_")) or _walk(short, list(tensors_in(arguments)), [*outputs, *written])
    moved = _touched(short, arguments, outputs) or moved
    known = space in _KNOWN_SPACES
    work = Work(
        work="memory_bound",
        call=Traffic(access),
        dtype=dtype,
        launches=launches,
        known=known,
        read=moved.read,
        written=moved.written,
    )
    return [work]


def _touched(short: str, arguments: Mapping[str, Any], outputs: Sequence[Facts]) -> Moved | None:
    """Bytes of operators that touch a part of a tensor only, or write to arguments that their schema calls read."""
    if short in ("embedding", "index_select", "index", "gather", "take"):
        made = sum(t.bytes for t in outputs)
        indices = sum(t.bytes for t in tensors_in({k: v for k, v in arguments.items() if k in ("indices", "index")}))
        return Moved(made + indices, float(made))
    if short.rstrip("_") in ("index_put", "index_add", "index_copy", "scatter", "scatter_add") and short.endswith("_"):
        values = [t.bytes for k, v in arguments.items() if k in ("values", "source", "src") for t in tensors_in(v)]
        return Moved(2.0 * sum(values), float(sum(values)))
    if short.endswith("_like") or short.startswith("new_"):
        return Moved(0.0, float(sum(t.bytes for t in outputs)))
    if short in _ROWS and outputs and outputs[0].shape[-1] > _LONG_ROW:
        return Moved(_ROWS[short] * outputs[0].bytes, outputs[0].bytes)
    if short in _PICKS:
        picked = sum(t.bytes for t in tensors_in(arguments.get("target")))
        return Moved(2.0 * picked, float(sum(t.bytes for t in outputs)))
    if short == "all_gather_copy_in":
        shards = sum(t.bytes for t in tensors_in(arguments["all_gather_inputs"]))
        return Moved(shards, shards)
    return None


_ROWS = {"_log_softmax": 3, "_softmax": 3, "_log_softmax_backward_data": 4, "_softmax_backward_data": 4}
_LONG_ROW = 12288
"""How often a row is read (its maximum, its sum, its result; backward both operands, for a sum and the result) where it is longer than
what shared memory holds in fp32 (ATen/native/cuda/SoftMax.cu: cunn_SoftMaxForward and cunn_SoftMaxBackward)."""
_PICKS = ("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward")
"""Read, and write a number of, one word of each token: ATen/native/cuda/NLLLoss2d.cu and Loss.cu; the backward fills with zeros first."""


# ---- products ----


def _matrix(left: Facts, right: Facts) -> Shaped:
    """Shape, order and format of a product of two matrices, or of stacks of them."""
    batch = left.shape[0] if len(left.shape) == 3 else 1
    m, k = left.shape[-2:]
    n = right.shape[-1]
    return (batch, m, n, k), Product(_order(left, right)), left.dtype


def _order(left: Facts, right: Facts) -> str:
    """Which operand lies transposed in memory, in the words of a GEMM library."""
    if _transposed(left):
        return "NT"
    return "TN" if _transposed(right) else "NN"


def _transposed(matrix: Facts) -> bool:
    rows, columns = matrix.shape[-2:]
    return matrix.stride[-1] != 1 and matrix.stride[-2] == 1 and (rows, columns) != (1, 1)


def _named(*names: str) -> Callable[[Mapping[str, Any], Sequence[Facts]], Shaped]:
    def product(arguments: Mapping[str, Any], outputs: Sequence[Facts]) -> Shaped:
        left, right = (arguments[name] for name in names)
        return _matrix(left, right)

    return product


def _grouped(arguments: Mapping[str, Any], outputs: Sequence[Facts]) -> Shaped:
    """Products of experts: rows are dealt out evenly, for how many each gets is not known without running."""
    left, right = arguments["self"], arguments["mat2"]
    if len(right.shape) == 3:
        experts, k, n = right.shape
        return (experts, max(1, left.shape[0] // experts), n, k), Product(_order(left, right)), left.dtype
    experts = outputs[0].shape[0]
    return (experts, left.shape[0], right.shape[1], max(1, left.shape[1] // experts)), Product("NT"), left.dtype


_PRODUCTS: dict[str, Callable[[Mapping[str, Any], Sequence[Facts]], Shaped]] = {
    "aten.mm": _named("self", "mat2"),
    "aten.bmm": _named("self", "mat2"),
    "aten.addmm": _named("mat1", "mat2"),
    "aten.addmm_": _named("mat1", "mat2"),
    "aten.baddbmm": _named("batch1", "batch2"),
    "aten.baddbmm_": _named("batch1", "batch2"),
    "aten._addmm_activation": _named("mat1", "mat2"),
    "aten._scaled_mm": _named("self", "mat2"),
    "aten._grouped_mm": _grouped,
    "aten._scaled_grouped_mm": _grouped,
    "aten.convolution": convolution,
}
"""Operator -> its product."""


def _product(product: Shaped, moved: Moved) -> Work:
    shape, call, dtype = product
    flops = 2.0 * math.prod(shape)
    return Work(work="gemm", shape=shape, call=call, dtype=dtype, flops=flops, read=moved.read, written=moved.written)


def _gradients(arguments: Mapping[str, Any]) -> list[Work]:
    """The gradients of a convolution, that of its bias a sum over positions."""
    made = [
        _product(product, Moved(sum(t.bytes for t in read), written.bytes))
        for product, read, written in convolution_gradients(arguments)
    ]
    gradient = arguments["grad_output"]
    if tuple(arguments.get("output_mask", ()))[2:] == (True,):
        bias = float(gradient.shape[1] * gradient.element)
        made.append(
            Work(work="memory_bound", call=Traffic("plain"), dtype=gradient.dtype, read=gradient.bytes, written=bias)
        )
    return made


# ---- attention ----

_KERNELS = {
    "_scaled_dot_product_flash_attention_for_cpu": "forward",
    "_scaled_dot_product_flash_attention": "forward",
    "_scaled_dot_product_efficient_attention": "forward",
    "_scaled_dot_product_cudnn_attention": "forward",
    "_scaled_dot_product_fused_attention_overrideable": "forward",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "backward",
    "_scaled_dot_product_flash_attention_backward": "backward",
    "_scaled_dot_product_efficient_attention_backward": "backward",
    "_scaled_dot_product_cudnn_attention_backward": "backward",
    "_scaled_dot_product_fused_attention_overrideable_backward": "backward",
    "_flash_attn_forward": "forward",
    "_flash_attn_backward": "backward",
    "fwd": "forward",
    "bwd": "backward",
}
"""Kernels of attention by the name of their operator: those of PyTorch, of flash_attn (2 and 3) as custom operators."""
_QUERY = {"flash_attn": "q", "flash_attn_3": "q"}
_KEY = {"query": "key", "q": "k"}
_VALUE = {"query": "value", "q": "v"}
_HEADS_SECOND = {"query"}
"""Kernels that take (sequences, heads, tokens, width); others have tokens before heads."""
BACKWARD_FLOP = 2.5
"""A backward of fused attention does five products where its forward does two (FlashAttention-2, arXiv 2307.08691, section 4)."""


def _direction(space: str, short: str) -> str:
    return _KERNELS.get(short, "") if space in ("aten", *_QUERY) else ""


def _attention(arguments: Mapping[str, Any], query_name: str, direction: str, moved: Moved) -> Work:
    """FLOP of full attention: what a mask leaves out is the kernel's to know; its width that of keys and of values in the mean."""
    query, key = arguments[query_name], arguments[_KEY[query_name]]
    value = arguments.get(_VALUE[query_name], key)
    heads_at, length_at = (1, 2) if query_name in _HEADS_SECOND else (2, 1)
    sequences, heads, length = query.shape[0], query.shape[heads_at], query.shape[length_at]
    width, kv_heads, keys = (query.shape[3] + value.shape[3]) // 2, key.shape[heads_at], key.shape[length_at]
    causal = bool(arguments.get("is_causal", arguments.get("causal", False)))
    mask = "causal" if causal or isinstance(arguments.get("attn_mask"), Facts) else "full"
    flops = 4.0 * sequences * heads * length * keys * width
    return Work(
        work="attention",
        shape=(sequences, heads, length, width),
        call=AttentionCall("flash2" if query_name == "q" else _own_attention(), mask, 0, kv_heads, keys),
        dtype=query.dtype,
        flops=flops * BACKWARD_FLOP if direction == "backward" else flops,
        launches=3 if direction == "backward" else 1,
        read=moved.read,
        written=moved.written,
    )


def _own_attention() -> str:
    """PyTorch's attention, of the release that runs; of today's where none does."""
    torch = sys.modules.get("torch")
    release = re.match(r"(\d+)\.(\d+)", str(torch.__version__)) if torch else None
    return sdpa_of(int(release[1]), int(release[2])) if release else "sdpa"


# ---- memory traffic ----

_KNOWN_SPACES = {"aten", "prims", "fsdp", "quantized", "_c10d_functional", "c10d"}
_OVERWRITES = {
    "copy", "zero", "fill", "normal", "uniform", "random", "exponential", "bernoulli", "_foreach_copy", "_foreach_zero",
    "all_gather_copy_in", "split_with_sizes_copy", "chunk_cat", "arange", "_chunk_cat",
}  # fmt: skip
"""Operators that write to an argument without reading it."""
_ACCESS = {
    **dict.fromkeys(("embedding", "embedding_dense_backward", "index_select", "index", "gather", "index_put", "index_add",
                     "scatter", "scatter_add", "index_copy", "take"), "gather"),
    **dict.fromkeys(("_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward",
                     "nll_loss2d_forward", "nll_loss2d_backward"), "loss"),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm", "native_group_norm"), "norm"),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward", "native_group_norm_backward"),
                    "norm backward"),
    "_softmax": "scores",
    "_softmax_backward_data": "scores backward",
}  # fmt: skip
"""Operator -> how it walks memory; the rest are long passes."""
_PASSES = (*_OVERWRITES, "cat", "stack", "_foreach_", "_fused_", "_amp_", "native_dropout")
"""Operators that go through each of their tensors by itself."""


def _walk(short: str, read: Sequence[Facts], made: Sequence[Facts]) -> str:
    """How an operation on tensors walks memory: in long passes, unless one of them is a part of a tensor, or lies in another order
    ("strided"), or formats or sizes differ ("plain": casts, sums over rows, products with a number of each row), where PyTorch's
    kernels load a number at a time (ATen/native/cuda/CUDALoops.cuh: launch_vectorized_kernel for contiguous tensors of one format)."""
    if short.startswith(_PASSES) and short != "copy_":
        return "stream"
    sized = [t for t in (*made, *read) if math.prod(t.shape) > 1]
    if not made or len(sized) < 2:
        return "stream"
    whole = max(sized, key=lambda t: math.prod(t.shape))
    if any(t.shape == whole.shape and not _alike(t, whole) for t in sized) or not _dense(whole):
        return "strided"
    return (
        "plain"
        if any((t.shape, t.dtype, t.element) != (whole.shape, whole.dtype, whole.element) for t in sized)
        else "stream"
    )


def _alike(one: Facts, other: Facts) -> bool:
    """Whether two tensors of one shape lie in memory in the same order."""
    return all(n == 1 or a == b for n, a, b in zip(one.shape, one.stride, other.stride, strict=True))


def _dense(tensor: Facts) -> bool:
    """Whether a tensor has no gaps, in whatever order its dimensions lie."""
    along = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride, strict=True) if n > 1)
    return all(s == math.prod(n for _, n in along[:i]) for i, (s, _) in enumerate(along))


_MOST_TENSORS = (110, 64, 48, 36, 30)
"""Tensors of one launch by how many lists go in: depth_to_max_tensors of ATen/native/cuda/MultiTensorApply.cuh."""
_MOST_CHUNKS, _CHUNK = 320, 65536
"""Blocks of one launch, and elements of a block: depth_to_max_blocks and kChunkSize of the same file."""


def _list_kernels(short: str, arguments: Mapping[str, Any]) -> int:
    """Kernels that an operator on lists of tensors starts."""
    lists = [
        value
        for value in arguments.values()
        if isinstance(value, list | tuple) and any(isinstance(one, Facts) and math.prod(one.shape) > 1 for one in value)
    ]
    if not lists:
        return 1
    tensors = lists[0]
    chunks: int = sum(-(-math.prod(tensor.shape) // _CHUNK) for tensor in tensors)
    most: int = _MOST_TENSORS[min(len(lists), len(_MOST_TENSORS)) - 1]
    return max(-(-len(tensors) // most), -(-chunks // _MOST_CHUNKS))
