"""Workers that do not wait for each other, or not at every step: each kind is run alone, and the mean is taken over the steps of all."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

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

Kind = tuple[Cluster, ResolvedPlan]
"""A kind of worker: a cluster in which all are like it, and the plan with its own layers."""


def at_own_pace(
    workload: Workload, resolved: ResolvedPlan, cluster: Cluster, engine: str, noted: tuple[str, ...], fold: bool
) -> Prediction:
    """Return the prediction of workers that train at their own pace: the mean over the steps of all of them.

    A worker is a node with the replicas that it has a part of, whose GPUs add up first; in waves it is a replica.  Each kind of worker
    has the servers to itself; in the mean no step is shorter than what these need for a push and a pull of every worker.  With a bound
    on how far one may be ahead all go, in the long run, at the pace of the slowest.

    Args:
        noted: assumptions, for the provenance.
        fold: as of `simulate`.

    Raises:
        PlanError: a bound among workers that are alike, which bounds nothing; in waves a pull is hidden by it.
    """
    mesh = replica_mesh(lower_resolved(workload, resolved))
    replica, place = np.empty(mesh.world.size, np.int64), np.empty(mesh.world.size, np.int64)
    replica[mesh.world], place[mesh.world] = np.indices(mesh.world.shape)[:2]
    team = replica if resolved.in_waves else teams(mesh, cluster.gpus_per_node)
    terms, count = resolved.exchange_terms, int(team.max()) + 1
    bounded = math.isfinite(terms.staleness)
    alike = _alike(resolved, cluster, rank_parts(cluster, mesh), team, place)
    if bounded and len(alike) == 1 and not resolved.in_waves:
        refuse(
            "exchange_staleness bounds how far quick nodes are ahead of slow ones",
            f"all nodes of cluster {cluster.name!r} are alike (exchange_staleness = {terms.staleness})",
            "leave exchange_staleness out, or say in cluster.parts which nodes differ",
        )
    apart = replace(terms, servers=min(terms.servers * count, MAX_WORLD_SIZE))
    alone = {
        (kind, plan): simulate_kind(workload, replace(plan, exchange_terms=apart), kind, engine, noted, fold)
        for kind, plan in alike
    }
    rates, least = {kind: len(numbers) / alone[kind].step_time for kind, numbers in alike.items()}, 0.0
    slowest = max(alone, key=lambda kind: alone[kind].step_time)
    if bounded and resolved.in_waves:
        # all kinds count, for each may be the one that does not fit: the fullest comes first
        least = alone[slowest].step_time
        fullest = sorted(alike, key=lambda kind: -alone[kind].peak_memory / alone[kind].capacity)
        rates = {kind: len(alike[kind]) / least for kind in fullest}
    elif bounded:
        rates = {slowest: count / alone[slowest].step_time}
    which, of = (replica, "replicas") if resolved.in_waves else (np.arange(len(team)) // cluster.gpus_per_node, "nodes")
    total, kinds = sum(rates.values()), []
    for one, rate in rates.items():
        where = shown_numbers(np.unique(which[np.isin(team, alike[one])]))
        name = f"of all {of}" if len(rates) == 1 else f"of {of} {where}"
        kinds.append(OneKind(name, rate / total, alone[one]))
    facts: dict[str, object] = {}
    if resolved.in_waves:
        facts["waves"] = _waves(resolved)
    else:
        facts["staleness_of_nodes"] = {one.name: total * one.prediction.step_time - 1.0 for one in kinds}
    if bounded:
        facts["staleness_bound"] = terms.staleness
    if cluster.parts:
        facts["parts"] = [part.text for part in cluster.parts]
    programs = {plan: lower_resolved(workload, plan) for plan in {plan for _, plan in rates}}
    needed = (_servers_need(programs[plan], kind) for kind, plan in rates)
    return mean_prediction(tuple(kinds), max(least, *needed), facts)


def _alike(
    resolved: ResolvedPlan,
    cluster: Cluster,
    found: NDArray[np.int64],
    team: NDArray[np.int64],
    place: NDArray[np.int64],
) -> dict[Kind, list[int]]:
    """Return the workers of every kind, by their numbers.

    Args:
        found: [ranks] as of `rank_parts`.
        team, place: [ranks] the worker that a rank belongs to, and its pipeline rank.
    """
    count = int(team.max()) + 1
    splits = resolved.replica_layer_splits or (resolved.layer_split,) * count
    plans = {split: replace(resolved, layer_split=split) for split in dict.fromkeys(splits)}
    alike: dict[tuple[Cluster, tuple[int, ...] | None], list[int]] = {}
    for number in range(count):
        mine = team == number
        parts = [_on_stages(part, place[mine & (found >> bit & 1 == 1)]) for bit, part in enumerate(cluster.parts)]
        kind = replace(cluster, parts=tuple(part for part in parts if part is not None))
        alike.setdefault((kind, splits[number]), []).append(number)
    return {(kind, plans[split]): numbers for (kind, split), numbers in alike.items()}


def _waves(resolved: ResolvedPlan) -> dict[str, int]:
    """Say how many microbatches a wave has, and the changes of how many the weights of a microbatch may lack (its own replica's, and
    anyone's: `lowering.exchanges.wave_synchronous`)."""
    wave, ahead = resolved.microbatches, int(resolved.schedule.weight_versions(resolved.shape).max())
    waves = int(resolved.exchange_terms.staleness) + 1
    return {"microbatches": wave, "local_staleness": ahead - 1, "global_staleness": waves * wave + ahead - 2}


def _on_stages(part: Part, stages: np.ndarray) -> Part | None:
    """Return a part of the pipeline ranks that it is about; None without any."""
    if not len(stages):
        return None
    pairs = tuple((stage, stage) for stage in np.unique(stages).tolist())
    return part.model_copy(update={"nodes": None, "ranks": None, "replicas": None, "pipeline_ranks": pairs})


def _servers_need(program: Program, cluster: Cluster) -> float:
    """Seconds in which the servers of a program take a push of every worker, and give each its pull, of one step."""
    priced = price_ranks(program, cluster)
    made, occupancy = priced.program, priced.prices.occupancy
    served = np.array([isinstance(item, Link) and item.served is not None for item in made.items])[made.item]
    busy = np.where(served & (made.step == 0), occupancy[made.item], 0.0)
    return float(np.bincount(made.rank, busy).max())
