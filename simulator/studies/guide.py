"""The guide "which parallelism for which machine", as an experiment: the families of plans tried on this model and this cluster.

job --families--> the best plan of each --> what decided, and the bandwidth of the network at which two families change places
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.hardware.cluster import Cluster, build_cluster
from simulator.job import Job
from simulator.lowering import resolve
from simulator.lowering.layers.expand import layer_costs
from simulator.plan.plan import Plan
from simulator.report.schema import SCHEMA_VERSION
from simulator.report.table import Section, Table, percent
from simulator.search.answer import Answer
from simulator.search.candidate import Candidate, look
from simulator.search.families import FAMILIES, Family
from simulator.search.search import search
from simulator.search.space import Space
from simulator.studies.explanation import ACCOUNT_WORDS
from simulator.units import show

__all__ = ["Crossing", "Guide", "Tried", "advise", "node_bandwidth", "turns_between", "with_network"]

_SECONDS = 2.0
"""Processor time for one family; what is left open then is said."""
_OCTAVES = 7
_WIDEST = 2.0**_OCTAVES
"""How many times slower and faster networks are asked about: two families are compared at every octave between."""
_CLOSE = 1.02
"""Bandwidths between which a crossing is told."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """A family of plans, tried.

    Args:
        family: which.
        answer: of the search in it; None = it has no plan here, for `reason`.
    """

    family: Family
    answer: Answer | None
    reason: str = ""

    @property
    def best(self) -> Candidate | None:
        """The quickest plan that fits."""
        return self.answer.best[0] if self.answer and self.answer.best else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Two families that change places with the network.

    Args:
        faster, slower: the family that wins above, and the one that wins below.
        bandwidth: of a node's network, one direction [B/s], at which they take equal time.
        step_time: there [s].
    """

    faster: str
    slower: str
    bandwidth: float
    step_time: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guide:
    """The answer of `dtsim advise`.

    Args:
        job: what was asked about.
        machine: "one GPU", "one node", "one rack" (nodes that share their inner link) or "several nodes", which need the network.
        fits_one_gpu: whether a whole copy of the model, its states and one sequence fits a GPU.
        largest_layer: bytes of the states of the largest layer; where they exceed a GPU, only what cuts or shards layers can work.
        tried: every family.
        crossings: with the bandwidth of the network.
        probability: with which a plan had to fit.
        asked: how far networks were looked at, as factors of what the cluster has.
    """

    job: Job
    machine: str
    fits_one_gpu: bool
    largest_layer: float
    tried: tuple[Tried, ...]
    crossings: tuple[Crossing, ...]
    probability: float
    asked: float = _WIDEST

    @property
    def ranked(self) -> list[Tried]:
        """Families with a plan that fits, the quickest first."""
        return sorted((one for one in self.tried if one.best), key=lambda one: one.best.step_time if one.best else 0.0)

    @property
    def ties(self) -> list[Tried]:
        """Families within the band of the quickest, which no prediction tells apart; those that put nothing on the host first."""
        first = self.ranked[0].best if self.ranked else None
        alike = [one for one in self.ranked if first and one.best and one.best.step_time <= first.alike]
        return sorted(alike, key=lambda one: bool(one.family.fixed))

    def why(self, one: Tried) -> str:
        """What decided about a family."""
        first = self.ranked[0].best if self.ranked else None
        if one.best is None:
            return _nothing(one)
        if one.best is first or first is None:
            return "quickest"
        more = {name: s - first.breakdown.get(name, 0.0) for name, s in one.best.breakdown.items()}
        name = max(more, key=lambda account: more[account])
        words = ACCOUNT_WORDS.get(name, f"the {name} kernels")
        return f"+{percent(one.best.step_time / first.step_time - 1.0)}: +{show(more[name], 's')} {words}"

    def _advice(self) -> tuple[str, ...]:
        if not self.ranked:
            return ("advice: nothing fits. dtsim fit MODEL --cluster C --fewest gpus says how many GPUs it takes",)
        first, *others = [one.family.name for one in self.ties]
        also = (f"within its band, so not to be told apart: {', '.join(others)}",) if others else ()
        return (f"advice: {first}", *also)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "advise",
            "job": self.job.name,
            "machine": self.machine,
            "gpus": self.job.cluster.world_size,
            "node_bandwidth": node_bandwidth(self.job.cluster),
            "global_batch_size": self.job.workload.global_batch_size,
            "fits_one_gpu": self.fits_one_gpu,
            "largest_layer_bytes": self.largest_layer,
            "advice": [one.family.name for one in self.ties],
            "families": [
                {
                    "family": one.family.name,
                    "plans": one.answer.space.size if one.answer else 0,
                    "best": one.best.to_dict() if one.best else None,
                    "proven": one.answer.proven if one.answer else None,
                    "gap": one.answer.gap if one.answer else None,
                    "why": self.why(one),
                }
                for one in (*self.ranked, *(one for one in self.tried if not one.best))
            ],
            "crossings": [
                {
                    "faster_network": c.faster,
                    "slower_network": c.slower,
                    "node_bandwidth": c.bandwidth,
                    "step_time_s": c.step_time,
                }
                for c in self.crossings
            ],
        }

    def sections(self) -> list[Section]:
        """Return the guide to read."""
        work, cluster = self.job.workload, self.job.cluster
        layer = (
            f"states of the largest layer: {show(self.largest_layer, 'B')} of {show(cluster.gpu.usable_memory, 'B')}"
        )
        sure = f" with a probability of {percent(self.probability)}" if self.probability else ""
        fits = f"the model {'fits' if self.fits_one_gpu else 'does not fit'} one GPU{sure}"
        network = node_bandwidth(cluster)
        wires = f", network of {show(network, 'B/s')} per node" if network and self.machine == "several nodes" else ""
        head = Section(
            title=f"{work.model.name} on {cluster.world_size:,} GPUs of {cluster.name}: {self.machine}{wires}",
            lines=(
                f"{fits}; {layer}",
                work.batch_words,
                *self._advice(),
            ),
        )
        rows = tuple(
            (
                one.family.name,
                show(one.best.step_time, "s") if one.best else "-",
                show(one.best.peak_memory, "B") if one.best else "-",
                self.why(one),
                _plan(one.best) if one.best else "",
            )
            for one in (*self.ranked, *(one for one in self.tried if not one.best))
        )
        heads = ("family", "step", "fullest rank", "what decided", "its best plan")
        below = [
            f"open: {one.family.name} (up to {percent(one.answer.gap)} better)"
            for one in self.tried
            if one.answer and one.answer.gap
        ]
        found = [
            head,
            Section(title="families", table=Table(headings=heads, rows=rows, left=(0, 3, 4)), below=tuple(below)),
        ]
        if self.machine == "several nodes":
            lines = tuple(
                f"{c.faster} above {show(c.bandwidth, 'B/s')} per node, {c.slower} below ({show(c.step_time, 's')} there)"
                for c in self.crossings
            )
            none = (f"none between a {self.asked:g}th of this network and {self.asked:g} times it",)
            found.append(Section(title="where the network turns it round", lines=lines or none))
        return found


def node_bandwidth(cluster: Cluster) -> float:
    """Return what the network cards of a node carry together, one direction [B/s]; 0 without a network."""
    return cluster.network.bandwidth * cluster.node.nics if cluster.network else 0.0


def with_network(cluster: Cluster, bandwidth: float) -> Cluster:
    """Return a cluster whose nodes' cards together carry so much [B/s]: each card in proportion, everything else as it is."""
    if cluster.network is None:
        return cluster
    link = cluster.network.model_copy(update={"bandwidth": bandwidth / cluster.node.nics})
    made = build_cluster(
        cluster.spec, cluster.gpu, cluster.node, cluster.link, cluster.host_link, link, cluster.world_size
    )
    return replace(made, parts=cluster.parts, pace=cluster.pace)


def advise(job: Job, probability: float = 0.9, tell: Callable[[str], None] = lambda line: None) -> Guide:
    """Return which family of plans suits a job's model and cluster.

    Args:
        job: its plan says what no family does: framework, kernels, overlap.
        probability: with which a plan must fit.
        tell: called with a line of progress.

    Raises:
        SimulatorError: the model and the cluster do not go together.
    """
    cluster = job.cluster
    tried = []
    for family in FAMILIES:
        space = family.space(job)
        if space is not None:
            tell(f"{family.name}: {space.size:,} plans ...")
            tried.append(Tried(family=family, answer=_searched(space, probability)))
    machine = _machine(cluster)
    crossings = _crossings(job, tried, probability, tell) if machine == "several nodes" else ()
    return Guide(
        job=job,
        machine=machine,
        fits_one_gpu=_fits_one(job, probability),
        largest_layer=_largest_layer(job),
        tried=tuple(tried),
        crossings=tuple(crossings),
        probability=probability,
    )


def _searched(space: Space, probability: float) -> Answer:
    return search(space, fit_probability=probability, top=1, budget=_SECONDS)


def _machine(cluster: Cluster) -> str:
    if cluster.world_size == 1:
        return "one GPU"
    if cluster.world_size <= cluster.node.gpus:
        return "one node"
    return "one rack" if cluster.world_size <= cluster.node.gpus * cluster.spec.nodes_per_rack else "several nodes"


def _alone(job: Job) -> Job:
    """A job's plan without a way to split: data parallel."""
    kept = {field: value for field, value in job.plan.model_dump(exclude_unset=True).items() if field in _KERNELS}
    return replace(job, plan=Plan.model_validate(kept))


def _on_one_gpu(job: Job) -> Job:
    """A job on one GPU of its cluster, without a way to split."""
    return replace(_alone(job), cluster=job.cluster.resized(1))


_KERNELS = ("framework", "attention", "recompute", "dropout", "fused_cross_entropy")


def _fits_one(job: Job, probability: float) -> bool:
    """Whether the model trains on one GPU alone, in some plan of one."""
    one = _on_one_gpu(job)
    family = next(family for family in FAMILIES if family.name == "as it is")
    space = family.space(one)
    return space is not None and bool(_searched(space, probability).best)


def _largest_layer(job: Job) -> float:
    """Bytes of weights, gradients and optimizer states of the largest layer, whole."""
    from simulator.lowering import begin
    from simulator.lowering.steps.update import optimizer_bytes

    one = _on_one_gpu(job)
    resolved = resolve(one.workload, one.plan, 1, "one GPU")
    each = resolved.precision.element + resolved.gradient_bytes + optimizer_bytes(begin(one.workload, resolved))
    return max(cost.parameters for cost in layer_costs(one.workload, resolved).values()) * each


def _crossings(job: Job, tried: Iterable[Tried], probability: float, tell: Callable[[str], None]) -> list[Crossing]:
    """Where each way to shard states over all GPUs changes places with the best way to split the model."""
    own = node_bandwidth(job.cluster)
    if not own:
        return []
    plans: dict[str, list[tuple[Space, Candidate]]] = {}
    for factor in (1.0, 1.0 / _WIDEST, _WIDEST):
        at = replace(job, cluster=with_network(job.cluster, own * factor))
        tell(f"the families with a network of {show(own * factor, 'B/s')} per node ...")
        for one in tried:
            if one.best is None or not one.family.competes:
                continue
            space = one.family.space(at)
            if space is not None:
                found = one.answer if factor == 1.0 else _searched(space, probability)
                plans.setdefault(_side(one.family), []).extend(
                    (space, best) for best in (found.best[:1] if found else ())
                )
    split = plans.pop(_SPLIT, [])
    out = []
    for name, mine in plans.items():
        out += _between(job, name, mine, split, own) if split else []
    return out


_SPLIT = "tensor, pipeline and data"


def _side(family: Family) -> str:
    """What a family is in a crossing: all that split the model are one side."""
    return _SPLIT if family.splits else family.name


def _between(
    job: Job, name: str, mine: list[tuple[Space, Candidate]], split: list[tuple[Space, Candidate]], own: float
) -> list[Crossing]:
    """Every bandwidth at which one family and the ways to split change places: there may be several."""

    def least(plans: list[tuple[Space, Candidate]], bandwidth: float) -> float:
        cluster = with_network(job.cluster, bandwidth)
        found = []
        for space, candidate in plans:
            result = look(
                replace(space, job=replace(space.job, cluster=cluster)), candidate.point, "step_time"
            ).simulated()
            found += [] if isinstance(result, str) else [result.step_time]
        return min(found, default=math.inf)

    def lead(bandwidth: float) -> float:
        return least(mine, bandwidth) - least(split, bandwidth)

    networks = [own * 2.0**octave for octave in range(-_OCTAVES, _OCTAVES + 1)]
    return [
        Crossing(
            faster=_SPLIT if ahead else name,
            slower=name if ahead else _SPLIT,
            bandwidth=bandwidth,
            step_time=least(mine, bandwidth),
        )
        for bandwidth, ahead in turns_between(lead, networks)
    ]


def turns_between(lead: Callable[[float], float], points: Sequence[float]) -> list[tuple[float, bool]]:
    """Return where a lead changes its sign between neighbouring points, and whether it is positive above; several times, it may be.

    Points where the lead is not finite, since a side has no plan there, end the stretch beside them.
    """
    leads = [lead(point) for point in points]
    found = []
    for low, high, below, above in zip(points, points[1:], leads, leads[1:], strict=False):
        if not (math.isfinite(below) and math.isfinite(above) and (below > 0) != (above > 0)):
            continue
        while high / low > _CLOSE:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if (lead(middle) > 0) == (below > 0) else (low, middle)
        found.append((math.sqrt(low * high), above > 0))
    return found


def _nothing(one: Tried) -> str:
    """Why a family has no plan that fits."""
    answer = one.answer
    if answer is None:
        return one.reason
    near = answer.nearest
    if near is not None:
        peak = f"at least {show(near.peak_memory, 'B')} of {show(near.capacity, 'B')}"
        if near.fits:
            return f"fits with {percent(near.fit_probability)} only (--fit-probability): {peak}"
        return f"does not fit: {peak}"
    return f"cannot be: {next(iter(answer.refused.values()), 'no plan')}"


def _plan(one: Candidate) -> str:
    """A plan's choices that are not off, briefly."""
    values: Mapping[str, object] = one.point.values
    return " ".join(
        f"{field.partition('.')[2]}={value}" if value is not True else field.partition(".")[2]
        for field, value in values.items()
        if value not in (None, False, "none") and not (value == 1 and field != "plan.zero_stage") and value != 0
    )
