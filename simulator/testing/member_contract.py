"""What contracts of a family's members have in common: a member is named as its file and has a source, and broken promises name it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import ClassVar, Protocol

__all__ = ["MemberContract"]


class _Member(Protocol):
    @property
    def name(self) -> str:
        """By which it is asked for."""


class MemberContract:
    """The promises of one member.

    Class attributes:
        what: the members are, as a broken promise says it.
    """

    what: ClassVar[str]

    def __init__(self, member: _Member) -> None:
        self._member = member

    def check_named(self) -> None:
        """Check that the name is the file's, and that a source is given.

        Raises:
            AssertionError: one is missing or wrong.
        """
        stem = Path(inspect.getfile(type(self._member))).stem
        self._require(self._member.name == stem, f"its name is the name of its file, {stem!r}")
        self._require(bool(getattr(self._member, "source", "").strip()), "it says its source")

    def _require(self, kept: bool, promise: str, where: object = "") -> None:
        """Raise AssertionError where a promise is broken; `where` says for what, where that is not all."""
        if not kept:
            at = f" at {where}" if where else ""
            raise AssertionError(f"{self.what} {self._member.name} breaks its contract{at}: {promise}")
