"""Values for the fields of our own data files, as hypothesis strategies made from the pydantic classes that check them.

What the class allows is drawn most of the time, edges and names that exist above all, so that an input gets past the first check
and what lies behind it is tried; now and then comes what it does not allow.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any

import annotated_types
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from simulator.schedules import SCHEDULES
from simulator.specs import names
from simulator.units import Unit
from simulator.workload.optimizers import OPTIMIZERS

__all__ = ["GARBAGE", "field_values", "fields_of", "table_of"]

Values = st.SearchStrategy[Any]

GARBAGE: Values = st.one_of(
    st.sampled_from(["", "nowhere", "a" * 3000, "é\u0000", "1e999", "../../etc/passwd", "-1", "NaN"]),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-2, 2), max_size=3),
)
_NAMED = {"model": "models", "cluster": "clusters", "gpu": "gpus", "node": "nodes", "link": "links", "host_link": "links",
          "network_link": "links", "framework": "frameworks", "recompute_policy": "recompute_policies"}  # fmt: skip
"""Fields that name a data file."""
_QUANTITIES = {
    "s": ("us", "ms", "s"), "B": ("KiB", "MiB", "GiB"), "B/s": ("GB/s", "TB/s"), "FLOP": ("GFLOP",), "FLOP/s": ("TFLOP/s",),
    "W": ("W", "kW"), "Hz": ("GHz",), "$/h": ("$/h",), "tokens": ("", "G"), "kg/J": ("kg/kWh", "g/kWh"),
}  # fmt: skip
_SIZES = (1, 2, 3, 4, 6, 8, 16, 64)


def fields_of(cls: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a file's class by the keys that a file writes."""
    return {field.alias or name: field for name, field in cls.model_fields.items()}


def table_of(cls: type[BaseModel], most: int = 6) -> Values:
    """A table with what the class demands, and some of what it allows."""
    needed = {name: field_values(name, field) for name, field in fields_of(cls).items() if field.is_required()}
    free = {name: field_values(name, field) for name, field in fields_of(cls).items() if not field.is_required()}
    some = st.lists(st.sampled_from(sorted(free)), max_size=most, unique=True) if free else st.just([])
    return some.flatmap(lambda chosen: st.fixed_dictionaries({**needed, **{name: free[name] for name in chosen}}))


def field_values(name: str, field: FieldInfo) -> Values:
    """Values of one field, right ones as far as the class says."""
    return _values(name, field.annotation, tuple(field.metadata))


def _values(name: str, annotation: Any, metadata: tuple[Any, ...]) -> Values:
    unit = next((entry for entry in metadata if isinstance(entry, Unit)), None)
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if unit is not None:
        return _quantity(unit)
    if origin is typing.Annotated:
        return _values(name, inner[0], (*metadata, *inner[1:]))
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(_values(name, part, metadata) for part in inner if part is not type(None)))
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin in (tuple, list):
        many = origin is list or (len(inner) == 2 and inner[1] is ...)
        return (
            st.lists(_values(name, inner[0], ()), min_size=1, max_size=4)
            if many
            else st.tuples(*(_values(name, part, ()) for part in inner)).map(list)
        )
    if origin is dict:
        return st.dictionaries(_values(name, inner[0], ()), _values(name, inner[1], ()), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return st.deferred(lambda: table_of(annotation))
    return _plain(name, annotation, metadata)


def _plain(name: str, annotation: Any, metadata: tuple[Any, ...]) -> Values:
    low, high = _bounds(metadata)
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        least, most = int(max(low, 0)), int(min(high, 10**9))
        edges = sorted({least, least + 1, *(size for size in _SIZES if least <= size <= most), min(most, 10**5), most})
        return st.sampled_from(edges) | st.sampled_from([size for size in _SIZES if least <= size <= most] or [least])
    if annotation is float:
        least, most = max(low, -1e6), min(high, 1e6)
        return st.floats(least, most, allow_nan=False) | st.sampled_from([least, most, (least + most) / 2])
    if annotation is str:
        return _texts(name)
    return GARBAGE


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
def _texts(name: str) -> Values:
    if name in _NAMED:
        return st.sampled_from(names(_NAMED[name]))
    if name == "schedule":
        return st.sampled_from(sorted(SCHEDULES.members))
    if name == "optimizer":
        return st.sampled_from(sorted(OPTIMIZERS.members))
    if name in ("nodes", "ranks", "pipeline_ranks", "replicas"):
        return st.sampled_from(["0", "0-1", "1,3", "0-3"])
    return st.sampled_from(["x", "fabric", "rails", "nvlink", "ampere", "hopper", "intel"]) | st.text(max_size=8)


def _quantity(unit: Unit) -> Values:
    number = st.sampled_from(["0", "1", "2.5", "40", "1000", "1e6", "1e-6"]) | st.floats(0, 1e6, allow_nan=False).map(
        str
    )
    return st.tuples(number, st.sampled_from(_QUANTITIES[unit.symbol])).map(lambda pair: f"{pair[0]} {pair[1]}".strip())
