"""A verb as typer runs it: options that want a number and get none are refused in one line, as everything else is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from simulator.errors import SpecError

__all__ = ["VerbCommand"]


class VerbCommand(TyperCommand):
    """A command whose numbers are refused with what was given and the way out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read a command line.

        Raises:
            SpecError: an option wants a number, or one in a range, and got something else.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            names: Sequence[str] = getattr(error.param, "opts", ())
            value = _value_of(given, names)
            if value is None:
                raise
            raise SpecError(_refusal(names[-1], value, error.message)) from None


def _value_of(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The last value that a command line gives an option; None: it gives none."""
    found = None
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if equals and option in names:
            found = value
        elif word in names and at + 1 < len(words):
            found = words[at + 1]
        elif word[:2] in names and word[1:2] != "-" and word[2:]:
            found = word[2:]
    return found


def _refusal(option: str, value: str, message: str) -> str:
    """What typer says of a value, in the words of this program."""
    got = f"got {value[:80]!r}"
    limit = re.search("(greater|less) than or equal to .*", message)
    if limit:
        return f"{option}: expected a number {limit[0].rstrip('.')}, {got}"
    if "valid integer" in message:
        whole = _whole(value)
        way_out = "" if whole is None else f". Way out: {option} {whole}"
        return f"{option}: expected a whole number such as 8, {got}{way_out}"
    if "valid number" in message or "valid float" in message:
        return f"{option}: expected a number such as 0.5, {got}"
    return f"{option}: {message.rstrip('.')}, {got}"


def _whole(text: str) -> int | None:
    """The whole number that a text such as 1e3 means; None: none."""
    with contextlib.suppress(ValueError):
        value = float(text)
        if value.is_integer() and abs(value) < 1e15:
            return int(value)
    return None
