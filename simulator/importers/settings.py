"""Flags or keys of a file as named settings: each is taken once by whoever knows it, and what nobody took is reported.

Names are compared without leading dashes and with `_` for `-`.  Values of flags are texts; those of JSON, YAML and TOML have types.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from simulator.errors import SpecError
from simulator.importers.imported import Findings, brief
from simulator.importers.trees import Tree, flat

__all__ = ["Entry", "Settings", "of_tree", "plain_name", "written_as"]

Ours = TypeVar("Ours")
_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}
_WHOLE = re.compile(r"[-+]?[0-9][0-9_]{0,18}")
_ANOTHER = "#"
"""Behind a name and in front of its number: a setting of a name that another has, too."""
_INTERPOLATED = re.compile(r"\$\{|\{\{")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One setting.

    Args:
        value: True for a flag without a value, a text, a list of texts, or what a structured file holds.
        place: file and line.
        text: as it stands in the file, for reports.
        note: where its value comes from, when that is a default of the file itself.
        open: whether it depends on something that the file does not say, such as a variable of the shell.
    """

    value: Any
    place: str
    text: str
    note: str = ""
    open: bool = False


def plain_name(name: object) -> str:
    """Return a flag's or key's name as it is compared.

    >>> plain_name("--tensor-model-parallel-size")
    'tensor_model_parallel_size'
    """
    return str(name).strip().lstrip("-").replace("-", "_")


def written_as(known: Mapping[str, Ours]) -> dict[Ours, str]:
    """Return how another program writes what we mean: of several of its words the first.

    >>> written_as({"all_gather": "gathered", "allgather": "gathered", "p2p": "ring"})
    {'gathered': 'all_gather', 'ring': 'p2p'}
    """
    out: dict[Ours, str] = {}
    for theirs, ours in known.items():
        out.setdefault(ours, theirs)
    return out


class Settings:
    """The settings of a file, by plain name, and what is found in them: a reader takes settings, and puts or assumes fields.

    Args:
        entries: by name.
        findings: what becomes of them; `get`, `assume` and `drop` are those of the findings.
    """

    def __init__(self, entries: Mapping[str, Entry], findings: Findings) -> None:
        self._entries = dict(entries)
        self.findings = findings
        self.get, self.assume, self.drop = findings.get, findings.assume, findings.drop
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def left(self) -> Iterator[tuple[str, Entry]]:
        """Yield what nobody has taken."""
        for name, entry in self._entries.items():
            if name not in self._taken:
                yield name, entry

    def states(self, name: str) -> bool:
        """Say whether this setting is there and is true, without taking it."""
        return name in self._entries and flag_of(self._entries[name])

    def null(self, *names: str) -> bool:
        """Say whether one of these settings is there and says nothing."""
        return any(name in self._entries and self._entries[name].value is None for name in names)

    def report(self, no_effect: Iterable[str], prefixes: tuple[str, ...] = ()) -> None:
        """Report what nobody has taken: as without effect where it is known to be or says nothing (null), else as not understood."""
        known = set(no_effect)
        for name, entry in self.left():
            name = name.partition(_ANOTHER)[0]
            if entry.value is None or name in known or name.startswith(prefixes or ("\0",)):
                self.findings.ignore(entry.place, entry.text)
            else:
                self.findings.skip(entry.place, entry.text)

    def take(self, *names: str) -> Entry | None:
        """Return the first of these settings that the file has and whose value is known; all of them count as taken.

        One that depends on what the file does not say is reported as not understood.
        """
        found = None
        for name in names:
            entry = self._entries.get(name)
            if entry is None or name in self._taken:
                continue
            self._taken.add(name)
            if entry.open or (isinstance(entry.value, str) and _INTERPOLATED.search(entry.value)):
                self.findings.skip(entry.place, f"{entry.text} (depends on what the file does not say)")
            elif found is None and entry.value is not None:
                found = entry
        return found

    def said(self, *names: str) -> str:
        """Return where the first of these settings stands, and how; the names when the file has none of them."""
        entry = next((self._entries[name] for name in names if name in self._entries), None)
        return f"{entry.place}: {entry.text}" if entry else ", ".join(names)

    def ignore(self, *names: str) -> None:
        """Take settings that are known to have no effect."""
        for name in names:
            entry = self._entries.get(name)
            if entry is not None and name not in self._taken:
                self._taken.add(name)
                self.findings.ignore(entry.place, entry.text)

    def refuse(self, entry: Entry, why: str = "") -> None:
        """Report a setting that was taken as not understood."""
        self.findings.skip(entry.place, f"{entry.text} ({why})" if why else entry.text)

    def whole(self, *names: str, least: int = 1) -> int | None:
        """Return a whole number; None when no such setting is there.

        Raises:
            SpecError: it is something else.
        """
        entry = self.take(*names)
        return None if entry is None else whole_of(entry, least)

    def number(self, *names: str) -> float | None:
        """Return a number; None when no such setting is there.

        Raises:
            SpecError: it is something else.
        """
        entry = self.take(*names)
        if entry is None:
            return None
        value = entry.value
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise SpecError(f"{entry.place}: {entry.text}: expected a number")
        return float(value)

    def flag(self, *names: str) -> bool | None:
        """Return a truth value; None when no such setting is there.

        Raises:
            SpecError: it is something else.
        """
        entry = self.take(*names)
        return None if entry is None else flag_of(entry)

    def word(self, *names: str) -> str | None:
        """Return a text; None when no such setting is there.

        Raises:
            SpecError: it is something else.
        """
        entry = self.take(*names)
        return None if entry is None else word_of(entry)

    def waive(self, entry: Entry, why: str = "") -> None:
        """Report a setting that was taken as without effect."""
        self.findings.ignore(entry.place, f"{entry.text}: {why}" if why else entry.text)

    def say(self, field: str, value: Any, *names: str) -> None:
        """Set a field that the first of these settings says."""
        self.findings.put(field, value, self.said(*names))

    def put(self, field: str, entry: Entry, value: Any) -> None:
        """Set a field from a setting that was taken."""
        if entry.note:
            self.findings.assume(field, value, entry.note)
        else:
            self.findings.put(field, value, f"{entry.place}: {entry.text}")

    def put_whole(self, field: str, *names: str, least: int = 1) -> int | None:
        """Set a field to a whole number, where the file gives one; return it."""
        entry = self.take(*names)
        if entry is None:
            return None
        value = whole_of(entry, least)
        self.put(field, entry, value)
        return value

    def put_degree(self, field: str, *names: str) -> Entry | None:
        """Set a field to a whole number above one, where the file gives one; return its setting."""
        entry = self.take(*names)
        if entry is None or whole_of(entry) == 1:
            return None
        self.put(field, entry, whole_of(entry))
        return entry

    def put_known(self, field: str, entry: Entry, known: Mapping[str, object], word: str | None = None) -> None:
        """Set a field to what the word of a setting that was taken means here; one that is not known is reported.

        Args:
            known: word -> what it means here.
            word: of the setting, where that is not all that it says.
        """
        word = word_of(entry) if word is None else word
        if word in known:
            self.put(field, entry, known[word])
        else:
            self.refuse(entry, "known: " + ", ".join(known))

    def put_clipping(self, name: str) -> None:
        """Set whether gradients are clipped from the norm to which they are, where the file gives one: 0 = they are not."""
        norm = self.number(name)
        if norm is not None:
            self.findings.put("plan.clip_gradients", norm > 0, self.said(name))

    def put_flag(self, field: str, *names: str) -> bool | None:
        """Set a field to a truth value, where the file gives one; return it."""
        entry = self.take(*names)
        if entry is None:
            return None
        value = flag_of(entry)
        self.put(field, entry, value)
        return value


def whole_of(entry: Entry, least: int = 1) -> int:
    """Return the whole number of a setting.

    Raises:
        SpecError: it is something else, or too small.
    """
    value = entry.value
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, float) and value == int(value) and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        words = {0: "of zero or more", 1: "above zero"}.get(least, f"of at least {least}")
        raise SpecError(f"{entry.place}: {entry.text}: expected a whole number {words}")
    return value


def flag_of(entry: Entry) -> bool:
    """Return the truth value of a setting.

    Raises:
        SpecError: it is something else.
    """
    value = entry.value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        value = value.lower() in _TRUE
    if isinstance(value, int) and value in (0, 1):
        value = bool(value)
    if not isinstance(value, bool):
        raise SpecError(f"{entry.place}: {entry.text}: expected true or false")
    return value


def word_of(entry: Entry) -> str:
    """Return the text of a setting.

    Raises:
        SpecError: it is something else.
    """
    if isinstance(entry.value, bool | dict | list):
        raise SpecError(f"{entry.place}: {entry.text}: expected a word")
    return str(entry.value)


def of_tree(tree: Tree, findings: Findings, last_part: bool = False, aside: Container[str] = ()) -> Settings:
    """Return the values of a tree as settings under their dotted paths, or under the last part of these.

    Args:
        last_part: name each by its own key alone; of two of one name the first counts, the other is reported.
        aside: tables whose settings have no effect, whatever their names.
    """
    entries: dict[str, Entry] = {}
    for path, value in flat(tree):
        names = [plain_name(part) for part in path]
        name = names[-1] if last_part and names else ".".join(names)
        text = f"{'.'.join(map(str, path))}: {brief(value)}"
        entry = Entry(value=value, place=tree.place_of(path), text=brief(text))
        if any(part in aside for part in names[:-1]):
            findings.ignore(entry.place, entry.text)
        elif name not in entries:
            entries[name] = entry
        elif entries[name].value != value:
            text = f"{entry.text} (another {name} stands at {entries[name].place})"
            entries[f"{name}{_ANOTHER}{len(entries)}"] = replace(entry, text=text)
    return Settings(entries, findings)
