"""What is wrong with a value of a file, in words: the place, the value, the rule, the way out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from simulator.aliases import explained
from simulator.errors import FEW, TYPING_SLIP, nearest, nearest_few, shortened
from simulator.specs.toml_text import KeyPath

__all__ = ["MISSING", "explain", "kind_of"]

MISSING = "missing key"
"""What is said of a place that lacks keys, before their names."""

_TRIED = ("function-", "literal[", "tuple[", "list[", "dict[", "constrained-")
"""Beginnings of pydantic's names for members of a union; no key of our files begins so."""


def explain(
    item: ErrorDetails, cls: type[BaseModel], place: str, lines: dict[KeyPath, int], given: Collection[KeyPath] = ()
) -> tuple[int, str, str]:
    """Return (line, place and value, rule) of one pydantic error; of a missing key its name stands in place of a rule."""
    at = _keys_of(item["loc"], cls)
    line = next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), 0)
    where = f"{place}, line {line}" if line else place
    path = shortened(".".join(map(str, at)), 100)
    kind, value = item["type"], item["input"]
    whole = kind == "extra_forbidden" or (at and not line)  # a table, and one that the file does not have
    within = whole and any(key[: len(at)] == at for key in given)
    if within or any(at[:n] in given for n in range(1, len(at) + 1)):
        line, where = 0, "--set"
    table = at[:-1]
    if kind == "missing" and table and table not in lines and any(key[: len(table)] == table for key in given):
        where = "--set"
    if kind == "missing":
        return line, f"{where}: {MISSING}", path
    if not at:
        return line, f"{where}: {_rule(item)}", ""
    if kind == "extra_forbidden":
        known = _keys_at(cls, at[:-1])
        name = str(at[-1])
        meant = explained(name)
        guess = None if meant else _in_another_table(cls, at) or nearest(name, known, TYPING_SLIP)
        hint = f" Here: {meant}." if meant else f" Did you mean {guess}?" if guess else ""
        shown = f"Known: {', '.join(known)}" if len(known) <= FEW else f"Nearest: {', '.join(nearest_few(name, known))}"
        return line, f"{where}: {path} = {_brief(value)}", f"unknown key.{hint} {shown}"
    said = path if item["loc"][-1] == "[key]" else f"{path} = {_brief(value)}"
    return line, f"{where}: {said}", _rule(item)


def _keys_of(loc: tuple[int | str, ...], cls: type[BaseModel]) -> KeyPath:
    """The keys of a place that pydantic names: without the members of a union that it tried (`literal['auto']`, `Restart`)."""
    at: list[str | int] = []
    inside: list[type[BaseModel]] = [cls]
    for part in loc:
        known = [model.model_fields[part] for model in inside if part in model.model_fields]
        if known:
            inside = [model for field in known for model in _models_in(field.annotation)] or inside
        elif part == "[key]" or str(part).startswith(_TRIED) or part in {model.__name__ for model in inside}:
            continue
        at.append(part)
    return tuple(at)


def _rule(item: ErrorDetails) -> str:
    """Return what is allowed, from one pydantic error."""
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    got = f", got {kind_of(value)}"
    if isinstance(value, float) and value.is_integer():
        got = f", got {value:g} as a fraction: write {int(value)}"
    texts = {
        "int_type": f"expected a whole number such as 8{got}",
        "int_from_float": f"expected a whole number such as 8{got}",
        "float_type": f"expected a number such as 1.5{got}",
        "string_type": f"expected text in quotes{got}",
        "bool_type": f"expected true or false{got}",
        "dict_type": f"expected a table{got}",
        "model_type": f"expected a table{got}",
        "list_type": f"expected a list in [ ]{got}",
        "tuple_type": f"expected a list in [ ]{got}",
        "finite_number": "expected a finite number",
        "too_short": f"expected {context.get('min_length')} or more in the list, got {context.get('actual_length')}",
        "too_long": f"expected {context.get('max_length')} or fewer in the list, got {context.get('actual_length')}",
        "string_too_short": "expected text that is not empty",
        "string_too_long": f"expected at most {context.get('max_length')} characters",
        "greater_than_equal": f"expected at least {context.get('ge')}",
        "greater_than": f"expected more than {context.get('gt')}",
        "less_than_equal": f"expected at most {context.get('le')}",
        "less_than": f"expected less than {context.get('lt')}",
        "literal_error": f"expected one of {str(context.get('expected')).replace(' or ', ', ')}",
        "value_error": str(context.get("error")),
    }
    return texts.get(kind, item["msg"].replace("Input should be", "expected"))


def _keys_at(cls: type[BaseModel], at: KeyPath) -> list[str]:
    """Return the keys allowed in the table at this path."""
    model = cls
    for part in at:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return sorted(field.alias or name for name, field in model.model_fields.items())


def _in_another_table(cls: type[BaseModel], at: KeyPath) -> str | None:
    """The places in other tables of the same file where a key of this name belongs; None where there is none."""
    if len(at) != 2 or at[0] not in cls.model_fields:
        return None
    tables = ((name, next(_models_in(field.annotation), None)) for name, field in cls.model_fields.items())
    return " or ".join(f"{name}.{at[1]}" for name, table in tables if table and at[1] in table.model_fields) or None


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def kind_of(value: object) -> str:
    """Return what a value is, as a user would call it."""
    for types, word in ((bool, "true or false"), (str, "text"), (int, "a whole number"), (float, "a fraction")):
        if isinstance(value, types):
            return word
    return (
        "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list | tuple) else "something else"
    )


def _brief(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"a number of about {int(value.bit_length() * 0.30103) + 1} digits"
    return shortened(f'"{value[:100]}"' if isinstance(value, str) else str(value), 60)
