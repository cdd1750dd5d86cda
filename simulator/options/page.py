"""All choices on one page: what each says, its values, its default and what it needs to matter, from the declarations alone."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Annotated, Literal, Union

from pydantic import BaseModel

from simulator.options.option import Option, declared
from simulator.units import Unit

__all__ = ["default", "matters_with", "page", "values"]


def page(cls: type[BaseModel]) -> str:
    """Return a table of every group of choices, as Markdown, in the order in which groups and choices are declared."""
    options = declared(cls)
    groups = list(dict.fromkeys(option.group for option in options.values()))
    ordered = sorted(options.values(), key=lambda option: groups.index(option.group))
    return "\n".join(line for group, some in groupby(ordered, lambda o: o.group) for line in _table(group, some))


def _table(group: str, options: Iterable[Option]) -> Iterator[str]:
    yield from (
        f"## {group[0].upper()}{group[1:]}",
        "",
        "| choice | what | values | default | matters with |",
        "|---|---|---|---|---|",
    )
    for one in options:
        cells = (f"`{one.name}`", one.doc.rstrip("."), values(one), default(one), matters_with(one))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def values(option: Option) -> str:
    """Return what may be given, in words."""
    return _words(option.kind, option.bounds)


def default(option: Option) -> str:
    """Return what holds where nothing is given; "" where the words of the choice say it."""
    if option.framework_default is not None:
        return (
            f"{'not ' if option.framework_default.opposite else ''}the framework's `{option.framework_default.field}`"
        )
    return "" if option.default is None else str(option.default).lower()


def matters_with(option: Option) -> str:
    """Return what a choice needs to matter, in words."""
    return "; ".join(
        f"{need.said} (for {' and '.join(map(str, need.when))})" if need.when else need.said for need in option.needs
    )


def _words(kind: object, bounds: tuple[object, ...]) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _words(inner[0], _flat(inner[1:]))
    if origin in (Union, types.UnionType):
        return " or ".join(_words(one, bounds) for one in inner if one is not types.NoneType)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin is tuple:
        words = _words(inner[0], ())
        return "list of " + ("names" if words == "name" else words.replace("whole number", "whole numbers"))
    if kind is bool:
        return "true, false"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"tables of {', '.join(kind.model_fields)}"
    units = [one.symbol for one in bounds if isinstance(one, Unit)]
    least, most = (next((getattr(one, key) for one in bounds if hasattr(one, key)), None) for key in ("ge", "le"))
    nouns: dict[object, str] = {int: "whole number", float: "number", str: "name"}
    noun = nouns[kind] if not units else f"quantity in {units[0]}"
    return noun if least is None else f"{noun}, {least:,} to {most:,}"


def _flat(metadata: Iterable[object]) -> tuple[object, ...]:
    return tuple(one for some in metadata for one in getattr(some, "metadata", None) or (some,))
