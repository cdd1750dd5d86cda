"""What contracts of a family's members have in common: a member is named as its file and has a source, and broken promises name it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

__all__ = ["MemberContract"]


class _Member(Protocol):
    @property
    def name(self) -> str:
        """By which it is asked for."""


Member = TypeVar("Member", bound=_Member)


class MemberContract(Generic[Member]):
    """The promises of one member.

    Args:
        member: the one to check.

    Class attributes:
        what: the members are, as a broken promise says it.
    """

    what: ClassVar[str]

    def __init__(self, member: Member) -> None:
        self.member = member

    def check_named(self) -> None:
        """Check that the name is the file's, and that a source is given.

        Raises:
            AssertionError: one is missing or wrong.
        """
        stem = Path(inspect.getfile(type(self.member))).stem
        self._require(self.member.name == stem, f"its name is the name of its file, {stem!r}")
        self._require(bool(getattr(self.member, "source", "").strip()), "it says its source")

    def _require(self, kept: bool, promise: str, where: object = "") -> None:
        """Raise AssertionError where a promise is broken; `where` says for what, where that is not all."""
        if not kept:
            at = f" at {where}" if where else ""
            raise AssertionError(f"{self.what} {self.member.name} breaks its contract{at}: {promise}")
