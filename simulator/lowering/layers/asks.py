"""What a layer asks its allocator for and gives back, operation by operation.

Forward an operation asks for what it makes; what nobody reads any more, and no backward, is given back.  Backward it asks for the
gradients of what it read and for its scratch, then gives back the gradient of what it made and what was kept for it.  Sums hand on the
gradient that they got.  A layer that runs again keeps nothing at first, and all of it the second time.

The order and the sizes are those of `temporaries`, which has their sources.
"""

from __future__ import annotations

from typing import NamedTuple

from simulator.lowering.layers.gathered import kept_ways
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.recompute import Recompute, dropped
from simulator.lowering.layers.temporaries import passed_on, scratch
from simulator.program.program import Tensor
from simulator.workload.graph import Lookup
from simulator.workload.operator import LayerPart, Operator

__all__ = ["INPUT", "INPUT_GRADIENT", "OUTPUT", "OUTPUT_GRADIENT", "Asks", "layer_asks"]

Events = tuple[tuple[int, float], ...]
"""(slot, bytes) of what is asked for, (slot, 0) of what is given back."""
INPUT, OUTPUT, OUTPUT_GRADIENT, INPUT_GRADIENT = range(4)
"""Slots of what goes in and out: the input is there, and its gradient is left, for the layer before."""


class Asks(NamedTuple):
    """Events of a layer's forward, of the one that runs again before its backward if it does, and of its backward."""

    forward: Events
    again: Events
    backward: Events

    @property
    def kept(self) -> frozenset[int]:
        """Slots that the last forward left for the backward."""
        left: dict[int, None] = {}
        for slot, size in (*self.forward, *self.again):
            if size:
                left[slot] = None
            else:
                left.pop(slot, None)
        return frozenset(left) - {OUTPUT}


def layer_asks(
    ctx: LayerContext, part: LayerPart, recompute: Recompute, stands: tuple[tuple[Tensor, ...], ...]
) -> Asks:
    """Return what a layer, or an end of the model, asks for.

    Args:
        stands: what stands while its forward runs, what that keeps, and what stands while its backward runs; of the layers of a stack
            the first is empty, and the last is found operation by operation.
    """
    first, kept, last = stands
    draft = _Draft(ctx, part)
    if first:  # a loss is known by what stands while it runs (`loss_memory`)
        return draft.of_a_loss(first, kept, last)
    out = dropped(part, recompute, ctx.sends_rows)
    every = {
        (i, j)
        for i, o in enumerate(part.operators)
        for j, s in enumerate(o.saved[: len(o.op.keeps)])
        if s.bytes and (recompute.kind == "operators" or not s.idle)
    }
    if recompute.kind in ("full", "policy"):
        forward, _ = draft.forward(set())
        again, slots = draft.forward(every)
        values = [(draft.new(), t.bytes) for t in kept if t.name != "layer input" and t.bytes]
        backward = (*draft.backward(slots, every), *((slot, 0.0) for slot, _ in values))
        return Asks((*forward, *values), (*again, (OUTPUT, 0.0)), backward)
    forward, slots = draft.forward(every - out)
    return Asks(forward, (), draft.backward(slots, every))


class _Draft:
    """The events of a layer in the making."""

    def __init__(self, ctx: LayerContext, part: LayerPart) -> None:
        self._ctx, self._operators = ctx, part.operators
        self._input = part.input_bytes / ctx.ways(part.operators[0].op.inputs[0].dims) if part.operators else 0.0
        self._last = next((o.op.outputs[0].name for o in reversed(part.operators) if o.op.outputs), "")
        self._slots = INPUT_GRADIENT

    def new(self) -> int:
        """A slot that nothing else has."""
        self._slots += 1
        return self._slots

    def of_a_loss(self, first: tuple[Tensor, ...], kept: tuple[Tensor, ...], last: tuple[Tensor, ...]) -> Asks:
        """What stands while the head and its loss run is asked for one after the other, and given back at once."""
        beside, held, behind = (
            [(self.new(), t.bytes) for t in some if t.bytes and t.category != "fragmentation"]
            for some in (first, kept, last)
        )
        done = ((slot, 0.0) for slot, _ in (*behind, *held))
        forward = (*beside, *held, *((slot, 0.0) for slot, _ in beside))
        return Asks(forward, (), (*behind, (INPUT_GRADIENT, self._input), *done))

    def forward(self, keeps: set[tuple[int, int]]) -> tuple[Events, dict[tuple[int, int], int]]:
        """Events of a forward that keeps these (operator, tensor), and the slot of each that got one."""
        read_last = {t.name: i for i, o in enumerate(self._operators) for t in o.op.inputs}
        kept_names = {self._operators[i].op.keeps[j].tensor.name for i, j in keeps if self._is_itself(i, j)}
        events: list[tuple[int, float]] = []
        made: dict[str, int] = {}
        slots: dict[tuple[int, int], int] = {}
        for i, o in enumerate(self._operators):
            for t in o.op.outputs:
                if size := t.standing / self._ctx.ways(t.dims):
                    made[t.name] = OUTPUT if t.name == self._last else self.new()
                    events.append((made[t.name], size))
            for j in range(len(o.op.keeps)):
                if (i, j) not in keeps:
                    continue
                name = o.op.keeps[j].tensor.name
                if self._is_itself(i, j):
                    slots.update({(i, j): made[name]} if name in made else {})
                else:
                    slots[i, j] = self.new()
                    events.append((slots[i, j], self._kept(i, j)))
            for name in {t.name for t in o.op.inputs} & set(made):
                if read_last[name] == i and name not in kept_names and name != self._last:
                    events.append((made.pop(name), 0.0))
        unread = [name for name in made if name not in read_last and name not in kept_names and name != self._last]
        return (*events, *((made[name], 0.0) for name in unread)), slots

    def backward(self, slots: dict[tuple[int, int], int], keeps: set[tuple[int, int]]) -> Events:
        """Events of the backward behind a forward that left these slots; what it lacks of `keeps` is made again where it is read."""
        events: list[tuple[int, float]] = []
        gradients = {self._last: OUTPUT_GRADIENT}
        first = {slot: min(i for (i, _), s in slots.items() if s == slot) for slot in slots.values()}
        for i, o in reversed(list(enumerate(self._operators))):
            missing = [(self.new(), self._kept(i, j)) for j in range(len(o.op.keeps)) if (i, j) in keeps - set(slots)]
            missing = missing if self._runs_again(i, keeps, slots) else []
            events += missing
            made = [t.name for t in o.op.outputs if t.name in gradients]
            if made and passed_on(self._ctx, o):
                slot = gradients.pop(made[0])
                for t in o.op.inputs:
                    gradients.setdefault(t.name, slot)
            elif made:
                events += self._gradients(o, made, gradients)
            events += [(slot, 0.0) for slot in (*(s for s, at in first.items() if at == i), *(s for s, _ in missing))]
        left = [slot for slot in dict.fromkeys(gradients.values()) if slot != OUTPUT_GRADIENT]
        events += [(slot, 0.0) for slot in left]
        return (*events, (INPUT_GRADIENT, self._input), (OUTPUT_GRADIENT, 0.0))

    def _gradients(self, o: Operator, made: list[str], gradients: dict[str, int]) -> list[tuple[int, float]]:
        """Events of an operation's gradients: its scratch, those of what it read, and that of what it made."""
        events: list[tuple[int, float]] = []
        beside = scratch(self._ctx, o)
        space = self.new()
        events += [(space, beside)] if beside else []
        for t in () if isinstance(o.op, Lookup) else o.sources:
            size = t.standing / self._ctx.ways(t.dims)
            if t.role in ("mask", "statistics") or not size:
                continue
            slot = self.new()
            events.append((slot, size))
            if t.name in gradients:
                events.append((slot, 0.0))  # added to the one that is there
            else:
                gradients[t.name] = slot
        events += [(space, 0.0)] if beside else []
        done = {gradients.pop(name) for name in made}
        return events + [(slot, 0.0) for slot in done - set(gradients.values()) - {OUTPUT_GRADIENT}]

    def _kept(self, i: int, j: int) -> float:
        o = self._operators[i]
        return o.saved[j].bytes / kept_ways(self._ctx, o, o.saved[j])

    def _is_itself(self, i: int, j: int) -> bool:
        """Whether what is kept is the tensor that was made, not a copy of it in another format."""
        tensor = self._operators[i].op.keeps[j].tensor
        return abs(self._kept(i, j) - tensor.standing / self._ctx.ways(tensor.dims)) < 1.0

    def _runs_again(self, i: int, keeps: set[tuple[int, int]], slots: dict[tuple[int, int], int]) -> bool:
        """Whether what an operation lacks is made again for it, and not the layer's input, which is there."""
        made = {t.name for o in self._operators for t in o.op.outputs}
        return any(
            (i, j) in keeps and (i, j) not in slots and keep.tensor.name in made
            for j, keep in enumerate(self._operators[i].op.keeps)
        )
