"""Reads the text form of programs (`text.py`): strict, line by line; every error names the line and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from simulator.errors import ProgramError
from simulator.program.builder import SPECIAL_DEFAULTS, ProgramBuilder
from simulator.program.calls import read_call
from simulator.program.operator_table import operator_table
from simulator.program.program import (
    CATEGORIES,
    COLLECTIVE,
    COMPUTE,
    COPIES,
    COPY,
    KIND_NAMES,
    Block,
    FusedSegment,
    Link,
    OperatorTable,
    Program,
    Segment,
    StageMesh,
    Tensor,
)
from simulator.program.spec import verify
from simulator.program.text_words import (
    Line,
    read_axes,
    read_ends,
    read_group,
    read_kind,
    read_name,
    read_number,
    read_pieces,
    read_served,
    read_shape,
    read_size,
    read_whole,
    read_wholes,
    split_words,
)

__all__ = ["ACTION_LETTERS", "OPERATOR_COLUMNS", "ROW_DEFAULTS", "parse_text"]

ACTION_LETTERS = "FBIW"
ROW_DEFAULTS = {
    "action": -1,
    "chunk": -1,
    "microbatch": -1,
    "lane": 0,
    "step": 0,
    "part": 0,
    "start_effect": -1,
    "end_effect": -1,
    "mark_effect": -1,
    **SPECIAL_DEFAULTS,
}
"""Columns of a row that are written only when they differ from these values."""

OPERATOR_COLUMNS = (
    "work",
    "shape",
    "call",
    "dtype",
    "flops",
    "read",
    "written",
    "message",
    "group",
    "phase",
    "launches",
    "part",
    "beside",
    "captured",
)

_ACTION = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")


def parse_text(text: str) -> Program:
    """Return the program written as text, verified.

    Raises:
        ProgramError: a line that cannot be read (with its number, what is wrong and what is allowed), or a broken rule.

    >>> parse_text('program "p"\\nrank 0 weight=two')
    Traceback (most recent call last):
    simulator.errors.ProgramError: line 2: weight is a number, got 'two'
    """
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), start=1):
        reader.line_number = number
        try:
            words = split_words(line)
            if words:
                reader.read(words)
        except (ValueError, ProgramError) as error:
            raise ProgramError(f"line {number}: {error}") from None
    program = reader.finish()
    verify(program)
    return program


class _Fused(NamedTuple):
    """A fused pair as written: its segments may come further down."""

    name: str
    first: int
    second: int
    line_number: int


class _Reader:
    """Holds what the lines before have made."""

    def __init__(self) -> None:
        self.line_number = 0
        self.build: ProgramBuilder | None = None
        self.counts: dict[str, int] = {}
        self.streams: dict[str, tuple[int, int]] = {}
        self.items: list[Segment | _Fused | Link] = []
        self.loose: list[Segment] = []
        self.blocks: list[Block] = []
        self.tables: list[tuple[str, list[dict[str, Any]]]] = []
        self.made: dict[int, OperatorTable] = {}
        self.effects: list[list[Tensor]] = []
        self.resident: dict[int, list[Tensor]] = {}
        self.host: dict[int, list[Tensor]] = {}
        self.nvme: dict[int, list[Tensor]] = {}
        self.rows: list[tuple[int, list[int], dict[str, Any]]] = []

    def read(self, words: list[str]) -> None:
        head = words.pop(0)
        line = Line(words)
        if self.build is None and head != "program":
            raise ValueError(f'the first line is: program "name", got {head!r}')
        if head[0].isdigit():
            self.row(read_whole(head, "row"), line)
            return
        known = (
            "program",
            "rank",
            "resident",
            "host",
            "nvme",
            "stream",
            "table",
            "operator",
            "item",
            "loose",
            "block",
            "effect",
            "tensor",
        )
        if head not in known:
            raise ValueError(f"a line begins with a row number or one of {', '.join(known)}, got {head!r}")
        getattr(self, f"_{head}")(line)

    def finish(self) -> Program:
        if self.build is None:
            raise ProgramError('a program begins with the line: program "name"; the text is empty')
        for item in self.items:
            self.build.add_item(self.fuse(item) if isinstance(item, _Fused) else item)
        for tensors in self.effects:
            self.build.add_effect(*tensors)
        for rank, tensors in self.resident.items():
            self.build.set_resident(rank, *tensors)
        for rank, tensors in self.host.items():
            self.build.set_host_resident(rank, *tensors)
        for rank, tensors in self.nvme.items():
            self.build.set_nvme_resident(rank, *tensors)
        for number, streams, values in self.rows:
            self.build.add_row(number, streams, **values)
        return self.build.build(blocks=tuple(self.blocks))

    def next(self, kind: str, line: Line) -> int:
        """Read the number of a thing; things of a kind are numbered 0, 1, 2, ..."""
        number = line.number(kind, self.counts.get(kind, 0))
        self.counts[kind] = number + 1
        return number

    def _program(self, line: Line) -> None:
        if self.build is not None:
            raise ValueError("the line `program` stands once, at the top")
        name, axes = line.text("name"), line.take("axes", read_axes, ())
        framework, tokens = line.take("framework", read_name, ""), line.take("tokens", read_whole, 0)
        line.end("axes=tp=8,dp=2, framework=..., tokens=...")
        self.build = ProgramBuilder(name, axes, framework, tokens)

    def _rank(self, line: Line) -> None:
        self.next("rank", line)
        weight, axes = line.take("weight", read_number), line.take("axes", read_axes, None)
        mesh = None if axes is None else StageMesh(tuple(axes), line.take("first", read_whole))
        line.end("weight=1, axes=tp=2,dp=4, first=8")
        self.build.add_rank(weight, mesh)  # type: ignore[union-attr]

    def _resident(self, line: Line) -> None:
        self.resident.setdefault(self._known_rank(line), []).append(_tensor(line))

    def _host(self, line: Line) -> None:
        self.host.setdefault(self._known_rank(line), []).append(_tensor(line))

    def _nvme(self, line: Line) -> None:
        self.nvme.setdefault(self._known_rank(line), []).append(_tensor(line))

    def _known_rank(self, line: Line) -> int:
        rank = line.number("rank")
        if rank not in range(self.counts.get("rank", 0)):
            raise ValueError(f"resident memory stands on a rank that is known, got {rank}")
        return rank

    def _stream(self, line: Line) -> None:
        number, name = self.next("stream", line), line.word("stream such as 0:compute")
        line.end("nothing more")
        rank, colon, lane = name.partition(":")
        if not colon or not lane:
            raise ValueError(f"a stream is rank:lane such as 0:compute, got {name!r}")
        self.build.add_stream(read_whole(rank, "rank"), lane)  # type: ignore[union-attr]
        self.streams[f"{int(rank)}:{lane}"] = (number, int(rank))

    def _table(self, line: Line) -> None:
        self.next("table", line)
        self.tables.append((line.text("name"), []))
        line.end("nothing more")

    def _operator(self, line: Line) -> None:
        table = line.number("table")
        if not self.tables or table != len(self.tables) - 1:
            raise ValueError(f"operators stand below their table, got table {table}")
        values: dict[str, object] = {"label": line.text("label"), "kind": read_kind(line.word("kind"))}
        readers: dict[str, Callable[[str, str], Any]] = {
            "beside": read_whole,
            "call": read_call,
            "captured": read_whole,
            "shape": read_shape,
            "group": read_group,
            "flops": read_number,
            "launches": read_whole,
        }
        readers |= dict.fromkeys(("read", "written", "message"), read_size)
        for column in OPERATOR_COLUMNS:
            values[column] = line.take(column, readers.get(column, read_name))
        line.end(", ".join(OPERATOR_COLUMNS))
        self.tables[table][1].append(values)

    def _item(self, line: Line) -> None:
        self.next("item", line)
        if self.loose:
            raise ValueError("items come before loose segments")
        kind = line.word("kind")
        if kind == "fused":
            name, (first, second) = line.text("name"), (line.take(key, read_whole) for key in ("first", "second"))
            line.end("first=0, second=1")
            self.items.append(_Fused(name, first, second, self.line_number))
        else:
            self.items.append(self.segment(line) if kind == "segment" else _link(kind, line))

    def fuse(self, pair: _Fused) -> FusedSegment:
        """Return a fused pair, now that all segments are known."""
        known = dict(enumerate([*self.items, *self.loose]))
        first, second = known.get(pair.first), known.get(pair.second)
        if not isinstance(first, Segment) or not isinstance(second, Segment):
            raise ProgramError(
                f"line {pair.line_number}: a fused pair names two segments, got items {pair.first} and {pair.second}"
            )
        return FusedSegment(name=pair.name, first=first, second=second)

    def _loose(self, line: Line) -> None:
        line.number("loose segment", len(self.items) + len(self.loose))
        if (kind := line.word("kind")) != "segment":
            raise ValueError(f"a loose item is a segment, got {kind!r}")
        self.loose.append(self.segment(line))

    def segment(self, line: Line) -> Segment:
        name, phase = line.text("name"), line.take("phase", read_name)
        pieces = tuple((self.table(number), count) for count, number in line.take("pieces", read_pieces, ()))
        synchronises = line.flag("synchronises")
        line.end("phase=, pieces=2x0, synchronises")
        return Segment(name=name, pieces=pieces, phase=phase, synchronises=synchronises)

    def table(self, number: int) -> OperatorTable:
        """Return a table of operators; the same object each time."""
        if number not in range(len(self.tables)):
            raise ValueError(f"pieces name tables 0..{len(self.tables) - 1}, got {number}")
        if number not in self.made:
            name, rows = self.tables[number]
            columns = {c: tuple(row[c] for row in rows) for c in ("label", "kind", *OPERATOR_COLUMNS)}
            self.made[number] = operator_table(name, columns)
        return self.made[number]

    def _block(self, line: Line) -> None:
        self.next("block", line)
        name, held = line.text("name"), line.take("segments", read_wholes)
        line.end("segments=0,1")
        known = [*self.items, *self.loose]
        segments = [known[n] if 0 <= n < len(known) else None for n in held]
        if not all(isinstance(segment, Segment) for segment in segments):
            raise ValueError(f"a block lists items that are segments, got {held}")
        self.blocks.append(Block(name=name, segments=tuple(s for s in segments if isinstance(s, Segment))))

    def _effect(self, line: Line) -> None:
        self.next("effect", line)
        line.end("nothing more")
        self.effects.append([])

    def _tensor(self, line: Line) -> None:
        effect = line.number("effect")
        if effect not in range(len(self.effects)):
            raise ValueError(f"a tensor belongs to an effect above it, got effect {effect}")
        self.effects[effect].append(_tensor(line))

    def row(self, number: int, line: Line) -> None:
        if number != len(self.rows):
            raise ValueError(f"rows are numbered in order: the next one is {len(self.rows)}, got {number}")
        kind = read_kind(line.word("kind"))
        values: dict[str, Any] = {"after": [read_whole(word, "after") for word in line.after("after")]}
        names = line.after("on")
        unknown = [name for name in names if name not in self.streams]
        if unknown:
            raise ValueError(f"no stream {unknown[0]!r}; known: {', '.join(list(self.streams)[:20])}")
        item = line.take("item", read_whole)
        if item not in range(len(self.items)):
            raise ValueError(f"items are 0..{len(self.items) - 1}, got item {item}")
        self.check_item(self.items[item], kind, line)
        streams = [self.streams[name][0] for name in names]
        if not all(-1 <= other < 2**31 for other in values["after"]):
            raise ValueError(f"`after` names rows, got {values['after']}")
        values["rank"] = line.take("rank", read_whole, self.streams[names[0]][1] if names else -1)
        if kind == COMPUTE and line.words and (match := _ACTION.fullmatch(line.words[0])):
            line.words.pop(0)
            letters = ACTION_LETTERS.index(match.group(2))
            values |= {"chunk": int(match.group(1)), "action": letters, "microbatch": int(match.group(3))}
        for name, default in ROW_DEFAULTS.items():
            if name not in values:
                values[name] = line.take(name, read_whole, default)
            if not -1 <= values[name] < _LIMITS.get(name, 2**31):
                raise ValueError(f"{name} lies in -1..{_LIMITS.get(name, 2**31) - 1}, got {values[name]}")
        line.end(f"item=, rank=, {'=, '.join(ROW_DEFAULTS)}=, on ..., after ...")
        self.rows.append((item, streams, values))

    def check_item(self, item: Segment | _Fused | Link, kind: int, line: Line) -> None:
        """What a row repeats of its item must be what the item says."""
        expected = item.kind if isinstance(item, Link) else COMPUTE
        if kind != expected:
            raise ValueError(f"the item is of kind {KIND_NAMES[expected]}, the row says {KIND_NAMES[kind]}")
        if not isinstance(item, Link):
            return
        said = (
            read_name(line.word("collective"), "collective") if kind == COLLECTIVE else item.collective,
            line.take("message", read_size),
            line.take("group", read_group),
        )
        if said != (item.collective, item.message, item.group):
            raise ValueError(f"the row repeats its item: {item.collective} {item.message} {item.group}, got {said}")


_LIMITS = {"action": 6, "lane": 2**7, "part": 2**15, "count": 2**7, "slice": 2**15, "slices": 2**15}


def _link(word: str, line: Line) -> Link:
    kind = read_kind(word)
    if kind == COMPUTE:
        raise ValueError("an item is a segment, fused, transfer, collective or copy, got compute")
    named = kind == COLLECTIVE or (kind == COPY and line.words[:1] and line.words[0] in COPIES)
    collective = read_name(line.word("collective"), "collective") if named else ""
    link = Link(
        name=line.text("name"),
        kind=kind,
        message=line.take("message", read_size),
        dtype=line.take("dtype", read_name),
        group=line.take("group", read_group),
        pipeline_ranks=tuple(line.take("ranks", read_wholes)),
        account=line.take("account", read_name),
        collective=collective,
        slices=line.take("slices", read_whole, 0),
        served=line.take("served", read_served, None),
        ends=line.take("ends", read_ends, ()),
        blocks=line.flag("blocks"),
    )
    line.end("message=, dtype=, group=, ranks=, account=, slices=, served=, ends=, blocks")
    return link


def _tensor(line: Line) -> Tensor:
    category = line.word("category")
    if category not in CATEGORIES:
        raise ValueError(f"no memory category {category!r}; known: {', '.join(CATEGORIES)}")
    tensor = Tensor(name=line.text("name"), category=category, bytes=read_size(line.word("bytes"), "bytes"))
    line.end("nothing more")
    return tensor
