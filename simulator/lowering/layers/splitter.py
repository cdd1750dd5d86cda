"""Operators divided over ranks: tensor parallelism, the tokens of sequences, and experts; with the collectives they need.

Under tensor parallelism t (Shoeybi et al., arXiv 1909.08053) a column-split GEMM needs its input gradient summed, a row-split
GEMM its output; with sequence parallelism (Korthikanti et al., arXiv 2205.05198) these all_reduces become reduce_scatter and
all_gather.  Experts are dealt out over their own ranks: rows go there and back by all_to_all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simulator.lowering.layers.casts import add_casts
from simulator.lowering.layers.context import ring_attention, swap_heads
from simulator.lowering.layers.embedding_matmul import look_up_by_product
from simulator.lowering.layers.expert_rows import swap_rows, wait_for
from simulator.lowering.layers.joins import join_logits, sum_input_gradients
from simulator.lowering.layers.overlapped_gemm import write_in_pieces
from simulator.lowering.layers.rows import Rows
from simulator.lowering.layers.scores import scores_left
from simulator.lowering.resolve.expert_rules import Groups
from simulator.program.calls import AttentionCall, Product, Traffic
from simulator.program.program import COLLECTIVE
from simulator.units import BYTES_PER_ELEMENT
from simulator.workload.blocks.experts import LAUNCHES_PER_EXPERT
from simulator.workload.operator import KernelStyle, LayerPart, Operator
from simulator.workload.precision import Precision

__all__ = ["ExpertSplit", "Splitter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSplit:
    """How experts are divided: `parallel` ranks deal them out, `tensor` ranks split each, the hottest has `imbalance` rows.

    `count`: experts of a layer; `exchange`: as in `Plan.expert_exchange`; `sorts`: whether rows that arrive are sorted by expert
    (several experts, from several ranks).
    """

    parallel: int
    tensor: int
    imbalance: float
    exchange: str
    sorts: bool
    groups: Groups
    count: int = 0


class Splitter:
    """Divides operators over t tensor-parallel ranks and writes their rows."""

    def __init__(
        self,
        tensor: int,
        peers: tuple[int, str, int],
        sequence_parallel: bool,
        overlaps: bool,
        precision: Precision,
        tokens: int,
        hidden: int,
        style: KernelStyle,
        experts: ExpertSplit,
        gradient_bytes: int,
        splits: int = 1,
    ) -> None:
        self.t, self.sp, self.overlaps, self.style = tensor, sequence_parallel, overlaps, style
        self.splits = splits if sequence_parallel and tensor > 1 else 1
        self.peers, self.exchange, self.inner = peers
        self.experts, self.groups, self.gradient = experts, experts.groups, float(gradient_bytes)
        self.dtype, self.e, self.tokens = precision.compute, float(precision.element), tokens
        self.precision = precision
        self.x = tokens * hidden * self.e

    def factor(self, region: str) -> float:
        """How many ways a tensor of this region is divided; the hottest rank's share of experts' rows."""
        if region in ("copies", "expert"):
            split = self.experts.tensor if region == "copies" else 1
            return self.t // split / self.experts.imbalance
        if region == "sequence":
            return self.t if self.sp else 1
        return 1 if region == "whole" else self.t

    def divides(self, recompute: str) -> bool:
        """Whether of the inputs of layers that run again each tensor-parallel rank keeps its part."""
        return recompute == "full" and self.style.divides_checkpoints and self.t > 1 and not self.sp

    def weights(self, operator: Operator) -> int:
        """How many ways the operator's weights are divided."""
        if operator.split in ("expert column", "expert row"):
            return self.experts.parallel * self.experts.tensor
        return self.t if operator.split in ("column", "row", "vocabulary", "lookup") else 1

    def widest(self, part: LayerPart, plain_norm: bool) -> tuple[float, float]:
        """Bytes of the largest output of an operator, and of the gradients in and out of it.

        A weight gradient that is not added into its buffer by its product stands beside them for a moment; a norm in plain
        operations has its output's gradient beside three fp32 numbers per element.
        """
        widest, gradient = 0.0, 0.0
        for o in part.operators:
            if o.work == "gemm":
                b, m, n, k = self.local(o)
                widest = max(widest, b * m * n * self.e)
                if o.has_weight and not self.style.fused_wgrad_accumulation:
                    gradient = max(gradient, n * k * self.e)
        widest = max(widest, part.input_bytes)
        norm = part.input_bytes / self.factor("sequence") * (1.0 + 12.0 / self.e) if plain_norm else 0.0
        return widest, max(2 * widest + gradient, norm)

    def local(self, o: Operator) -> tuple[int, int, int, int]:
        """(batch, m, n, k) of the forward product on one rank."""
        b, m, n, k = o.shape
        if o.split in ("column", "vocabulary"):
            n //= self.t
        elif o.split == "row":
            k //= self.t
        elif o.split == "heads":
            b = max(1, b // self.t)
        elif o.split in ("router", "replicated"):
            m = max(1, int(m // self.factor("sequence")))
        elif o.split in ("expert column", "expert row"):
            x = self.experts
            m = max(1, round(m / self.factor("copies") * x.parallel / b))
            b //= x.parallel
            n, k = (n // x.tensor, k) if o.split == "expert column" else (n, k // x.tensor)
        return b, m, n, k

    def collective(
        self, rows: Rows, name: str, message: float, phase: str, label: str, beside: int = -1, always: bool = False
    ) -> None:
        """Add a tensor-parallel collective; nothing when t = 1.  It runs beside a row where the framework can, or `always`."""
        if self.t > 1:
            rows.add(
                label=f"{label} {name}",
                kind=COLLECTIVE,
                work=name,
                message=message,
                group=self.groups.tensor,
                dtype=self.dtype,
                phase=phase,
                beside=beside if self.overlaps or always else -1,
            )

    def product(
        self, rows: Rows, label: str, shape: tuple[int, int, int, int], order: str, phase: str, **more: Any
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
            call=Product(order),
            dtype=dtype,
            flops=2.0 * b * m * n * k,
            read=b * (m * k + k * n) * e + (b * m * n * out if out != self.e else 0.0),
            written=b * m * n * out,
            phase=phase,
            **more,
        )

    def kernel(
        self, rows: Rows, o: Operator, read: float, written: float, phase: str, launches: int, part: str = ""
    ) -> None:
        """Add a memory-bound kernel whose bytes are divided by its region."""
        divide = self.factor("sequence" if o.split in ("sequence", "lookup") else o.split)
        rows.add(
            label=o.label,
            work="memory_bound",
            call=Traffic("scores backward" if o.access == "scores" and phase == "backward" else o.access or "layer"),
            dtype=self.dtype,
            read=read / divide,
            written=written / divide,
            phase=phase,
            launches=launches + self.looped(o, phase),
            part=part,
        )

    def looped(self, o: Operator, phase: str) -> int:
        """Kernels of an operator that Python runs for one expert after another."""
        return o.per_expert * (self.experts.count // self.experts.parallel) * (2 if phase == "backward" else 1)

    def quantise(
        self, rows: Rows, o: Operator, elements: float, phase: str, gathers: bool, after_norm: bool = False
    ) -> None:
        """Make narrow copies of a product's operand, where no kernel that runs anyway does it; `gathers`: before it is gathered.

        Fused products of experts make those of what lies between them: the second's input, and the gradient of the first's output.
        """
        label = f"{o.label} output gradient" if phase == "backward" else o.label
        if not (self.style.fuses_experts and o.split == ("expert column" if phase == "backward" else "expert row")):
            part = "input" if phase == "backward" else ""
            shards = self.t if gathers and self.sp else 1
            apart = self.style.casts_apart
            add_casts(rows, label, elements, self.precision, after_norm, shards, apart, phase=phase, part=part)

    def forward(self, rows: Rows, o: Operator, phase: str) -> None:
        """Write the forward rows of an operator."""
        if o.work == "gemm":
            piecewise = self.splits > 1 and o.split in ("column", "row")
            if o.split in ("column", "vocabulary") and self.sp and not piecewise:
                self.collective(rows, "all_gather", self.gathered(o, o.shape[3]), phase, o.label)
            shape, narrow = self.local(o), o.has_weight and o.split not in ("vocabulary", "router")
            if narrow:
                # a norm stands before a column-split layer (LayerNormLinear of Transformer Engine)
                column = o.split == "column"
                elements = float(shape[0] * shape[1] * shape[3])
                self.quantise(rows, o, elements, phase, gathers=column, after_norm=column)
            launches = LAUNCHES_PER_EXPERT * shape[0] if o.split.startswith("expert") else o.launches
            if piecewise:
                gathered = self.gathered(o, o.shape[3]) if o.split == "column" else 0.0
                scattered = o.shape[1] * o.shape[2] * self.e if o.split == "row" else 0.0
                write_in_pieces(self, rows, o.label, shape, "TN", phase, gathered, scattered, narrow=narrow)
                return
            b, m, n, k = shape
            order = "TN" if o.has_weight else "NN"
            for width in o.widths:
                each = (b, m, width * n // o.shape[2], k)
                row = self.product(rows, o.label, each, order, phase, launches=launches, narrow=narrow)
            if o.peers > 1:
                self.exchange_keys(rows, o, phase, row)
            if o.split == "row":
                self.collective(rows, self.summed(), o.shape[1] * o.shape[2] * self.e, phase, o.label)
            elif o.gathers:
                self.collective(rows, "all_gather", o.shape[1] * o.shape[2] * self.e, phase, f"{o.label} output")
        elif o.work == "attention":
            self.attention(rows, o, phase, 4.0, o.launches)
        elif o.work in ("dispatch", "combine"):
            swap_rows(self, rows, o, phase, o.work == "dispatch")
        elif o.work in ("counts", "wait"):
            wait_for(self, rows, o, phase)
        elif o.work != "sort" or self.experts.sorts:
            if o.role == "loss" and self.style.gathers_logits:
                join_logits(self, rows, o, phase)
            self.kernel(rows, o, o.read, o.written, phase, o.launches)
            if o.work == "lookup":
                look_up_by_product(self, rows, o, phase)
                self.collective(rows, self.summed(), self.x, phase, o.label)
            elif o.role == "loss" and not self.style.gathers_logits:
                for what in ("maximum", "target", "sum"):
                    self.collective(rows, "all_reduce", 4.0 * self.tokens, phase, f"cross entropy {what}")

    def gathered(self, o: Operator, width: int) -> float:
        """Bytes of all rows of `width` values as a product's operand is gathered: quantised first where it is in 8 bits
        (Transformer Engine, distributed.py: gather_along_first_dim of quantised tensors)."""
        narrow = o.split != "vocabulary" and BYTES_PER_ELEMENT[self.precision.gemm] == 1
        return o.shape[1] * width * (self.precision.quantised_element if narrow else self.e)

    def summed(self) -> str:
        """The collective that sums partial results."""
        return "reduce_scatter" if self.sp else "all_reduce"

    def attention(self, rows: Rows, o: Operator, phase: str, factor: float, launches: int) -> None:
        """Write a fused attention row and what the ranks that share its sequences exchange; flops count the full product.

        Under context parallelism every rank has equal work: with a causal mask its queries see half of the keys on average
        (a ring: context.py).  With a window keys are gathered first: the rings of frameworks know no windows (Transformer Engine).
        Packed documents are sequences of their own; they share the tokens evenly.
        """
        sequences, heads, length, width = o.shape
        heads, groups = heads // self.t, max(1, o.kv_heads // self.t)
        keys, mask, window = o.keys, "causal" if o.causal else "full", 0
        narrow = o.causal and 0 < o.window < keys
        if narrow:
            mask, window = "chunk" if o.chunked else "window", o.window
        flops = factor * sequences * heads * float(length) * keys * width
        if o.peers > 1 and self.inner > 1:
            heads, groups, length = heads // self.inner, groups // self.inner, length * self.inner
        apart = o.peers > self.inner and o.causal
        ring = apart and self.exchange in ("ring", "hybrid") and not narrow
        if apart and not ring:
            keys, mask, window = max(1, round(scores_left(keys, o.window, o.chunked) / keys)), "full", 0
        if o.attended:
            documents, seen = max(1, round(sequences * o.keys / o.attended)), max(1, round(o.attended))
            flops *= o.attended / o.keys
            sequences, length = documents, max(2, round(sequences * length / documents))
            keys = max(1, round(scores_left(seen, o.window, o.chunked) / seen)) if o.causal else seen
            mask, window = "full", 0
        moved = sequences * length * heads * width * self.e
        kv = o.shape[0] * o.keys * groups * width * self.e
        swap_heads(rows, o, self, phase)
        if ring:
            core = {"work": "attention", "shape": (sequences, heads, length, width), "dtype": self.dtype}
            ring_attention(rows, {**core, "phase": phase, "launches": launches}, o, self, phase)
            return
        row = rows.add(
            label=o.label,
            work="attention",
            shape=(sequences, heads, length, width),
            call=AttentionCall(o.kernel, mask, window, groups, keys),
            dtype=self.dtype,
            flops=flops,
            read=moved + 2 * kv if factor == 4.0 else 3 * moved + 2 * kv,
            written=moved if factor == 4.0 else moved + 2 * kv,
            phase=phase,
            launches=launches,
        )
        self.exchange_keys(rows, o, phase, -1 if narrow else row)

    def exchange_keys(self, rows: Rows, o: Operator, phase: str, beside: int = -1) -> None:
        """Keys and values of the other ranks' tokens; backward their gradients too.  A ring hides them beside the attention."""
        if o.peers <= self.inner:
            return
        kv = 2.0 * o.shape[0] * o.keys * max(1, o.kv_heads // self.t // self.inner) * o.shape[3] * self.e
        if not o.has_weight and o.work == "gemm":  # unfused: batch counts sequences x heads
            kv = 2.0 * self.tokens * o.peers * max(1, o.kv_heads // self.t) * o.shape[3] * self.e
        wanted = [("all_gather", kv)] + ([("reduce_scatter", kv)] if phase == "backward" else [])
        for name, message in wanted:
            rows.add(
                label=f"{o.label} keys and values {name}",
                kind=COLLECTIVE,
                work=name,
                message=message,
                group=self.groups.ring or self.groups.context,
                dtype=self.dtype,
                phase=phase,
                beside=beside if self.exchange in ("ring", "hybrid") else -1,
            )

    def bias_share(self, o: Operator) -> float:
        """How many ways the output gradient that a bias gradient sums is divided."""
        if o.split.startswith("expert"):
            return self.factor("expert" if o.split == "expert column" else "copies")
        return self.t if o.split in ("column", "vocabulary") else 1

    def backward(self, rows: Rows, o: Operator) -> None:
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
        elif o.work in ("dispatch", "combine"):
            swap_rows(self, rows, o, "backward", o.work == "combine")
        elif o.work in ("counts", "wait"):
            return
        elif o.work == "lookup":
            if self.sp:
                self.collective(rows, "all_gather", self.x, "backward", o.label)
            look_up_by_product(self, rows, o, "backward")
            self.kernel(rows, o, o.backward_read, o.backward_written, "backward", o.backward_launches, "weight")
        elif o.work != "sort" or self.experts.sorts:
            self.kernel(rows, o, o.backward_read, o.backward_written, "backward", o.backward_launches, "input")
            if o.sums_read:
                sums = replace(o, label=f"{o.label} sums", access="norm sums")
                self.kernel(rows, sums, o.sums_read, 0.0, "backward", 0, "weight")  # one of the norm's launches
            if o.role == "loss" and self.style.gathers_logits:
                join_logits(self, rows, o, "backward")

    def linear_backward(self, rows: Rows, o: Operator) -> None:
        """Input gradient (NN), weight gradient (NT, added into the gradient buffer), bias gradient; of each product."""
        b, m, n, k = self.local(o)
        column = o.split in ("column", "vocabulary")
        piecewise = self.splits > 1 and o.split == "row"
        if o.split == "row" and self.sp and not piecewise:
            self.collective(rows, "all_gather", self.gathered(o, o.shape[2]), "backward", o.label)
        wide = o.shape[1] * o.shape[3] * self.e
        for i, width in enumerate(o.widths):
            each = (b, m, width * n // o.shape[2], k)
            wgrad = self.product_backward(rows, o, each, column and self.sp and i == 0, piecewise)
            if column and not (self.sp and i + 1 < len(o.widths)):
                self.collective(rows, self.summed(), wide, "backward", o.label, beside=wgrad)
        sum_input_gradients(self, rows, o, wide)
        if o.backward_read:
            rows.add(
                label=f"{o.label} bias gradient",
                work="memory_bound",
                dtype=self.dtype,
                read=o.backward_read / self.bias_share(o),
                written=0.0,
                phase="backward",
                part="weight",
                launches=2,
            )

    def product_backward(
        self, rows: Rows, o: Operator, shape: tuple[int, int, int, int], gathers: bool, piecewise: bool
    ) -> int:
        """Write both gradients of one product, the first as its inputs arrive; returns the second's row."""
        b, m, n, k = shape
        narrow = o.split not in ("vocabulary", "router")
        launches = LAUNCHES_PER_EXPERT * b if o.split.startswith("expert") else 1
        common = {"narrow": narrow, "launches": launches}
        if narrow:
            self.quantise(rows, o, float(b * m * n), "backward", gathers=o.split == "row")
        name, dgrad = f"{o.label} input gradient", -1
        if piecewise:
            gathered = self.gathered(o, o.shape[2])
            write_in_pieces(
                self, rows, name, (b, m, k, n), "NN", "backward", gathered, 0.0, part="input", narrow=narrow
            )
        else:
            dgrad = self.product(rows, name, (b, m, k, n), "NN", "backward", part="input", **common)
        if gathers and not self.style.keeps_gathered_inputs:
            again = self.gathered(o, o.shape[3])
            self.collective(rows, "all_gather", again, "backward", f"{o.label} input", beside=dgrad)
        fused = self.style.fused_wgrad_accumulation
        wgrad = self.product(
            rows,
            f"{o.label} weight gradient",
            (b, n, k, m),
            "NT",
            "backward",
            part="weight",
            accumulates=fused,
            **common,
        )
        if not fused:  # copied to the wider format first where the narrow gradient stands beside it
            copied = self.gradient if self.style.keeps_compute_gradients and self.gradient > self.e else 0.0
            rows.add(
                label=f"{o.label} gradient accumulation",
                work="memory_bound",
                dtype=self.dtype,
                read=(self.e + self.gradient + copied) * b * n * k,
                written=(self.gradient + copied) * b * n * k,
                phase="backward",
                part="weight",
                launches=2 if copied else 1,
            )
        return wgrad
