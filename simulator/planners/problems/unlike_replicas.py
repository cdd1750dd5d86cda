"""GPUs of nodes of several kinds dealt out to pipelines that are replicas of each other, each with its own layers: HetPipe's problem.

A replica has k GPUs in a row, from any nodes, and a stage of layers on each.  A stage takes, for a minibatch,

    what its layers take on its GPU  +  to receive its activations from the stage before  +  its gradients from the one behind

and a replica with m minibatches under way goes at the pace of its slowest stage, or of a minibatch's whole way over m, if that is more.
Stages hold the weights of each minibatch that they have under way.  They wait for the slowest (`wave_synchronous`), so that all W of
them need its pace over W for a minibatch (Park et al., HetPipe, ATC 2020, arXiv 2005.14038, sections 4 to 7; the sum of the three terms
from memory, unverified; the bound by what is under way is ours).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from simulator.errors import SpecError
from simulator.hardware.parts import shown_numbers
from simulator.planners.base import Problem
from simulator.report.table import Section, Table, set_options
from simulator.units import show

__all__ = ["Allocation", "Replica", "UnlikeReplicas"]

Numbers = NDArray[np.float64]


class Replica(NamedTuple):
    """A replica.

    Args:
        nodes: of the GPU of each stage.
        layers: of each stage.
    """

    nodes: tuple[int, ...]
    layers: tuple[int, ...]


Allocation = tuple[Replica, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class UnlikeReplicas(Problem[Allocation]):
    """All GPUs of a cluster as replicas.

    Args:
        kinds: name of the GPUs of each node; `gpus`: of a node.
        stages: GPUs of a replica.
        wave: minibatches that a replica has under way.
        versions: [stages] minibatches that a stage has under way, each with its weights.
        seconds: [nodes, layers] a minibatch forward and backward.
        received: [layers] B that come in front of each layer; their gradients are as large.
        weights: [layers] B of a version; `states`: B of a layer beside older versions; `kept`: B of a minibatch under way.
        work: [layers] B that stand while it runs; `beside`: B of a GPU whatever it runs.
        memory: [nodes] B of a GPU.
        inside, between: B/s of a message inside a node and between nodes; 0 where no two GPUs are so.
    """

    kinds: tuple[str, ...]
    gpus: int
    stages: int
    wave: int
    versions: tuple[int, ...]
    seconds: Numbers
    received: Numbers
    weights: Numbers
    states: Numbers
    kept: Numbers
    work: Numbers
    beside: float
    memory: Numbers
    inside: float
    between: float
    name: ClassVar[str] = "unlike_replicas"
    objective: ClassVar[str] = "time per minibatch of all"

    def __post_init__(self) -> None:
        if self.gpus * len(self.kinds) % self.stages or self.seconds.shape[1] < self.stages:
            raise SpecError(
                f"replicas share all GPUs evenly and have a layer on each, but {len(self.kinds)} nodes have {self.gpus} each, a "
                f"replica {self.stages}, and the model {self.seconds.shape[1]} layers. Way out: another pipeline_parallel"
            )

    @property
    def replicas(self) -> int:
        """How many there are."""
        return self.gpus * len(self.kinds) // self.stages

    @functools.cached_property
    def lower_bound(self) -> float:
        """Every layer W times on GPUs that are never idle, in any parts, by a linear programme: no message, any memory."""
        nodes, layers = self.seconds.shape
        busy = np.zeros((nodes, nodes * layers + 1))
        for node in range(nodes):
            busy[node, node * layers : (node + 1) * layers] = self.seconds[node] / self.gpus
        busy[:, -1] = -1.0
        runs = np.hstack([np.tile(np.eye(layers), nodes), np.zeros((layers, 1))])
        found = linprog(
            np.append(np.zeros(nodes * layers), 1.0),
            A_ub=busy,
            b_ub=np.zeros(nodes),
            A_eq=runs,
            b_eq=np.full(layers, 1.0),
        )
        return float(found.fun) * (1 - 1e-9) if found.success else 0.0

    @functools.cached_property
    def _tables(self) -> dict[tuple[int, int, int, int], Numbers]:
        """Stages whose times are known."""
        return {}

    @functools.cached_property
    def _largest_work(self) -> Numbers:
        """[first layer, layer behind the last] B that stand while the layer with the most of them runs."""
        ends = range(len(self.work) + 1)
        return np.array([[self.work[a:b].max(initial=0.0) for b in ends] for a in ends])

    def stage_seconds(self, stage: int, node: int, before: int, behind: int) -> Numbers:
        """Return [first layer, layer behind the last] s of a stage on a node, infinite where there is none or it does not fit.

        Args:
            before, behind: nodes of its neighbours; -1 = none.
        """
        key = stage, node, before, behind
        if key not in self._tables:
            self._tables[key] = self._stage_seconds(*key)
        return self._tables[key]

    def _stage_seconds(self, stage: int, node: int, before: int, behind: int) -> Numbers:
        size = self.seconds.shape[1]
        first, end = np.arange(size + 1)[:, None], np.arange(size + 1)[None, :]
        held = self.states + self.versions[stage] * self.kept + (self.versions[stage] - 1) * self.weights
        fits = _sums(held) + self._largest_work + self.beside <= self.memory[node]
        there = (first < end) & fits
        there &= (first == 0) if before < 0 else (first > 0)
        there &= (end == size) if behind < 0 else (end < size)
        came, back = (
            np.append(self.received, 0.0) / self._bandwidth(node, other) if other >= 0 else np.zeros(size + 1)
            for other in (before, behind)
        )
        return np.where(there, _sums(self.seconds[node]) + came[:, None] + back[None, :], np.inf)

    def _bandwidth(self, node: int, other: int) -> float:
        return self.inside if node == other else self.between

    def seconds_on(self, nodes: tuple[int, ...]) -> list[Numbers]:
        """Return `stage_seconds` of each stage of a replica on GPUs of these nodes."""
        around = (-1, *nodes, -1)
        return [self.stage_seconds(s, around[s + 1], around[s], around[s + 2]) for s in range(len(nodes))]

    def seconds_of(self, replica: Replica) -> list[float]:
        """Return s of each stage of a replica."""
        ends = [0, *itertools.accumulate(replica.layers)]
        return [float(some[a, b]) for some, a, b in zip(self.seconds_on(replica.nodes), ends, ends[1:], strict=False)]

    def pace(self, seconds: list[float]) -> float:
        """Return s per minibatch of a replica whose stages take so long."""
        return max(*seconds, math.fsum(seconds) / self.wave)

    def price(self, plan: Allocation) -> float:
        """See `Problem.price`."""
        return max(self.pace(self.seconds_of(replica)) for replica in plan) / self.replicas

    def broken(self, plan: Allocation) -> str:
        """See `Problem.broken`."""
        why = self._refused(plan)
        return why and f"these are no replicas: {why}"

    def _refused(self, plan: Allocation) -> str:
        layers = self.seconds.shape[1]
        for number, replica in enumerate(plan):
            if len(replica.nodes) != self.stages or len(replica.layers) != self.stages:
                return f"replica {number} has {len(replica.nodes)} GPUs and {len(replica.layers)} stages, not {self.stages}"
            if min(replica.layers) < 1 or sum(replica.layers) != layers:
                return f"stages of replica {number} have {replica.layers} of {layers} layers"
        used = Counter(node for replica in plan for node in replica.nodes)
        if used != Counter(dict.fromkeys(range(len(self.kinds)), self.gpus)):
            return f"GPUs used of each node: {dict(used)}, and each has {self.gpus}"
        full = [number for number, replica in enumerate(plan) if math.isinf(max(self.seconds_of(replica)))]
        return f"a stage of replica {full[0]} does not fit its GPU" if full else ""

    def every_plan(self) -> Iterator[Allocation]:
        """See `Problem.every_plan`."""
        layers = self.seconds.shape[1]
        for place in _orders(Counter(dict.fromkeys(range(len(self.kinds)), self.gpus))):
            rows = [place[first : first + self.stages] for first in range(0, len(place), self.stages)]
            for chosen in _choices([_splits(layers, self.stages)] * self.replicas):
                yield tuple(Replica(row, split) for row, split in zip(rows, chosen, strict=True))

    def settings(self, plan: Allocation) -> tuple[str, ...]:
        """Return the allocation as settings of its job: GPUs by their ranks, layers of each replica.

        A replica inside a node is laid into one; others lie across nodes stage by stage, so that messages between two of their GPUs in one
        node are priced over the network.
        """
        alone = all(len({*replica.nodes}) == 1 for replica in plan)
        ranks: dict[str, list[int]] = {}
        for number, replica in enumerate(plan):
            for stage, node in enumerate(replica.nodes):
                rank = number * self.stages + stage if alone else stage * len(plan) + number
                ranks.setdefault(self.kinds[node], []).append(rank)
        parts = [f'{{ranks="{shown_numbers(sorted(some))}", gpu="{kind}"}}' for kind, some in ranks.items()]
        splits = ", ".join(str(list(replica.layers)) for replica in plan)
        dealt = f"cluster.parts=[{', '.join(parts)}]"
        if len(plan) == 1:
            return dealt, f"plan.layer_split={splits}"
        order = '["tp", "pp", "dp"]' if alone else '["tp", "dp", "pp"]'
        return dealt, f"plan.replica_layer_splits=[{splits}]", f"plan.rank_order={order}"

    def described(self, plan: Allocation) -> Section:
        """See `Problem.described`: a row per replica."""
        rows = []
        for number, replica in enumerate(plan):
            seconds = self.seconds_of(replica)
            rows.append(
                (
                    str(number),
                    ", ".join(self.kinds[node] for node in replica.nodes),
                    ", ".join(map(str, replica.layers)),
                    ", ".join(show(one, "s") for one in seconds),
                    show(self.pace(seconds), "s"),
                )
            )
        return Section(
            title=f"{self.replicas} replicas of {self.stages} GPUs, {self.wave} minibatches under way in each",
            lines=(f"{1 / self.cost(plan):,.1f} minibatches a second, all at the pace of the slowest",),
            table=Table(headings=("replica", "GPUs", "layers", "stages", "pace"), rows=tuple(rows), left=(1, 2, 3)),
            below=(f"of the job: {set_options(self.settings(plan))}",),
        )

    def to_dict(self, plan: Allocation) -> dict[str, Any]:
        """See `Problem.to_dict`."""
        return {
            "minibatches_per_second": 1 / self.cost(plan),
            "replicas": [
                {
                    "gpus": [self.kinds[node] for node in replica.nodes],
                    "nodes": list(replica.nodes),
                    "layers": list(replica.layers),
                    "stage_seconds": self.seconds_of(replica),
                    "pace_s": self.pace(self.seconds_of(replica)),
                }
                for replica in plan
            ],
            "settings": list(self.settings(plan)),
        }


def _sums(column: Numbers) -> Numbers:
    """[a, b] the sum of a column from a up to b."""
    sums = np.concatenate(([0.0], np.cumsum(column)))
    found: Numbers = sums[None, :] - sums[:, None]
    return found


def _orders(left: Counter[int]) -> Iterator[tuple[int, ...]]:
    """Yield all orders of so many of each, one by one.

    >>> list(_orders(Counter({0: 1, 1: 2})))
    [(0, 1, 1), (1, 0, 1), (1, 1, 0)]
    """
    if not left.total():
        yield ()
    for one in [one for one, count in left.items() if count]:
        for rest in _orders(left - Counter([one])):
            yield (one, *rest)


def _splits(layers: int, stages: int) -> Callable[[], Iterator[tuple[int, ...]]]:
    """Return what yields all ways to cut layers into stages of one or more."""

    def found() -> Iterator[tuple[int, ...]]:
        for cuts in itertools.combinations(range(1, layers), stages - 1):
            yield tuple([b - a for a, b in itertools.pairwise((0, *cuts, layers))])

    return found


def _choices(of_each: list[Callable[[], Iterator[tuple[int, ...]]]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield one of each, in all ways, keeping none of them."""
    if not of_each:
        yield ()
        return
    for one in of_each[0]():
        for rest in _choices(of_each[1:]):
            yield (one, *rest)
