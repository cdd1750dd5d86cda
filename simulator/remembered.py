"""What was computed before and may be wanted again: the latest of it, up to so many bytes.

For values whose size differs too much for `functools.lru_cache`, which bounds a number of entries: the rows of one plan take 50 kB, of
another 500 MB.
"""

from __future__ import annotations

import gc
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from simulator.compiled import compile_from_now_on

__all__ = ["Remembered", "forget_all", "hashed_once", "kept", "remember_at_most", "undisturbed"]

Value = TypeVar("Value")
Result = TypeVar("Result", covariant=True)
Class = TypeVar("Class", bound=type)
_ALL: list[Remembered[Any]] = []


class Remembered(Generic[Value]):
    """Values by key, the least recently wanted dropped first.

    Args:
        most: bytes of all values together; one that is larger alone is not kept.
        size: bytes of a value.

    >>> squares = Remembered(16, lambda value: 8)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 3, 3)], len(squares), squares.held
    ([1, 4, 9, 9], 2, 16)
    """

    def __init__(self, most: int, size: Callable[[Value], int]) -> None:
        self.most, self.held = most, 0
        self._size = size
        self._found: dict[Hashable, tuple[Value, int, int]] = {}
        # number of an entry -> its key: keys are long, and hashed once a question
        self._order: OrderedDict[int, Hashable] = OrderedDict()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        _ALL.append(self)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; made now if it is not there."""
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                self._order.move_to_end(known[2])
                return known[0]
        value = make()
        size = self._size(value)
        with self._lock:
            if size <= self.most and key not in self._found:
                number = next(self._numbers)
                self._found[key], self._order[number] = (value, size, number), key
                self.held += size
            while self.held > self.most:
                self.held -= self._found.pop(self._order.popitem(last=False)[1])[1]
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._found.clear()
            self._order.clear()
            self.held = 0


def forget_all() -> None:
    """Forget everything that any room remembers here; results do not depend on it."""
    for some in _ALL:
        some.clear()


def remember_at_most(most: int) -> None:
    """Let nothing here keep more bytes than these: a process among many shares the memory of its machine with them."""
    for some in _ALL:
        some.most = min(some.most, most)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave what is there already out of Python's searches for garbage, unless the caller's program has seen to that.

    For many predictions in a row: each leaves something to be remembered, so that whole heaps would be searched again and again.
    All loops are compiled then, too.
    """
    compile_from_now_on()
    own = gc.get_freeze_count() == 0
    if own:
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()


def hashed_once(cls: Class) -> Class:
    """Let a frozen class of many fields, without slots, keep its hash: its values are keys again and again.

    Copies in other processes, where words have other hashes, make their own.

    >>> from dataclasses import dataclass
    >>> @hashed_once
    ... @dataclass(frozen=True)
    ... class Pair:
    ...     one: str
    ...     other: str
    >>> hash(Pair("a", "b")) == hash(Pair("a", "b")), Pair("a", "b") == Pair("a", "b")
    (True, True)
    """
    whole: Any = cls.__hash__

    def once(self: Any) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = int(whole(self))
        return known

    def state(self: Any) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    cls.__hash__, cls.__getstate__ = once, state  # type: ignore[assignment]
    return cls


class kept(Generic[Result]):
    """A property that is made when it is first asked for; as `functools.cached_property`, without the lock that costs more than most
    of them.

    >>> class Square:
    ...     side = 3
    ...     @kept
    ...     def area(self) -> int:
    ...         return self.side**2
    >>> one = Square()
    >>> one.area, vars(one)
    (9, {'area': 9})
    """

    def __init__(self, make: Callable[[Any], Result]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> kept[Result]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Result: ...

    def __get__(self, instance: object | None, owner: type) -> kept[Result] | Result:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._make(instance)
        return value
