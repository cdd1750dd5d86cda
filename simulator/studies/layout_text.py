"""The answer of `dtsim layout` to read: a table per kind of layer, and what they sum to."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.partition.operands import Operand
from simulator.report.table import Section, Table
from simulator.studies.layout_figures import Block, LayoutFigures, OpFigures
from simulator.units import show

__all__ = ["sections"]


def sections(found: LayoutFigures) -> list[Section]:
    """Return a section per kind of layer, and the totals."""
    return [_head(found), *(_block(found, block) for block in found.blocks), _totals(found)]


def _head(found: LayoutFigures) -> Section:
    mesh = " x ".join(f"{axis} {size}" for axis, size in found.mesh)
    where = f" on {found.cluster}" if found.cluster else ""
    return Section(title=f"{found.model} on a mesh of {mesh}, layout {found.layout}{where}", lines=found.notes)


def _block(found: LayoutFigures, block: Block) -> Section:
    timed = bool(found.cluster)
    rows: list[tuple[str, ...]] = []
    for op in block.ops:
        rows += _rows(op, timed)
    headings = ("operation", "on a rank", "collective", "axes", "message", *(("seconds",) if timed else ()))
    times = f", {block.count} times" if block.count > 1 else ""
    return Section(title=f"{block.kind}{times}", table=Table(headings=headings, rows=tuple(rows), left=(0, 1, 2, 3)))


def _rows(op: OpFigures, timed: bool) -> Iterable[tuple[str, ...]]:
    shapes, cs = _shapes(op), op.derived.collectives
    seconds = op.seconds
    work = (show(seconds.forward + seconds.backward, "s") if seconds else "",) if timed else ()
    yield (op.label, shapes, "", "", "", *work)
    for i, c in enumerate(cs):
        time = (show(seconds.collectives[i], "s") if seconds else "",) if timed else ()
        yield ("", f"  {c.tensor}", f"{c.direction} {c.kind}", ", ".join(c.axes), show(c.bytes, "B"), *time)


def _shapes(op: OpFigures) -> str:
    """Shapes of the parts that a rank computes on: [operand] [operand] -> [result]."""
    parts = op.derived.operands
    given = [o for o in parts if o.role == "input"] + [
        o for o in parts if o.role == "weight" and o.tensor.role == "weight"
    ]
    made = [o for o in parts if o.role == "output"][:1]
    return f"{' '.join(dict.fromkeys(map(_shape, given)))} -> {' '.join(map(_shape, made))}"


def _shape(o: Operand) -> str:
    return f"{'x'.join(str(d.size) for d in o.used_shape)}"


def _totals(found: LayoutFigures) -> Section:
    totals = found.totals()
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in totals["collectives"].items()) or "none"
    lines = [
        f"work of a rank: {show(totals['flops'], 'FLOP')} forward, {show(totals['backward_flops'], 'FLOP')} backward",
        f"weights of a rank: {show(totals['weight_bytes'], 'B')}",
        f"collectives: {kinds}",
        f"sent by a rank: {show(totals['sent_forward_bytes'], 'B')} forward, {show(totals['sent_backward_bytes'], 'B')} backward",
    ]
    if found.cluster:
        lines.append(
            f"{show(totals['seconds'], 's')} one after the other: {show(totals['compute_s'], 's')} of work, "
            f"{show(totals['communication_s'], 's')} of collectives"
        )
    return Section(title="forward and backward of the whole model", lines=tuple(lines))
