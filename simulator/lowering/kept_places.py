"""How much a PyTorch process holds of its GPU beside its tensors: places that are free, but that nothing it asks for fits into.

The step of one rank is played through in the order of its actions, layer by layer and operation by operation (`layers/asks.py`), on a
model of the allocator (`memory/allocator.py`): twice, for the first update makes the optimizer's moments in places that the first step's
activations left.  What one sees in `nvidia-smi` is what the process holds; what its tensors take at most is known more exactly from
the program, so the difference alone is taken from here.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.lowering import begin
from simulator.lowering.layers.asks import INPUT, INPUT_GRADIENT, OUTPUT, OUTPUT_GRADIENT, Asks, Events
from simulator.lowering.layers.expand import LayerCost
from simulator.lowering.memory.allocator import Block, CachingAllocator
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.assign import Chunk
from simulator.lowering.steps.flat_gradients import flat_copies
from simulator.lowering.steps.parameters import rank_chunks, rank_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.update import master_bytes, optimizer_bytes
from simulator.workload.workload import Workload

__all__ = ["kept_places"]

_MOST_EVENTS = 60_000
"""Of a step that are played through: the first actions of a rank until there are so many.  By then a pipeline is full, and the same
microbatches come and go in the same places."""
_STEPS = 2
_F, _B, _I, _W = range(4)
"""Kinds of actions, as an order numbers them (`simulator.schedules.action`)."""
_Key = tuple[int, int, int]
"""Chunk, microbatch, and which slice or half of it."""


def kept_places(workload: Workload, resolved: ResolvedPlan, rank: int, standing: float, states: float) -> float:
    """Return bytes that a pipeline rank's allocator holds at most, beyond those it was asked for at most; 0 where the code has none.

    Args:
        standing: bytes that stand from before the first step on; `states`: of the optimizer.
    """
    for stage in resolved.stages:
        if rank < stage.pipeline_parallel:
            return kept_places(workload, stage, rank, standing, states)
        rank -= stage.pipeline_parallel
    if resolved.framework.allocator == "none":
        return 0.0
    player = _Player(begin(workload, resolved), rank, resolved.framework.allocator == "expandable")
    moments = 0.0 if resolved.framework.flattens_gradients else states * player.moments
    player.memory.ask(standing - moments)
    for step in range(_STEPS):
        player.play()
        if step == 0:
            player.make_moments(moments)
        player.update()
    return float(player.memory.most_held - player.memory.most_asked)


class _Layer:
    """A layer with a microbatch, or a part of one, in it: what lies in its slots."""

    def __init__(self, memory: CachingAllocator, cost: LayerCost, asks: Asks, part: float) -> None:
        self.cost, self.asks = cost, asks
        self.slots: dict[int, Block] = {}
        self.later: list[Block] = []
        """What the second half of a split backward gives back."""
        self._memory, self._part = memory, part

    def ask(self, slot: int, size: float) -> None:
        """Ask for what lies in a slot; `size`: of a whole microbatch."""
        if size:
            self.slots[slot] = self._memory.ask(size * self._part)

    def run(self, events: Events, kept: frozenset[int] = frozenset()) -> None:
        """Ask and give back; what lies in `kept` slots is given back later."""
        for slot, size in events:
            if size:
                self.ask(slot, size)
            else:
                self.drop(slot, slot in kept)

    def drop(self, slot: int, later: bool = False) -> None:
        """Give back what lies in a slot, if anything does, or note it for later."""
        block = self.slots.pop(slot, None)
        if block is not None:
            (self.later.append if later else self._memory.give_back)(block)

    def drop_all(self) -> None:
        """Give back all that is left."""
        for block in (*self.later, *self.slots.values()):
            self._memory.give_back(block)


class _Player:
    """A rank of a program that is played through."""

    def __init__(self, state: State, rank: int, expandable: bool) -> None:
        self.memory = CachingAllocator(expandable)
        self._state = state
        self._chunks = [state.chunks[c] for _, c in rank_chunks(state, rank)]
        self._asks = {kind: state.costs[kind].asks() for chunk in self._chunks for kind in chunk.kinds}
        self._actions = list(self._first_actions(rank))
        self._copies = flat_copies(state, rank_held(state, rank).trained)

    @property
    def moments(self) -> float:
        """The part of the optimizer's states that its first update makes; copies of the weights are there before."""
        whole = optimizer_bytes(self._state)
        return 1.0 - master_bytes(self._state) / whole if whole else 0.0

    def make_moments(self, size: float) -> None:
        """Ask for so many bytes of moments: two for every tensor of weights."""
        sizes = [n for chunk in self._chunks for kind in chunk.kinds for n in self._state.costs[kind].trained_tensors]
        part = size / (2.0 * sum(sizes)) if size else 0.0
        for n in sizes if size else ():
            for _ in range(2):
                self.memory.ask(part * n)

    def update(self) -> None:
        """Ask for what the update makes on its way, and give it back."""
        blocks = [self.memory.ask(size) for size in self._copies[:2] if size]
        if len(blocks) > 1:  # what was joined goes when it is cast
            self.memory.give_back(blocks.pop(0))
        blocks += [self.memory.ask(self._copies.results)] if self._copies.results else []
        for block in blocks:
            self.memory.give_back(block)

    def _first_actions(self, rank: int) -> Iterator[tuple[int, _Key, float]]:
        """(kind, on what, how much of a microbatch that is) of actions until they have so many events as are played through."""
        order, events, slices = self._state.order, 0, self._state.resolved.schedule.slices
        first, last = order.rank_offsets[rank : rank + 2].tolist()
        for a in range(first, last):
            chunk = int(order.chunk[a])
            part = order.weight[a] if slices else order.count[a] / order.parts[a]
            yield int(order.kind[a]), (chunk, int(order.microbatch[a]), int(order.part[a])), float(part)
            events += sum(len(some) for kind in self._state.chunks[chunk].kinds for some in self._asks[kind])
            if events > 2 * _MOST_EVENTS:
                return

    def play(self) -> None:
        """Play the actions through; what is left of microbatches that did not come to their end is given back."""
        there: dict[_Key, list[_Layer]] = {}
        for kind, key, part in self._actions:
            if kind == _F:
                there[key] = self._forward(self._state.chunks[key[0]], part)
            elif kind == _W:
                _end(there.pop(key, []))
            elif key in there:
                self._backward(there[key], split=kind == _I)
                if kind == _B:
                    _end(there.pop(key))
        for layers in there.values():
            _end(layers)

    def _forward(self, chunk: Chunk, part: float) -> list[_Layer]:
        """Run a chunk forward; its input came from another rank, its output goes there."""
        layers: list[_Layer] = []
        for kind in chunk.kinds:
            layer = _Layer(self.memory, self._state.costs[kind], self._asks[kind], part)
            if layers:
                before = layers[-1].slots.pop(OUTPUT, None)
                layer.slots |= {} if before is None else {INPUT: before}
            elif not chunk.embedding:
                layer.ask(INPUT, layer.cost.input_bytes)
            layer.run(layer.asks.forward)
            if not layer.cost.saved:
                layer.drop(INPUT)
            layers.append(layer)
        layers[-1].drop(OUTPUT)
        return layers

    def _backward(self, layers: list[_Layer], split: bool) -> None:
        """Run a chunk backward; of one that is `split` what was kept goes with the other half."""
        layers[-1].ask(OUTPUT_GRADIENT, layers[-1].cost.input_bytes)
        for layer, before in zip(reversed(layers), [*reversed(layers[:-1]), None], strict=True):
            layer.run(layer.asks.again)
            layer.run(layer.asks.backward, layer.asks.kept if split else frozenset())
            layer.drop(OUTPUT_GRADIENT)
            layer.drop(INPUT, later=split)
            gradient = layer.slots.pop(INPUT_GRADIENT, None)
            if gradient is not None and before is not None:
                before.slots[OUTPUT_GRADIENT] = gradient
            elif gradient is not None:
                self.memory.give_back(gradient)


def _end(layers: list[_Layer]) -> None:
    for layer in layers:
        layer.drop_all()
