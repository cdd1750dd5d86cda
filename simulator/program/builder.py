"""Make a program row by row: for tests, for teaching and for the text parser.  Lowering emits arrays instead.

>>> build = ProgramBuilder("two ranks")
>>> first, second = (build.add_stream(build.add_rank()) for _ in range(2))
>>> work, send = build.add_item(plain_segment("layer")), build.add_item(transfer_link("act", 0, 1, message=1024))
>>> out, into = build.add_stream(0, "pp>1"), build.add_stream(1, "pp<0")
>>> here = build.add_row(work, first)
>>> moved = build.add_row(send, (out, into), after=[here])
>>> there = build.add_row(work, second, after=[moved])
>>> program = build.build()
>>> program.size, program.ranks
(3, 2)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from simulator.errors import ProgramError
from simulator.program.program import (
    COLLECTIVE,
    COMPUTE,
    TRANSFER,
    Block,
    Effect,
    Item,
    Link,
    Program,
    Segment,
    StageMesh,
    Tensor,
)
from simulator.program.ragged import frozen

__all__ = ["SPECIAL_DEFAULTS", "ProgramBuilder", "collective_link", "plain_segment", "transfer_link"]

SPECIAL_DEFAULTS = {"count": 1, "slice": 0, "slices": 1, "second_chunk": -1, "second_microbatch": -1}
"""Columns of a row that few programs need, and what they are in ordinary rows."""


def plain_segment(name: str, phase: str = "forward") -> Segment:
    """Return a segment without operators, for programs whose prices are given.

    >>> plain_segment("layer").phase
    'forward'
    """
    return Segment(name=name, pieces=(), phase=phase)


def transfer_link(name: str, source: int, destination: int, *, message: float = 0.0, dtype: str = "bf16") -> Link:
    """Return the link that moves `message` bytes from one pipeline rank to another.

    >>> transfer_link("act", 0, 1).pipeline_ranks
    (0, 1)
    """
    return Link(
        name=name,
        kind=TRANSFER,
        message=float(message),
        dtype=dtype,
        group=("pp",),
        pipeline_ranks=(source, destination),
        account="pp",
    )


def collective_link(
    name: str,
    collective: str,
    ranks: Sequence[int],
    *,
    message: float = 0.0,
    group: tuple[str, ...] = ("dp",),
    account: str = "dp",
) -> Link:
    """Return a collective in bf16 of `message` bytes per participant over the mesh axes in `group`.

    >>> collective_link("bucket", "all_reduce", [0]).collective
    'all_reduce'
    """
    return Link(
        name=name,
        kind=COLLECTIVE,
        message=float(message),
        dtype="bf16",
        group=group,
        pipeline_ranks=tuple(ranks),
        account=account,
        collective=collective,
    )


class ProgramBuilder:
    """Collects ranks, streams, items, effects and rows; each `add_` returns a number; `build()` makes the arrays.

    Args:
        name: name of the program.
        axes: mesh axes and sizes from innermost to outermost.
        framework: name of the framework profile that made the program.
        tokens: trained on in the step, where no workload says so.
    """

    def __init__(
        self, name: str = "program", axes: Iterable[tuple[str, int]] = (), framework: str = "", tokens: int = 0
    ) -> None:
        self.name, self.axes, self.framework, self.tokens = name, tuple(axes), framework, tokens
        self._weights: list[float] = []
        self._stages: list[StageMesh] = []
        self._streams: list[tuple[int, str]] = []
        self._items: list[Item] = []
        self._effects: list[Effect] = []
        self._resident: dict[int, tuple[Tensor, ...]] = {}
        self._host: dict[int, tuple[Tensor, ...]] = {}
        self._nvme: dict[int, tuple[Tensor, ...]] = {}
        self._rows: list[dict[str, Any]] = []

    def add_rank(self, weight: float = 1.0, mesh: StageMesh | None = None) -> int:
        """Add a folded rank that stands for `weight` real ranks, which lie on a mesh of their own where stages are unequal."""
        self._weights.append(float(weight))
        self._stages += [mesh] if mesh is not None else []
        return len(self._weights) - 1

    def add_stream(self, rank: int, lane: str = "compute") -> int:
        """Add a stream to a rank.

        Raises:
            ProgramError: no such rank, or the rank has this lane already.
        """
        if not 0 <= rank < len(self._weights):
            raise ProgramError(f"a stream needs a rank made by add_rank(): rank {rank}, known {len(self._weights)}")
        if (rank, lane) in self._streams:
            raise ProgramError(f"a rank has one stream per lane: {rank}:{lane} is there already; use its number")
        self._streams.append((rank, lane))
        return len(self._streams) - 1

    def add_item(self, item: Item) -> int:
        """Add what rows can run: a segment or a link."""
        self._items.append(item)
        return len(self._items) - 1

    def add_effect(self, *tensors: Tensor) -> int:
        """Add a change of memory that rows can name."""
        self._effects.append(Effect(tensors=tensors))
        return len(self._effects) - 1

    def set_resident(self, rank: int, *tensors: Tensor) -> None:
        """Say what stands on a rank through the whole step.

        Raises:
            ProgramError: no such rank.
        """
        if not 0 <= rank < len(self._weights):
            raise ProgramError(f"resident memory needs a rank made by add_rank(): rank {rank}")
        self._resident[rank] = tensors

    def set_host_resident(self, rank: int, *tensors: Tensor) -> None:
        """Say what each GPU of a rank has put into its host's memory.

        Raises:
            ProgramError: no such rank.
        """
        if not 0 <= rank < len(self._weights):
            raise ProgramError(f"host memory needs a rank made by add_rank(): rank {rank}")
        self._host[rank] = tensors

    def set_nvme_resident(self, rank: int, *tensors: Tensor) -> None:
        """Say what each GPU of a rank has put on its host's drives.

        Raises:
            ProgramError: no such rank.
        """
        if not 0 <= rank < len(self._weights):
            raise ProgramError(f"drives need a rank made by add_rank(): rank {rank}")
        self._nvme[rank] = tensors

    def add_row(
        self,
        item: int,
        streams: int | Sequence[int],
        *,
        after: Iterable[int] = (),
        rank: int | None = None,
        action: int = -1,
        lane: int = 0,
        chunk: int = -1,
        microbatch: int = -1,
        step: int = 0,
        part: int = 0,
        start_effect: int = -1,
        end_effect: int = -1,
        mark_effect: int = -1,
        **special: int,
    ) -> int:
        """Add a row that runs `item` on `streams`; its rank is the first stream's unless given.

        `after` may name rows that come later.  `special` are count, slice, slices, second_chunk and second_microbatch, for
        actions of several microbatches, of a slice of one, and for fused pairs.

        Raises:
            ProgramError: no such item, stream or column.
        """
        held = (streams,) if isinstance(streams, int | np.integer) else tuple(streams)
        row = len(self._rows)
        if not 0 <= item < len(self._items):
            raise ProgramError(f"a row runs an item made by add_item(): row {row} names item {item}")
        if any(not 0 <= s < len(self._streams) for s in held):
            raise ProgramError(f"a row holds streams made by add_stream(): row {row} names {held}")
        if unknown := set(special) - set(SPECIAL_DEFAULTS):
            raise ProgramError(f"a row has no {sorted(unknown)}; allowed besides: {', '.join(SPECIAL_DEFAULTS)}")
        self._rows.append(
            {
                **SPECIAL_DEFAULTS,
                **special,
                "item": item,
                "rank": (self._streams[held[0]][0] if held else -1) if rank is None else rank,
                "action": action,
                "lane": lane,
                "chunk": chunk,
                "microbatch": microbatch,
                "step": step,
                "part": part,
                "start_effect": start_effect,
                "end_effect": end_effect,
                "mark_effect": mark_effect,
                "streams": held,
                "after": tuple(after),
            }
        )
        return row

    def build(self, blocks: tuple[Block, ...] = ()) -> Program:
        """Return the program, its arrays read-only.  `spec.verify` says whether it obeys all rules."""
        kinds = [item.kind if isinstance(item, Link) else COMPUTE for item in self._items]
        return Program(
            name=self.name,
            framework=self.framework,
            tokens=self.tokens,
            axes=self.axes,
            items=tuple(self._items),
            blocks=blocks,
            item=self._column("item", np.int32),
            kind=_fixed([kinds[row["item"]] for row in self._rows], np.int8),
            action=self._column("action", np.int8),
            rank=self._column("rank", np.int32),
            lane=self._column("lane", np.int8),
            chunk=self._column("chunk", np.int32),
            microbatch=self._column("microbatch", np.int32),
            step=self._column("step", np.int32),
            part=self._column("part", np.int16),
            stream_offsets=self._offsets("streams"),
            streams=_fixed([s for row in self._rows for s in row["streams"]], np.int32),
            after_offsets=self._offsets("after"),
            after=_fixed([j for row in self._rows for j in row["after"]], np.int32),
            stream_rank=_fixed([rank for rank, _ in self._streams], np.int32),
            stream_lane=tuple(lane for _, lane in self._streams),
            rank_weight=_fixed(self._weights, np.float64),
            stages=tuple(self._stages),
            effects=tuple(self._effects),
            start_effect=self._column("start_effect", np.int32),
            end_effect=self._column("end_effect", np.int32),
            mark_effect=self._column("mark_effect", np.int32),
            resident=self._per_rank(self._resident),
            host_resident=self._per_rank(self._host),
            nvme_resident=self._per_rank(self._nvme),
            **self._special_columns(),
        )

    def _column(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        return _fixed([row[name] for row in self._rows], dtype)

    def _offsets(self, name: str) -> NDArray[np.int64]:
        return _fixed(np.cumsum([0] + [len(row[name]) for row in self._rows]), np.int64)

    def _special_columns(self) -> dict[str, Any]:
        """Return the columns that few programs need; a group whose rows are all ordinary stays empty."""
        types = {"count": np.int8, "slice": np.int16, "slices": np.int16}
        out: dict[str, object] = {}
        for group in (("count",), ("slice", "slices"), ("second_chunk", "second_microbatch")):
            if any(row[name] != SPECIAL_DEFAULTS[name] for name in group for row in self._rows):
                out |= {name: self._column(name, types.get(name, np.int32)) for name in group}
        return out

    def _per_rank(self, tensors: dict[int, tuple[Tensor, ...]]) -> tuple[Effect, ...]:
        return tuple(Effect(tensors=tensors.get(rank, ())) for rank in range(len(self._weights))) if tensors else ()


def _fixed(values: ArrayLike, dtype: DTypeLike) -> NDArray[Any]:
    return frozen(np.array(values, dtype))
