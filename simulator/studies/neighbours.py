"""A job beside others on one cluster: what they take from it on the uplinks that their nodes share, and it from them.

    demand of a job     bytes that leave its part of a pod in a step / nodes / seconds of the step          [B/s per node]
    what a job gets     max-min fair among the nodes of a pod on uplinks of nodes x bandwidth / oversubscription, when it asks for
                        all that its cards can send and each other job for its demand; at least its nodes' equal share
    step of a job       simulated with its nodes per pod, and bandwidth of a node / what it gets as oversubscription

A slower step asks for less, so demands and steps are iterated to a fixed point, half of the way each time.  Max-min fairness is
what congestion control aims at (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).  Assumed: demands are means over a step
(bursts that meet by chance, or avoid each other, are not seen); nodes spread evenly over rails and pods.

Bytes that leave a domain, of a group of n ranks with a message S: ring all_reduce 2 (n - 1) / n S, all_gather and
reduce_scatter half of it, all_to_all m S (n - m) / n for m ranks inside; of a rack's or pod's exchange that sends a row once per node,
its part of these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.costs.expert_exchange import places_reached
from simulator.errors import SimulatorError, SpecError
from simulator.hardware.cluster import Cluster, build_cluster
from simulator.hardware.group_placement import GroupPlacement, place_group, place_hop
from simulator.hardware.neighbours import Neighbour, nodes_in_each_pod, rate_beside
from simulator.job import Job, check_equal_stages, load_job
from simulator.program.calls import NodeExchange
from simulator.program.program import COLLECTIVE, TRANSFER, Axes, Link, Program
from simulator.report.prediction import Prediction
from simulator.report.table import Section, Table
from simulator.simulation import simulate_job
from simulator.units import show

__all__ = ["Beside", "Placed", "beside_neighbours", "bytes_leaving"]

_ROUNDS, _SETTLED = 40, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """One job among others.

    Args:
        name, placement: as asked for.
        job: with the network that the others leave it.
        nodes_per_pod: its own; None where it shares none.
        packed, alone, beside: seconds of its step with pods to itself; on the same nodes while the others stand still; while they run.
        prediction: of the last.
    """

    name: str
    placement: str
    job: Job
    nodes_per_pod: int | None
    packed: float
    alone: float
    beside: float
    prediction: Prediction

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "job": self.name,
            "gpus": self.job.cluster.world_size,
            "placement": self.placement,
            "nodes_per_pod": self.nodes_per_pod,
            "oversubscription": self.job.cluster.spec.oversubscription,
            "step_time_s": {"packed": self.packed, "alone": self.alone, "beside": self.beside},
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Beside:
    """A job and its neighbours; `own` is the job itself, `rounds` how many it took until all steps had resolved."""

    own: Placed
    others: tuple[Placed, ...]
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """Return the keys that an answer gets."""
        return {
            "beside_neighbours": self.own.to_dict(),
            "neighbours": [other.to_dict() for other in self.others],
        }

    def section(self) -> Section:
        """Return it to read."""
        rows = tuple(
            (
                p.name,
                f"{p.job.cluster.world_size:,}",
                p.placement,
                *(show(t, "s") for t in (p.packed, p.alone, p.beside)),
            )
            for p in (self.own, *self.others)
        )
        heads = ("job", "GPUs", "placement", "on pods of its own", "others stand still", "others run")
        return Section(
            title="jobs on this cluster: seconds of a step",
            table=Table(headings=heads, rows=rows, left=(0, 2)),
        )


def beside_neighbours(job: Job) -> tuple[Job, Beside | None]:
    """Return a job with the network that its neighbours leave it, and how all of them fare; None without neighbours.

    Raises:
        SpecError: a neighbour cannot be, or where interleaved jobs meet is not known.
        PlanError: a plan cannot be.
    """
    if not job.neighbours:
        return job, None
    _check(job)
    check_equal_stages(job, "neighbours are known beside")
    jobs = [replace(job, neighbours=()), *(_neighbour(job.cluster, n, i) for i, n in enumerate(job.neighbours))]
    names = [job.name, *(n.job for n in job.neighbours)]
    meets = [i + 1 for i, n in enumerate(job.neighbours) if n.placement == "interleaved"]
    placement = ["interleaved" if meets else "packed", *(n.placement for n in job.neighbours)]
    packed = [_simulated(one, name) for one, name in zip(jobs, names, strict=True)]
    group = [0, *meets] if meets else []
    rounds, pods = 0, dict[int, int]()
    alone, beside, placed = list(packed), list(packed), list(jobs)
    if group:
        spec = job.cluster.spec
        counts = nodes_in_each_pod([jobs[i].cluster.nodes for i in group], spec.nodes_per_pod or 1, spec.nodes_per_rack)
        pods = dict(zip(group, counts, strict=True))
        met = _Meeting(jobs=[jobs[i] for i in group], names=[names[i] for i in group], counts=counts)
        still, running, rounds = met.resolve()
        for i, quiet, (one, prediction) in zip(group, still, running, strict=True):
            alone[i], placed[i], beside[i] = quiet, one, prediction
    told = _told(job, jobs, pods, [p.step_time for p in alone], [p.step_time for p in beside])
    told += [
        f"neighbour {name} does not fit its GPUs' memory: it is told as if it did"
        for name, prediction in zip(names[1:], beside[1:], strict=True)
        if not prediction.fits
    ]
    placed[0] = replace(placed[0], assumptions=(*placed[0].assumptions, *told))
    found = [
        Placed(
            name=names[i],
            placement=placement[i],
            job=placed[i],
            nodes_per_pod=pods.get(i),
            packed=packed[i].step_time,
            alone=alone[i].step_time,
            beside=beside[i].step_time,
            prediction=beside[i],
        )
        for i in range(len(jobs))
    ]
    return placed[0], Beside(own=found[0], others=tuple(found[1:]), rounds=rounds)


def _check(job: Job) -> None:
    spec = job.cluster.spec
    if job.cluster.parts:
        raise SpecError("neighbours and cluster.parts: which nodes are whose is not known. Leave out one of them")
    if job.sites is not None:
        raise SpecError("neighbours are of one cluster: leave out the table [sites], or neighbours")
    for number, one in enumerate(job.neighbours):
        if one.placement == "interleaved" and not spec.topology:
            raise SpecError(
                f'neighbours[{number}].placement = "interleaved": which nodes share uplinks is not known of cluster '
                f'{job.cluster.name!r}. Way out: topology and nodes_per_pod in the cluster\'s file, or "packed"'
            )


def _neighbour(cluster: Cluster, wanted: Neighbour, number: int) -> Job:
    """The other job on as many GPUs of this cluster."""
    place = f"neighbours[{number}] ({wanted.job})"
    try:
        found = load_job(wanted.job, [f"cluster.gpus={wanted.gpus}"])
        size = replace(cluster.resized(wanted.gpus), gpu=cluster.uncapped_gpu)
    except SimulatorError as error:
        raise SpecError(f"{place}: {error}") from None
    if found.neighbours or found.cluster.parts or found.sites:
        raise SpecError(f"{place}: a neighbour has no neighbours, cluster.parts or sites of its own")
    return replace(found, cluster=size.under(found.power))


def _simulated(job: Job, name: str) -> Prediction:
    try:
        return simulate_job(job)
    except SimulatorError as error:
        raise type(error)(f"{name} on {job.cluster.world_size} GPUs of {job.cluster.name}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Meeting:
    """Jobs whose nodes share pods, `counts` nodes of each in every pod."""

    jobs: Sequence[Job]
    names: Sequence[str]
    counts: Sequence[int]

    def resolve(self) -> tuple[list[Prediction], list[tuple[Job, Prediction]], int]:
        """Return the steps while all others stand still, jobs with steps while they run, and rounds until these had resolved.

        Raises:
            SpecError: they do not settle.
        """
        n = len(self.jobs)
        alone = [self._run(i, self._lost(i, [0.0] * n))[1] for i in range(n)]
        demand = [self._demand(i, alone[i]) for i in range(n)]
        lost = [self._lost(i, [0.0] * n) for i in range(n)]
        running = [(self._on(i, lost[i]), alone[i]) for i in range(n)]
        for number in range(1, _ROUNDS + 1):
            wanted = [self._lost(i, demand) for i in range(n)]
            if all(abs(a - b) <= _SETTLED * b for a, b in zip(wanted, lost, strict=True)):
                return alone, running, number
            lost = wanted
            running = [self._run(i, lost[i]) for i in range(n)]
            demand = [(demand[i] + self._demand(i, running[i][1])) / 2.0 for i in range(n)]
        raise SpecError(
            f"the steps of {', '.join(self.names)} do not settle beside each other within {_ROUNDS} rounds: each change of the "
            'bandwidth makes them choose other algorithms. Way out: placement = "packed", or other sizes'
        )

    def _lost(self, i: int, demand: Sequence[float]) -> float:
        """What a node of job i could send over what it gets of its pod's uplinks, >= 1."""
        cluster = self.jobs[i].cluster
        spec, width = cluster.spec, _width(cluster)
        if not width:
            return 1.0
        capacity = (spec.nodes_per_pod or 1) * width / spec.oversubscription
        others = [(self.counts[j], demand[j]) for j in range(len(self.jobs)) if j != i]
        return max(1.0, width / rate_beside(capacity, self.counts[i], width, others))

    def _on(self, i: int, lost: float) -> Job:
        job, c = self.jobs[i], self.jobs[i].cluster
        spec = c.spec.model_copy(update={"nodes_per_pod": self.counts[i], "oversubscription": lost})
        made = build_cluster(spec, c.gpu, c.node, c.link, c.host_link, c.network, c.world_size)
        return replace(job, cluster=made)

    def _run(self, i: int, lost: float) -> tuple[Job, Prediction]:
        job = self._on(i, lost)
        return job, _simulated(job, self.names[i])

    def _demand(self, i: int, prediction: Prediction) -> float:
        """[B/s] that a node of job i sends to other pods, mean over its step."""
        cluster, trace = self.jobs[i].cluster, prediction.trace
        size = self.counts[i] * cluster.gpus_per_node
        sent = bytes_leaving(prediction.program, size, cluster.gpus_per_node)
        return sent / cluster.nodes / float(trace.end.max() - trace.start.min())


def _width(cluster: Cluster) -> float:
    """[B/s] of a node's network cards, 0 where the job does not leave its nodes."""
    fabric = cluster.level("fabric")
    return 0.0 if fabric is None else fabric.bandwidth * cluster.node.gpus


def bytes_leaving(program: Program, size: int, node: int) -> float:
    """Return the bytes of a folded program's run that leave domains of `size` ranks, all domains together.

    Args:
        node: ranks of a node.
    """
    pipeline = dict(program.axes).get("pp", 1)
    total = 0.0
    for item, count in zip(
        program.items, np.bincount(program.item, minlength=len(program.items)).tolist(), strict=True
    ):
        if not isinstance(item, Link):
            each = sum(
                many * _group_bytes(program.axes, t.group[i], t.work[i], float(t.message[i]), t.call[i], size, node)
                for t, many in item.pieces
                for i in np.flatnonzero(t.kind == COLLECTIVE).tolist()
            )
            total += count * each / pipeline
        elif item.kind == COLLECTIVE:
            each = _group_bytes(program.axes, item.group, item.collective, item.message, None, size, node)
            total += count * each / (1 if "pp" in item.group else pipeline)
        elif item.kind == TRANSFER:
            hop = place_hop(program.axes, item.pipeline_ranks[0], item.pipeline_ranks[1], size, item.group[0])
            total += count * hop.leaving * item.message
    return total


def _group_bytes(
    axes: Axes, group: tuple[str, ...], kind: str, message: float, call: object, size: int, node: int
) -> float:
    """Bytes that leave all domains when all groups along these axes run a collective once."""
    place: GroupPlacement = place_group(axes, group, size)
    if place.nodes < 2:
        return 0.0
    n, domains = place.ranks, place.nodes
    if kind == "all_to_all":
        if isinstance(call, NodeExchange):
            message *= places_reached(place_group(axes, group, node).nodes, call.copies, call.reach) / call.copies
        each = n * message * (1.0 - 1.0 / domains)
    else:
        factor = {"all_reduce": 2.0 * (n - 1) / n, "all_gather": (n - 1) / n, "reduce_scatter": (n - 1) / n}
        each = domains * factor.get(kind, 1.0) * message
    return place.leaving * each


def _told(job: Job, jobs: list[Job], pods: dict[int, int], alone: list[float], beside: list[float]) -> list[str]:
    """What was taken for granted, in words."""
    out = [
        f"neighbours: {', '.join(f'{n.job} on {n.gpus} GPUs, {n.placement}' for n in job.neighbours)}; they run on this cluster "
        "for as long as this job"
    ]
    if not pods:
        return [*out, "packed jobs have pods of their own and share no links, so no step is slower for it"]
    spec = job.cluster.spec
    if spec.oversubscription <= 1.0:
        out.append(
            "the spine is not oversubscribed: uplinks carry what all cards send, so jobs take nothing from each other"
        )
    elif sum(jobs[i].cluster.nodes for i in pods) <= (spec.nodes_per_pod or 1):
        out.append("all jobs fit into one pod: nothing goes over its uplinks")
    elif beside[0] == alone[0]:
        out.append(
            "this job loses nothing to its neighbours: it sends nothing over shared uplinks, or they leave it enough"
        )
    out.append(
        f"max-min fair uplinks, mean demands: a step takes {show(beside[0], 's')} beside them, {show(alone[0], 's')} on the same nodes "
        "while they stand still"
    )
    return out
