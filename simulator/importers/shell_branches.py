"""Which statements of an `if`, a `case`, a loop or a function run, as far as a script tells."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Branches"]


@dataclass(slots=True)
class Branches:
    """An open if, loop, case or function.

    Args:
        waits: whether the brace of a function is still to come.
        test: of an if, whether its test holds; None = not known.
        subject: what a case is about; None = not known.
        ran, doubt: whether a branch before this one runs, or may run.
        state: test (before then), run, dead (does not run) or unknown.
    """

    kind: str
    waits: bool = False
    test: bool | None = None
    state: str = "unknown"
    ran: bool = False
    doubt: bool = False
    subject: str | None = None

    def __post_init__(self) -> None:
        self.state = "test" if self.kind == "if" else "unknown"

    def branch(self, first: str, pattern: str) -> None:
        """Go on to a branch of a case, or behind one."""
        if self.subject is None:
            return
        holds = first != ";;" and not self.ran and (pattern == "*" or pattern == self.subject)
        self.state, self.ran = "run" if holds else "dead", self.ran or holds

    def enter(self, word: str, test: bool | None) -> None:
        """Go on to then, elif or else."""
        if self.kind != "if":
            return
        if word == "elif":
            self.test, self.state = test, "test"
            return
        holds = True if word == "else" else self.test
        self.state = "dead" if self.ran or holds is False else "unknown" if holds is None or self.doubt else "run"
        self.ran = self.ran or self.state == "run"
        self.doubt = self.doubt or holds is None
