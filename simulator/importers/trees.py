"""JSON and YAML as plain tables and lists, with the line of every key, and limits that hostile files meet early.

YAML goes through the events of PyYAML's parser: no tag makes an object, aliases are refused (a few lines of them can stand for
gigabytes), and scalars are read as YAML 1.2 reads them: `no` is a word, `1e9` a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simulator.errors import SpecError
from simulator.specs.toml_text import KeyPath

__all__ = ["MOST_DEPTH", "Tree", "flat", "parse_json", "parse_yaml"]

MOST_DEPTH = 40
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\],:\n]')
_OPENING, _CLOSING = re.compile(r"[{\[]"), re.compile(r"[}\]]")
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
          "null": None, "Null": None, "NULL": None, "~": None, "": None}  # fmt: skip
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]{0,30}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Tree:
    """Tables and lists of a file, the line of each key, and the file's name for messages."""

    data: Any
    lines: dict[KeyPath, int]
    place: str

    def place_of(self, path: KeyPath) -> str:
        """Return where a key stands: the file and, where it is known, the line."""
        line = next((self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines), 0)
        return f"{self.place}, line {line}" if line else self.place


def flat(tree: Tree) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every value that is no table, with its path; a list is a value."""
    stack: list[tuple[KeyPath, object]] = [((), tree.data)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [((*path, key), inner) for key, inner in reversed(list(value.items()))]
        else:
            yield path, value


def parse_json(text: str, place: str) -> Tree:
    """Return a JSON text.

    Raises:
        SpecError: it is no JSON, or nested too deeply.
    """
    _check_depth(text, place)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"{place}, line {error.lineno}: is no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{place}: is no JSON that can be read: {str(error)[:100]}") from None
    return Tree(data, _json_lines(text), place)


def _check_depth(text: str, place: str) -> None:
    depth = 0
    for match in re.finditer(r"[{\[\]}]", _STRING.sub("", text)):
        depth += 1 if match.group() in "{[" else -1
        if depth > MOST_DEPTH:
            raise SpecError(f"{place}: is no JSON that can be read: nested more than {MOST_DEPTH} deep")


def _json_lines(text: str) -> dict[KeyPath, int]:
    """Line of each key of the tables of a JSON text that `json` has accepted; keys inside lists count as the list's."""
    lines: dict[KeyPath, int] = {}
    path: list[str] = []
    kinds: list[str] = []
    line, last, in_list = 1, "", 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "\n":
            line += 1
        elif token == "{":
            kinds.append("{")
            path.append("")
        elif token == "[":
            kinds.append("[")
            in_list += 1
        elif token in "}]":
            if kinds and kinds.pop() == "[":
                in_list -= 1
            elif path:
                path.pop()
        elif token == ":" and last and path and not in_list:
            path[-1] = json.loads(last)
            lines.setdefault(tuple(path), line)
        last = token if token[0] == '"' else "" if token in ",:" else last
    return lines


def parse_yaml(text: str, place: str) -> Tree:
    """Return the first document of a YAML text.

    Raises:
        SpecError: it is no YAML, nested too deeply, or has aliases; the message says where.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _YamlBuilder(place)
    try:
        for event in yaml.parse(text, Loader=loader):
            if builder.take(event):
                break
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{place}, line {mark.line + 1}" if mark is not None else place
        raise SpecError(f"{where}: is no YAML: {getattr(error, 'problem', None) or str(error)[:100]}") from None
    return Tree(builder.root, builder.lines, place)


class _YamlBuilder:
    """Builds tables and lists from parser events, without recursion."""

    def __init__(self, place: str) -> None:
        self.place, self.root = place, None
        self.lines: dict[KeyPath, int] = {}
        self.stack: list[Any] = []
        self.path: list[object] = []
        self.keys: list[Any] = []

    def take(self, event: Any) -> bool:
        """Take one event; return whether the document has ended."""
        import yaml

        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise SpecError(
                f"{self.place}, line {line}: aliases (*{event.anchor}) are not read; write the value itself"
            )
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(self.stack) >= MOST_DEPTH:
                raise SpecError(f"{self.place}, line {line}: tables and lists are nested more than {MOST_DEPTH} deep")
            made: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._add(made, line)
            self.stack.append(made)
            self.keys.append(None)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self.stack.pop()
            self.keys.pop()
            self._close()
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(_scalar(event.value) if event.implicit[0] else event.value, event.value, line)
        return isinstance(event, yaml.DocumentEndEvent)

    def _scalar(self, value: object, text: str, line: int) -> None:
        if self.stack and isinstance(self.stack[-1], dict) and self.keys[-1] is None:
            self.keys[-1] = text
            self.lines.setdefault((*self._where(), text), line)
        else:
            self._add(value, line)
            self._close()

    def _where(self) -> KeyPath:
        return tuple(key for key in self.keys[:-1] if key is not None)

    def _add(self, value: Any, line: int) -> None:
        """Put a value where the innermost table or list waits for one."""
        if not self.stack:
            self.root = value
        elif isinstance(self.stack[-1], list):
            self.stack[-1].append(value)
        elif self.keys[-1] is None:
            raise SpecError(f"{self.place}, line {line}: a key must be a word, but a table or list stands there")
        else:
            self.stack[-1][self.keys[-1]] = value

    def _close(self) -> None:
        """A value is complete: the table around it waits for its next key."""
        if self.stack and isinstance(self.stack[-1], dict):
            self.keys[-1] = None


def _scalar(text: str) -> object:
    """A plain scalar as YAML 1.2's core schema reads it."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text) if _FLOAT.fullmatch(text) else text
