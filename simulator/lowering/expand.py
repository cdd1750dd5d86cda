"""Pass 2: operators of one layer on one GPU: tensor parallelism divides them and adds its collectives.

Per layer and direction one `OperatorTable`, made once and shared by every block that runs it.  Under tensor parallelism t
(Shoeybi et al., arXiv 1909.08053) a column-split GEMM needs its input gradient summed, a row-split GEMM its output; with
sequence parallelism (Korthikanti et al., arXiv 2205.05198) these all_reduces become reduce_scatter and all_gather.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.lowering.settled import Settled
from simulator.program.program import COLLECTIVE, COMPUTE, OperatorTable, Tensor
from simulator.workload.architectures import ARCHITECTURES
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle, LayerPart, Operator
from simulator.workload.precision import Precision
from simulator.workload.workload import Workload

__all__ = ["LayerCost", "layer_costs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCost:
    """One kind of layer on one GPU.

    Args:
        forward, backward: operators, recomputed ones in front of the backward.
        input_gradient, weight_gradient: the two halves of a split backward; recompute comes first (design 5b E).
        saved: tensors held from forward to backward.
        forward_mark, backward_mark: temporaries that stand while it runs.
        parameters: weights on this GPU before ZeRO [count]; `small_parameters` of them are the same on every
            tensor-parallel rank.
        input_bytes: activation that crosses a chunk boundary, per GPU [B].
    """

    forward: OperatorTable
    backward: OperatorTable
    input_gradient: OperatorTable
    weight_gradient: OperatorTable
    saved: tuple[Tensor, ...]
    forward_mark: tuple[Tensor, ...]
    backward_mark: tuple[Tensor, ...]
    parameters: float
    small_parameters: float
    input_bytes: float


def layer_costs(
    workload: Workload, settled: Settled, sequences: int = 0, length: int = 0, context: int = 0
) -> dict[str, LayerCost]:
    """Return the cost of "embedding", "layer" and "head" on one GPU of the plan.

    Args:
        sequences, length: of what runs at once; 0 = a whole microbatch, whole sequences.
        context: tokens of these sequences that ran before.
    """
    return {
        kind: _layer_cost(
            workload.model,
            kind,
            sequences or settled.microbatch_size,
            (length or workload.sequence_length) // settled.context_parallel,
            context,
            settled.precision,
            settled.style,
            settled.vocabulary,
            settled.tensor_parallel,
            (settled.context_parallel, settled.context_parallel_kind),
            settled.sequence_parallel,
            settled.recompute,
            settled.framework.tensor_parallel_overlap,
            settled.gradient_bytes,
        )
        for kind in ("embedding", "layer", "head")
    }


@functools.lru_cache(maxsize=256)
def _layer_cost(
    model: Model,
    kind: str,
    sequences: int,
    length: int,
    context: int,
    precision: Precision,
    style: KernelStyle,
    vocabulary: int,
    tensor: int,
    peers: tuple[int, str],
    sequence_parallel: bool,
    recompute: str,
    overlaps: bool,
    gradient_bytes: int,
) -> LayerCost:
    part = ARCHITECTURES.get(model.architecture).part(
        model, kind, sequences, length, precision, style, vocabulary, context, peers[0]
    )
    split = _Splitter(tensor, peers, sequence_parallel, overlaps, precision, sequences * length, model.hidden, style)
    recompute = recompute if kind == "layer" else "none"
    forward, backward = _Rows(f"{kind} forward"), _Rows(f"{kind} backward")
    for operator in part.operators:
        split.forward(forward, operator, "forward")
    for operator in part.operators:
        if recompute == "full" or (recompute == "selective" and operator.selective):
            split.forward(backward, operator, "recompute")
        elif recompute == "operators" and operator.again:
            split.forward(backward, _part_of(operator), "recompute")
    for operator in reversed(part.operators):
        split.backward(backward, operator)
    saved, dropped = _saved(part, split, recompute)
    out, grad = split.widest(part)
    if kind == "head":
        # beside the saved softmax: 16-bit logits (and their fp32 copy) forward, 16-bit gradients (and fp32 ones) backward
        extra = 0.0 if style.fused_cross_entropy or style.in_place_cross_entropy else 4.0
        out = grad = sequences * length * vocabulary / tensor * (precision.element + extra)
    return LayerCost(
        forward=forward.table(),
        backward=backward.table(),
        input_gradient=backward.table("input"),
        weight_gradient=backward.table("weight"),
        saved=saved,
        forward_mark=_marks(kind, "workspace", out),
        backward_mark=(*dropped, *_marks(kind, "gradients of activations", grad)),
        parameters=sum(
            (o.parameters - o.small_parameters) / split.weights(o) + o.small_parameters for o in part.operators
        ),
        small_parameters=float(sum(o.small_parameters for o in part.operators)),
        input_bytes=part.input_bytes / split.factor("sequence"),
    )


def _marks(kind: str, name: str, size: float) -> tuple[Tensor, ...]:
    return (Tensor(name=f"{kind} {name}", category="workspace", bytes=size),) if size else ()


def _saved(part: LayerPart, split: _Splitter, recompute: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Tensors kept for backward, and those made again in backward instead."""
    tensors = [
        (
            s.cheap if recompute == "operators" else s.droppable,
            Tensor(name=s.name, category=s.category, bytes=s.bytes / split.factor(s.region)),
        )
        for o in part.operators
        for s in o.saved
        if s.bytes
    ]
    if recompute == "none":
        return tuple(t for _, t in tensors), ()
    if recompute in ("selective", "operators"):
        return tuple(t for d, t in tensors if not d), tuple(t for d, t in tensors if d)
    kept = Tensor(name="layer input", category="activations", bytes=part.input_bytes / split.factor("sequence"))
    return (kept,), tuple(t for _, t in tensors)


def _part_of(operator: Operator) -> Operator:
    """The part of an operator that per-operator recompute runs again: all of it, or a product with fewer columns."""
    if operator.again == 1.0 or operator.work != "gemm":
        return operator
    batch, m, n, k = operator.shape
    return replace(operator, shape=(batch, m, max(1, int(n * operator.again)), k))


class _Rows:
    """Collects rows of one table; collectives refer to earlier or later rows by their index."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> int:
        self.rows.append(row)
        return len(self.rows) - 1

    def table(self, half: str = "") -> OperatorTable:
        """Return the table, or one half of a split backward: weight gradients apart from all else."""
        rows, name = self.rows, self.name
        if half:
            keep = [i for i, r in enumerate(rows) if (r.get("part") == "weight") == (half == "weight")]
            place = {old: new for new, old in enumerate(keep)}
            rows = [{**rows[i], "beside": place.get(rows[i].get("beside", -1), -1)} for i in keep]
            name = f"{name}, {half} gradient"

        def column(key: str, default: Any, dtype: Any) -> Any:
            out = np.array([r.get(key, default) for r in rows], dtype)
            out.flags.writeable = False
            return out

        def words(key: str, default: Any) -> tuple[Any, ...]:
            return tuple(r.get(key, default) for r in rows)

        return OperatorTable(
            name=name,
            label=words("label", ""),
            kind=column("kind", COMPUTE, np.int8),
            work=words("work", ""),
            shape=column("shape", (0, 0, 0, 0), np.int64).reshape(-1, 4),
            layout=words("layout", ""),
            dtype=words("dtype", ""),
            flops=column("flops", 0.0, np.float64),
            read=column("read", 0.0, np.float64),
            written=column("written", 0.0, np.float64),
            message=column("message", 0.0, np.float64),
            group=words("group", ()),
            phase=words("phase", "forward"),
            launches=column("launches", 1, np.int64),
            part=words("part", ""),
            beside=column("beside", -1, np.int32),
        )


class _Splitter:
    """Divides operators over t tensor-parallel ranks and writes their rows."""

    def __init__(
        self,
        tensor: int,
        peers: tuple[int, str],
        sequence_parallel: bool,
        overlaps: bool,
        precision: Precision,
        tokens: int,
        hidden: int,
        style: KernelStyle,
    ) -> None:
        self.t, self.sp, self.overlaps, self.style = tensor, sequence_parallel, overlaps, style
        self.peers, self.exchange = peers
        self.dtype, self.e, self.tokens = precision.compute, float(precision.element), tokens
        self.precision = precision
        self.x = tokens * hidden * self.e

    def factor(self, region: str) -> int:
        """How many ways a tensor of this region is divided."""
        if region == "sequence":
            return self.t if self.sp else 1
        return 1 if region == "whole" else self.t

    def weights(self, operator: Operator) -> int:
        """How many ways the operator's weights are divided."""
        return self.t if operator.split in ("column", "row", "vocabulary", "lookup") else 1

    def widest(self, part: LayerPart) -> tuple[float, float]:
        """Bytes of the largest output of an operator, and of the gradients in and out of it."""
        widest = 0.0
        for o in part.operators:
            if o.work == "gemm":
                b, m, n, _ = self.local(o)
                widest = max(widest, b * m * n * self.e)
        widest = max(widest, part.input_bytes)
        return widest, 2 * widest

    def local(self, o: Operator) -> tuple[int, int, int, int]:
        """(batch, m, n, k) of the forward product on one rank."""
        b, m, n, k = o.shape
        if o.split in ("column", "vocabulary"):
            n //= self.t
        elif o.split == "row":
            k //= self.t
        elif o.split == "heads":
            b = max(1, b // self.t)
        return b, m, n, k

    def collective(self, rows: _Rows, name: str, message: float, phase: str, label: str, beside: int = -1) -> None:
        """Add a tensor-parallel collective; nothing when t = 1."""
        if self.t > 1:
            rows.add(
                label=f"{label} {name}",
                kind=COLLECTIVE,
                work=name,
                message=message,
                group=("tp",),
                dtype=self.dtype,
                phase=phase,
                beside=beside if self.overlaps else -1,
            )

    def product(
        self, rows: _Rows, label: str, shape: tuple[int, int, int, int], layout: str, phase: str, **more: Any
    ) -> int:
        """Add a GEMM row; returns its index."""
        b, m, n, k = shape
        narrow = more.pop("narrow", False) and self.precision.quantises
        dtype, e = (self.precision.gemm, self.precision.quantised_element) if narrow else (self.dtype, self.e)
        out = 4.0 if more.pop("accumulates", False) else self.e
        return rows.add(
            label=label,
            work="gemm",
            shape=shape,
            layout=layout,
            dtype=dtype,
            flops=2.0 * b * m * n * k,
            read=b * (m * k + k * n) * e + (b * m * n * out if out != self.e else 0.0),
            written=b * m * n * out,
            phase=phase,
            **more,
        )

    def kernel(
        self, rows: _Rows, o: Operator, read: float, written: float, phase: str, launches: int, part: str = ""
    ) -> None:
        """Add a memory-bound kernel whose bytes are divided by its region."""
        divide = self.factor("sequence" if o.split in ("sequence", "lookup") else o.split)
        rows.add(
            label=o.label,
            work="memory_bound",
            dtype=self.dtype,
            read=read / divide,
            written=written / divide,
            phase=phase,
            launches=launches,
            part=part,
        )

    def quantise(self, rows: _Rows, label: str, elements: float, phase: str, fused: bool = False) -> None:
        """Cast a GEMM operand to the narrow format, as it stands and transposed (the weight gradient reads it the other way).

        With `fused` the kernel before writes the narrow copies, so only the writing counts.
        """
        if self.precision.quantises:
            rows.add(
                label=f"{label} cast to {self.precision.gemm}",
                work="memory_bound",
                dtype=self.dtype,
                read=0.0 if fused else elements * self.e,
                written=2.0 * elements * self.precision.quantised_element,
                phase=phase,
                launches=0 if fused else 1,
                part="input" if phase == "backward" else "",
            )

    def forward(self, rows: _Rows, o: Operator, phase: str) -> None:
        """Write the forward rows of an operator."""
        if o.work == "gemm":
            if o.split in ("column", "vocabulary") and self.sp:
                self.collective(rows, "all_gather", self.tokens * o.shape[3] * self.e, phase, o.label)
            narrow = o.has_weight and o.split != "vocabulary"
            if (
                narrow
            ):  # the norm before a column-split layer and the activation function write narrow copies themselves
                b, m, _, k = self.local(o)
                self.quantise(
                    rows, o.label, float(b * m * k), phase, fused=o.split == "column" or o.label == "mlp down"
                )
            row = self.product(
                rows, o.label, self.local(o), "TN" if o.has_weight else "NN", phase, launches=o.launches, narrow=narrow
            )
            if o.peers > 1:
                self.exchange_keys(rows, o, phase, row)
            if o.split == "row":
                self.collective(rows, self.summed(), self.tokens * o.shape[2] * self.e, phase, o.label)
        elif o.work == "attention":
            self.attention(rows, o, phase, 4.0, o.launches)
        else:
            self.kernel(rows, o, o.read, o.written, phase, o.launches)
            if o.work == "lookup":
                self.collective(rows, self.summed(), self.x, phase, o.label)
            elif o.label == "cross entropy":
                for what in ("maximum", "target", "sum"):
                    self.collective(rows, "all_reduce", 4.0 * self.tokens, phase, f"cross entropy {what}")

    def summed(self) -> str:
        """The collective that sums partial results."""
        return "reduce_scatter" if self.sp else "all_reduce"

    def attention(self, rows: _Rows, o: Operator, phase: str, factor: float, launches: int) -> None:
        """Write a fused attention row and what the ranks that share its sequences exchange; flops count the full product.

        Under context parallelism every rank has equal work: with a causal mask its queries see half of the keys on average.
        """
        sequences, heads, length, width = o.shape
        heads, groups = heads // self.t, max(1, o.kv_heads // self.t)
        keys, mask = o.keys, "causal" if o.causal else "full"
        flops = factor * sequences * heads * float(length) * keys * width
        if o.peers > 1 and self.exchange == "ulysses":
            heads, groups, length = heads // o.peers, groups // o.peers, length * o.peers
        elif o.peers > 1 and o.causal:
            keys, mask = keys // 2, "full"
        moved = sequences * length * heads * width * self.e
        kv = sequences * o.keys * groups * width * self.e
        self.swap_heads(rows, o, phase)
        row = rows.add(
            label=o.label,
            work="attention",
            shape=(sequences, heads, length, width),
            layout=f"{o.kernel}:{mask}:{groups}:{keys}",
            dtype=self.dtype,
            flops=flops,
            read=moved + 2 * kv if factor == 4.0 else 3 * moved + 2 * kv,
            written=moved if factor == 4.0 else moved + 2 * kv,
            phase=phase,
            launches=launches,
        )
        self.exchange_keys(rows, o, phase, row)

    def exchange_keys(self, rows: _Rows, o: Operator, phase: str, beside: int = -1) -> None:
        """Keys and values of the other ranks' tokens; backward their gradients too.  A ring hides them beside the attention."""
        if o.peers == 1 or self.exchange == "ulysses":
            return
        kv = 2.0 * o.shape[0] * o.keys * max(1, o.kv_heads // self.t) * o.shape[3] * self.e
        if not o.has_weight and o.work == "gemm":  # unfused: batch counts sequences x heads
            kv = 2.0 * self.tokens * o.peers * max(1, o.kv_heads // self.t) * o.shape[3] * self.e
        wanted = [("all_gather", kv)] + ([("reduce_scatter", kv)] if phase == "backward" else [])
        for name, message in wanted:
            rows.add(
                label=f"{o.label} keys and values {name}",
                kind=COLLECTIVE,
                work=name,
                message=message,
                group=("cp",),
                dtype=self.dtype,
                phase=phase,
                beside=beside if self.exchange == "ring" else -1,
            )

    def swap_heads(self, rows: _Rows, o: Operator, phase: str) -> None:
        """Ulysses: tokens of all heads against all tokens of some heads, and back (DeepSpeed-Ulysses, arXiv 2309.14509)."""
        if o.peers == 1 or self.exchange != "ulysses":
            return
        query = self.tokens * (o.shape[1] // self.t) * o.shape[3] * self.e
        kv = 2 * self.tokens * max(1, o.kv_heads // self.t) * o.shape[3] * self.e
        for what, message in (("queries, keys and values", query + kv), ("output", query)):
            rows.add(
                label=f"{o.label} {what} all_to_all",
                kind=COLLECTIVE,
                work="all_to_all",
                message=message,
                group=("cp",),
                dtype=self.dtype,
                phase=phase,
            )

    def backward(self, rows: _Rows, o: Operator) -> None:
        """Write the backward rows of an operator: input gradient, then weight gradient."""
        if o.work == "gemm" and o.has_weight:
            self.linear_backward(rows, o)
        elif o.work == "gemm":
            b, m, n, k = self.local(o)
            row = self.product(rows, f"{o.label} gradient", (b, m, k, n), "NN", "backward", part="input")
            if o.peers > 1:
                self.exchange_keys(rows, o, "backward", row)
            self.product(rows, f"{o.label} gradient", (b, n, k, m), "NT", "backward", part="input")
        elif o.work == "attention":
            self.attention(rows, o, "backward", 10.0, o.backward_launches)
        elif o.work == "lookup":
            if self.sp:
                self.collective(rows, "all_gather", self.x, "backward", o.label)
            self.kernel(rows, o, o.backward_read, o.backward_written, "backward", o.backward_launches, "weight")
        else:
            self.kernel(rows, o, o.backward_read, o.backward_written, "backward", o.backward_launches, "input")

    def linear_backward(self, rows: _Rows, o: Operator) -> None:
        """Input gradient (NN), weight gradient (NT, added into the gradient buffer), bias gradient."""
        b, m, n, k = self.local(o)
        column = o.split in ("column", "vocabulary")
        if o.split == "row" and self.sp:
            self.collective(rows, "all_gather", self.tokens * o.shape[2] * self.e, "backward", o.label)
        narrow = o.split != "vocabulary"
        if narrow:
            self.quantise(rows, f"{o.label} output gradient", float(b * m * n), "backward")
        dgrad = self.product(
            rows, f"{o.label} input gradient", (b, m, k, n), "NN", "backward", part="input", narrow=narrow
        )
        wide = self.tokens * o.shape[3] * self.e
        if column and self.sp:
            self.collective(rows, "all_gather", wide, "backward", f"{o.label} input", beside=dgrad)
        fused = self.style.fused_wgrad_accumulation
        wgrad = self.product(
            rows,
            f"{o.label} weight gradient",
            (b, n, k, m),
            "NT",
            "backward",
            part="weight",
            accumulates=fused,
            narrow=narrow,
        )
        if not fused:
            rows.add(
                label=f"{o.label} gradient accumulation",
                work="memory_bound",
                dtype=self.dtype,
                read=(self.e + 4.0) * n * k,
                written=4.0 * n * k,
                phase="backward",
                part="weight",
            )
        if column:
            self.collective(rows, self.summed(), wide, "backward", o.label, beside=wgrad)
        if o.backward_read:
            rows.add(
                label=f"{o.label} bias gradient",
                work="memory_bound",
                dtype=self.dtype,
                read=o.backward_read / (self.t if column else 1),
                written=0.0,
                phase="backward",
                part="weight",
                launches=2,
            )
