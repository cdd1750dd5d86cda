"""Families of plug-ins, found by file name.

A family is a package with one member per file: `Family("schedule", "simulator.schedules", "Schedule")` lists every module of
`simulator/schedules` that defines a concrete subclass of `Schedule`, and every entry point of the group
`simulator.schedules` of other installed packages.  A new member is one new file; there is no list to keep in step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from simulator.errors import SpecError, UnknownNameError

__all__ = ["Family"]


class _Named(Protocol):
    """What a member has."""

    @property
    def name(self) -> str:
        """Its own name."""


Member = TypeVar("Member", bound=_Named)
_MISTAKES = (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError)
"""What a file that somebody wrote may raise when it is loaded; what the machine refuses (OSError, MemoryError) is no mistake of its."""


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
        """One instance per member, by its own name, in alphabetical order.

        Raises:
            SpecError: a file cannot be loaded, or a member has no name or that of another.
        """
        package = importlib.import_module(self.package)
        base = getattr(importlib.import_module(f"{self.package}.base"), self.base)
        found: dict[str, Member] = {}
        cls: Any
        for info in pkgutil.iter_modules(package.__path__):
            module = self._loaded(
                functools.partial(importlib.import_module, f"{self.package}.{info.name}"), f"{info.name}.py"
            )
            for _, cls in inspect.getmembers(module, inspect.isclass):
                if issubclass(cls, base) and not inspect.isabstract(cls) and cls.__module__ == module.__name__:
                    self._add(found, cls)
        from importlib.metadata import entry_points

        for point in entry_points(group=self.package):
            self._add(found, self._loaded(point.load, f"entry point {point.name} = {point.value}"))
        return dict(sorted(found.items()))

    def _loaded(self, load: Callable[[], Any], place: str) -> Any:
        """What a file or an entry point holds; whoever wrote it may have made a mistake."""
        try:
            return load()
        except _MISTAKES as error:
            raise SpecError(
                f"{self.package}, {place}: cannot be loaded as {self.kind}: {type(error).__name__}: {error}"
            ) from error

    def _add(self, found: dict[str, Member], cls: Any) -> None:
        """Put a member under its name, which it must have to itself."""
        place = f"{cls.__module__}.{cls.__qualname__}"
        name = getattr(cls, "name", None)
        if not isinstance(name, str):
            raise SpecError(f'{place}: every {self.kind} has a name. Way out: name = "..." in the class')
        if name in found:
            raise SpecError(self._twice(name, place, found[name]))
        found[name] = cls()

    def _twice(self, name: str, place: str, other: Any) -> str:
        there = type(other)
        return f"{place}: its name or alias {name!r} is one of {there.__module__}.{there.__qualname__}, too; give one of them another"

    @functools.cached_property
    def _aliases(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for name, member in self.members.items():
            for alias in (name, *getattr(member, "aliases", ())):
                if table.setdefault(_plain(alias), name) != name:
                    cls = type(member)
                    place = f"{cls.__module__}.{cls.__qualname__}"
                    raise SpecError(self._twice(alias, place, self.members[table[_plain(alias)]]))
        return table

    def get(self, name: str) -> Member:
        """Return the member with this name or alias (case, `-` and `_` do not matter).

        Raises:
            UnknownNameError: nobody bears the name; the nearest known one is offered.
            SpecError: two members share a name or alias.
        """
        key = _plain(name)
        if key not in self._aliases:
            others = [alias for member in self.members.values() for alias in getattr(member, "aliases", ())]
            shown_by = f"dtsim list {self.listed}" if self.listed else ""
            raise UnknownNameError(self.kind, name, self.members, shown_by=shown_by, aliases=others)
        return self.members[self._aliases[key]]

    @contextlib.contextmanager
    def trying(self, member: Member) -> Iterator[None]:
        """A member that is not saved in the family's folder is known by its name inside."""
        before = dict(self.members)
        self.members[member.name] = member
        self.__dict__.pop("_aliases", None)
        try:
            yield
        finally:
            self.members.clear()
            self.members.update(before)
            self.__dict__.pop("_aliases", None)

    def __contains__(self, name: str) -> bool:
        return _plain(name) in self._aliases

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())


@functools.lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    """Letters and digits in lower case; separators between digits stay, so that 1_3b is not 13b."""
    return re.sub(r"(?<![0-9])[^a-z0-9]+|[^a-z0-9]+(?![0-9])", "", name.lower())
