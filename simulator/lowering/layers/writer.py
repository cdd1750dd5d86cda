"""Writes the rows of one operator of a layer, on one GPU, in one phase: what moves, what is multiplied, what ranks send each other."""

from __future__ import annotations

from typing import Any

from simulator.lowering.layers.division import Hops
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.rows import Rows, usual_half
from simulator.partition.strategies.base import TENSOR
from simulator.program.calls import STREAM, AttentionCall, Call, Convolved, Product
from simulator.workload.operator import Operator

__all__ = ["Writer"]


class Writer:
    """Where an operator's rows go, and what they have in common.

    Args:
        ctx: what they depend on beside the operator.
        rows: those of its layer.
        o: the operator.
        phase: "forward", "recompute" or "backward".
    """

    def __init__(self, ctx: LayerContext, rows: Rows, o: Operator, phase: str) -> None:
        self.ctx, self.rows, self.o, self.phase = ctx, rows, o, phase

    @property
    def backward(self) -> bool:
        """Whether gradients are made."""
        return self.phase == "backward"

    @property
    def part(self) -> str:
        """The half of a backward that rows belong to, unless they are said to be of the weights'."""
        return usual_half(self.phase)

    def moves(
        self, label: str, read: float, written: float, launches: int = 1, part: str | None = None, call: Call = STREAM
    ) -> int:
        """Add a kernel that moves so many bytes; returns its index."""
        return self.rows.moves(label, self.ctx.dtype, read, written, self.phase, launches, part, call)

    def sends(self, label: str, collective: str, message: float, group: tuple[str, ...], **more: Any) -> int:
        """Add a collective of the ranks along these mesh axes of the program; returns its index."""
        return self.rows.sends(label, collective, message, group, self.ctx.dtype, self.phase, **more)

    def collective(
        self,
        label: str,
        name: str,
        message: float,
        beside: int = -1,
        always: bool = False,
        axes: tuple[str, ...] = (),
        part: str = "",
        launches: int = 1,
    ) -> None:
        """Add a collective of the tensor-parallel ranks, or of those along some `axes` of the layout; none without a name.

        It runs beside a row where the framework can, or `always`; 0 launches: another row starts it.
        """
        ctx = self.ctx
        if name:
            group = ctx.group(axes) if axes else ctx.groups.tensor
            beside = beside if ctx.overlaps or always else -1
            self.sends(label, name, message, group, beside=beside, part=part, launches=launches)

    def move(self, label: str, hops: Hops, size: float, beside: int = -1, part: str = "") -> None:
        """Add the collectives that change a tensor's placement.

        Args:
            size: of the whole tensor [B].
        """
        for hop in hops:
            copy = hop.collective in self.ctx.copied and hop.axis == TENSOR and not part
            parts = hop.axis == TENSOR and hop.collective in ("all_gather", "reduce_scatter")
            message = size / hop.ways * (self.ctx.padded if parts else 1.0)
            if copy and hop.collective == "reduce_scatter":
                self._ordered(label, message)
            self.collective(label, hop.collective, message, beside, axes=(hop.axis,), part=part)
            if copy and hop.collective != "reduce_scatter":
                self._ordered(label, message)

    def _ordered(self, label: str, size: float) -> None:
        """Copy sequences from where each rank's parts lie behind each other, or to there."""
        self.moves(f"{label} parts of sequences", size, size)

    def product(
        self,
        label: str,
        shape: tuple[int, int, int, int],
        order: str,
        windows: tuple[float, float] | None = None,
        narrow: bool = False,
        accumulates: bool = False,
        part: str | None = None,
        launches: int = 1,
    ) -> int:
        """Add a GEMM row; returns its index.

        Args:
            windows: `shared` and `saved` of `calls.Convolved`.
            narrow: whether its operands are quantised, where the precision is one that quantises.
            accumulates: whether it is added to fp32.
        """
        b, m, n, k = shape
        precision, wide = self.ctx.precision, self.ctx.e
        shared = windows[0] if windows else 1.0
        left, right = (m * k, k * n / shared) if order == "NT" else (m * k / shared, k * n)
        quantised = narrow and precision.quantises
        dtype, e = (precision.gemm, precision.quantised_element) if quantised else (precision.compute, wide)
        out = 4.0 if accumulates else wide
        return self.rows.add(
            label=label,
            work="gemm",
            shape=shape,
            call=Convolved(order, *windows) if windows else Product(order),
            dtype=dtype,
            flops=2.0 * b * m * n * k,
            read=b * (left + right) * e + (b * m * n * out if out != wide else 0.0),
            written=b * m * n * out,
            phase=self.phase,
            part=self.part if part is None else part,
            launches=launches,
        )

    def attends(
        self,
        label: str,
        shape: tuple[int, int, int, int],
        call: AttentionCall,
        flops: float,
        launches: int,
        read: float = 0.0,
        written: float = 0.0,
    ) -> int:
        """Add a fused attention kernel; returns its index."""
        return self.rows.add(
            label=label,
            work="attention",
            shape=shape,
            call=call,
            dtype=self.ctx.dtype,
            flops=flops,
            read=read,
            written=written,
            phase=self.phase,
            launches=launches,
        )
