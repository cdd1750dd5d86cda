"""Reads the text form of programs (`text.py`): strict, line by line; every error names the line and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.errors import ProgramError
from simulator.program.builder import ProgramBuilder
from simulator.program.program import (
    CATEGORIES,
    COLLECTIVE,
    COMPUTE,
    KIND_NAMES,
    Block,
    Link,
    OperatorTable,
    Program,
    Segment,
    Tensor,
)
from simulator.program.spec import verify
from simulator.units import parse

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
}
"""Columns of a row that are written only when they differ from these values."""

OPERATOR_COLUMNS = (
    "work",
    "shape",
    "layout",
    "dtype",
    "flops",
    "read",
    "written",
    "message",
    "group",
    "phase",
    "launches",
    "part",
)

_TOKEN = re.compile(r'\s*(?:(#.*)|((?:[a-z_]+=)?"(?:[^"\\]|\\.)*"|[^\s"#]+)(?=\s|\Z))')
_ACTION = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_WHOLE = re.compile(r"-?\d{1,18}")


def parse_text(text: str) -> Program:
    """Return the program written as text, verified.

    Raises:
        ProgramError: a line that cannot be read (with its number, what is wrong and what is allowed), or a broken rule.

    >>> parse_text('program "p"\\nrank 0 weight=two')
    Traceback (most recent call last):
    simulator.errors.ProgramError: line 2: weight is a number, got 'two'
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = _words(line)
            if words:
                reader.read(words)
        except (ValueError, ProgramError) as error:
            raise ProgramError(f"line {number}: {error}") from None
    program = reader.finish()
    verify(program)
    return program


def _words(line: str) -> list[str]:
    """Split a line at blanks, keeping quoted texts whole and dropping what follows `#`."""
    words, place = [], 0
    line = line.rstrip()
    while place < len(line):
        match = _TOKEN.match(line, place)
        if not match:
            raise ValueError(f"words are parted by blanks and texts stand in double quotes, got {line[place : place + 40]!r}")
        if match.group(1):
            break
        words.append(match.group(2))
        place = match.end()
    return words


class _Line:
    """The words of one line, taken from the left, each key at most once; nothing may be left over."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def word(self, what: str) -> str:
        if not self.words:
            raise ValueError(f"{what} is missing at the end of the line")
        return self.words.pop(0)

    def text(self, what: str) -> str:
        return _unquote(self.word(what), what)

    def number(self, what: str, wanted: int | None = None) -> int:
        value = _whole(self.word(what), what)
        if wanted is not None and value != wanted:
            raise ValueError(f"{what}s are numbered in order: the next one is {wanted}, got {value}")
        return value

    def take(self, key: str, read: Callable[[str, str], Any], default: Any = ...) -> Any:
        found = [word for word in self.words if word.startswith(key + "=")]
        if len(found) > 1:
            raise ValueError(f"{key} is given once, got it {len(found)} times")
        if not found:
            if default is ...:
                raise ValueError(f"{key}=... is missing")
            return default
        self.words.remove(found[0])
        return read(found[0][len(key) + 1 :], key)

    def flag(self, word: str) -> bool:
        if word in self.words:
            self.words.remove(word)
            return True
        return False

    def after(self, word: str) -> list[str]:
        """Take `word a,b,c` from the line; [] when the word is not there."""
        if word not in self.words:
            return []
        place = self.words.index(word)
        if place + 1 == len(self.words):
            raise ValueError(f"{word!r} needs a list such as 1,2 behind it")
        found = self.words.pop(place + 1).split(",")
        self.words.pop(place)
        return found

    def end(self, allowed: str) -> None:
        if self.words:
            raise ValueError(f"nobody knows {self.words[0]!r} here; allowed: {allowed}")


class _Reader:
    """Holds what the lines before have made."""

    def __init__(self) -> None:
        self.build: ProgramBuilder | None = None
        self.counts: dict[str, int] = {}
        self.streams: dict[str, tuple[int, int]] = {}
        self.items: list[Segment | Link] = []
        self.loose: list[Segment] = []
        self.blocks: list[Block] = []
        self.tables: list[tuple[str, list[dict[str, Any]]]] = []
        self.made: dict[int, OperatorTable] = {}
        self.effects: list[list[Tensor]] = []
        self.resident: dict[int, list[Tensor]] = {}
        self.rows: list[tuple[int, list[int], dict[str, Any]]] = []

    def read(self, words: list[str]) -> None:
        head = words.pop(0)
        line = _Line(words)
        if self.build is None and head != "program":
            raise ValueError(f'the first line is: program "name", got {head!r}')
        if head[0].isdigit():
            self.row(_whole(head, "row"), line)
            return
        known = ("program", "rank", "resident", "stream", "table", "operator", "item", "loose", "block", "effect", "tensor")
        if head not in known:
            raise ValueError(f"a line begins with a row number or one of {', '.join(known)}, got {head!r}")
        getattr(self, f"_{head}")(line)

    def finish(self) -> Program:
        if self.build is None:
            raise ProgramError('a program begins with the line: program "name"; the text is empty')
        for item in self.items:
            self.build.add_item(item)
        for tensors in self.effects:
            self.build.add_effect(*tensors)
        for rank, tensors in self.resident.items():
            self.build.set_resident(rank, *tensors)
        for number, streams, values in self.rows:
            self.build.add_row(number, streams, **values)
        return self.build.build(blocks=tuple(self.blocks))

    def next(self, kind: str, line: _Line) -> int:
        """Read the number of a thing; things of a kind are numbered 0, 1, 2, ..."""
        number = line.number(kind, self.counts.get(kind, 0))
        self.counts[kind] = number + 1
        return number

    def _program(self, line: _Line) -> None:
        if self.build is not None:
            raise ValueError("the line `program` stands once, at the top")
        name, axes = line.text("name"), line.take("axes", _axes, ())
        line.end("axes=tp=8,dp=2")
        self.build = ProgramBuilder(name, axes)

    def _rank(self, line: _Line) -> None:
        self.next("rank", line)
        weight = line.take("weight", _real)
        line.end("weight=1")
        self.build.add_rank(weight)  # type: ignore[union-attr]

    def _resident(self, line: _Line) -> None:
        rank = line.number("rank")
        if rank not in range(self.counts.get("rank", 0)):
            raise ValueError(f"resident memory stands on a rank that is known, got {rank}")
        self.resident.setdefault(rank, []).append(_tensor(line))

    def _stream(self, line: _Line) -> None:
        number, name = self.next("stream", line), line.word("stream such as 0:compute")
        line.end("nothing more")
        rank, colon, lane = name.partition(":")
        if not colon or not lane:
            raise ValueError(f"a stream is rank:lane such as 0:compute, got {name!r}")
        self.build.add_stream(_whole(rank, "rank"), lane)  # type: ignore[union-attr]
        self.streams[f"{int(rank)}:{lane}"] = (number, int(rank))

    def _table(self, line: _Line) -> None:
        self.next("table", line)
        self.tables.append((line.text("name"), []))
        line.end("nothing more")

    def _operator(self, line: _Line) -> None:
        table = line.number("table")
        if not self.tables or table != len(self.tables) - 1:
            raise ValueError(f"operators stand below their table, got table {table}")
        values: dict[str, Any] = {"label": line.text("label"), "kind": _kind(line.word("kind"))}
        readers: dict[str, Callable[[str, str], Any]] = {"shape": _shape, "group": _group, "flops": _real, "launches": _whole}
        readers |= dict.fromkeys(("read", "written", "message"), _size)
        for column in OPERATOR_COLUMNS:
            values[column] = line.take(column, readers.get(column, _name))
        line.end(", ".join(OPERATOR_COLUMNS))
        self.tables[table][1].append(values)

    def _item(self, line: _Line) -> None:
        self.next("item", line)
        if self.loose:
            raise ValueError("items come before loose segments")
        kind = line.word("kind")
        self.items.append(self.segment(line) if kind == "segment" else _link(kind, line))

    def _loose(self, line: _Line) -> None:
        line.number("loose segment", len(self.items) + len(self.loose))
        if (kind := line.word("kind")) != "segment":
            raise ValueError(f"a loose item is a segment, got {kind!r}")
        self.loose.append(self.segment(line))

    def segment(self, line: _Line) -> Segment:
        name, phase = line.text("name"), line.take("phase", _name)
        pieces = tuple((self.table(number), count) for count, number in line.take("pieces", _pieces, ()))
        synchronises = line.flag("synchronises")
        line.end("phase=, pieces=2x0, synchronises")
        return Segment(name=name, pieces=pieces, phase=phase, synchronises=synchronises)

    def table(self, number: int) -> OperatorTable:
        """Return a table of operators; the same object each time."""
        if number not in range(len(self.tables)):
            raise ValueError(f"pieces name tables 0..{len(self.tables) - 1}, got {number}")
        if number not in self.made:
            name, rows = self.tables[number]
            columns: dict[str, Any] = {c: tuple(row[c] for row in rows) for c in ("label", "kind", *OPERATOR_COLUMNS)}
            for column, dtype in _ARRAYS.items():
                columns[column] = np.array(columns[column], dtype)
            columns["shape"] = columns["shape"].reshape(-1, 4)
            self.made[number] = OperatorTable(name=name, **columns)
        return self.made[number]

    def _block(self, line: _Line) -> None:
        self.next("block", line)
        name, held = line.text("name"), line.take("segments", _wholes)
        line.end("segments=0,1")
        known = [*self.items, *self.loose]
        segments = [known[n] if 0 <= n < len(known) else None for n in held]
        if not all(isinstance(segment, Segment) for segment in segments):
            raise ValueError(f"a block lists items that are segments, got {held}")
        self.blocks.append(Block(name=name, segments=tuple(s for s in segments if isinstance(s, Segment))))

    def _effect(self, line: _Line) -> None:
        self.next("effect", line)
        line.end("nothing more")
        self.effects.append([])

    def _tensor(self, line: _Line) -> None:
        effect = line.number("effect")
        if effect not in range(len(self.effects)):
            raise ValueError(f"a tensor belongs to an effect above it, got effect {effect}")
        self.effects[effect].append(_tensor(line))

    def row(self, number: int, line: _Line) -> None:
        if number != len(self.rows):
            raise ValueError(f"rows are numbered in order: the next one is {len(self.rows)}, got {number}")
        kind = _kind(line.word("kind"))
        values = {"after": [_whole(word, "after") for word in line.after("after")]}
        names = line.after("on")
        unknown = [name for name in names if name not in self.streams]
        if unknown:
            raise ValueError(f"no stream {unknown[0]!r}; known: {', '.join(list(self.streams)[:20])}")
        item = line.take("item", _whole)
        if item not in range(len(self.items)):
            raise ValueError(f"items are 0..{len(self.items) - 1}, got item {item}")
        self.check_item(self.items[item], kind, line)
        streams = [self.streams[name][0] for name in names]
        values["rank"] = line.take("rank", _whole, self.streams[names[0]][1] if names else -1)
        if kind == COMPUTE and line.words and (match := _ACTION.fullmatch(line.words[0])):
            line.words.pop(0)
            letters = ACTION_LETTERS.index(match.group(2))
            values |= {"chunk": int(match.group(1)), "action": letters, "microbatch": int(match.group(3))}
        for name, default in ROW_DEFAULTS.items():
            if name not in values:
                values[name] = line.take(name, _whole, default)
            if not -1 <= values[name] < _LIMITS.get(name, 2**31):
                raise ValueError(f"{name} lies in -1..{_LIMITS.get(name, 2**31) - 1}, got {values[name]}")
        line.end(f"item=, rank=, {'=, '.join(ROW_DEFAULTS)}=, on ..., after ...")
        self.rows.append((item, streams, values))

    def check_item(self, item: Segment | Link, kind: int, line: _Line) -> None:
        """What a row repeats of its item must be what the item says."""
        expected = COMPUTE if isinstance(item, Segment) else item.kind
        if kind != expected:
            raise ValueError(f"the item is of kind {KIND_NAMES[expected]}, the row says {KIND_NAMES[kind]}")
        if not isinstance(item, Link):
            return
        said = (line.word("collective") if kind == COLLECTIVE else "", line.take("message", _size), line.take("group", _group))
        if said != (item.collective, item.message, item.group):
            raise ValueError(f"the row repeats its item: {item.collective} {item.message} {item.group}, got {said}")


_ARRAYS: dict[str, Any] = {
    "kind": np.int8,
    "shape": np.int64,
    "flops": np.float64,
    "read": np.float64,
    "written": np.float64,
    "message": np.float64,
    "launches": np.int64,
}
_LIMITS = {"action": 5, "lane": 2**7, "part": 2**15}


def _link(word: str, line: _Line) -> Link:
    kind = _kind(word)
    if kind == COMPUTE:
        raise ValueError("an item is a segment, transfer, collective or copy, got compute")
    collective = line.word("collective") if kind == COLLECTIVE else ""
    link = Link(
        name=line.text("name"),
        kind=kind,
        message=line.take("message", _size),
        dtype=line.take("dtype", _name),
        group=line.take("group", _group),
        pipeline_ranks=tuple(line.take("ranks", _wholes)),
        account=line.take("account", _name),
        collective=collective,
    )
    line.end("message=, dtype=, group=, ranks=, account=")
    return link


def _tensor(line: _Line) -> Tensor:
    category = line.word("category")
    if category not in CATEGORIES:
        raise ValueError(f"no memory category {category!r}; known: {', '.join(CATEGORIES)}")
    tensor = Tensor(name=line.text("name"), category=category, bytes=_size(line.word("bytes"), "bytes"))
    line.end("nothing more")
    return tensor


def _kind(word: str) -> int:
    if word not in KIND_NAMES:
        raise ValueError(f"a kind is one of {', '.join(KIND_NAMES)}, got {word!r}")
    return KIND_NAMES.index(word)


def _unquote(word: str, what: str) -> str:
    if not word.startswith('"'):
        raise ValueError(f"{what} stands in double quotes, got {word!r}")
    return str(json.loads(word))


def _name(word: str, what: str) -> str:
    return "" if word == "-" else _unquote(word, what) if word.startswith('"') else word


def _whole(word: str, what: str) -> int:
    if not _WHOLE.fullmatch(word):
        raise ValueError(f"{what} is a whole number, got {word!r}")
    return int(word)


def _wholes(word: str, what: str) -> list[int]:
    return [] if word == "-" else [_whole(part, what) for part in word.split(",")]


def _real(word: str, what: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{what} is a number, got {word!r}") from None


def _size(word: str, what: str) -> float:
    return parse(word, "B")


def _group(word: str, what: str) -> tuple[str, ...]:
    return () if word == "-" else tuple(word.split("+"))


def _shape(word: str, what: str) -> list[int]:
    shape = _wholes(word, what)
    if len(shape) != 4:
        raise ValueError(f"a shape is batch,m,n,k, got {word!r}")
    return shape


def _pieces(word: str, what: str) -> list[tuple[int, int]]:
    pairs = [part.split("x") for part in word.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"pieces are count x table such as 24x0,1x1, got {word!r}")
    return [(_whole(count, what), _whole(table, what)) for count, table in pairs]


def _axes(word: str, what: str) -> list[tuple[str, int]]:
    pairs = [part.split("=") for part in word.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"axes are name=size such as tp=8,dp=2, got {word!r}")
    return [(name, _whole(size, what)) for name, size in pairs]
