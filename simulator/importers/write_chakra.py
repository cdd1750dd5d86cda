"""A step as Chakra execution traces, one file per GPU, as ASTRA-sim reads them.

    PREFIX.0.et ... PREFIX.N-1.et       nodes of each GPU
    PREFIX.groups.json                  communicator groups: number -> GPUs (--comm-group-configuration)

A row of the program becomes a chain of nodes: kernels between two collectives are one COMP node (FLOP, bytes and the microseconds
that this simulator gives it), collectives are COMM_COLL nodes over their group, messages a COMM_SEND and a COMM_RECV.
Chakra's comm_size of an all_gather is the piece that a GPU brings, of the others its whole buffer (ASTRA-sim, system/collective).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import PlanError, SpecError
from simulator.importers import chakra_wire as wire
from simulator.plan.mesh import Mesh
from simulator.program.prices import ACCOUNTS, Prices
from simulator.program.program import COLLECTIVE, COPY, TRANSFER, Link, OperatorTable, Program
from simulator.specs import replacing, write_text
from simulator.units import in_unit

__all__ = ["ChakraFiles", "write_chakra"]

_MOST_NODES = 3_000_000
_ROWS = 2**24
"""Tags of messages between pipeline ranks begin here; those of rings are the numbers of their nodes."""
_WAITING = tuple(ACCOUNTS.index(name) for name in ("tp", "cp", "ep", "dp", "pp"))


@dataclass(frozen=True, slots=True)
class _Step:
    """A node before it belongs to a GPU.

    Args:
        group: mesh axes of a collective; () else.
        peers: pipeline ranks that a collective is limited to; () = all on its axes.
        other: of a message, the pipeline rank at its other end; inside a group, how many places on.
        tag: of a message, the row.
    """

    name: str
    kind: int
    size: int
    work: int = 0
    microseconds: int = 0
    collective: str = ""
    group: tuple[str, ...] = ()
    peers: tuple[int, ...] = ()
    other: int = -1
    tag: int = 0


@dataclass(slots=True)
class ChakraFiles:
    """What was written.

    Args:
        nodes: by type, over all GPUs.
        bytes: of collectives, by name and account of a GPU, and of messages: the sum of comm_size over all GPUs.
    """

    paths: list[Path] = field(default_factory=list)
    nodes: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)


def write_chakra(program: Program, prices: Prices, prefix: str | Path) -> ChakraFiles:
    """Write the traces of a step.

    Raises:
        PlanError: the ranks differ (parts of a cluster), or the traces would have millions of nodes.
        SpecError: the folder of the prefix does not exist.
    """
    prefix = Path(prefix)
    if not prefix.parent.is_dir():
        raise SpecError(f"{prefix.parent}: no such folder. Way out: make it first")
    mesh = Mesh(axes=program.axes)
    if program.ranks != mesh.size("pp"):
        raise PlanError(
            "Chakra traces are written for ranks that are alike, but the cluster has parts that differ. Way out: a job without "
            "cluster.parts."
        )
    chains = [_chain(program, prices, mesh, rank) for rank in range(program.ranks)]
    total = sum(len(chain) for chain in chains) * (mesh.world_size // program.ranks)
    if total > _MOST_NODES:
        raise PlanError(
            f"the traces of {mesh.world_size} GPUs would have {total} nodes; at most {_MOST_NODES} are written. Way out: fewer "
            "microbatches (workload.global_batch_size), layers (model.layers) or GPUs (cluster.gpus)."
        )
    groups = _Groups(mesh)
    made = ChakraFiles()
    for gpu in range(mesh.world_size):
        chain = chains[mesh.coordinates(gpu).get("pp", 0)]
        path = prefix.with_name(f"{prefix.name}.{gpu}.et")
        with replacing(path) as beside, open(beside, "wb") as file:
            file.write(wire.metadata())
            for number, (step, after) in enumerate(chain):
                file.write(wire.framed(_encoded(number, step, after, gpu, groups)))
                made.nodes[_TYPES[step.kind]] += 1
                if step.kind in (wire.COLLECTIVE, wire.SEND):
                    made.bytes[step.collective or "send"] += step.size
        made.paths.append(path)
    path = prefix.with_name(f"{prefix.name}.groups.json")
    write_text(path, json.dumps({str(n): members for members, n in groups.numbers.items()}))
    made.paths.append(path)
    return made


_TYPES = {
    wire.COMPUTE: "COMP", wire.SEND: "COMM_SEND", wire.RECEIVE: "COMM_RECV", wire.COLLECTIVE: "COMM_COLL",
    wire.LOAD: "MEM_LOAD", wire.STORE: "MEM_STORE",
}  # fmt: skip


class _Groups:
    """Communicator groups by number, as GPUs meet them."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.numbers: dict[tuple[int, ...], int] = {}
        self._found: dict[tuple[int, tuple[str, ...], tuple[int, ...]], int] = {}
        self._of: dict[tuple[str, ...], dict[int, tuple[int, ...]]] = {}

    def number(self, gpu: int, axes: tuple[str, ...], peers: tuple[int, ...]) -> int:
        """Return the number of the group of a GPU along some axes, of the pipeline ranks `peers` where these are named."""
        key = (gpu, axes, peers)
        if key not in self._found:
            if axes not in self._of:
                rows = self.mesh.groups(*axes).tolist()
                self._of[axes] = {member: tuple(row) for row in rows for member in row}
            members = self._of[axes][gpu]
            if peers and "pp" in axes:
                members = tuple(g for g in members if self.mesh.coordinates(g)["pp"] in peers)
            self._found[key] = self.numbers.setdefault(members, len(self.numbers) + 1)
        return self._found[key]

    def neighbour(self, gpu: int, step: _Step) -> int:
        """Return the GPU before or behind one in its group."""
        wanted = self.number(gpu, step.group, step.peers)
        members = next(found for found, number in self.numbers.items() if number == wanted)
        return members[(members.index(gpu) + step.other) % len(members)]

    def peer(self, gpu: int, stage: int) -> int:
        """Return the GPU at the same place of another pipeline rank."""
        stride = 1
        for axis, size in self.mesh.axes:
            if axis == "pp":
                return gpu + (stage - gpu // stride % size) * stride
            stride *= size
        return gpu


def _encoded(number: int, step: _Step, after: tuple[int, ...], gpu: int, groups: _Groups) -> bytes:
    parts = [wire.attribute("is_cpu_op", False)]
    if step.kind == wire.COMPUTE:
        parts += [wire.attribute("num_ops", step.work), wire.attribute("tensor_size", step.size)]
    elif step.kind == wire.COLLECTIVE:
        parts += [wire.collective_type(step.collective), wire.attribute("comm_size", step.size)]
        parts.append(wire.attribute("pg_name", str(groups.number(gpu, step.group, step.peers))))
    elif step.kind in (wire.SEND, wire.RECEIVE):
        other = groups.neighbour(gpu, step) if step.group else groups.peer(gpu, step.other)
        tag = number - (step.kind == wire.RECEIVE) if step.group else _ROWS + step.tag
        source, target = (gpu, other) if step.kind == wire.SEND else (other, gpu)
        parts += [wire.attribute("comm_size", step.size), wire.rank_number("comm_src", source)]
        parts += [wire.rank_number("comm_dst", target), wire.rank_number("comm_tag", tag)]
    else:
        parts.append(wire.attribute("tensor_size", step.size))
    return wire.node(number, step.name, step.kind, after, step.microseconds, b"".join(parts))


def _chain(program: Program, prices: Prices, mesh: Mesh, rank: int) -> list[tuple[_Step, tuple[int, ...]]]:
    """The nodes of one pipeline rank in order, each with the numbers of those it waits for."""
    out: list[tuple[_Step, tuple[int, ...]]] = []
    last: dict[int, int] = {}
    known: dict[int, list[_Step]] = {}
    entry_ranks = program.stream_rank[program.streams]
    offsets, after_offsets = program.stream_offsets.tolist(), program.after_offsets.tolist()
    after, previous = program.after.tolist(), program.previous.tolist()
    for row in range(program.size):
        mine = [e for e in range(offsets[row], offsets[row + 1]) if entry_ranks[e] == rank]
        if not mine:
            continue
        waits = [last[r] for r in after[after_offsets[row] : after_offsets[row + 1]] if r in last]
        waits += [last[previous[e]] for e in mine if previous[e] in last]
        item = int(program.item[row])
        if item not in known:
            known[item] = list(_steps(program, prices, mesh, item))
        steps = _message(program, row, rank) if program.kind[row] == TRANSFER else known[item]
        for step in steps or [_Step(program.label(row), wire.COMPUTE, 0)]:
            out.append((step, tuple(sorted(set(waits)))))
            waits = [len(out) - 1]
        last[row] = len(out) - 1
    return out


def _message(program: Program, row: int, rank: int) -> list[_Step]:
    link: Any = program.items[int(program.item[row])]
    source, target = link.pipeline_ranks
    kind, other = (wire.SEND, target) if rank == source else (wire.RECEIVE, source)
    return [_Step(link.name, kind, round(link.message), other=other, tag=row)]


def _steps(program: Program, prices: Prices, mesh: Mesh, number: int) -> Iterator[_Step]:
    """What an item runs on one GPU."""
    item = program.items[number]
    if isinstance(item, Link):
        if item.kind == COLLECTIVE:
            peers = item.pipeline_ranks if "pp" in item.group else ()
            yield from _collective(item.name, item.collective, item.message, item.group, mesh, peers)
        elif item.kind == COPY:
            kind = {"to_host": wire.STORE, "to_device": wire.LOAD}.get(item.collective, wire.COMPUTE)
            yield _Step(item.name, kind, round(item.message), microseconds=_micro(float(prices.occupancy[number])))
        return
    seconds = max(0.0, float(prices.occupancy[number] - prices.account[number, list(_WAITING)].sum()))
    moved = sum(count * float((t.read + t.written)[t.kind == 0].sum()) for t, count in item.pieces)
    rate = seconds / moved if moved else 0.0
    waiting = _Kernels(item.name)
    for table, count in item.pieces:
        for _ in range(count):
            for i in range(len(table)):
                if table.kind[i] == COLLECTIVE:
                    yield from waiting.flush(rate)
                    yield from _collective(
                        table.label[i], table.work[i], float(table.message[i]), table.group[i], mesh, ()
                    )
                else:
                    waiting.add(table, i)
    yield from waiting.flush(rate)


@dataclass(slots=True)
class _Kernels:
    """Kernels since the last collective."""

    name: str
    label: str = ""
    flops: float = 0.0
    moved: float = 0.0
    carried: float = 0.0

    def add(self, table: OperatorTable, i: int) -> None:
        self.label = self.label or f"{table.name}: {table.label[i]}"
        self.flops += float(table.flops[i])
        self.moved += float(table.read[i] + table.written[i])

    def flush(self, rate: float) -> Iterator[_Step]:
        """One node; fractions of a microsecond go on to the next."""
        if self.label:
            exact = in_unit(self.moved * rate, "us", "s") + self.carried
            whole = int(np.floor(exact))
            self.carried = exact - whole
            yield _Step(self.label, wire.COMPUTE, round(self.moved), round(self.flops), whole)
        self.label, self.flops, self.moved = "", 0.0, 0.0


def _collective(
    name: str, kind: str, message: float, group: tuple[str, ...], mesh: Mesh, peers: tuple[int, ...]
) -> Iterator[_Step]:
    """A collective; of a ring of messages, what a GPU sends to the next of its group and has from the one before."""
    members = len(peers) if peers else int(np.prod([mesh.size(axis) for axis in group]))
    if kind == "send_recv":
        yield _Step(name, wire.SEND, round(message), group=group, peers=peers, other=1)
        yield _Step(name, wire.RECEIVE, round(message), group=group, peers=peers, other=-1)
        return
    size = message / members if kind == "all_gather" else message
    yield _Step(name, wire.COLLECTIVE, round(size), collective=kind, group=group, peers=peers)


def _micro(seconds: float) -> int:
    return round(in_unit(seconds, "us", "s"))
