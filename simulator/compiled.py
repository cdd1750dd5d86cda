"""Loops over arrays that numba compiles, and that a command which needs few of them runs in Python.

Loading numba and what it keeps on disk takes as long as a prediction does; compiling all of it, after an installation, ten times as
long.  A loop over the rows of a usual step takes 20 to 100 ms in Python.  So the command line lets loops run in Python for their
first `interpreted_for(entries)` array entries and compiles what comes after, as with the first large program or a search; a caller
of the package, who may ask thousands of times, has everything compiled at its first use.  Both give the same numbers to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

__all__ = [
    "Loop",
    "compile_from_now_on",
    "compiled",
    "interpreted_for",
    "listen",
    "part",
    "read_only",
    "when_compiling",
]

Function = Callable[..., Any]
Same = TypeVar("Same", bound=Function)

_left = 0
"""Array entries that loops may still meet in Python."""
_told: list[Callable[[bool], None]] = []
"""Those who want to hear when a loop is being compiled."""
_listening = False
_jitted: dict[Function, Any] = {}


def interpreted_for(entries: int) -> None:
    """Let loops run in Python until they have met so many array entries."""
    global _left
    _left = entries


def compile_from_now_on() -> None:
    """Compile every loop at its next use: many predictions follow."""
    interpreted_for(0)


def when_compiling(tell: Callable[[bool], None]) -> None:
    """Call a function with True where a loop is not found compiled and is compiled, and with False when that is done.

    numba tells when it does: a cache's age would not, as sources that are newer but equal are taken from it.
    """
    _told.append(tell)


def listen() -> None:
    """Hear from numba when it compiles, from a first loop on or where a module of compiled code is loaded: loading numba for it alone would
    take as long as a prediction."""
    global _listening
    if _listening:
        return
    _listening = True
    from numba.core import event

    class Hears(event.Listener):
        depth = 0
        """Functions under way: a loop compiles those that it calls inside of itself."""

        def on_start(self, event: Any) -> None:
            self.depth += 1
            if self.depth == 1:
                for tell in _told:
                    tell(True)

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                for tell in _told:
                    tell(False)

    event.register("numba:compile", Hears())  # type: ignore[no-untyped-call]


class Loop:
    """A function over arrays and numbers, without an object of Python in it.

    Args:
        function: run as it is, or compiled with all parts that it calls (`part`).
        types: makes the types of arguments and result, where one version is to serve read-only arrays and others; None: those met.
        options: of numba.njit.
    """

    def __init__(self, function: Function, types: Callable[[], Any] | None, options: dict[str, Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__
        self._types, self._options = types, options
        self._quick: Any = None

    def __call__(self, *args: Any) -> Any:
        """Return what the function does."""
        if self._quick is None:
            global _left
            size = sum([getattr(a, "size", 1) for a in args])
            if size <= _left:
                _left -= size
                return self.function(*args)
            compile_from_now_on()
        return self.quick(*args)

    @property
    def quick(self) -> Any:
        """The compiled function."""
        if self._quick is None:
            listen()
            self._quick = _jit(self.function, self._types() if self._types else None, self._options)
        return self._quick


def compiled(types: Callable[[], Any] | None = None, **options: Any) -> Callable[[Function], Loop]:
    """Make a loop of a function; as `Loop`.

    >>> @compiled()
    ... def total(numbers):
    ...     out = 0.0
    ...     for number in numbers:
    ...         out += number
    ...     return out
    >>> import numpy as np
    >>> interpreted_for(2)
    >>> float(total(np.array([0.5, 0.25]))), float(total.function(np.array([0.5])))
    (0.75, 0.5)
    >>> compile_from_now_on()
    """

    def make(function: Function) -> Loop:
        return Loop(function, types, options)

    return make


def read_only(*dtypes: str) -> list[Any]:
    """Return numba's types of read-only arrays of one dimension, of numbers such as "int32"."""
    from numba import types

    return [types.Array(getattr(types, dtype), 1, "C", readonly=True) for dtype in dtypes]


def part(**options: Any) -> Callable[[Same], Same]:
    """Let a function be compiled with the loops that call it by its name in the same module."""

    def mark(function: Same) -> Same:
        vars(function)["_options"] = options
        return function

    return mark


def _jit(function: Function, types: Any, options: dict[str, Any]) -> Any:
    """Compile a function of which the parts that it names are compiled; kept on disk, under its own name."""
    import numba

    code, known = function.__code__, function.__globals__
    parts = {name: known[name] for name in code.co_names if "_options" in getattr(known.get(name), "__dict__", {})}
    for one in parts.values():
        if one not in _jitted:
            _jitted[one] = _jit(one, None, one._options)
    own = FunctionType(code, {**known, **{name: _jitted[one] for name, one in parts.items()}}, function.__name__)
    own.__qualname__, own.__module__, own.__doc__ = function.__qualname__, function.__module__, function.__doc__
    made = {"cache": True, "nogil": True, **options}
    return numba.njit(**made)(own) if types is None else numba.njit(types, **made)(own)
