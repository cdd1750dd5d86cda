"""Words and values of the text form of programs: how a line is cut, and how each kind of value is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from simulator.program.program import KIND_NAMES, End, Served
from simulator.units import parse

__all__ = [
    "PROGRAM_BEGINS",
    "Line",
    "read_axes",
    "read_ends",
    "read_group",
    "read_kind",
    "read_name",
    "read_number",
    "read_pieces",
    "read_served",
    "read_shape",
    "read_size",
    "read_whole",
    "read_wholes",
    "split_words",
    "write_served",
]

PROGRAM_BEGINS = 'program "'
"""How a program's text begins."""
_TOKEN = re.compile(r'\s*(?:(#.*)|((?:[a-z_]+=)?"(?:[^"\\]|\\.)*"|[^\s"#]+)(?=\s|\Z))')
_WHOLE = re.compile(r"-?\d{1,18}")


def split_words(line: str) -> list[str]:
    """Split a line at blanks, keeping quoted texts whole and dropping what follows `#`."""
    words, place = [], 0
    line = line.rstrip()
    while place < len(line):
        match = _TOKEN.match(line, place)
        if not match:
            raise ValueError(
                f"words are parted by blanks and texts stand in double quotes, got {line[place : place + 40]!r}"
            )
        if match.group(1):
            break
        words.append(match.group(2))
        place = match.end()
    return words


class Line:
    """The words of one line, taken from the left, each key at most once; nothing may be left over."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def word(self, what: str) -> str:
        """Take the next word."""
        if not self.words:
            raise ValueError(f"{what} is missing at the end of the line")
        return self.words.pop(0)

    def text(self, what: str) -> str:
        """Take the next word, a text in double quotes."""
        return _unquote(self.word(what), what)

    def number(self, what: str, wanted: int | None = None) -> int:
        """Take the next word, a whole number, perhaps one that is known."""
        value = read_whole(self.word(what), what)
        if wanted is not None and value != wanted:
            raise ValueError(f"{what}s are numbered in order: the next one is {wanted}, got {value}")
        return value

    def take(self, key: str, read: Callable[[str, str], Any], default: Any = ...) -> Any:
        """Take `key=value` from anywhere in the line."""
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
        """Take a word that is there or not."""
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
        """Say that the line ends here."""
        if self.words:
            raise ValueError(f"nobody knows {self.words[0]!r} here; allowed: {allowed}")


def read_kind(word: str) -> int:
    """Return the number of a kind of row; ValueError with the names of all kinds."""
    if word not in KIND_NAMES:
        raise ValueError(f"a kind is one of {', '.join(KIND_NAMES)}, got {word!r}")
    return KIND_NAMES.index(word)


def _unquote(word: str, what: str) -> str:
    if not word.startswith('"'):
        raise ValueError(f"{what} stands in double quotes, got {word!r}")
    return str(json.loads(word))


def read_name(word: str, what: str) -> str:
    """Return a bare or quoted word; `-` is the empty one."""
    return "" if word == "-" else _unquote(word, what) if word.startswith('"') else word


def read_whole(word: str, what: str) -> int:
    """Return a whole number."""
    if not _WHOLE.fullmatch(word):
        raise ValueError(f"{what} is a whole number, got {word!r}")
    return int(word)


def read_wholes(word: str, what: str) -> list[int]:
    """Return whole numbers parted by commas; `-` is none."""
    return [] if word == "-" else [read_whole(part, what) for part in word.split(",")]


def read_served(word: str, what: str) -> Served:
    """Return servers: an algorithm, how many, bytes moved for a byte, and "sum" or "each"; parted by commas."""
    name, servers, moved, when, *_ = *word.split(","), "", "", ""
    if when not in ("sum", "each"):
        raise ValueError(f"{what} ends with sum or each (what servers update with), got {word!r}")
    return Served(name, read_whole(servers, what), read_number(moved, what), when == "each")


def write_served(served: Served) -> str:
    """Return the word that `read_served` reads."""
    return f"{served.algorithm},{served.servers},{served.moved!r},{'each' if served.each else 'sum'}"


def read_number(word: str, what: str) -> float:
    """Return a number."""
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{what} is a number, got {word!r}") from None


def read_size(word: str, what: str) -> float:
    """Return bytes of a size such as 64MiB or 100B."""
    return parse(word, "B", any_magnitude=True)


def read_group(word: str, what: str) -> tuple[str, ...]:
    """Return mesh axes parted by `+`; `-` is none."""
    return () if word == "-" else tuple(word.split("+"))


def read_shape(word: str, what: str) -> list[int]:
    """Return batch, m, n and k."""
    shape = read_wholes(word, what)
    if len(shape) != 4:
        raise ValueError(f"a shape is batch,m,n,k, got {word!r}")
    return shape


def read_pieces(word: str, what: str) -> list[tuple[int, int]]:
    """Return (count, table) of pieces such as 24x0,1x1."""
    pairs = [part.split("x") for part in word.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"pieces are count x table such as 24x0,1x1, got {word!r}")
    return [(read_whole(count, what), read_whole(table, what)) for count, table in pairs]


def read_ends(word: str, what: str) -> tuple[End, ...]:
    """Return the two ends of a transfer between stages, rows x parts x copies each: 2x1x4,8x1x1."""
    ends = [part.split("x") for part in word.split(",")]
    if len(ends) != 2 or any(len(end) != 3 for end in ends):
        raise ValueError(f"ends are rows x parts x copies of two stages such as 2x1x4,8x1x1, got {word!r}")
    return tuple(End(*(read_whole(size, what) for size in end)) for end in ends)


def read_axes(word: str, what: str) -> list[tuple[str, int]]:
    """Return (name, size) of axes such as tp=8,dp=2."""
    pairs = [part.split("=") for part in word.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"axes are name=size such as tp=8,dp=2, got {word!r}")
    return [(name, read_whole(size, what)) for name, size in pairs]
