"""Families of plug-ins, found by file name.

A family is a package with one member per file: `Family("schedule", "simulator.schedules", "Schedule")` lists every module of
`simulator/schedules` that defines a concrete subclass of `Schedule`, and every entry point of the group
`simulator.schedules` of other installed packages.  A new member is one new file; there is no list to keep in step.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from simulator.errors import UnknownNameError

__all__ = ["Family"]


class _Named(Protocol):
    """What a member has."""

    @property
    def name(self) -> str:
        """Its own name."""


Member = TypeVar("Member", bound=_Named)


class Family(Generic[Member]):
    """The members of one plug-in family, by name and alias.

    Args:
        kind: the word used in messages, such as "schedule".
        package: the package whose modules are searched, also the entry-point group for outside packages.
        base: name of the abstract class, found in the package's `base` module.
        listed: what `dtsim list` calls its members, where it lists them.
    """

    def __init__(self, kind: str, package: str, base: str, listed: str = "") -> None:
        self.kind, self.package, self.base, self.listed = kind, package, base, listed

    @functools.cached_property
    def members(self) -> dict[str, Member]:
        """One instance per member, by its own name, in alphabetical order."""
        package = importlib.import_module(self.package)
        base = getattr(importlib.import_module(f"{self.package}.base"), self.base)
        found: dict[str, Member] = {}
        cls: Any
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{self.package}.{info.name}")
            for _, cls in inspect.getmembers(module, inspect.isclass):
                if issubclass(cls, base) and not inspect.isabstract(cls) and cls.__module__ == module.__name__:
                    found[cls.name] = cls()
        from importlib.metadata import entry_points

        for point in entry_points(group=self.package):
            cls = point.load()
            found[cls.name] = cls()
        return dict(sorted(found.items()))

    @functools.cached_property
    def _aliases(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for name, member in self.members.items():
            for alias in (name, *getattr(member, "aliases", ())):
                table[_plain(alias)] = name
        return table

    def get(self, name: str) -> Member:
        """Return the member with this name or alias (case, `-` and `_` do not matter).

        Raises:
            UnknownNameError: nobody bears the name; the nearest known one is offered.
        """
        key = _plain(name)
        if key not in self._aliases:
            others = [alias for member in self.members.values() for alias in getattr(member, "aliases", ())]
            shown_by = f"dtsim list {self.listed}" if self.listed else ""
            raise UnknownNameError(self.kind, name, self.members, shown_by=shown_by, aliases=others)
        return self.members[self._aliases[key]]

    def __contains__(self, name: str) -> bool:
        return _plain(name) in self._aliases

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())


@functools.lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    """Letters and digits in lower case; separators between digits stay, so that 1_3b is not 13b."""
    return re.sub(r"(?<![0-9])[^a-z0-9]+|[^a-z0-9]+(?![0-9])", "", name.lower())
