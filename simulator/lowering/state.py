"""What the passes hand on: small templates, and batches of rows that grow pass by pass until `emit` joins them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.lowering.assign import Chunk
from simulator.lowering.expand import LayerCost
from simulator.lowering.pattern import Pattern
from simulator.lowering.settled import Settled
from simulator.program.program import Block, Effect, FusedSegment, Link, Segment, Tensor
from simulator.schedules.order import PipelineOrder
from simulator.schedules.placement import Placement
from simulator.workload.workload import Workload

__all__ = ["Batch", "State"]

Ints = NDArray[np.int64]
Whole = NDArray[Any]
"""Whole numbers of any width; `emit` gives them their final one."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """Rows added by one pass, as columns; a missing participant is -1."""

    item: Ints
    kind: int
    rank: Ints
    streams: Ints
    action: Whole | int = -1
    chunk: Whole | int = -1
    microbatch: Whole | int = -1
    part: Whole | int = 0
    count: Whole | int = 1
    slice: Whole | int = 0
    slices: Whole | int = 1
    second_chunk: Whole | int = -1
    second_microbatch: Whole | int = -1
    step: Whole | int = 0


@dataclass(slots=True, kw_only=True)
class State:
    """The program under construction."""

    workload: Workload
    settled: Settled
    chunks: tuple[Chunk, ...]
    costs: dict[str, LayerCost]
    placement: Placement
    order: PipelineOrder
    pattern: Pattern
    scaled_costs: Callable[[int, int, int, float], dict[str, LayerCost]]
    """(count, part, parts, weight) of an action -> costs of its layers, where it is not one whole microbatch."""

    steps: int = 1
    """Steps that run into each other in `order`; 1 where every step ends with a flush."""
    updates: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Per action: whether an update follows it at once, in the row after its last; empty where updates end the step."""

    items: list[Segment | FusedSegment | Link] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    streams: dict[tuple[int, str], int] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    rows: int = 0
    waits: list[tuple[Ints, Ints]] = field(default_factory=list)
    """(rows that wait, rows waited for), pairwise."""
    effects: dict[tuple[Tensor, ...], int] = field(default_factory=dict)
    touched: list[tuple[str, Ints, Ints]] = field(default_factory=list)
    """("start" | "end" | "mark", rows, effect numbers)."""
    resident: list[list[Tensor]] = field(default_factory=list)
    host: list[list[Tensor]] = field(default_factory=list)
    """Per rank: what one of its GPUs has put into host memory, at most."""

    weights: dict[Chunk, Any] = field(default_factory=dict)
    """Per kind of chunk: its weights; filled at first use by `parameters.chunk_held`."""
    held: list[list[tuple[int, int]]] = field(default_factory=list)
    """Per rank: its (lane, chunk) pairs; filled at first use by `parameters.rank_chunks`."""

    # filled by `instances`
    first_row: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Per action: its first compute row; `last_row`: its last."""
    last_row: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    scale: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Per action: index into `scales`, the costs of layers at that action's size."""
    scales: list[dict[str, LayerCost]] = field(default_factory=list)
    variant: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    cuts: dict[tuple[Chunk, str, int], tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """(chunk, direction, variant) -> per unit or bucket, the kinds of layers in it."""
    pieces: dict[tuple[Chunk, str, int], tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    """The same per segment: units and buckets, cut further where activations go to the host layer by layer."""

    def spans(self, chunk: Chunk, direction: str, variant: int) -> list[tuple[tuple[str, ...], int, int]]:
        """Return (kinds of layers, first segment, last segment) of every unit or bucket of a chunk that was cut so."""
        out, place = [], 0
        sizes = [len(piece) for piece in self.pieces[(chunk, direction, variant)]]
        for group in self.cuts[(chunk, direction, variant)]:
            first, layers = place, 0
            while layers < len(group):
                layers += sizes[place]
                place += 1
            out.append((group, first, max(first, place - 1)))
        return out

    @property
    def ranks(self) -> int:
        """Pipeline ranks."""
        return self.settled.pipeline_parallel

    def stream(self, rank: int, lane: str) -> int:
        """Number of a stream; made at first use."""
        return self.streams.setdefault((rank, lane), len(self.streams))

    def lanes(self, lane: str) -> Ints:
        """Per rank: the number of its stream of this lane."""
        return np.array([self.stream(r, lane) for r in range(self.ranks)], np.int64)

    def step_of(self, microbatch: Whole) -> Whole | int:
        """Step of each of these microbatches, which are numbered through the steps."""
        return microbatch // self.settled.microbatches if self.steps > 1 else 0

    def add_item(self, item: Segment | FusedSegment | Link) -> int:
        """Append an item; returns its number."""
        self.items.append(item)
        return len(self.items) - 1

    def add_rows(self, batch: Batch) -> Ints:
        """Append rows; returns their numbers."""
        n = len(batch.item)
        self.batches.append(batch)
        self.rows += n
        return np.arange(self.rows - n, self.rows, dtype=np.int64)

    def wait(self, rows: Any, on: Any) -> None:
        """Let `rows` wait for `on`, pairwise."""
        rows, on = np.atleast_1d(rows).astype(np.int64), np.atleast_1d(on).astype(np.int64)
        if len(rows):
            self.waits.append((rows, on))

    def effect(self, tensors: tuple[Tensor, ...]) -> int:
        """Number of an effect with these tensors; -1 for none."""
        if not tensors:
            return -1
        return self.effects.setdefault(tensors, len(self.effects))

    def touch(self, edge: str, rows: Any, effects: Any) -> None:
        """Give rows a memory effect at an edge; several at one edge add up."""
        rows = np.atleast_1d(rows).astype(np.int64)
        numbers = np.broadcast_to(np.asarray(effects, np.int64), rows.shape)
        keep = numbers >= 0
        if keep.any():
            self.touched.append((edge, rows[keep], numbers[keep]))

    def effect_list(self) -> tuple[Effect, ...]:
        """All effects, by number."""
        return tuple(Effect(tensors=t) for t in self.effects)
