"""A file handed to us: read with limits, never executed, and parsed once.

Only regular files are opened, so a pipe or a device cannot hold us up.  Compressed files are unpacked up to the same limit as plain
ones.  Structured text is parsed with a limit on its depth (`trees`).
"""

from __future__ import annotations

import functools
import os
import stat
import zlib
from pathlib import Path
from typing import Any

from simulator.errors import SpecError
from simulator.importers.trees import Tree, parse_json, parse_yaml
from simulator.specs import key_lines
from simulator.specs.files import reason_of, shown_path
from simulator.specs.toml_text import parse_toml

__all__ = ["MOST_BYTES", "MOST_TREE", "Document", "open_document"]

MOST_BYTES = 64 * 2**20
"""Bytes of a log or trace, unpacked."""
MOST_TREE = 2**20
"""Bytes of a configuration."""
_GZIP = b"\x1f\x8b"


class Document:
    """A file's content.

    Args:
        place: how messages name it.
        data: its bytes, unpacked.
    """

    def __init__(self, place: str, data: bytes) -> None:
        self.place, self.data = place, data

    @property
    def suffix(self) -> str:
        """The ending of its name in lower case, that of a compression aside: ".json"."""
        return Path(self.place.removesuffix(".gz")).suffix.lower()

    @property
    def stem(self) -> str:
        """Its name without folder and ending."""
        return Path(self.place.removesuffix(".gz")).stem

    @functools.cached_property
    def head(self) -> str:
        """The first 64 KiB as text, whatever they are."""
        return self.data[: 2**16].decode("utf-8-sig", errors="replace")

    @functools.cached_property
    def text(self) -> str:
        """All of it as text.

        Raises:
            SpecError: it is not UTF-8, or holds NUL bytes.
        """
        try:
            text = self.data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SpecError(f"{self.place}: is no text file (byte {error.start} is not UTF-8)") from None
        if "\0" in text:
            raise SpecError(f"{self.place}: is no text file (byte {text.index(chr(0))} is NUL)")
        return text

    @functools.cached_property
    def form(self) -> str:
        """What it is written in: json, toml, yaml, xml or text."""
        start = self.head.lstrip()[:1]
        by_name = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".xml": "xml"}.get(self.suffix)
        if self.suffix in (".log", ".txt", ".out", ".err", ".sh"):
            return "text"
        if by_name:
            return by_name
        return {"{": "json", "<": "xml"}.get(start, "text")

    @functools.cached_property
    def tree(self) -> Tree | None:
        """The content as tables and lists; None for other text.

        Raises:
            SpecError: it is too large, too deep, or not what its name or first character promises.
        """
        if self.form not in ("json", "toml", "yaml"):
            return None
        if len(self.data) > MOST_TREE:
            raise SpecError(f"{self.place}: is larger than 1 MiB; expected a small {self.form.upper()} file")
        if self.form == "toml":
            return Tree(parse_toml(self.text, self.place), key_lines(self.text), self.place)
        parse = parse_json if self.form == "json" else parse_yaml
        return parse(self.text, self.place)

    @functools.cached_property
    def table(self) -> dict[str, Any]:
        """The content when it is a table that can be read; {} else.  For those who only want to know what it is."""
        try:
            data = self.tree.data if self.tree else None
        except SpecError:
            return {}
        return data if isinstance(data, dict) else {}

    def tree_of(self, expected: str) -> Tree:
        """Return the content as one table.

        Args:
            expected: what it should be, for the message.

        Raises:
            SpecError: it is none.
        """
        if self.tree is None or not isinstance(self.tree.data, dict):
            raise SpecError(f"{self.place}: expected {expected}")
        return self.tree

    def line_of(self, number: int) -> str:
        """Return how messages name a line, counted from 1."""
        return f"{self.place}, line {number}"


def open_document(path: str | Path) -> Document:
    """Return a file's content.

    Raises:
        SpecError: no such file, not a regular one, not readable, too large, or a broken archive.
    """
    place = shown_path(Path(path).expanduser())
    try:
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
        handle = os.open(Path(path).expanduser(), flags)
    except (OSError, ValueError) as error:
        raise SpecError(f"{place}: cannot be read ({reason_of(error)})") from None
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        word = "a directory" if stat.S_ISDIR(kind) else "a pipe" if stat.S_ISFIFO(kind) else "a device or socket"
        raise SpecError(f"{place}: is {word}; expected a file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if data.startswith(_GZIP):
        data = _unpacked(data, place)
    if len(data) > MOST_BYTES:
        raise SpecError(
            f"{place}: is larger than 64 MiB. Way out: cut it to the part that matters, e.g. tail -c 50000000"
        )
    return Document(place, data)


def _unpacked(data: bytes, place: str) -> bytes:
    """The content of a gzip file, cut off one byte beyond the limit."""
    unpack = zlib.decompressobj(wbits=31)
    try:
        out = unpack.decompress(data, MOST_BYTES + 1)
    except zlib.error as error:
        raise SpecError(f"{place}: is no gzip file that can be read ({error})") from None
    if len(out) <= MOST_BYTES and not unpack.eof:
        raise SpecError(f"{place}: is a gzip file that ends early")
    return out
