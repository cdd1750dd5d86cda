"""Units at the border, plain numbers inside.

Inside the simulator every quantity is a plain float or int in SI units: seconds, bytes, FLOP, bytes per second.  Files and the
command line must write the unit ("80 GB", "3.35 TB/s", "400 Gb/s", "2 us"); this module is the only place that knows factors
such as 1e9.  GB = 1e9 bytes, GiB = 2**30 bytes, b = bit, B = byte.

    >>> parse("400 Gb/s", "B/s")
    50000000000.0
    >>> parse("2 us", "s")
    2e-06
    >>> show(0.00123, "s"), show(80e9, "B"), show(3.35e12, "B/s")
    ('1.23 ms', '74.5 GiB', '3.35 TB/s')
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

__all__ = [
    "BYTES_PER_ELEMENT",
    "FP32",
    "GIB",
    "SCALED_PER_BLOCK",
    "WRITTEN",
    "Bytes",
    "BytesPerSecond",
    "CarbonIntensity",
    "DollarsPerHour",
    "FlopsPerSecond",
    "Hertz",
    "Seconds",
    "Unit",
    "Watts",
    "in_unit",
    "parse",
    "plain_number",
    "sane",
    "show",
]

BYTES_PER_ELEMENT = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int8": 1,
    "fp4": 0.5,
}
"""Bytes of one element of each number format; scales per block stand beside it."""
SCALED_PER_BLOCK = {"fp8_block": "fp8", "mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
"""Number format that has scales per block -> that of its numbers."""
BYTES_PER_ELEMENT |= {name: BYTES_PER_ELEMENT[of] for name, of in SCALED_PER_BLOCK.items()}

FP32 = float(BYTES_PER_ELEMENT["fp32"])
"""Bytes of a number in fp32, as sums, statistics and copies in full width are."""

GIB = float(2**30)
"""Bytes in one GiB; memory is shown in GiB."""

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}

_SUFFIXES: dict[str, dict[str, float]] = {
    "s": {p + "s": f for p, f in _SMALL.items()} | {"min": 60.0, "h": 3600.0, "d": 86400.0},
    "B": {p + "B": f for p, f in (_DECIMAL | _BINARY).items()},
    "B/s": {p + "B/s": f for p, f in (_DECIMAL | _BINARY).items()}
    | {p + b: f / 8 for p, f in _DECIMAL.items() for b in ("b/s", "bit/s", "bps")},
    "FLOP": {p + "FLOP": f for p, f in _DECIMAL.items()},
    "FLOP/s": {p + u: f for p, f in _DECIMAL.items() for u in ("FLOP/s", "FLOPS")},
    "W": {p + "W": f for p, f in _DECIMAL.items()},
    "Hz": {p + "Hz": f for p, f in _DECIMAL.items()},
    "$/h": {"$/h": 1.0, "USD/h": 1.0},
    "J": {p + "J": f for p, f in _DECIMAL.items()} | {p + "Wh": f * 3600.0 for p, f in _DECIMAL.items()},
    "kg": {"kg": 1.0, "t": 1e3},
    "kg/J": {"kg/kWh": 1.0 / 3.6e6, "g/kWh": 1e-3 / 3.6e6},
    "tokens": {p: f for p, f in _DECIMAL.items()} | {p + " tokens": f for p, f in _DECIMAL.items()} | {"B": 1e9},
}
_NOUNS = {
    "s": ("a time", "2 us"),
    "B": ("a size", "80 GB"),
    "B/s": ("a bandwidth", "3.35 TB/s"),
    "FLOP": ("an amount of work", "6 GFLOP"),
    "FLOP/s": ("a rate of work", "312 TFLOP/s"),
    "W": ("a power", "400 W"),
    "Hz": ("a frequency", "1.41 GHz"),
    "$/h": ("a price", "2.95 $/h"),
    "J": ("an energy", "20 MWh"),
    "kg": ("a mass", "1 t"),
    "kg/J": ("a carbon intensity", "0.4 kg/kWh"),
    "tokens": ("a number of tokens", "1T"),
}
_SMALLEST, _LARGEST = 1e-30, 1e30
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*\Z")


WRITTEN = {"written": True}
"""Context of a `model_dump` whose values are to be read from a file again."""


@dataclass(frozen=True)
class Unit:
    """Marks a field's dimension: `Annotated[float, Unit("B/s")]`.

    pydantic reads it: a file must give a string with a unit of this dimension; Python code may give a plain SI number.
    `model_dump(context=WRITTEN)` gives strings back.
    """

    symbol: str
    positive: bool = True

    def validate(self, value: object, from_file: bool) -> float:
        """Return the SI value; raise ValueError with the rule when it is no such quantity."""
        noun, example = _NOUNS[self.symbol]
        if isinstance(value, str):
            number = parse(value, self.symbol)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f'expected {noun} such as "{example}", got {type(value).__name__}')
        elif from_file:
            raise ValueError(f'expected {noun} with its unit, such as "{example}", got the bare number {value}')
        else:
            number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"expected {noun} that is finite, got {value}")
        if number < 0 or (self.positive and number == 0):
            raise ValueError(f"expected {noun} above zero, got {value}")
        return number

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def check(value: Any, info: Any) -> float:
            return self.validate(value, bool(info.context and info.context.get("from_file")))

        def written(value: Any, info: Any) -> Any:
            as_text = info.context and info.context.get("written") and isinstance(value, int | float)
            return f"{value!r} {self.symbol}" if as_text else value

        back = core_schema.plain_serializer_function_ser_schema(written, info_arg=True)
        return core_schema.with_info_plain_validator_function(check, serialization=back)


Seconds = Annotated[float, Unit("s", positive=False)]
Bytes = Annotated[float, Unit("B", positive=False)]
BytesPerSecond = Annotated[float, Unit("B/s")]
FlopsPerSecond = Annotated[float, Unit("FLOP/s")]
Watts = Annotated[float, Unit("W")]
Hertz = Annotated[float, Unit("Hz")]
DollarsPerHour = Annotated[float, Unit("$/h")]
CarbonIntensity = Annotated[float, Unit("kg/J", positive=False)]


def parse(text: str, symbol: str, any_magnitude: bool = False) -> float:
    """Return the SI value of a quantity written with its unit; `symbol` is the dimension wanted: "s", "B", "B/s", ...

    Raises:
        ValueError: no number, no unit, an unknown unit or one of another dimension; the message names an example.

    >>> parse("80 GB", "B"), parse("1GiB", "B"), parse("1.5 ms", "s")
    (80000000000.0, 1073741824.0, 0.0015)
    """
    noun, example = _NOUNS[symbol]
    match = _NUMBER.match(text) if len(text) <= 60 else None
    if not match:
        raise ValueError(f'expected {noun} such as "{example}", got {text[:60]!r}')
    suffix = match.group(2)
    if suffix in _SUFFIXES[symbol]:
        value = float(match.group(1)) * _SUFFIXES[symbol][suffix]
        if not math.isfinite(value):
            raise ValueError(f"expected {noun} that is finite, got {text!r}")
        if (not any_magnitude and not sane(value)) or (value == 0 and float(match.group(1)) != 0):
            raise ValueError(f"expected {noun} between {_SMALLEST:g} and {_LARGEST:g} {symbol}, got {text!r}")
        return value
    other = next((_NOUNS[s][0] for s, table in _SUFFIXES.items() if suffix in table and s != "tokens"), None)
    if not suffix:
        raise ValueError(f'expected {noun} with its unit, such as "{example}", got the bare number {text!r}')
    got = other if other else f"the unknown unit {suffix!r}"
    raise ValueError(f'expected {noun} such as "{example}", got {got} ({text!r})')


def sane(value: float) -> bool:
    """Return whether a number can be that of something real: 0, or of a magnitude from 1e-30 to 1e30.

    Beyond, products and quotients of a few of them leave what a float can hold.

    >>> sane(0.0), sane(5e-324), sane(1e308)
    (True, False, False)
    """
    return value == 0 or _SMALLEST <= abs(value) <= _LARGEST


def plain_number(text: str | float) -> float:
    """Return a number without a unit, as the cells of tables have them.

    Raises:
        ValueError: it is none, or of no magnitude that anything has.
    """
    value = float(text)
    if not sane(value):
        raise ValueError(f"expected a number between {_SMALLEST:g} and {_LARGEST:g}, got {str(text)[:40]!r}")
    return value


def in_unit(value: float, suffix: str, symbol: str) -> float:
    """Return an SI value in the unit written as `suffix`.

    >>> in_unit(3e14, "TFLOP/s", "FLOP/s")
    300.0
    """
    return value / _SUFFIXES[symbol][suffix]


def show(value: float, symbol: str) -> str:
    """Return a quantity in human units: decimal for rates and times, GiB for memory.

    >>> show(2.5, "s"), show(3e14, "FLOP/s"), show(512, "B")
    ('2.5 s', '300 TFLOP/s', '512 B')
    """
    if not math.isfinite(value):
        return f"{value} {symbol}"
    rounded = float(f"{value:.3g}")
    if symbol == "s":
        if abs(value) >= 999.5:
            return f"{value:.0f} s"
        for limit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (0.0, "ns")):
            if abs(rounded) >= limit:
                return "0 s" if value == 0 else f"{rounded / (limit or 1e-9):.3g} {name}"
    if symbol == "B":
        for prefix, factor in (("TiB", 2.0**40), ("GiB", GIB), ("MiB", 2.0**20), ("KiB", 2.0**10)):
            if abs(value) >= factor:
                return f"{value / factor:.3g} {prefix}" if value / factor < 999.5 else f"{value / factor:.0f} {prefix}"
        return f"{value:.4g} B"
    for prefix, factor in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(rounded) >= factor:
            return f"{rounded / factor:.3g} {prefix}{symbol}"
    return f"{value:.3g} {symbol}"
