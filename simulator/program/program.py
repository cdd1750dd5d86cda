"""The program: what happens in one training step, without a second in it and without hardware.

Two levels, so that a step of 100,000 rows stays small:

    operators --> layers --> segments --> blocks        TEMPLATES: few; these are priced
                                 |
                                rows                    INSTANCES and LINKS: many; these are run

* `OperatorTable`: the operators of one layer in one direction (the forward of a transformer layer), as columns.
* `Segment`: a run of layers that executes without a break on one stream: `pieces = ((table, count), ...)`.
* `Block`: what one action of a pipeline order runs: one segment, or several when a link is anchored inside it.
* `Link`: what joins segments: a transfer between pipeline ranks, a collective beside the compute, a copy.
* `Program`: `items` (all segments and links, priced once each) and the row columns: row i runs item[i] on its streams.

The world is folded: one rank per pipeline rank stands for all its tensor-, context- and data-parallel members.
Meaning of a row (both engines implement exactly this): it starts when it is first on ALL its streams and every row j of its
`after` list has ended and j's latency has passed; it ends `occupancy` later, for all its streams at once.  A stream runs its
rows in the order of their row numbers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.program.calls import Call
from simulator.program.rows import Rows, rows_of

__all__ = [
    "CATEGORIES",
    "COLLECTIVE",
    "COMPUTE",
    "COPIES",
    "COPY",
    "EAGER",
    "IN_LAYER_GRAPH",
    "IN_STEP_GRAPH",
    "KIND_NAMES",
    "TRANSFER",
    "Axes",
    "Block",
    "Effect",
    "End",
    "FusedSegment",
    "Item",
    "Link",
    "OperatorTable",
    "Pieces",
    "Program",
    "Segment",
    "Served",
    "StageMesh",
    "Tensor",
    "bytes_by_category",
]

Axes = tuple[tuple[str, int], ...]
"""Names and sizes of mesh axes, the innermost first, such as (("tp", 8), ("cp", 1), ("dp", 16), ("pp", 8))."""

COMPUTE, TRANSFER, COLLECTIVE, COPY = 0, 1, 2, 3
KIND_NAMES = ("compute", "transfer", "collective", "copy")

COPIES = ("", "to_host", "to_device", "host_update", "from_nvme", "to_nvme")
"""What a copy may be: not told, over the host link one way or the other, the CPU's own work, or from the host's drives and to them."""

EAGER, IN_LAYER_GRAPH, IN_STEP_GRAPH = 0, 1, 2
"""What starts an operator: the host, a CUDA graph of a part of its layer, or one of the whole step."""

CATEGORIES = (
    "weights",
    "gradients",
    "optimizer_states",
    "activations",
    "logits",
    "gathered",
    "communication",
    "workspace",
    "context",
    "fragmentation",
)
"""Memory categories, everywhere the same; their sum is the total (reserved) memory of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorTable:
    """The operators of one layer in one direction, as columns of equal length n.

    Collectives that run inside a block (tensor-parallel all_reduce) are rows of kind COLLECTIVE with `message` bytes per
    participant before the algorithm, over the mesh axes in `group`.
    """

    name: str
    label: tuple[str, ...]
    kind: NDArray[np.int8]
    work: tuple[str, ...]
    """What prices the row: gemm, attention, memory_bound, optimizer, ... for COMPUTE; the collective's name else."""
    shape: NDArray[np.int64]
    """[n, 4]: batch, m, n, k of a gemm or attention; zeros else."""
    call: tuple[Call, ...]
    """What kind of kernel it is: a `Product`, an `AttentionCall`, `Traffic` of a memory-bound row, a `NodeExchange`; None of another
    collective (calls.py)."""
    dtype: tuple[str, ...]
    flops: NDArray[np.float64]
    read: NDArray[np.float64]
    written: NDArray[np.float64]
    message: NDArray[np.float64]
    group: tuple[tuple[str, ...], ...]
    phase: tuple[str, ...]
    """forward, backward, recompute or optimizer."""
    launches: NDArray[np.int64]
    part: tuple[str, ...]
    """Which half of a split backward the row belongs to: "input", "weight" or ""."""
    beside: NDArray[np.int32]
    """Of a collective: the compute row of this table it runs beside (overlapped); -1 when everything waits for it."""
    captured: NDArray[np.int8]
    """What starts the row: EAGER, IN_LAYER_GRAPH or IN_STEP_GRAPH."""

    def __len__(self) -> int:
        return len(self.label)


Pieces = tuple[tuple[OperatorTable, int], ...]
"""(Operators of a layer, how many such layers follow one another)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Layers that run without a break on one compute stream."""

    name: str
    pieces: Pieces
    phase: str
    """The phase that names the segment: forward, backward or optimizer."""
    synchronises: bool = False
    """The host waits for the GPU here (end of step): its fixed time is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedSegment:
    """The forward of one microbatch and the backward of another as one operation: the communication of each can hide under the
    compute of the other, where the runtime interleaves them."""

    name: str
    first: Segment
    second: Segment

    @property
    def pieces(self) -> Pieces:
        """The operators of both."""
        return self.first.pieces + self.second.pieces

    @property
    def phase(self) -> str:
        """The phase that names it."""
        return self.first.phase


class Served(NamedTuple):
    """Servers that a collective goes through.

    Args:
        algorithm: name of the collective algorithm that does.
        servers: machines without GPUs; 0 = the nodes themselves.
        moved: bytes that an update moves in the servers' memory for a byte of the message.
        each: whether they update with every push, in place of the sum of all.
    """

    algorithm: str
    servers: int
    moved: float = 0.0
    each: bool = False


class End(NamedTuple):
    """How the ranks of a stage hold what goes between stages, the copies and parts of a row on consecutive ranks.

    Args:
        rows: ranks or groups of ranks that have as many sequences each of a microbatch.
        parts: equal parts of a row, each on a rank of its own.
        copies: ranks that hold the same part.
    """

    rows: int = 1
    parts: int = 1
    copies: int = 1

    @property
    def ranks(self) -> int:
        """Of the stage."""
        return self.rows * self.parts * self.copies


class StageMesh(NamedTuple):
    """Where the real ranks of a rank of the program lie: their mesh axes, innermost first, and the world rank of the first."""

    axes: Axes
    first: int

    @property
    def ranks(self) -> int:
        """How many."""
        return math.prod(size for _, size in self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A transfer, a collective beside the compute, or a copy.

    Args:
        message: bytes per participant before the algorithm.
        collective: all_reduce, reduce_scatter, all_gather, ... of a collective; of a copy "to_host" or "to_device" over the host
            link, "host_update": bytes that the CPU moves in its memory for an update, "from_nvme" or "to_nvme" between the host's
            memory and its drives; "" for a transfer.
        group: mesh axes of the participants, such as ("dp",); for a transfer ("pp",).
        pipeline_ranks: the pipeline ranks it touches: (source, destination) of a transfer, all members of a collective.
        account: which exposed-communication account its waiting goes to: tp, cp, ep, pp or dp.
        blocks: of a transfer, whether the hosts of both ranks wait for it before they launch anything more.
        slices: of a collective through a list of tensors: how many of them the host makes, and copies from or to one flat message,
            one by one; 0 where the message is one tensor.
        served: of a collective through servers: who they are; None where the cluster's library chooses how it goes.
        ends: of a transfer between stages with ranks of their own: how the ranks on either side hold what is sent; `message` is all
            of it then. () = from each rank to one.
    """

    name: str
    kind: int = COLLECTIVE
    message: float
    dtype: str
    group: tuple[str, ...] = ()
    pipeline_ranks: tuple[int, ...] = ()
    account: str = "dp"
    collective: str = ""
    blocks: bool = False
    slices: int = 0
    served: Served | None = None
    ends: tuple[End, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one action runs: (chunk class, action kind) -> segments in order."""

    name: str
    segments: tuple[Segment, ...]


class Tensor(NamedTuple):
    """One named holder of memory, as the memory report prints it."""

    name: str
    category: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A change of memory at an edge of a row: the tensors allocated or freed, together."""

    tensors: tuple[Tensor, ...] = ()

    def by_category(self) -> NDArray[np.float64]:
        """Return bytes per category, in the order of CATEGORIES."""
        found: NDArray[np.float64] = bytes_by_category((self,))[0]
        return found


_CATEGORY = {name: number for number, name in enumerate(CATEGORIES)}


Item = Segment | FusedSegment | Link
"""What a row runs."""


def bytes_by_category(effects: tuple[Effect, ...]) -> NDArray[np.float64]:
    """Return [effects, categories] bytes."""
    out = [[0.0] * len(CATEGORIES) for _ in effects]
    for row, effect in zip(out, effects, strict=True):
        for tensor in effect.tensors:
            row[_CATEGORY[tensor.category]] += tensor.bytes
    return np.array(out).reshape(-1, len(CATEGORIES))


def _empty(dtype: Any) -> Any:
    return field(default_factory=lambda: np.zeros(0, dtype))


@dataclass(frozen=True, slots=False, kw_only=True, eq=False)
class Program:
    """One training step: items (templates) and rows (what runs).  All arrays are read-only.

    Row columns have length n.  Ragged columns are a pair: row i owns entries offsets[i]:offsets[i+1].
    """

    name: str
    axes: Axes
    items: tuple[Item, ...]
    blocks: tuple[Block, ...] = ()

    item: NDArray[np.int32]
    kind: NDArray[np.int8]
    """COMPUTE, TRANSFER, COLLECTIVE or COPY."""
    action: NDArray[np.int8]
    """Of a compute row: 0 F, 1 B, 2 I, 3 W, 4 update, 5 a fused pair (F here, B in `second_*`); -1 else."""
    rank: NDArray[np.int32]
    """The pipeline rank that owns the row (memory effects happen there); of a transfer, the sender."""
    lane: NDArray[np.int8]
    chunk: NDArray[np.int32]
    """Global chunk number; -1 where it means nothing."""
    microbatch: NDArray[np.int32]
    step: NDArray[np.int32]
    part: NDArray[np.int16]
    """Which segment of its block the row is; 0 for an unbroken block."""

    stream_offsets: NDArray[np.int64]
    streams: NDArray[np.int32]
    """Participants: numbers of the streams each row holds."""
    after_offsets: NDArray[np.int64]
    after: NDArray[np.int32]
    """Rows that must have ended (and whose latency must have passed) before this one starts."""

    stream_rank: NDArray[np.int32]
    stream_lane: tuple[str, ...]
    """"compute", "tp", "cp", "ep", "dp", "copy", or "pp>3" (sends to pipeline rank 3) and "pp<3" (receives from it)."""
    rank_weight: NDArray[np.float64]
    """How many real ranks each folded rank stands for."""

    effects: tuple[Effect, ...] = ()
    start_effect: NDArray[np.int32] = _empty(np.int32)
    """Per row: which effect is ALLOCATED at its START; -1 none."""
    end_effect: NDArray[np.int32] = _empty(np.int32)
    """Per row: which effect is FREED at its END; -1 none."""
    mark_effect: NDArray[np.int32] = _empty(np.int32)
    """Per row: which effect stands only between its START and END (temporaries); -1 none."""
    resident: tuple[Effect, ...] = ()
    """Per rank: what stands through the whole step (weights, optimizer states, ...)."""
    host_resident: tuple[Effect, ...] = ()
    """Per rank: what each of its GPUs has put into the memory of its host, at most; () where nothing is."""
    nvme_resident: tuple[Effect, ...] = ()
    """Per rank: what each of its GPUs has put on the drives of its host, at most; () where nothing is."""
    count: NDArray[np.int8] = _empty(np.int8)
    """Per row: whole microbatches that its action covers; empty = one each."""
    slice: NDArray[np.int16] = _empty(np.int16)
    slices: NDArray[np.int16] = _empty(np.int16)
    """Per row: which part, from 0, of how many of the microbatch; empty = whole microbatches."""
    second_chunk: NDArray[np.int32] = _empty(np.int32)
    second_microbatch: NDArray[np.int32] = _empty(np.int32)
    """Per row: chunk and microbatch of the backward in a fused pair, -1 elsewhere; empty = no pairs."""
    framework: str = ""
    """Name of the framework profile whose host costs apply; "" = the host costs nothing."""
    tokens: int = 0
    """What all ranks train on in the step, of a program that no workload stands behind; 0 = not told."""
    stages: tuple[StageMesh, ...] = ()
    """Per rank: the mesh of its own where pipeline stages have unequal ones; () = `axes` are those of all."""

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.item)

    @property
    def ranks(self) -> int:
        """Number of folded ranks."""
        return len(self.rank_weight)

    @functools.cached_property
    def item_rank(self) -> NDArray[np.int64]:
        """Per item: the rank of the first row that runs it; 0 where none does."""
        out = np.zeros(len(self.items), np.int64)
        out[self.item[::-1]] = self.rank[::-1]
        return out

    @property
    def messages(self) -> NDArray[np.float64]:
        """Per row: bytes of its message; 0 of one that sends none."""
        sizes = np.array([item.message if isinstance(item, Link) else 0.0 for item in self.items])
        return sizes[self.item]

    @property
    def world_size(self) -> int:
        """Real ranks."""
        if self.stages:
            return sum(mesh.ranks for mesh in self.stages)
        return math.prod(size for _, size in self.axes)

    def mesh_of(self, rank: int) -> Axes:
        """Return the mesh axes on which a rank's items run."""
        return self.stages[rank].axes if self.stages else self.axes

    @functools.cached_property
    def rows(self) -> Rows:
        """What follows from the rows alone, shared by all programs that have the same."""
        return rows_of(self)

    @functools.cached_property
    def previous(self) -> NDArray[np.int32]:
        """Per entry of `streams`: the row before it on that stream, -1 for the first."""
        owner = self.row_of_stream_entry
        order = np.argsort(self.streams, kind="stable")
        out = np.full(len(self.streams), -1, np.int32)
        same = self.streams[order][1:] == self.streams[order][:-1]
        out[order[1:][same]] = owner[order[:-1][same]]
        out.flags.writeable = False
        return out

    @functools.cached_property
    def row_of_stream_entry(self) -> NDArray[np.int32]:
        """Per entry of `streams`: the row that owns it."""
        return np.repeat(np.arange(self.size, dtype=np.int32), np.diff(self.stream_offsets))

    @property
    def compute_stream(self) -> NDArray[np.int32]:
        """Per rank: the number of its compute stream."""
        found: NDArray[np.int32] = self.rows.once(
            ("compute stream", self.stream_lane, self.ranks), self._compute_stream
        )
        return found

    def _compute_stream(self) -> NDArray[np.int32]:
        out = np.full(self.ranks, -1, np.int32)
        for number, (rank, lane) in enumerate(zip(self.stream_rank, self.stream_lane, strict=True)):
            if lane == "compute":
                out[rank] = number
        out.flags.writeable = False
        return out

    @functools.cached_property
    def effect_bytes(self) -> NDArray[np.float64]:
        """[effects, categories] bytes."""
        return bytes_by_category(self.effects)

    def label(self, row: int) -> str:
        """Return a short name for a row: `2F0` for an action of chunk 2, microbatch 0; the link's name else."""
        item = self.items[int(self.item[row])]
        if self.kind[row] != COMPUTE or self.action[row] not in (0, 1, 2, 3, 5):
            return item.name
        suffix = f"[{int(self.part[row])}]" if self.part[row] else ""
        pair = self.action[row] == 5
        name = f"{int(self.chunk[row])}{'F' if pair else 'FBIW'[int(self.action[row])]}{int(self.microbatch[row])}"
        if len(self.count) and self.count[row] > 1:
            name += f"+{int(self.microbatch[row]) + int(self.count[row]) - 1}"
        if len(self.slices) and self.slices[row] > 1:
            name += f".{int(self.slice[row]) + 1}/{int(self.slices[row])}"
        if pair:
            return f"({name};{int(self.second_chunk[row])}B{int(self.second_microbatch[row])})"
        return name + suffix
