"""Orders from files, PyTorch's among them: compute actions alone, or with the communication that PyTorch has put between.

Communication follows from the compute order, so it is checked and taken out:
a message has both its ends, each at the right rank and on the right side of its compute, and the two ranks of a pair name their
messages in one order; weights are gathered while they are used; gradients are reduced once, after the last backward.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from simulator.errors import ProgramError
from simulator.schedules.action import Action, Cell, parse_cell
from simulator.schedules.order import PipelineOrder
from simulator.schedules.order_check import check_order
from simulator.schedules.order_waits import check_order_runs
from simulator.schedules.own_order import placement_of
from simulator.schedules.placement import Placement
from simulator.schedules.shape import Shape

__all__ = ["read_order_file_text"]

_COMMS = re.compile(r"([0-9]{1,9})(SEND_F|SEND_B|RECV_F|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{0,9})", re.ASCII)
_LIKE_COMMS = re.compile(r"SEND|RECV|SHARD|REDUCE")
_WAYS = {"F": 1, "B": -1}


class _Comm(NamedTuple):
    """One communication cell and where it stands; `place` counts the cells of its line from 0."""

    rank: int
    place: int
    stage: int
    kind: str
    microbatch: int

    @property
    def text(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch if self.kind[-2] == '_' else ''}"

    @property
    def where(self) -> str:
        return f"rank {self.rank}, cell {self.place + 1}: {self.text}"


def read_order_file_text(text: str) -> tuple[PipelineOrder, Placement, Shape]:
    """Return the order that a file holds, where its chunks live, and its shape; every rule of an order is checked.

    Args:
        text: one line per rank, cells separated by commas, empty cells skipped; lines that begin with # are remarks.  Cells are
            those of PyTorch (compute_only or compute_comms), groups and parts as `simulator.schedules.action` has them.

    Raises:
        ProgramError: a cell is unknown, the order breaks a rule, or its communication does; names rank and cell.
        DeadlockError: the order cannot run; names who waits for which action of whom.

    >>> order, _, shape = read_order_file_text("0F0,0SEND_F0,0RECV_B0,0B0\\n1RECV_F0,1F0,1B0,1SEND_B0")
    >>> order.to_text(), str(shape)
    ('0F0,0B0\\n1F0,1B0\\n', 'ranks=2, microbatches=1, chunks_per_rank=1')
    """
    kept = [line for line in text.lstrip("\ufeff").splitlines() if not line.lstrip().startswith("#")]
    while kept and not kept[-1].strip():
        kept.pop()
    if not kept:
        raise ProgramError("an order has one line per rank, such as 0F0,0B0; the text is empty")
    cells, places, comms = _read_cells(kept)
    order = PipelineOrder.from_actions(cells)
    placement = placement_of(order)
    check_order(order, placement, placement.microbatches)
    if comms:
        _check_comms(order, placement, places, comms)
    check_order_runs(order)
    return order, placement, Shape(order.ranks, placement.microbatches, placement.chunks // order.ranks)


def _read_cells(lines: list[str]) -> tuple[list[list[Cell]], list[list[int]], list[_Comm]]:
    """Return the compute cells per rank, the place in its line of each action, and the communication cells."""
    cells: list[list[Cell]] = []
    places: list[list[int]] = []
    comms: list[_Comm] = []
    for rank, line in enumerate(lines):
        mine, at = [], []
        for place, raw in enumerate(line.split(",")):
            text = raw.strip()
            if not text:
                continue
            if _LIKE_COMMS.search(text):
                comms.append(_read_comm(text, rank, place))
                continue
            try:
                cell = parse_cell(text)
            except ProgramError as error:
                raise ProgramError(f"rank {rank}, cell {place + 1}: {error}") from None
            mine.append(cell)
            at += [place] * (1 if isinstance(cell, Action) else 2)
        if not mine:
            raise ProgramError(
                f"rank {rank}: every line is one rank with at least one compute action; this one has none"
            )
        cells.append(mine)
        places.append(at)
    return cells, places, comms


def _read_comm(text: str, rank: int, place: int) -> _Comm:
    found = _COMMS.fullmatch(text)
    if found is None or (found[2][-2] == "_") != bool(found[3]):
        raise ProgramError(
            f"rank {rank}, cell {place + 1}: communication is stage, SEND_F, RECV_F, SEND_B or RECV_B, and microbatch, or "
            f"stage and UNSHARD, RESHARD or REDUCE_GRAD, such as 2SEND_F1 or 2UNSHARD: got {text[:60]!r}"
        )
    return _Comm(rank, place, int(found[1]), found[2], int(found[3] or -1))


class _Home(NamedTuple):
    """What the compute order says: the rank of every stage, and the place of every action in its line."""

    stage: list[int]
    place: dict[tuple[int, str, int], int]
    microbatches: int


def _check_comms(order: PipelineOrder, placement: Placement, places: list[list[int]], comms: list[_Comm]) -> None:
    if placement.lanes > 1 or (order.count > 1).any() or (order.parts > 1).any():
        raise ProgramError(
            "communication is written only by PyTorch, which keeps a stage on one rank and runs whole microbatches, but this order "
            f"has {placement.lanes} lanes, groups or parts, and {comms[0].where}. Take the communication out"
        )
    at = [place for line in places for place in line]
    place: dict[tuple[int, str, int], int] = {}
    columns = (column.tolist() for column in (order.chunk, order.kind, order.microbatch))
    for n, (stage, kind, microbatch) in enumerate(zip(*columns, strict=True)):
        place[stage, "FBBW"[kind], microbatch] = at[n]
    home = _Home(placement.rank_of[0].tolist(), place, placement.microbatches)
    for comm in comms:
        if comm.stage >= len(home.stage) or comm.microbatch >= home.microbatches or home.stage[comm.stage] != comm.rank:
            on = (
                f"stage {comm.stage} runs on rank {home.stage[comm.stage]}"
                if comm.stage < len(home.stage)
                else "no such stage"
            )
            on = on if comm.microbatch < home.microbatches else f"microbatches are 0..{home.microbatches - 1}"
            raise ProgramError(f"{comm.where} names no stage and microbatch of this rank: {on}; move it or take it out")
    _check_messages(home, [comm for comm in comms if comm.kind[-2] == "_"])
    _check_collectives(home, [comm for comm in comms if comm.kind[-2] != "_"])


def _partner(comm: _Comm) -> tuple[int, str, int]:
    """Stage, kind and microbatch of the other end."""
    sends, way = comm.kind.startswith("SEND"), comm.kind[-1]
    step = _WAYS[way] if sends else -_WAYS[way]
    return comm.stage + step, ("RECV_" if sends else "SEND_") + way, comm.microbatch


def _check_messages(home: _Home, comms: list[_Comm]) -> None:
    known: dict[tuple[int, str, int], _Comm] = {}
    for comm in comms:
        twin = known.setdefault((comm.stage, comm.kind, comm.microbatch), comm)
        if twin is not comm:
            raise ProgramError(
                f"a message is sent and received once: {comm.where} stands also in cell {twin.place + 1}; drop one"
            )
    for comm in comms:
        stage, kind, microbatch = _partner(comm)
        if not 0 <= stage < len(home.stage) or home.stage[stage] == comm.rank:
            raise ProgramError(
                f"messages go between neighbour stages on different ranks: {comm.where} has none to go with; take it out"
            )
        if (stage, kind, microbatch) not in known:
            raise ProgramError(
                f"SEND and RECV come in pairs: {comm.where} has no {stage}{kind}{microbatch} on rank {home.stage[stage]}; add it"
            )
        compute = home.place[comm.stage, comm.kind[-1], comm.microbatch]
        if comm.kind.startswith("RECV") and comm.place > compute:
            raise ProgramError(
                f"an input is received before its use: {comm.where} stands behind cell {compute + 1}; move it up"
            )
        if comm.kind.startswith("SEND") and comm.place < compute:
            raise ProgramError(
                f"a result is sent after it is made: {comm.where} stands before cell {compute + 1}; move it down"
            )
    if comms:
        _check_all_sent(home, known)
    _check_same_order(home, comms)


def _check_all_sent(home: _Home, known: dict[tuple[int, str, int], _Comm]) -> None:
    for stage, kind, microbatch in home.place:
        step = _WAYS.get(kind, 0)
        to = stage + step
        if not step or not 0 <= to < len(home.stage) or home.stage[to] == home.stage[stage]:
            continue
        if (stage, f"SEND_{kind}", microbatch) not in known:
            raise ProgramError(
                f"a file with messages has all of them: rank {home.stage[stage]} lacks {stage}SEND_{kind}{microbatch} behind "
                f"cell {home.place[stage, kind, microbatch] + 1}; add it, or take all communication out"
            )


def _check_same_order(home: _Home, comms: list[_Comm]) -> None:
    """Messages between two ranks carry no name: the n-th sent is the n-th received."""
    sent, received = defaultdict(list), defaultdict(list)
    for comm in comms:
        peer = home.stage[_partner(comm)[0]]
        if comm.kind.startswith("SEND"):
            sent[comm.rank, peer].append(comm)
        else:
            received[peer, comm.rank].append(comm)
    for (source, target), messages in sent.items():
        for send, recv in zip(messages, received[source, target], strict=True):
            if _partner(send) != (recv.stage, recv.kind, recv.microbatch):
                stage, kind, microbatch = _partner(send)
                raise ProgramError(
                    f"messages from rank {source} to rank {target} arrive in the order in which they are sent: {recv.where} stands "
                    f"where {stage}{kind}{microbatch} belongs (sent in cell {send.place + 1} of rank {source}); swap them"
                )


def _check_collectives(home: _Home, comms: list[_Comm]) -> None:
    """A stage is gathered before it is freed, in turn, and used only in between; reduced once, after its last backward."""
    per_stage: dict[int, list[_Comm]] = defaultdict(list)
    for comm in comms:
        per_stage[comm.stage].append(comm)
    used: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for (stage, kind, _), place in home.place.items():
        used[stage].append((place, kind))
    for stage, mine in per_stage.items():
        backwards = [place for place, kind in used[stage] if kind != "F"]
        reductions = [comm for comm in mine if comm.kind == "REDUCE_GRAD"]
        for comm in reductions[1:] or [comm for comm in reductions if comm.place < max(backwards)]:
            raise ProgramError(
                f"the gradients of a stage are reduced once, after its last backward in cell {max(backwards) + 1}: {comm.where} "
                "is early or again; move or drop it"
            )
        gathers = [comm for comm in mine if comm.kind != "REDUCE_GRAD"]
        for n, comm in enumerate(gathers):
            if comm.kind != ("UNSHARD", "RESHARD")[n % 2]:
                raise ProgramError(
                    f"a stage is gathered, freed, gathered ... in turn: {comm.where} is out of turn; drop it"
                )
        _check_used_while_gathered(stage, gathers, sorted(used[stage]))


def _check_used_while_gathered(stage: int, gathers: list[_Comm], used: list[tuple[int, str]]) -> None:
    if not gathers:
        return
    edges = np.array([comm.place for comm in gathers])
    for place, _ in used:
        if int(np.searchsorted(edges, place)) % 2 == 0:
            raise ProgramError(
                f"a gathered stage is used between UNSHARD and RESHARD: rank {gathers[0].rank}, cell {place + 1} uses stage {stage} "
                "while it is freed; move the UNSHARD up"
            )
