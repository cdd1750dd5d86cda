"""The answer of `dtsim layout` to read: a table per kind of layer, what followed from annotations, and what all sums to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from simulator.partition.infer import Inferred
from simulator.partition.operands import Operand
from simulator.partition.sbp import to_sbp
from simulator.partition.signatures import Chosen
from simulator.report.table import Section, Table
from simulator.studies.layout_figures import Block, LayoutFigures, OpFigures
from simulator.units import show

__all__ = ["comparison", "sections"]

_MOST_NAMES = 12
"""Names of a line."""


def sections(found: LayoutFigures, sbp: bool = False) -> list[Section]:
    """Return a section per kind of layer, and the totals.

    Args:
        sbp: say of every operand how it lies, in OneFlow's words.
    """
    told = [_inferred(found.inferred)] if found.inferred else []
    if found.chosen and found.beside:
        told.append(_chosen(found, found.chosen, found.beside))
    return [_head(found), *told, *(_block(found, block, sbp) for block in found.blocks), _totals(found)]


def comparison(found: Sequence[LayoutFigures]) -> list[Section]:
    """Return layouts side by side: in all, and operation by operation where they differ."""
    first = found[0]
    headings = ("", *(one.layout for one in found))
    totals = [one.totals() for one in found]
    rows = [
        ("mesh", *(_mesh(one) for one in found)),
        ("weights of a rank", *(show(t["weight_bytes"], "B") for t in totals)),
        ("work of a rank, forward", *(show(t["flops"], "FLOP") for t in totals)),
        ("sent forward", *(show(t["sent_forward_bytes"], "B") for t in totals)),
        ("sent backward", *(show(t["sent_backward_bytes"], "B") for t in totals)),
        *(
            (kind, *(f"{t['collectives'].get(kind, 0):,}" for t in totals))
            for kind in sorted({kind for t in totals for kind in t["collectives"]})
        ),
    ]
    if first.cluster:
        rows += [
            ("work", *(show(t["compute_s"], "s") for t in totals)),
            ("collectives", *(show(t["communication_s"], "s") for t in totals)),
            ("both, one after the other", *(show(t["seconds"], "s") for t in totals)),
        ]
    where = f" on {first.cluster}" if first.cluster else ""
    batches = {one.batch for one in found}
    lines = tuple(dict.fromkeys(note for one in found for note in one.notes))
    if len(batches) > 1:
        lines = (*lines, "batches differ: --batch N gives all the same")
    table = Table(headings=headings, rows=tuple(rows))
    return [
        Section(title=f"{first.model}, {len(found)} layouts{where}", lines=lines, table=table),
        *_by_operation(found),
    ]


def _by_operation(found: Sequence[LayoutFigures]) -> Iterable[Section]:
    """A section per kind of layer with what every operation exchanges, of those that differ."""
    for blocks in zip(*(one.blocks for one in found), strict=True):
        rows = []
        for ops in zip(*(block.ops for block in blocks), strict=True):
            told = [_exchanged(op) for op in ops]
            if len(set(told)) > 1:
                rows.append((ops[0].label, *told))
        if rows:
            times = f", {blocks[0].count} times" if blocks[0].count > 1 else ""
            table = Table(
                headings=("sent by a rank", *(one.layout for one in found)),
                rows=tuple(rows),
                left=tuple(range(len(found) + 1)),
            )
            yield Section(title=f"{blocks[0].kind}{times}", table=table)


def _exchanged(op: OpFigures) -> str:
    cs = op.derived.collectives
    if not cs:
        return "-"
    kinds = dict.fromkeys(c.kind for c in cs)
    seconds = f", {show(sum(op.seconds.collectives), 's')}" if op.seconds else ""
    return f"{show(sum(c.sent for c in cs), 'B')}{seconds} ({', '.join(kinds)})"


def _mesh(found: LayoutFigures) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in found.mesh)


def _head(found: LayoutFigures) -> Section:
    where = f" on {found.cluster}" if found.cluster else ""
    return Section(title=f"{found.model} on a mesh of {_mesh(found)}, layout {found.layout}{where}", lines=found.notes)


def _chosen(found: LayoutFigures, chosen: Chosen, beside: LayoutFigures) -> Section:
    """What every operation divides, and what that moves beside what would have followed."""
    divided = [
        (block.kind, op.label, ", ".join(f"{dim.name} on {axis}" for axis, dim in op.derived.along.items()))
        for block in found.blocks
        for op in block.ops
    ]
    rows = [("given", name, _lies(on)) for name, on in chosen.given.items() if on]
    rows += [row for row in divided if row[2]]
    idle = sum(not on for _, _, on in divided)
    both, below = (found.totals(), beside.totals()), [f"{idle} operations divide nothing"] if idle else []
    for what, key, unit in (
        ("sent by a rank forward", "sent_forward_bytes", "B"),
        ("sent by a rank backward", "sent_backward_bytes", "B"),
        ("weights of a rank", "weight_bytes", "B"),
        ("work of a rank forward", "flops", "FLOP"),
        *([("one after the other", "seconds", "s")] if found.cluster else []),
    ):
        below.append(f"{what}: {show(both[0][key], unit)}, as propagated {show(both[1][key], unit)}")
    boxing = f"{show(found.boxing_bytes, 'B')}, as propagated {show(beside.boxing_bytes, 'B')}"
    return Section(
        title="chosen operation by operation, by what has to be moved least",
        table=Table(headings=("", "", "divides"), rows=tuple(rows), left=(0, 1, 2)),
        below=(f"moved over all ranks forward: {boxing}", *below),
    )


def _lies(on: Mapping[str, str]) -> str:
    return ", ".join(f"{dim} on {axis}" for axis, dim in on.items())


def _inferred(found: Inferred) -> Section:
    rows = tuple(
        (name, _lies(on), how)
        for how, some in (("given", found.given), ("follows", found.found))
        for name, on in some.items()
        if on
    )
    whole = list(found.open)
    more = f" and {len(whole) - _MOST_NAMES} more" if len(whole) > _MOST_NAMES else ""
    below = [f"nothing divides {', '.join(whole[:_MOST_NAMES])}{more}: whole on every rank"] if whole else []
    below += [f"conflict: {conflict}" for conflict in found.conflicts]
    return Section(
        title=f"propagated from {len(found.given)} tensors to {len(rows) - sum(map(bool, found.given.values()))} more",
        table=Table(headings=("tensor", "lies", ""), rows=rows, left=(0, 1, 2)),
        below=tuple(below),
    )


def _block(found: LayoutFigures, block: Block, sbp: bool) -> Section:
    rows: list[tuple[str, ...]] = []
    for op in block.ops:
        rows += _rows(op, found, sbp)
    headings = ("operation", "on a rank", *(("SBP",) if sbp else ()), "collective", "axes", "message")
    timed = ("seconds",) if found.cluster else ()
    times = f", {block.count} times" if block.count > 1 else ""
    left = tuple(range(len(headings) - 1))
    return Section(title=f"{block.kind}{times}", table=Table(headings=(*headings, *timed), rows=tuple(rows), left=left))


def _rows(op: OpFigures, found: LayoutFigures, sbp: bool) -> Iterable[tuple[str, ...]]:
    seconds, blank = op.seconds, ("",) if sbp else ()
    work = (show(seconds.forward + seconds.backward, "s") if seconds else "",) if found.cluster else ()
    lies = (_equation(op, lambda o: f"[{','.join(to_sbp(o.tensor, o.used, found.mesh))}]"),) if sbp else ()
    yield (op.label, _equation(op, lambda o: "x".join(str(d.size) for d in o.used_shape)), *lies, "", "", "", *work)
    for i, c in enumerate(op.derived.collectives):
        time = (show(seconds.collectives[i], "s") if seconds else "",) if found.cluster else ()
        yield ("", f"  {c.tensor}", *blank, f"{c.direction} {c.kind}", ", ".join(c.axes), show(c.bytes, "B"), *time)


def _equation(op: OpFigures, of: Callable[[Operand], str]) -> str:
    """What a rank computes on: operands -> result."""
    parts = op.derived.operands
    given = [o for o in parts if o.role == "input" or (o.role == "weight" and o.tensor.role == "weight")]
    made = [o for o in parts if o.role == "output"][:1]
    return f"{' '.join(dict.fromkeys(map(of, given)))} -> {' '.join(map(of, made))}"


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
