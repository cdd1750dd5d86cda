"""Stand-ins for a device's streams and events, so that code which puts work on streams is recorded with them.

PyTorch gives its CPU device streams that do nothing ("only exists to facilitate device-agnostic code", torch/cpu/__init__.py); code that is
written for any device, such as FSDP2, uses them as it uses a GPU's.  These remember who waits for whom.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["Streams"]


class Streams:
    """The streams of one rank: 0 is the one on which a script starts.

    Attributes:
        last: per stream the number of its last event, -1 for none.
        syncs: host waits that were asked for, by the number of the event before.
    """

    def __init__(self) -> None:
        self.last: list[int] = [-1]
        self._pending: list[set[int]] = [set()]
        self._waited: dict[tuple[int, int], int] = {}
        self._stream_of: list[int] = []
        self.current = 0
        self.host_waits = 0
        streams = self

        class Stream:
            """A stream of the recorded device."""

            def __init__(self, *arguments: Any, **options: Any) -> None:
                streams.last.append(-1)
                streams._pending.append(set())
                self.number = len(streams.last) - 1

            def wait_stream(self, other: Any) -> None:
                streams.wait(self.number, streams.last[other.number])

            def record_event(self, event: Any = None) -> Any:
                event = Event() if event is None else event
                event.after = streams.last[self.number]
                return event

            def wait_event(self, event: Any) -> None:
                if event is not None:
                    streams.wait(self.number, event.after)

            def synchronize(self) -> None:
                streams.host_waits += 1

            def query(self) -> bool:
                return True

        class Event:
            """A point on a stream."""

            def __init__(self, *arguments: Any, **options: Any) -> None:
                self.after = -1

            def record(self, stream: Any = None) -> Any:
                self.after = streams.last[streams.current if stream is None else stream.number]
                return self

            def wait(self, stream: Any = None) -> None:
                streams.wait(streams.current if stream is None else stream.number, self.after)

            def synchronize(self) -> None:
                streams.host_waits += 1

            def query(self) -> bool:
                return True

        self.Stream, self.Event = Stream, Event
        self._first = object.__new__(Stream)
        self._first.number = 0
        self._made = {0: self._first}

    def restart(self) -> None:
        """Begin to count events anew: what ran before has ended."""
        self.last = [-1] * len(self.last)
        self._pending = [set() for _ in self.last]
        self._waited.clear()
        self._stream_of.clear()

    def current_stream(self, device: Any = None) -> Any:
        """Return the stream that is in use."""
        return self._in_use

    @property
    def _in_use(self) -> Any:
        return self._made[self.current]

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """Put what follows on a stream."""
        if stream is None:
            yield
            return
        before, self.current = self.current, stream.number
        self._made[stream.number] = stream
        try:
            yield
        finally:
            self.current = before

    def wait(self, stream: int, event: int) -> None:
        """Let what comes next on a stream wait for an event of another one."""
        if 0 <= event < len(self._stream_of) and self._stream_of[event] != stream:
            self._pending[stream].add(event)

    def add(self, event: int, stream: int, data: set[int]) -> tuple[int, ...]:
        """Note a new event on a stream; returns the events of other streams that it waits for.

        Args:
            data: events whose results it uses.
        """
        self._stream_of.append(stream)
        wanted = self._pending[stream] | {e for e in data if self._stream_of[e] != stream}
        self._pending[stream] = set()
        latest: dict[int, int] = {}
        for other in wanted:
            on = self._stream_of[other]
            latest[on] = max(latest.get(on, -1), other)
        out = []
        for on, other in sorted(latest.items()):
            if other > self._waited.get((stream, on), -1):
                self._waited[(stream, on)] = other
                out.append(other)
        self.last[stream] = event
        return tuple(out)

    def add_beside(self) -> int:
        """Return the number of a new stream for what the device runs by itself, such as a communicator's."""
        self.last.append(-1)
        self._pending.append(set())
        return len(self.last) - 1
