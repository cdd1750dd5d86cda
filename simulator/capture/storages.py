"""Memory while a step is recorded: which storage was made by which event, who wrote to it last, and when it was let go."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.capture.record import BEFORE, Event, Storage

__all__ = ["Storages", "category_of"]


@dataclass(slots=True)
class _Life:
    """What is known of a storage."""

    name: str
    bytes: float
    born: int
    died: int | None = None
    role: str = ""
    phase: str = ""
    writer: int = -1
    host: bool = False
    value: float | None = None


class Storages:
    """The storages of a rank by identity, with their lives.

    Attributes:
        lives: of all storages ever met, in the order of their birth.
        clock: number of events so far.
    """

    def __init__(self) -> None:
        self.lives: list[_Life] = []
        self._alive: dict[int, _Life] = {}
        self._keep: dict[int, Any] = {}
        self.clock = 0

    def meet(self, tensors: Iterable[Any], event: int) -> None:
        """Note tensors that an event made; a storage that is known already stays what it is."""
        for tensor in tensors:
            self._life(tensor, event)

    def known(self, tensor: Any) -> bool:
        """Whether a tensor's storage has been met."""
        return id(tensor.untyped_storage()) in self._alive

    def is_new(self, tensor: Any) -> bool:
        """Whether a tensor's storage is met for the first time."""
        return not self.known(tensor)

    def on_host(self, tensor: Any) -> bool:
        """Whether a tensor lives on the host."""
        life = self._alive.get(id(tensor.untyped_storage()))
        return life is not None and life.host

    def put_on_host(self, tensor: Any) -> None:
        """Note that a tensor lives on the host."""
        life = self._life(tensor, BEFORE)
        life.host, life.bytes = True, 0.0

    def filled_on_host(self, since: int, dtype: str) -> None:
        """Note that what was filled with numbers of a type since so many storages were met lives on the host."""
        for life in self.lives[since:]:
            if life.name.endswith(f" {dtype}") and life.writer >= 0:
                life.host, life.bytes = True, 0.0

    def name(self, tensor: Any, role: str, name: str) -> None:
        """Say what a storage holds: weights, gradients, optimizer_states; the first to say so counts."""
        life = self._life(tensor, BEFORE)
        if not life.role:
            life.role, life.name = role, name

    def name_of(self, tensor: Any) -> str:
        """Return what a tensor's storage is called."""
        return self._life(tensor, BEFORE).name

    def communicated(self, sent: Iterable[Any], made: Iterable[Any], what: str, phase: str) -> None:
        """Note buffers of a message: what all_gather makes is gathered; what stands longer than a step and is added up over ranks are
        gradients; what reduce_scatter reads was copied together for it."""
        for tensor in made:
            life = self._life(tensor, self.clock)
            if what == "all_gather":
                life.role = life.role or "gathered"
        for tensor in sent:
            life = self._life(tensor, self.clock)
            if what == "all_reduce" and phase == "backward" and life.born == BEFORE:
                life.role = life.role or "gradients"
            elif what == "reduce_scatter" and life.born != BEFORE:
                life.role = life.role or "communication"

    def unpacked(self, sources: Iterable[Any], into: Iterable[Any]) -> None:
        """Note copies of gathered tensors: they are gathered too."""
        if any(self._life(tensor, self.clock).role == "gathered" for tensor in sources):
            for tensor in into:
                life = self._life(tensor, self.clock)
                life.role = life.role or "gathered"

    def writers(self, tensors: Iterable[Any]) -> set[int]:
        """Return the events that wrote to these tensors last."""
        found = (self._alive.get(id(t.untyped_storage())) for t in tensors)
        return {life.writer for life in found if life is not None and life.writer >= 0}

    def write(self, tensors: Iterable[Any], event: int) -> None:
        """Note who wrote to tensors."""
        for tensor in tensors:
            life = self._life(tensor, event)
            life.writer, life.value = event, None

    def fill(self, tensors: Iterable[Any], value: float) -> None:
        """Note that all numbers of tensors are the same."""
        for tensor in tensors:
            self._life(tensor, BEFORE).value = value

    def value_of(self, tensor: Any) -> float | None:
        """Return what all numbers of a tensor are; None where nobody knows."""
        life = self._alive.get(id(tensor.untyped_storage()))
        return None if life is None else life.value

    def resized(self, storage: Any, size: int) -> None:
        """Note that a storage lets its memory go, or gets it again."""
        life = self._alive.get(id(storage))
        if life is None or life.bytes == size:
            return
        if life.bytes:
            life.died = self.clock - 1
        again = _Life(life.name, float(size), self.clock, None, life.role, life.phase, life.writer, life.host)
        self._alive[id(storage)] = again
        if size:
            self.lives.append(again)

    def _life(self, tensor: Any, event: int) -> _Life:
        storage = tensor.untyped_storage()
        key = id(storage)
        life = self._alive.get(key)
        if life is None:
            name = f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"
            life = _Life(name, 0.0 if tensor.device.type == "meta" else float(storage.nbytes()), event)
            self._alive[key] = life
            self.lives.append(life)
            weakref.finalize(storage, self._free, key)
        return life

    def _free(self, key: int) -> None:
        life = self._alive.pop(key, None)
        if life is not None and life.bytes:
            life.died = self.clock - 1

    def restart(self) -> None:
        """Begin a step: what stands was there before, all that is gone is forgotten."""
        self.clock = 0
        self.lives = list(self._alive.values())
        for life in self.lives:
            life.born, life.died, life.writer = BEFORE, None, -1

    def finished(self, category: Any) -> tuple[Storage, ...]:
        """Return the storages of the step; `category(life)` says where each belongs."""
        return tuple(
            Storage(name=life.name, category=category(life), bytes=life.bytes, born=life.born, died=life.died)
            for life in self.lives
            if life.bytes and not life.host and (life.died is None or life.died >= max(life.born, 0))
        )


def category_of(life: _Life, events: Sequence[Event]) -> str:
    """Return the category of a storage: its role, else what its life says.

    What a forward makes and a backward still needs are activations; other memory is workspace of the moment.
    """
    if life.role:
        return life.role
    if life.born == BEFORE or not events:
        return "activations"
    end = len(events) - 1 if life.died is None else max(life.died, life.born)
    born, died = events[min(life.born, len(events) - 1)], events[min(end, len(events) - 1)]
    keeps = born.phase == "forward" and died.phase != "forward"
    return "activations" if keeps else "workspace"
