"""Which real ranks a folded program stands for, and which of its replicas meet in which rows.

The mesh axes of a program are of three kinds:

    pp          pipeline ranks: told apart already, one folded rank each
    in step     axes along which collectives run inside segments (tensor, context and expert parallelism): their ranks wait for
                each other at every layer, so the slowest of them sets the pace of all
    replicas    the rest (data parallelism): they meet only in rows of their own, such as the reduction of gradients

Replicas that are alike, and that meet replicas which are alike, do the same at the same time: one of them is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.errors import refuse
from simulator.program.program import COLLECTIVE, Link, Program

__all__ = ["ReplicaMesh", "alike", "replica_mesh", "teams"]

_IN_STEP = ("tp", "cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaMesh:
    """The replicas of a folded program.

    Args:
        count: how many.
        members: ranks in step, which one folded rank of one replica stands for.
        meeting: per row, index into `groups`; -1 where every replica is by itself.
        groups: [count] each: the number of the group that a replica meets in.
        world: [count, pipeline ranks, members] world rank numbers.
    """

    count: int
    members: int
    meeting: NDArray[np.int32]
    groups: tuple[NDArray[np.int64], ...]
    world: NDArray[np.int64]


def replica_mesh(program: Program) -> ReplicaMesh:
    """Return the replicas that a folded program stands for.

    >>> from simulator.program.builder import ProgramBuilder, collective_link
    >>> build = ProgramBuilder(axes=(("tp", 2), ("dp", 3), ("pp", 1)))
    >>> lane = build.add_stream(build.add_rank(6.0), "dp")
    >>> row = build.add_row(build.add_item(collective_link("gradients", "all_reduce", ())), lane)
    >>> mesh = replica_mesh(build.build())
    >>> mesh.count, mesh.members, mesh.meeting.tolist(), mesh.world[1].tolist()
    (3, 2, [0], [[2, 3]])
    """
    if program.stages:
        refuse(
            "replicas of a stage with ranks of its own split every microbatch and are one timeline",
            f"program {program.name!r} has {program.ranks} such stages",
            "leave plan.stages out where replicas are told apart (jitter, variation)",
        )
    in_step = set(_IN_STEP) | _inside_segments(program)
    names = [name for name, _ in program.axes]
    apart = [name for name in names if name != "pp" and name not in in_step]
    world, sizes = _world(program, apart)
    coordinates = np.indices(sizes[::-1]).reshape(len(sizes), -1)[::-1] if sizes else np.zeros((0, 1), np.int64)
    meeting_of, groups = np.full(len(program.items), -1, np.int32), dict[tuple[str, ...], int]()
    for number, item in enumerate(program.items):
        if isinstance(item, Link) and item.kind == COLLECTIVE:
            joined = tuple(name for name in apart if name in item.group)
            if joined:
                meeting_of[number] = groups.setdefault(joined, len(groups))
    partitions = []
    for joined in groups:
        key = np.zeros(world.shape[0], np.int64)
        for name, size, coordinate in zip(apart, sizes, coordinates, strict=True):
            if name not in joined:
                key = key * size + coordinate
        partitions.append(np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64))
    return ReplicaMesh(
        count=world.shape[0],
        members=world.shape[2],
        meeting=meeting_of[program.item] if program.size else np.zeros(0, np.int32),
        groups=tuple(partitions),
        world=world,
    )


def _inside_segments(program: Program) -> set[str]:
    """Mesh axes of the collectives inside segments."""
    found: set[str] = set()
    seen: set[int] = set()
    for item in program.items:
        if isinstance(item, Link):
            continue
        for table, _ in item.pieces:
            if id(table) not in seen:
                seen.add(id(table))
                for i in np.flatnonzero(table.kind == COLLECTIVE).tolist():
                    found.update(table.group[i])
    return found - {"pp"}


def _world(program: Program, apart: list[str]) -> tuple[NDArray[np.int64], list[int]]:
    """World ranks as [replicas, pipeline ranks, ranks in step], and the sizes of the axes that tell replicas apart."""
    axes = program.axes if any(name == "pp" for name, _ in program.axes) else (*program.axes, ("pp", program.ranks))
    names, sizes = [name for name, _ in axes][::-1], [size for _, size in axes][::-1]
    ranks = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
    outer = [names.index(name) for name in reversed(apart)]
    pipeline = names.index("pp")
    inner = [i for i in range(len(names)) if i not in outer and i != pipeline]
    replicas = int(np.prod([sizes[i] for i in outer], dtype=np.int64))
    ordered = ranks.transpose([*outer, pipeline, *inner]).reshape(replicas, sizes[pipeline], -1)
    return ordered, [dict(axes)[name] for name in apart]


def teams(mesh: ReplicaMesh, gpus_per_node: int) -> NDArray[np.int64]:
    """Return [world ranks] numbers, equal for ranks of one replica and for replicas that share a node.

    >>> from simulator.program.builder import ProgramBuilder
    >>> teams(replica_mesh(ProgramBuilder(axes=(("tp", 2), ("dp", 4), ("pp", 1))).build()), 4).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1]
    """
    world = np.arange(mesh.world.size)
    replica = np.empty(len(world), np.int64)
    replica[mesh.world] = np.arange(mesh.count)[:, None, None]
    team = world // gpus_per_node
    while True:
        found = team
        for same in (replica, world // gpus_per_node):
            least = np.full(len(world), len(world))
            np.minimum.at(least, same, found)
            found = least[same]
        if (found == team).all():
            return np.unique(team, return_inverse=True)[1].reshape(-1).astype(np.int64)
        team = found


def alike(mesh: ReplicaMesh, colour: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return [replicas] a class number: replicas of one class do the same at the same time.

    Two replicas are of one class if they have one colour and meet the same classes.  Found by refinement: classes are split
    until those of one class meet the same classes everywhere.

    Args:
        mesh: who meets whom.
        colour: [replicas] equal for replicas that are priced alike.
    """
    classes = _numbered(colour)
    while True:
        refined = classes
        for groups in mesh.groups:
            refined = _numbered(refined * (int(groups.max()) + 1) + _content(groups, classes)[groups])
        if refined.max() == classes.max():
            return classes
        classes = refined


def _content(groups: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per group: a number that is equal for groups which hold the same set of classes."""
    most = int(classes.max()) + 1
    pairs = np.unique(groups * most + classes)
    owner, held = pairs // most, pairs % most
    edges = np.flatnonzero(np.diff(owner)) + 1
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(s.tobytes(), len(numbers)) for s in np.split(held, edges)], np.int64)


def _numbered(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Dense numbers in the order of first occurrence."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse.reshape(-1)]
