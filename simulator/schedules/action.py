"""One action of one rank and its text: `2F0` is stage, kind, microbatch; groups, parts and fused pairs extend it.

2F3+4          one operation for two whole microbatches
2B3.1/2        the first of two parts of a microbatch: a half, or a slice of its sequence
2B3.1/2@0.3    the same, taking 0.3 of the time of the whole microbatch instead of a half
(2F4;5B1)      a fused pair: one operation made of a forward and a backward; torch writes OVERLAP_F_B behind it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from simulator.errors import ProgramError

__all__ = ["KINDS", "Action", "B", "Cell", "F", "I", "W", "cell_text", "parse_cell"]

KINDS = "FBIW"
"""Forward, whole backward, its input-gradient half, its weight-gradient half; the columns hold the index."""

_LARGEST = 2**31 - 1
_MOST_COUNT, _MOST_PARTS = 127, 2**15 - 1
_ACTION = re.compile(
    r"([0-9]{1,10})([FBIW])([0-9]{1,10})((?:\+[0-9]{1,10})*)"
    r"(?:\.([0-9]{1,5})/([0-9]{1,5}))?(?:@([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]{1,3})?))?",
    re.ASCII,
)
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)(?:OVERLAP_F_B)?", re.ASCII)
_FOREIGN = (
    (re.compile(r"SEND|RECV"), "transfers follow from the order and are added later; give compute actions only"),
    (re.compile(r"UNSHARD|RESHARD|REDUCE_GRAD"), "collectives follow from the plan; give compute actions only"),
    (re.compile(r"[();]|OVERLAP"), "a fused pair is a forward and a backward in brackets, such as (2F4;5B1)"),
    (re.compile(r"\+"), "a group names microbatches that follow each other, such as 2F3+4"),
    (re.compile(r"[./]"), "a part is counted from 1 and has its number behind it, such as 2B3.1/2"),
    (re.compile(r"@"), "a weight is a number above 0, such as 2F3.1/2@0.4"),
)


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one rank: `kind` on one chunk (global stage number) for one microbatch, a part of it, or several.

    Args:
        kind: F forward, B backward, I and W its input-gradient and weight-gradient halves.
        chunk: global stage number.
        microbatch: the first (mostly the only) microbatch.
        count: number of whole microbatches, one after the other, that this one operation covers.
        part: which of `parts` parts of the microbatch, from 0.
        parts: number of parts; 1 is the whole microbatch.
        weight: time relative to one whole microbatch on that chunk; None is count / parts.

    Raises:
        ProgramError: a part of several microbatches at once, a part that is not there, or a weight that is not above 0.

    >>> print(Action("F", 2, 0), Action("F", 2, 3, count=2), Action("B", 2, 3, parts=2))
    2F0 2F3+4 2B3.1/2
    """

    kind: Literal["F", "B", "I", "W"]
    chunk: int
    microbatch: int
    count: int = 1
    part: int = 0
    parts: int = 1
    weight: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _MOST_COUNT:
            raise ProgramError(f"an action covers 1..{_MOST_COUNT} microbatches at once: got {self.count}")
        if not 0 <= self.part < self.parts <= _MOST_PARTS:
            raise ProgramError(
                f"part k of n has k in 0..n-1 and n up to {_MOST_PARTS}: got part {self.part} of {self.parts}; "
                "in text it is counted from 1"
            )
        if self.count > 1 and self.parts > 1:
            raise ProgramError("an action is a part of one microbatch or several whole ones, not both")
        if self.weight is not None and not 0 < self.weight < float("inf"):
            raise ProgramError(f"the weight of an action is a finite number above 0: got {self.weight}")

    @property
    def share(self) -> float:
        """Time relative to one whole microbatch on that chunk."""
        return self.count / self.parts if self.weight is None else self.weight

    def __str__(self) -> str:
        text = f"{self.chunk}{self.kind}{self.microbatch}"
        if self.count > 1:
            text += "".join(f"+{self.microbatch + k}" for k in range(1, self.count))
        if self.parts > 1:
            text += f".{self.part + 1}/{self.parts}"
        return text if self.weight in (None, self.count / self.parts) else f"{text}@{self.weight!r}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Return the action that `text` names; the inverse of `str`.

        Raises:
            ProgramError: the text is no action.

        >>> str(Action.parse("11W3"))
        '11W3'
        """
        found = _ACTION.fullmatch(text)
        if found is None:
            raise _refuse(text)
        microbatch, more = int(found[3]), [int(n) for n in found[4].split("+")[1:]]
        if max(int(found[1]), microbatch + len(more)) > _LARGEST:
            raise ProgramError(f"stages and microbatches are numbers up to {_LARGEST}: got {text[:60]!r}")
        if more != [microbatch + k for k in range(1, len(more) + 1)]:
            raise ProgramError(f"a group names microbatches that follow each other, such as 2F3+4: got {text[:60]!r}")
        weight = None if found[7] is None else float(found[7])
        part, parts = int(found[5] or 1) - 1, int(found[6] or 1)
        try:
            return cls(found[2], int(found[1]), microbatch, 1 + len(more), part, parts, weight)  # type: ignore[arg-type]
        except ProgramError as error:
            raise ProgramError(f"{text[:60]!r}: {error}") from None


Cell: TypeAlias = Action | tuple[Action, Action]
"""One operation of a rank: an action, or a fused pair of forward and backward."""


def F(chunk: int, microbatch: int, **more: int) -> Action:
    """Return the forward of a chunk for a microbatch; `more` as in `Action`."""
    return Action("F", chunk, microbatch, **more)


def B(chunk: int, microbatch: int, **more: int) -> Action:
    """Return the whole backward of a chunk for a microbatch; `more` as in `Action`."""
    return Action("B", chunk, microbatch, **more)


def I(chunk: int, microbatch: int, **more: int) -> Action:  # noqa: E743
    """Return the input-gradient half of a backward; `more` as in `Action`."""
    return Action("I", chunk, microbatch, **more)


def W(chunk: int, microbatch: int, **more: int) -> Action:
    """Return the weight-gradient half of a backward; `more` as in `Action`."""
    return Action("W", chunk, microbatch, **more)


def cell_text(cell: Cell, torch: bool = False) -> str:
    """Return the text of an action or a pair.

    Args:
        torch: write pairs as `torch.distributed.pipelining` does.

    Raises:
        ProgramError: torch has no word for a group, a part or a weight.

    >>> cell_text((F(2, 4), B(5, 1))), cell_text((F(2, 4), B(5, 1)), torch=True)
    ('(2F4;5B1)', '(2F4;5B1)OVERLAP_F_B')
    """
    for action in cell if isinstance(cell, tuple) else (cell,):
        if torch and (action.count > 1 or action.parts > 1 or action.share != 1):
            raise ProgramError(
                f"torch runs whole microbatches, one per action: {action} is a group, a part or weighted; "
                "write the text without torch=True, or use another schedule"
            )
    if isinstance(cell, Action):
        return str(cell)
    return f"({cell[0]};{cell[1]})" + ("OVERLAP_F_B" if torch else "")


def parse_cell(text: str) -> Cell:
    """Return the action or the pair that `text` names; the inverse of `cell_text`.

    Raises:
        ProgramError: the text is neither.

    >>> parse_cell("(2F4;5B1)OVERLAP_F_B") == (F(2, 4), B(5, 1))
    True
    """
    found = _PAIR.fullmatch(text)
    if found is None:
        return Action.parse(text)
    first, second = Action.parse(found[1].strip()), Action.parse(found[2].strip())
    if first.kind != "F" or second.kind not in "BI":
        raise ProgramError(f"a fused pair is a forward and then a backward, such as (2F4;5B1): got {text[:60]!r}")
    return first, second


def _refuse(text: str) -> ProgramError:
    for pattern, reason in _FOREIGN:
        if pattern.search(text):
            return ProgramError(f"{text[:60]!r} is not a compute action: {reason}")
    return ProgramError(f"an action is stage, F, B, I or W, and microbatch, such as 2F0: got {text[:60]!r}")
