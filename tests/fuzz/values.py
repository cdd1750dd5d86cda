"""Values for the fields of our own data files, drawn from the pydantic classes that check them.

What the class allows is drawn most of the time, edges and names that exist above all, so that an input gets past the first check
and what lies behind it is tried; now and then comes what it does not allow.  Draws are plain functions of a `random.Random`: they
take a twentieth of what the command takes to answer, and an input is named by its kind, seed and number.
"""

from __future__ import annotations

import functools
import json
import re
import types
import typing
from random import Random
from typing import Any

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simulator.schedules import SCHEDULES
from simulator.specs import names
from simulator.units import Unit
from simulator.workload.optimizers import OPTIMIZERS

__all__ = ["as_toml", "close_to", "field_value", "fields_of", "garbage", "table_of", "text"]

_NAMED = {"model": "models", "cluster": "clusters", "gpu": "gpus", "node": "nodes", "link": "links", "host_link": "links",
          "network_link": "links", "framework": "frameworks", "recompute_policy": "recompute_policies"}  # fmt: skip
"""Fields that name a data file."""
_QUANTITIES = {
    "s": ("us", "ms", "s"), "B": ("KiB", "MiB", "GiB"), "B/s": ("GB/s", "TB/s"), "FLOP": ("GFLOP",), "FLOP/s": ("TFLOP/s",),
    "W": ("W", "kW"), "Hz": ("GHz",), "$/h": ("$/h",), "tokens": ("", "G"), "kg/J": ("kg/kWh", "g/kWh"), "J": ("J", "MWh"),
    "kg": ("kg", "t"),
}  # fmt: skip
_SIZES = (1, 2, 3, 4, 6, 8, 16, 64)
_USUAL = (0.5, 2, 3, 4)
_FACTORS = (0, 0.1, 0.5, 0.9, 1.1, 2, 3, 10, 1000, 1e-3, 1e-9, 1e9)
_EXTREMES = (0.0, -0.0, 1.0, -1.0, 5e-324, 1e-308, 1e-30, 1e-9, 0.5, 1e9, 1e30, 1e300, 1e308)
_WORDS = (
    "",
    "nowhere",
    "a" * 3000,
    "é\u0001",
    "1e999",
    "../../etc/passwd",
    "-1",
    "NaN",
    "{}",
    "[[",
    "0x10",
    "true",
    "1 GB",
)
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([^0-9\s].*)?\Z")


def fields_of(cls: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a file's class by the keys that a file writes."""
    return {field.alias or name: field for name, field in cls.model_fields.items()}


def garbage(draw: Random) -> Any:
    """What most fields refuse."""
    kind = draw.randrange(8)
    if kind < 2:
        return draw.choice(_WORDS)
    if kind == 2:
        return draw.randint(-(10**20), 10**20)
    if kind == 3:
        return draw.choice(_EXTREMES) * draw.choice((1, -1))
    return (draw.random() < 0.5, [], {}, [draw.randint(-2, 2) for _ in range(draw.randrange(4))])[kind - 4]


def _number(draw: Random, least: float, most: float) -> float:
    """A number between bounds: one of the edges, evenly, or of any magnitude."""
    kind = draw.randrange(4)
    if kind == 0:
        return draw.choice((least, most, (least + most) / 2))
    if kind == 1:
        return min(max(draw.choice(_EXTREMES), least), most)
    if kind == 2:
        return min(max(least + 10 ** draw.uniform(-9, 6), least), most)
    return draw.uniform(least, most)


def text(draw: Random, most: int = 8) -> str:
    """A few characters, letters above all."""
    return "".join(
        chr(draw.choice((97, 48, 46, 45, 95, 32, 233, 1, 0x4E2D)) + draw.randrange(9))
        for _ in range(draw.randrange(most))
    )


def close_to(draw: Random, value: Any) -> Any:
    """A number or quantity of a file some times as large; None for what is neither."""
    factor = draw.choice(_USUAL if draw.random() < 0.6 else _FACTORS)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return int(value * factor) + (draw.choice((-1, 1)) if factor not in _USUAL else 0)
    if isinstance(value, float):
        return value * factor
    found = _QUANTITY.match(value) if isinstance(value, str) else None
    return f"{float(found[1]) * factor:.6g} {found[2] or ''}".strip() if found else None


def table_of(draw: Random, cls: type[BaseModel], most: int = 6) -> dict[str, Any]:
    """A table with what the class demands, and some of what it allows."""
    fields = fields_of(cls)
    needed = [name for name, field in fields.items() if field.is_required()]
    free = [name for name, field in fields.items() if not field.is_required()]
    chosen = draw.sample(free, min(len(free), draw.randrange(most + 1)))
    return {name: field_value(draw, name, fields[name]) for name in (*needed, *chosen)}


def field_value(draw: Random, name: str, field: FieldInfo) -> Any:
    """A value of one field, a right one as far as the class says."""
    return _value(draw, name, field.annotation, tuple(field.metadata))


def _value(draw: Random, name: str, annotation: Any, metadata: tuple[Any, ...]) -> Any:
    unit = next((entry for entry in metadata if isinstance(entry, Unit)), None)
    origin, inner = _parts(annotation)
    if unit is not None:
        return _quantity(draw, unit)
    if origin is typing.Annotated:
        return _value(draw, name, inner[0], (*metadata, *inner[1:]))
    if origin in (typing.Union, types.UnionType):
        return _value(draw, name, draw.choice([part for part in inner if part is not type(None)]), metadata)
    if origin is typing.Literal:
        return draw.choice(inner)
    if origin in (tuple, list):
        if origin is list or (len(inner) == 2 and inner[1] is ...):
            return [_value(draw, name, inner[0], ()) for _ in range(draw.randint(1, 4))]
        return [_value(draw, name, part, ()) for part in inner]
    if origin is dict:
        return {
            str(_value(draw, name, inner[0], ())): _value(draw, name, inner[1], ()) for _ in range(draw.randrange(4))
        }
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return table_of(draw, annotation)
    return _plain(draw, name, annotation, metadata)


@functools.lru_cache(maxsize=4096)
def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(annotation), typing.get_args(annotation)


def _plain(draw: Random, name: str, annotation: Any, metadata: tuple[Any, ...]) -> Any:
    low, high = _bounds(metadata)
    if annotation is bool:
        return draw.random() < 0.5
    if annotation is int:
        least, most = int(max(low, 0)), int(min(high, 10**9))
        sizes = [size for size in _SIZES if least <= size <= most] or [least]
        edges = [least, least + 1, min(most, 10**5), most]
        return draw.choice(edges if draw.random() < 0.15 else sizes)
    if annotation is float:
        return _number(draw, max(low, -1e6), min(high, 1e6))
    return _text(draw, name) if annotation is str else garbage(draw)


def _bounds(metadata: tuple[Any, ...]) -> tuple[float, float]:
    low, high = -float("inf"), float("inf")
    for entry in metadata:
        for limit in getattr(entry, "metadata", None) or [entry]:
            if isinstance(limit, annotated_types.Ge | annotated_types.Gt):
                low = float(getattr(limit, "ge", getattr(limit, "gt", 0)))
            if isinstance(limit, annotated_types.Le | annotated_types.Lt):
                high = float(getattr(limit, "le", getattr(limit, "lt", 0)))
    return low, high


@functools.cache
def _known(kind: str) -> tuple[str, ...]:
    return tuple(names(kind))


def _text(draw: Random, name: str) -> str:
    if name in _NAMED:
        return draw.choice(_known(_NAMED[name]))
    if name == "schedule":
        return draw.choice(sorted(SCHEDULES.members))
    if name == "optimizer":
        return draw.choice(sorted(OPTIMIZERS.members))
    if name in ("nodes", "ranks", "pipeline_ranks", "replicas"):
        return draw.choice(("0", "0-1", "1,3", "0-3"))
    return draw.choice(("x", "fabric", "rails", "nvlink", "ampere", "hopper", "intel", text(draw)))


def _quantity(draw: Random, unit: Unit) -> str:
    value = draw.choice(("0", "1", "2.5", "40", "1000", "1e6", "1e-6", f"{10 ** draw.uniform(-9, 9):.4g}"))
    if value == "0" and unit.positive and draw.random() < 0.8:
        value = "3"
    return f"{value} {draw.choice(_QUANTITIES[unit.symbol])}".strip()


def as_toml(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value) if isinstance(value, str) else str(value)
