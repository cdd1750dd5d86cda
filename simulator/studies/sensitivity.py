"""Does the choice hold? The search again in worlds that differ in one thing, and what keeping the plan would cost there.

A plan is worth little that is best for one guess of the network only.  `regret` is how much more of what is made least (seconds of a step,
its cost, energy or memory) the plan that was chosen in this world takes in such a one, beside the best plan there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from simulator.errors import SpecError
from simulator.hardware.cluster import Cluster, build_cluster
from simulator.job import Job
from simulator.report.frames import Records, Tabular
from simulator.report.table import Section, Table, percent
from simulator.search.answer import Answer
from simulator.search.candidate import Candidate, look, shown
from simulator.search.search import search
from simulator.search.space import Space
from simulator.studies.guide import node_bandwidth, with_network
from simulator.units import show

__all__ = ["Sensitivity", "World", "check_one_cluster", "sensitivity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A world that differs in one thing.

    Args:
        name: in what, and how.
        best: the best plan there; None = none fits.
        kept: the chosen plan there; None = it does not fit, or cannot be.
        reason: why not.
        objective: what is made least.
    """

    name: str
    best: Candidate | None
    kept: Candidate | None
    reason: str = ""
    objective: str = "step_time"

    @property
    def regret(self) -> float | None:
        """How much more the chosen plan takes than the best there, as a part of that; None where either does not fit."""
        if self.kept is None or self.best is None:
            return None
        return self.kept.value(self.objective) / self.best.value(self.objective) - 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "world": self.name,
            "best": self.best.to_dict() if self.best else None,
            "kept_step_time_s": self.kept.step_time if self.kept else None,
            "regret": self.regret,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sensitivity(Tabular):
    """How a choice holds, the world with the largest regret first."""

    chosen: Candidate
    worlds: tuple[World, ...]

    def tables(self) -> dict[str, Records]:
        """See `Tabular.tables`."""
        return {"worlds": partial(self._rows)}

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "name": world.name,
                "step_time_s": world.kept.step_time if world.kept else None,
                "over_best": world.regret,
                "reason": world.reason,
            }
            for world in self.worlds
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"chosen": list(self.chosen.settings), "worlds": [world.to_dict() for world in self.worlds]}

    def section(self) -> Section:
        """Return it to read."""
        rows = tuple(
            (
                world.name,
                shown(world.kept, world.objective) if world.kept else world.reason[:60],
                shown(world.best, world.objective) if world.best else "-",
                "-" if world.regret is None else percent(world.regret),
                _changes(self.chosen, world.best),
            )
            for world in self.worlds
        )
        heads = ("world", "with the plan chosen", "with its best plan", "regret", "what changes")
        return Section(title="does the choice hold?", table=Table(headings=heads, rows=rows, left=(0, 4)))


def _changes(chosen: Candidate, best: Candidate | None) -> str:
    """What the best plan of a world does otherwise."""
    if best is None:
        return "nothing fits"
    values = chosen.point.values
    return ", ".join(
        f"{field.partition('.')[2]} {value}" for field, value in best.point.values.items() if values.get(field) != value
    )


def check_one_cluster(space: Space) -> None:
    """Refuse other worlds of several clusters: none of them is the one whose network and memory would be other."""
    if "cluster.name" in space.ranges:
        raise SpecError(
            "other worlds are those of one cluster, but cluster.name is ranged. Way out: --fix cluster.name=NAME"
        )


def sensitivity(
    space: Space,
    chosen: Candidate,
    probability: float = 0.9,
    tell: Callable[[str], None] = lambda line: None,
    objective: str = "step_time",
) -> Sensitivity:
    """Return how the choice of a plan holds in other worlds, each with the whole space searched.

    Args:
        space: it was chosen from.
        chosen: the plan.
        probability: with which plans must fit.
        tell: called with a line of progress.
        objective: what is made least, as `search` has it.

    Raises:
        SpecError: the space has several clusters.
    """
    check_one_cluster(space)
    found = []
    for name, job in _worlds(space.job):
        tell(f"{name} ...")
        there = replace(space, job=job)
        answer: Answer = search(there, objective=objective, fit_probability=probability, top=1)
        best = answer.best[0] if answer.best else None
        kept = look(there, chosen.point, objective).simulated()
        if isinstance(kept, str):
            why = kept
        else:
            why = "" if kept.feasible(probability) else f"does not fit: {_room(kept)}"
        runs = None if why or isinstance(kept, str) else kept
        found.append(World(name=name, best=best, kept=runs, reason=why, objective=objective))
    order = sorted(found, key=lambda world: -1e9 if world.regret is None else -world.regret)
    return Sensitivity(chosen=chosen, worlds=tuple(order))


def _room(one: Candidate) -> str:
    return f"{show(one.peak_memory, 'B')} of {show(one.capacity, 'B')}"


def _worlds(job: Job) -> Iterator[tuple[str, Job]]:
    """Worlds in which one thing is other: the network, the links inside a node, the GPU's memory, the batch, the sequence."""
    cluster = job.cluster
    if node_bandwidth(cluster) and cluster.world_size > cluster.node.gpus:
        for factor, words in ((0.5, "half"), (0.8, "20 % slower"), (1.25, "25 % faster"), (2.0, "twice")):
            yield f"network {words}", replace(job, cluster=with_network(cluster, node_bandwidth(cluster) * factor))
    if cluster.node.gpus > 1:
        for factor, words in ((0.8, "20 % slower"), (1.25, "25 % faster")):
            yield f"links inside a node {words}", replace(job, cluster=_linked(cluster, factor))
    for factor, words in ((0.9, "a tenth less"), (1.1, "a tenth more")):
        gpu = cluster.gpu.model_copy(update={"memory": cluster.gpu.memory * factor})
        yield f"memory of a GPU {words}", replace(job, cluster=replace(cluster, gpu=gpu))
    for times in (0.5, 2):
        batch = job.workload.global_batch_size * times
        if batch >= 1 and batch == int(batch):
            words = "half" if times < 1 else "twice"
            yield f"batch {words}", replace(job, workload=replace(job.workload, global_batch_size=int(batch)))


def _linked(cluster: Cluster, factor: float) -> Cluster:
    """A cluster whose links inside a node carry so much more."""
    link = cluster.link.model_copy(update={"bandwidth": cluster.link.bandwidth * factor})
    made = build_cluster(
        cluster.spec, cluster.gpu, cluster.node, link, cluster.host_link, cluster.network, cluster.world_size
    )
    return replace(made, parts=cluster.parts, pace=cluster.pace)
