"""What a capture says, as sections to read and as one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from simulator.capture.record import Capture, Event
from simulator.capture.rows import block_of, levels
from simulator.program.program import CATEGORIES, Program
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table
from simulator.units import show

__all__ = ["collectives_of", "describe_capture", "peak_of", "saved_of", "to_dict"]

_PHASES = ("forward", "backward", "recompute", "optimizer")


def collectives_of(capture: Capture) -> list[dict[str, Any]]:
    """Return messages by phase, kind, ranks and bytes, with how often each was issued, in the order of their first."""
    found: Counter[tuple[Any, ...]] = Counter()
    for event in capture.events:
        if event.communicates:
            ranks = len(capture.groups[event.group].ranks)
            phase = _phase(event, capture.rank)
            found[(phase, event.work, capture.groups[event.group].name, ranks, event.message, event.dtype)] += 1
    names = ("phase", "kind", "group", "ranks", "message_bytes", "dtype")
    return [dict(zip(names, key, strict=True)) | {"count": count} for key, count in found.items()]


def _phase(event: Event, rank: int) -> str:
    """The phase of a message; between stages, outside of every module, by where it goes, as the program names it: activations to higher
    ranks."""
    if event.work not in ("send", "recv") or event.path:
        return event.phase
    return "forward" if (event.peer > rank) == (event.work == "send") else "backward"


def saved_of(capture: Capture) -> dict[str, float]:
    """Return the bytes of activations that stand when the first backward begins, by block (`layers.*` together)."""
    start = next((n for n, event in enumerate(capture.events) if event.phase == "backward"), len(capture.events))
    out: dict[str, float] = {}
    for storage in capture.storages:
        if (
            storage.category == "activations"
            and 0 <= storage.born < start
            and (storage.died is None or storage.died >= start)
        ):
            block = block_of(capture.events[min(storage.born, start - 1)].path)[0]
            out[block] = out.get(block, 0.0) + storage.bytes
    return out


def peak_of(capture: Capture) -> dict[str, float]:
    """Return bytes by category at the fullest event of the step; `total` is their sum."""
    level = levels(capture)
    out = dict.fromkeys(CATEGORIES, 0.0)
    if len(level):
        moment = int(level.argmax())
        for storage in capture.storages:
            if storage.born <= moment and (storage.died is None or storage.died >= moment):
                out[storage.category] += storage.bytes
    return {name: size for name, size in out.items() if size} | {"total": sum(out.values())}


def to_dict(captures: Sequence[Capture], program: Program) -> dict[str, Any]:
    """Return the JSON answer of `dtsim capture`: of the first rank, and of every other one of a pipeline what differs."""
    capture = captures[0]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "capture",
        "script": capture.script,
        "world_size": capture.world,
        "versions": capture.versions,
        "axes": [{"name": name, "size": size} for name, size in program.axes],
        "tokens": program.tokens,
        "rows": program.size,
        "items": len(program.items),
        **_of_rank(capture),
        "ranks": [_of_rank(each) for each in captures],
        "assumed": list(dict.fromkeys(text for each in captures for text in each.notes)),
    }


def _of_rank(capture: Capture) -> dict[str, Any]:
    events = capture.events
    return {
        "rank": capture.rank,
        "parameters": capture.parameters,
        "operators": len(events),
        "flops": {phase: sum(e.flops for e in events if e.phase == phase) for phase in _PHASES},
        "collectives": collectives_of(capture),
        "saved_bytes": saved_of(capture),
        "peak_bytes": peak_of(capture),
        "host_waits": sum(event.name == "host reads" for event in events),
        "unknown_kernels": capture.unknown,
    }


def describe_capture(captures: Sequence[Capture], program: Program) -> list[Section]:
    """Return what was recorded, in reading order."""
    capture = captures[0]
    axes = " x ".join(f"{name} {size}" for name, size in program.axes if size > 1) or "one GPU"
    one = len(captures) == 1
    who = f"rank {capture.rank}" if one else f"ranks {', '.join(str(each.rank) for each in captures)}"
    count = sum(len(each.events) for each in captures)
    return [
        Section(
            title=f"{capture.script}: one step of {who} of {capture.world:,} ({axes})",
            lines=(
                f"{count:,} operators in {program.size:,} rows of {len(program.items):,} kinds; "
                f"{sum(each.parameters for each in captures):,} parameters on {'this rank' if one else 'these ranks'}"
                + (f"; {program.tokens:,} tokens on all ranks" if program.tokens else ""),
            ),
        ),
        *(section for each in captures for section in _described(each, "" if one else f" of rank {each.rank}")),
        *_doubts(captures),
    ]


def _described(capture: Capture, whose: str) -> list[Section]:
    """Work, messages and memory of a rank."""
    answer = _of_rank(capture)
    work = tuple(
        (phase, str(sum(e.phase == phase and not e.communicates for e in capture.events)), show(size, "FLOP"))
        for phase, size in answer["flops"].items()
    )
    sent: Counter[tuple[str, ...]] = Counter()
    for c in answer["collectives"]:
        group = f"{c['group'] or 'unnamed'} ({c['ranks']})"
        sent[(c["phase"], c["kind"], group, show(c["message_bytes"], "B"), c["dtype"])] += c["count"]
    messages = tuple((*key, str(count)) for key, count in sent.items())
    headings = ("phase", "kind", "group", "message", "type", "times")
    peak = tuple((name, show(size, "B")) for name, size in answer["peak_bytes"].items())
    return [
        Section(
            title=f"work{whose}",
            table=Table(headings=("phase", "operators", "work"), rows=tuple(row for row in work if row[1] != "0")),
        ),
        Section(title=f"messages{whose}", table=Table(headings=headings, rows=messages, left=(0, 1, 2)))
        if messages
        else Section(title=f"messages{whose}", lines=("none",)),
        Section(title=f"memory of tensors{whose} at the peak", table=Table(headings=("", ""), rows=peak)),
    ]


def _doubts(captures: Sequence[Capture]) -> list[Section]:
    """What to know before trusting it."""
    unknown: Counter[str] = Counter()
    for each in captures:
        unknown.update(each.unknown)
    lines = [f"{name} ran {count} times: of no known kind, taken as memory traffic" for name, count in unknown.items()]
    waits = max(sum(event.name == "host reads" for event in each.events) for each in captures)
    if waits:
        lines.append(f"the host waits for the device {'once' if waits == 1 else f'{waits} times'} in a step")
    lines += dict.fromkeys(text for each in captures for text in each.notes)
    return [Section(title="to know", lines=tuple(lines))] if lines else []
