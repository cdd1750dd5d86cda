"""The answer of `dtsim plan`: one problem, one planner or all that solve it, and how far each is from the best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from simulator.errors import PlanError, SimulatorError, SpecError, UnknownNameError, check_seed
from simulator.importers.cost_graphs import read_cost_graph
from simulator.job import load_job
from simulator.partition.words import read_mesh
from simulator.planners import PLANNERS
from simulator.planners.base import Budget, Found, Planner, Problem
from simulator.planners.problems.drained import Drained, make_drained
from simulator.planners.problems.hybrid import Hybrid, make_hybrid
from simulator.planners.problems.layouts import Layouts, make_layouts
from simulator.planners.problems.meshes import Meshes
from simulator.planners.problems.pipeline import Level, Pipeline, make_pipeline
from simulator.planners.problems.placement import Placement, make_placement
from simulator.planners.problems.synchronous import Synchronous, make_synchronous
from simulator.planners.problems.unlike_replicas import UnlikeReplicas
from simulator.report.table import Section, Table, percent
from simulator.studies.layout_figures import model_blocks
from simulator.studies.layout_question import model_named
from simulator.studies.model_ways import make_meshes
from simulator.studies.replica_costs import make_unlike_replicas
from simulator.units import show
from simulator.workload.cost_graph import CostGraph

__all__ = ["ALL", "Asked", "Planned", "chosen_planners", "make_problem", "plan"]

MOST_DEVICES = 2048
"""Beyond, planners' tables outgrow a machine: they have an entry for every device and cut, or for every device and operator."""
ALL = "all"
"""Every planner that solves the problem, but for those that try all plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a user says of the machine.

    Args:
        devices: how many, per level of the network, the lowest first.
        bandwidths: B/s of each.
        hosts: how many.
        memory: B of a device.
        transfers: whether messages between stages count.
        microbatches: of a step.
        mesh: axes and their ranks, such as "tensor=8".
        batch: sequences.
        cluster: its name.
    """

    devices: tuple[int, ...] = ()
    bandwidths: tuple[float, ...] = ()
    hosts: int | None = None
    memory: float | None = None
    transfers: bool = True
    microbatches: int | None = None
    mesh: str | None = None
    batch: int | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """What planners found.

    Args:
        graph: its name.
        problem: that was solved.
        found: the answers, in the order of the planners asked.
        failed: planner -> why it found nothing.
    """

    graph: str
    problem: Problem[Any]
    found: tuple[Found[Any], ...]
    failed: tuple[tuple[str, str], ...]

    @property
    def lower_bound(self) -> float:
        """The highest bound that anyone proved."""
        return max(one.lower_bound for one in self.found)

    @property
    def best(self) -> Found[Any]:
        """The cheapest answer; the first of equals."""
        return min(self.found, key=lambda one: one.cost)

    def gap(self, found: Found[Any]) -> float | None:
        """How far an answer may be above the best plan there is, as a part of it; None without a bound."""
        return max(0.0, found.cost / self.lower_bound - 1.0) if self.lower_bound > 0 else None

    def sections(self) -> list[Section]:
        """Return the answer to read."""
        unit = self.problem.unit
        rows = []
        for one in self.found:
            gap = self.gap(one)
            rows.append(
                (
                    one.planner,
                    f"{show(one.cost, unit)}{' *' if one is self.best and len(self.found) > 1 else ''}",
                    "no bound" if gap is None else percent(gap, 1),
                    f"{one.evaluations:,}",
                    show(one.seconds, "s"),
                    f"best of {one.best_of}" if one.best_of else "",
                )
            )
        rows += [(name, "", "", "", "", reason) for name, reason in self.failed]
        table = Table(
            headings=("planner", self.problem.objective, "gap", "evaluations", "seconds", "proves"),
            rows=tuple(rows),
            left=(0, 5),
        )
        bound = f"no plan below {show(self.lower_bound, unit)}" if self.lower_bound > 0 else "no bound is known"
        return [
            Section(
                title=f"{self.graph}: {self.problem.name}",
                lines=(bound,),
                table=table,
                below=_NOTES[len(self.found) > 1],
            ),
            self.problem.described(self.best.plan),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the answer of `dtsim plan --json`."""
        return {
            "graph": self.graph,
            "problem": self.problem.name,
            "objective": self.problem.objective,
            "unit": self.problem.unit,
            "lower_bound": self.lower_bound,
            "best": self.best.planner,
            "planners": [
                {
                    "planner": one.planner,
                    "source": PLANNERS.get(one.planner).source,
                    "cost": one.cost,
                    "gap": self.gap(one),
                    "evaluations": one.evaluations,
                    "seconds": one.seconds,
                    "best_of": one.best_of,
                    "history": [
                        {"evaluations": count, "seconds": seconds, "cost": cost} for count, seconds, cost in one.history
                    ],
                    "plan": self.problem.to_dict(one.plan),
                }
                for one in self.found
            ],
            "failed": [{"planner": name, "why": why} for name, why in self.failed],
        }


_NOTES = (
    ("gap: how far it may be above the best plan there is",),
    ("gap: how far it may be above the best plan there is; * the cheapest, shown below",),
)


def make_problem(name: str, of: str, asked: Asked) -> Problem[Any]:
    """Return the problem that a user names.

    Args:
        name: `placement`, `pipeline`, `synchronous`, `drained`, `hybrid`, `meshes`, `layout` or `unlike_replicas`.
        of: a file of costs or a name of `workloads/graphs`; of meshes and of a layout a model, of unlike replicas a job.

    Raises:
        SpecError: what is said of the machine has no meaning for the problem, or lacks.
        UnknownNameError: no such problem.
    """
    if name not in _MAKERS:
        raise UnknownNameError("problem", name[:100], _MAKERS)
    if min(asked.devices, default=1) < 1 or math.prod(asked.devices) > MOST_DEVICES:
        raise SpecError(
            f"--devices: there are 1 device or more, and at most {MOST_DEVICES:,} in all, got "
            f"{','.join(map(str, asked.devices))[:80]}"
        )
    known, make = _MAKERS[name]
    given = {field.name for field in fields(asked) if getattr(asked, field.name) != field.default}
    idle = sorted(_OPTIONS[field] for field in given - known)
    if idle:
        takes = ", ".join(_OPTIONS[field] for field in _OPTIONS if field in known) or "a job alone"
        raise SpecError(f"{name} is asked with {takes}; {' and '.join(idle)} would have no effect: leave it out")
    return make(of, asked)


def _one_level(what: str, asked: Asked) -> tuple[int | None, float | None]:
    """Return the devices and the bandwidth of `what`, with "has" or "have"; None = not said."""
    if len(asked.devices) > 1 or len(asked.bandwidths) > 1:
        raise SpecError(
            f"{what} devices of one kind that reach each other alike: --devices N, --bandwidth B. "
            "Way out: --problem pipeline for levels of a network"
        )
    return next(iter(asked.devices), None), next(iter(asked.bandwidths), None)


def _placement(of: str, asked: Asked) -> Placement:
    devices, bandwidth = _one_level("a placement has", asked)
    return make_placement(_cost_graph(of), devices=devices, hosts=asked.hosts, memory=asked.memory, bandwidth=bandwidth)


def _levels(asked: Asked, more: str = "") -> tuple[Level, ...]:
    if not asked.devices or len(asked.devices) != len(asked.bandwidths):
        raise SpecError(
            "a pipeline needs how many meet at each level of the network, and at which bandwidth, the lowest level first, got "
            f"{len(asked.devices)} and {len(asked.bandwidths)} levels. Way out: --devices 4,4 --bandwidth '1 GB/s,1.25 GB/s'{more}"
        )
    return tuple(Level(*pair) for pair in zip(asked.devices, asked.bandwidths, strict=True))


def _pipeline(of: str, asked: Asked) -> Pipeline:
    return make_pipeline(_cost_graph(of), _levels(asked), asked.transfers)


def _drained(of: str, asked: Asked) -> Drained:
    levels = _levels(asked, " --microbatches 16")
    if asked.microbatches is None:
        raise SpecError("a pipeline that drains needs the microbatches of a step. Way out: --microbatches 16")
    return make_drained(_cost_graph(of), levels, asked.microbatches, asked.transfers)


def _synchronous(of: str, asked: Asked) -> Synchronous:
    if len(asked.devices) != 1 or len(asked.bandwidths) != 1 or asked.microbatches is None:
        raise SpecError(
            "a pipeline that drains needs devices of one level, their bandwidth and the microbatches of a step. "
            "Way out: --devices 8 --bandwidth '1 GB/s' --microbatches 16"
        )
    level = Level(asked.devices[0], asked.bandwidths[0])
    return make_synchronous(_cost_graph(of), level, asked.microbatches, asked.transfers)


def _hybrid(of: str, asked: Asked) -> Hybrid:
    devices, bandwidth = _one_level("stages with tensor parallelism have", asked)
    return make_hybrid(_cost_graph(of), devices, asked.memory, bandwidth, asked.microbatches)


def _on_meshes(of: str, asked: Asked) -> Meshes:
    if len(asked.devices) != 1 or None in (asked.cluster, asked.batch, asked.microbatches):
        raise SpecError(
            "stages on meshes need a cluster, how many of its GPUs, the sequences of a step and its microbatches. "
            "Way out: --cluster dgx_a100 --devices 8 --batch 32 --microbatches 4"
        )
    batch, microbatches = asked.batch or 0, asked.microbatches or 0
    if batch < 1 or microbatches < 1 or batch % microbatches:
        raise SpecError(
            f"microbatches share the sequences of a step evenly, got --batch {batch} --microbatches {microbatches}"
        )
    return make_meshes(
        model_named(of), asked.cluster or "", asked.devices[0], batch // microbatches, microbatches, asked.memory
    )


def _layout(of: str, asked: Asked) -> Layouts:
    """The kind of layer that a model has most of."""
    model = model_named(of)
    if asked.mesh is None:
        raise SpecError("a layout needs a mesh of axes and their ranks. Way out: --mesh tensor=8")
    batch = 1 if asked.batch is None else asked.batch
    if batch < 1:
        raise SpecError(f"--batch is 1 sequence or more, got {batch}")
    blocks = model_blocks(model, batch, model.usual_length, model.vocabulary)
    graph = max(blocks, key=lambda block: block.count).graph
    return make_layouts(graph, read_mesh(asked.mesh), math.inf if asked.memory is None else asked.memory)


_MAKERS: dict[str, tuple[frozenset[str], Callable[[str, Asked], Problem[Any]]]] = {
    Placement.name: (frozenset(("devices", "bandwidths", "hosts", "memory")), _placement),
    Pipeline.name: (frozenset(("devices", "bandwidths", "transfers")), _pipeline),
    Synchronous.name: (frozenset(("devices", "bandwidths", "transfers", "microbatches")), _synchronous),
    Drained.name: (frozenset(("devices", "bandwidths", "transfers", "microbatches")), _drained),
    Hybrid.name: (frozenset(("devices", "bandwidths", "memory", "microbatches")), _hybrid),
    Meshes.name: (frozenset(("cluster", "devices", "memory", "batch", "microbatches")), _on_meshes),
    Layouts.name: (frozenset(("mesh", "batch", "memory")), _layout),
    UnlikeReplicas.name: (frozenset(), lambda of, asked: make_unlike_replicas(load_job(of))),
}
"""Problem -> what may be said of it, and who makes it."""
_OPTIONS = {
    "devices": "--devices",
    "bandwidths": "--bandwidth",
    "hosts": "--hosts",
    "memory": "--memory",
    "transfers": "--no-transfers",
    "microbatches": "--microbatches",
    "mesh": "--mesh",
    "batch": "--batch",
    "cluster": "--cluster",
}


def chosen_planners(names: list[str], problem: Problem[Any]) -> list[Planner[Any]]:
    """Return the planners of these names.

    Raises:
        SpecError: one solves another problem.
        UnknownNameError: nobody bears a name.
    """
    able = [planner for planner in PLANNERS if isinstance(problem, planner.solves)]
    if names == [ALL]:
        return [planner for planner in able if planner.solves is not Problem]
    chosen = [PLANNERS.get(name) for name in dict.fromkeys(names)]
    for planner in chosen:
        if planner not in able:
            raise SpecError(
                f"planner {planner.name!r} solves problem {planner.solves.name!r}, not {problem.name!r}. Here: "
                f"{', '.join(one.name for one in able)}"
            )
    return chosen


def _cost_graph(of: str) -> CostGraph:
    try:
        return read_cost_graph(of)
    except UnknownNameError as error:
        try:
            model_named(of)
        except SimulatorError:
            raise error from None
        raise SpecError(
            f"{of!r} is a model, and a placement or pipeline is of a graph of costs (such as bert24_training, vgg16). Way out: "
            "--problem meshes or layout, which take a model, or the file of a graph"
        ) from None


def plan(graph: str, problem: Problem[Any], planners: list[Planner[Any]], budget: Budget, seed: int) -> Planned:
    """Return what planners find, each with a budget of its own.

    Raises:
        PlanError: none of them finds a plan.
        SpecError: the seed is none.
    """
    check_seed(seed)
    found, failed = [], []
    for planner in planners:
        try:
            found.append(planner.solve(problem, budget, seed))
        except PlanError as error:
            if len(planners) == 1:
                raise
            failed.append((planner.name, str(error)))
    if not found:
        raise PlanError(f"none of {len(failed)} planners found a plan. The first: {failed[0][1]}")
    return Planned(graph=graph, problem=problem, found=tuple(found), failed=tuple(failed))
