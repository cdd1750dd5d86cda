"""Prices where pipeline stages have ranks of their own: each item on the mesh of its stage, at its place on the cluster.

Ranks of a stage wait for one another at every microbatch, which they split: where its GPUs differ the slowest sets the pace.  A message
between stages takes as long as its busiest port; what all stages meet in is among all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.between_stages import place_spread
from simulator.costs.desk import desk_of
from simulator.costs.price import Placed, price_placed
from simulator.errors import ProgramError
from simulator.hardware.cluster import Cluster
from simulator.hardware.conditions import condition
from simulator.hardware.fabric import Fabric
from simulator.hardware.group_placement import GroupPlacement, place_group
from simulator.hardware.parts import which_parts
from simulator.plan.framework import load_framework
from simulator.program.prices import Prices, account_of
from simulator.program.program import TRANSFER, End, Link, Program, StageMesh

__all__ = ["StageKinds", "kinds_of_stages", "price_stage_items", "stages_of_items", "tensor_ranks"]

Ints = NDArray[np.int64]


class StageKinds(NamedTuple):
    """The kinds of GPUs with wires that occur, and per rank of the program what its real ranks are.

    Args:
        kinds: of GPUs.
        of_rank: their numbers; `parts`: those that they belong to, as bits; `replicas`: their places among those of the stage.
        stages: of each rank of the program.
    """

    kinds: list[Cluster]
    of_rank: list[Ints]
    parts: list[Ints]
    replicas: list[Ints]
    stages: Ints


def kinds_of_stages(program: Program, cluster: Cluster) -> StageKinds:
    """Return which GPUs the ranks of every stage are.

    Raises:
        ProgramError: the cluster has another number of GPUs than the stages.
        PlanError: a part of the cluster names what the job does not have.
    """
    sizes = np.array([mesh.ranks for mesh in program.stages], np.int64)
    if sizes.sum() != cluster.world_size:
        raise ProgramError(
            f"a program runs on as many GPUs as its stages have: {program.name!r} on {sizes.sum()}, but cluster {cluster.name!r} has "
            f"{cluster.world_size}"
        )
    stages = np.arange(program.ranks)  # that of a rank is the one whose layers it runs
    stages[program.rank[program.chunk >= 0]] = program.chunk[program.chunk >= 0]
    tensor = np.array([tensor_ranks(mesh) for mesh in program.stages], np.int64)
    world, place = np.arange(sizes.sum()), np.repeat(stages, sizes)
    replicas = (world - np.searchsorted(place, place)) // np.repeat(tensor, sizes)
    found = which_parts(cluster.parts, cluster.levels[0].size, {"pipeline_ranks": place, "replicas": replicas})
    patterns, inverse = np.unique(found, return_inverse=True)
    numbers: dict[Cluster, int] = {}
    number = [numbers.setdefault(condition(cluster, int(bits)), len(numbers)) for bits in patterns]
    edges = np.cumsum(sizes)[:-1]
    of_rank = np.array(number, np.int64)[inverse.reshape(-1)]
    return StageKinds(
        kinds=list(numbers),
        of_rank=np.split(of_rank, edges),
        parts=np.split(found, edges),
        replicas=np.split(replicas, edges),
        stages=stages,
    )


def tensor_ranks(mesh: StageMesh) -> int:
    """Return how many ranks of a stage split its layers."""
    return math.prod(size for name, size in mesh.axes if account_of((name,)) == "tp")


def stages_of_items(program: Program) -> list[tuple[int, ...]]:
    """Return, of every item, the ranks whose streams its rows hold: one, or those that meet."""
    rank = program.stream_rank[program.streams].astype(np.int64)
    item = np.repeat(program.item.astype(np.int64), np.diff(program.stream_offsets))
    found: list[list[int]] = [[] for _ in program.items]
    for code in np.unique(item * program.ranks + rank).tolist():
        found[code // program.ranks].append(code % program.ranks)
    return [tuple(ranks) for ranks in found]


def price_stage_items(
    program: Program, numbers: Sequence[int], of_item: Sequence[tuple[int, ...]], cluster: Cluster
) -> Prices:
    """Return the prices of some items on one kind of GPU.

    Args:
        numbers: of the items; `of_item`: of every item the ranks that run it.
    """
    framework = load_framework(program.framework) if program.framework else None
    placed = []
    for number in numbers:
        item, ranks = program.items[number], of_item[number]
        mesh = program.stages[ranks[0]]
        desk = desk_of(cluster, mesh.axes, framework, mesh.first)
        place = None
        if len(ranks) > 1 and isinstance(item, Link):
            item, place = _meeting(program, item, ranks, desk.machine.fabric)
        placed.append(Placed(item, desk, place))
    return price_placed(placed)


def _meeting(program: Program, link: Link, ranks: tuple[int, ...], fabric: Fabric) -> tuple[Link, GroupPlacement]:
    """A link in which stages meet, with what its busiest port carries, and where that lies.

    Along the pipeline alone each rank of a stage meets one of every other; else, where stages are unequal, all meet all.
    """
    meshes = [program.stages[rank] for rank in link.pipeline_ranks]
    if link.kind == TRANSFER:
        source, target = link.ends
        spread = place_spread((source, target), (meshes[0].first, meshes[1].first), fabric)
        return replace(link, message=link.message * spread.share), spread.place
    alike, size = len({mesh.axes for mesh in meshes}) == 1, meshes[0].ranks
    side_by_side = alike and all(mesh.first == meshes[0].first + n * size for n, mesh in enumerate(meshes))
    from_here = replace(fabric, first=meshes[0].first)
    if side_by_side:
        return link, place_group((*meshes[0].axes, ("pp", len(meshes))), link.group, from_here)
    if link.group == ("pp",):
        each = End(meshes[0].ranks)
        hop = place_spread((each, each), (meshes[0].first, meshes[-1].first), fabric).place
        return link, replace(hop, ranks=len(ranks), lattice=hop.lattice if len(ranks) == 2 else None)
    return link, place_group((("all", sum(mesh.ranks for mesh in meshes)),), ("all",), from_here)
