"""A choice, declared once: what it is, in which group, whose default it takes and what it needs to matter.

A declaration is a field with what its annotation says beside the type:

    overlap_tensor_parallel: Annotated[
        bool | None, TENSOR, FrameworkDefault("tensor_parallel_overlap"),
        more_than("tensor_parallel", 1, "overlap_tensor_parallel is about collectives of the tensor-parallel group"),
    ] = None
    (below it, as a docstring: what it says)

From it come the field itself, what fills it where it is left open (`chosen`), the refusals of settings that could have no effect
(`check_needs`), and the page of all choices (`simulator.options.page`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simulator.errors import refuse

__all__ = [
    "FrameworkDefault",
    "Group",
    "Need",
    "Option",
    "check_needs",
    "chosen",
    "declared",
    "given",
    "more_than",
    "one_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a choice needs of the rest to matter.

    Args:
        of: the other field, or a fact that `check_needs` is told, such as "model.experts".
        holds: whether a value of it will do.
        said: the same in words, as the page of all choices and the way out say it.
        rule, values, way: the message, as templates of {name} and {value} of the choice, {found} of what it needs, and the facts.
        when: values of the choice that need it; () = all that are not its default.
    """

    of: str
    holds: Callable[[Any], bool]
    said: str
    rule: str
    values: str = ""
    way: str = ""
    when: tuple[object, ...] = ()


def more_than(of: str, bound: int, rule: str, values: str = "", way: str = "", when: tuple[object, ...] = ()) -> Need:
    """Return the need of a number above a bound."""
    said = f"{of} > {bound}"
    return Need(of=of, holds=lambda found: found > bound, said=said, rule=rule, values=values, way=way, when=when)


def one_of(of: str, allowed: tuple[object, ...], rule: str, values: str = "", way: str = "") -> Need:
    """Return the need of one of some values."""
    said = f"{of} = {' or '.join(str(value) for value in allowed)}"
    return Need(of=of, holds=lambda found: found in allowed, said=said, rule=rule, values=values, way=way)


def given(of: str, rule: str, values: str = "", way: str = "", when: tuple[object, ...] = ()) -> Need:
    """Return the need of another choice that is made."""
    return Need(of=of, holds=bool, said=of, rule=rule, values=values, way=way, when=when)


@dataclass(frozen=True, slots=True)
class Group:
    """Choices that belong together."""

    name: str


@dataclass(frozen=True, slots=True)
class FrameworkDefault:
    """The field of a framework's profile that says a choice where a plan leaves it open, or its opposite."""

    field: str
    opposite: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """All that is declared of a choice.

    Args:
        name, doc: of the field, and what stands below it.
        kind, bounds: its type, and what limits it or gives its unit.
        default: the value that means "not chosen".
        group: of choices that belong together.
        framework_default: what of a framework's profile says it where it is left open.
        needs: what it needs to matter, in the order in which it is told.
    """

    name: str
    doc: str
    kind: object
    bounds: tuple[object, ...]
    default: object
    group: str = ""
    framework_default: FrameworkDefault | None = None
    needs: tuple[Need, ...] = ()


@functools.cache
def declared(cls: type[BaseModel]) -> Mapping[str, Option]:
    """Return name -> declaration of every field of a class, in the order they are written."""
    return {name: _declaration(name, field) for name, field in cls.model_fields.items()}


def _declaration(name: str, field: FieldInfo) -> Option:
    return Option(
        name=name,
        doc=" ".join((field.description or "").split()),
        kind=field.annotation,
        bounds=tuple(field.metadata),
        default=field.default,
        group=next((one.name for one in field.metadata if isinstance(one, Group)), ""),
        framework_default=next((one for one in field.metadata if isinstance(one, FrameworkDefault)), None),
        needs=tuple(one for one in field.metadata if isinstance(one, Need)),
    )


def chosen(choices: BaseModel, framework: BaseModel, name: str, applies: bool = True, otherwise: object = False) -> Any:
    """Return a choice, or what the framework's profile says where it is left open.

    Args:
        applies: whether the profile speaks of the case at hand; if not, an open choice is `otherwise`.
    """
    value = getattr(choices, name)
    if value is not None:
        return value
    default = declared(type(choices))[name].framework_default
    if default is None:
        return None
    if not applies:
        return otherwise
    return not getattr(framework, default.field) if default.opposite else getattr(framework, default.field)


def check_needs(choices: BaseModel, of: str, *names: str, **facts: object) -> None:
    """Refuse choices that could have no effect, for want of one thing.

    Args:
        of: what they need.
        names: of the choices, in the order in which they are told.
        facts: what is known beside the choices, by the first part of what they need.

    Raises:
        PlanError: with the rule, the values and a way out.
    """
    if choices.model_fields_set.isdisjoint(names):
        return
    for name, default, needs in _needs_of(type(choices), of, names):
        value = getattr(choices, name)
        if value != default:
            for need in needs:
                if not need.when or value in need.when:
                    _check(need, name, value, choices, facts)


@functools.cache
def _needs_of(
    cls: type[BaseModel], of: str, names: tuple[str, ...]
) -> tuple[tuple[str, object, tuple[Need, ...]], ...]:
    """Name, default and needs of one thing, of some choices."""
    options = [declared(cls)[name] for name in names]
    return tuple((one.name, one.default, tuple(need for need in one.needs if need.of == of)) for one in options)


def _check(need: Need, name: str, value: object, choices: BaseModel, facts: dict[str, object]) -> None:
    first, *rest = need.of.split(".")
    found = functools.reduce(getattr, rest, facts[first] if first in facts else getattr(choices, first))
    if not need.holds(found):
        words = {"name": name, "value": value, "found": found, **facts}
        rule = need.rule.format(**words)
        values = (need.values or f"{need.of} = {{found}}").format(**words)
        refuse(rule, values, (need.way or f"leave {name} out, or {need.said}").format(**words))
