"""Workers that do not wait for each other, or not at every step: each kind is run alone, and the mean is taken over the steps of all."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.costs.ranks import price_ranks, rank_parts
from simulator.errors import refuse
from simulator.hardware.cluster import MAX_WORLD_SIZE, Cluster
from simulator.hardware.parts import Part, shown_numbers
from simulator.lowering import ResolvedPlan, lower_resolved
from simulator.program.program import Link, Program
from simulator.program.replicas import replica_mesh, teams
from simulator.report.mean_prediction import OneKind, mean_prediction
from simulator.report.prediction import Prediction
from simulator.simulation.one_kind import simulate_kind
from simulator.workload.workload import Workload

__all__ = ["at_own_pace"]


def at_own_pace(
    workload: Workload, resolved: ResolvedPlan, cluster: Cluster, engine: str, noted: tuple[str, ...], fold: bool
) -> Prediction:
    """Return the prediction of nodes that train at their own pace: the mean over the steps of all of them.

    Each kind of node has the servers to itself; in the mean no step is shorter than what these need for a push and a pull of every
    node.  With a bound on how far a node may be ahead all go, in the long run, at the pace of the slowest.
    """
    program, terms = lower_resolved(workload, resolved), resolved.exchange_terms
    mesh = replica_mesh(program)
    team, place = teams(mesh, cluster.gpus_per_node), np.empty(mesh.world.size, np.int64)
    place[mesh.world] = np.arange(mesh.world.shape[1])[None, :, None]
    found, count = rank_parts(cluster, mesh), int(team.max()) + 1
    apart = replace(resolved, exchange_terms=replace(terms, servers=min(terms.servers * count, MAX_WORLD_SIZE)))
    alike: dict[Cluster, list[int]] = {}
    for number in range(count):
        mine = team == number
        parts = [_on_stages(part, place[mine & (found >> bit & 1 == 1)]) for bit, part in enumerate(cluster.parts)]
        kind = replace(cluster, parts=tuple(part for part in parts if part is not None))
        alike.setdefault(kind, []).append(number)
    if math.isfinite(terms.staleness) and len(alike) == 1:
        refuse(
            "exchange_staleness bounds how far quick nodes are ahead of slow ones",
            f"all nodes of cluster {cluster.name!r} are alike (exchange_staleness = {terms.staleness})",
            "leave exchange_staleness out, or say in cluster.parts which nodes differ",
        )
    alone = {kind: simulate_kind(workload, apart, kind, engine, noted, fold) for kind in alike}
    rates = {kind: len(numbers) / alone[kind].step_time for kind, numbers in alike.items()}
    if math.isfinite(terms.staleness):
        last = max(alone, key=lambda kind: alone[kind].step_time)
        rates = {last: count / alone[last].step_time}
    total, nodes = sum(rates.values()), np.arange(len(team)) // cluster.gpus_per_node
    kinds = []
    for kind, rate in rates.items():
        where = shown_numbers(np.unique(nodes[np.isin(team, alike[kind])]))
        name = "of all nodes" if len(rates) == 1 else f"of nodes {where}"
        kinds.append(OneKind(name, rate / total, alone[kind]))
    facts: dict[str, Any] = {"staleness_of_nodes": {one.name: total * one.prediction.step_time - 1.0 for one in kinds}}
    if math.isfinite(terms.staleness):
        facts["staleness_bound"] = terms.staleness
    if cluster.parts:
        facts["parts"] = [part.text for part in cluster.parts]
    return mean_prediction(tuple(kinds), max(_servers_need(program, kind) for kind in rates), facts)


def _on_stages(part: Part, stages: np.ndarray) -> Part | None:
    """Return a part of the pipeline ranks that it is about; None without any."""
    if not len(stages):
        return None
    pairs = tuple((stage, stage) for stage in np.unique(stages).tolist())
    return part.model_copy(update={"nodes": None, "ranks": None, "replicas": None, "pipeline_ranks": pairs})


def _servers_need(program: Program, cluster: Cluster) -> float:
    """Seconds in which the servers of a program take a push of every node, and give each its pull, of one step."""
    priced = price_ranks(program, cluster)
    made, occupancy = priced.program, priced.prices.occupancy
    served = np.array([isinstance(item, Link) and item.served is not None for item in made.items])[made.item]
    busy = np.where(served & (made.step == 0), occupancy[made.item], 0.0)
    return float(np.bincount(made.rank, busy).max())
