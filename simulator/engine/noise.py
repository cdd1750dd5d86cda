"""Noise: how long every row takes in one particular step, for every replica.

    factors of a sample = one array per cause of noise, each from random numbers of its own
    seconds of a row    = kernels x gpus x compute x lengths + collectives inside it x their factor + pauses

Each cause draws from a generator seeded by (seed, sample, cause): turning one off leaves the others' numbers as they were, and
the same seed gives the same step.  Ranks in step wait for each other, so a folded rank gets the slowest of its members: the
quantile at u^(1/members) has just that distribution.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import SpecError
from simulator.hardware.jitter import CAUSES, Jitter, quantile
from simulator.program.prices import ACCOUNTS, BLOCKED, Prices
from simulator.program.program import COLLECTIVE, COMPUTE, COPY, TRANSFER, Program
from simulator.program.replicas import ReplicaMesh
from simulator.units import show

__all__ = ["Draws", "NoisyStep", "StepTimes", "draw", "no_effect", "step_times"]

Floats = NDArray[np.float64]
Factors = NDArray[np.float32]
Ints = NDArray[np.int64]
_UPDATE = 4
_CELLS = 1_000_000
"""Rows times replicas that are worked on at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyStep:
    """A folded program, its replicas, and what each row takes without noise.

    Args:
        program: folded.
        mesh: its replicas.
        class_of: [replicas] the class whose prices a replica has.
        prices: the base of `item_of`.
        item_of: [classes, rows] item of the prices that a row of that class runs.
        stretch: [classes, rows] how many times longer a row took than its price, where interference is frozen; None else.
    """

    program: Program
    mesh: ReplicaMesh
    class_of: Ints
    prices: Prices
    item_of: Ints
    stretch: Floats | None = None

    def priced(self, column: Floats, rows: Ints) -> Floats:
        """Return seconds of a column of the prices as [rows, replicas], or [rows, 1] when all replicas are priced alike."""
        values = column[self.item_of[:, rows]]
        if self.stretch is not None:
            values = values * self.stretch[:, rows]
        return values[self.class_of].T if len(values) > 1 else values.T

    @functools.cached_property
    def compute(self) -> Ints:
        """Rows that compute."""
        return np.flatnonzero(self.program.kind == COMPUTE)

    @functools.cached_property
    def transfers(self) -> Ints:
        """Rows that send between pipeline ranks."""
        return np.flatnonzero(self.program.kind == TRANSFER)

    @functools.cached_property
    def links(self) -> tuple[Ints, ...]:
        """Collectives: those of each replica by itself, then those of each kind of meeting."""
        other = self.program.kind == COLLECTIVE
        return tuple(np.flatnonzero(other & (self.mesh.meeting == kind)) for kind in range(-1, len(self.mesh.groups)))

    @functools.cached_property
    def copies(self) -> Ints:
        """Rows over the host link or in the host's memory; nothing varies them."""
        return np.flatnonzero(self.program.kind == COPY)

    @functools.cached_property
    def exposed(self) -> Floats:
        """Per item of the prices: seconds of collectives inside a segment."""
        out: Floats = self.prices.account[:, [ACCOUNTS.index(name) for name in ("tp", "cp", "ep", "dp")]].sum(axis=1)
        return out

    @functools.cached_property
    def attention(self) -> Floats:
        """Per item of the prices: seconds of attention kernels."""
        mine = [q for q, which in enumerate(self.prices.classes) if which.kind == "attention"]
        out: Floats = self.prices.class_share[:, mine].sum(axis=1)
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """The factors of one step, by cause; a cause that is not described is missing.

    Args:
        factors: gpus [pipeline ranks, replicas], compute and inside (collectives inside segments) [compute rows, replicas],
            messages [transfers, replicas], lengths [microbatches, replicas].
        links: of collectives: per entry of `NoisyStep.links`, [rows, replicas or groups].
        pauses: (compute row by place, replica, seconds) of every pause, in the order of rows.
    """

    factors: dict[str, Factors]
    links: tuple[Factors, ...] = ()
    pauses: tuple[Ints, Ints, Floats] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """Seconds of one step: occupancy [rows, replicas]; latency [rows that have one, replicas or 1], and [rows] its index, -1
    for none."""

    occupancy: Floats
    latency: Floats
    latency_of: NDArray[np.int32]


def no_effect(step: NoisyStep, jitter: Jitter) -> tuple[str, ...]:
    """Return the causes that are described but act on nothing in this program."""
    found = set()
    if not len(step.transfers):
        found.add("messages")
    seconds = [step.prices.occupancy[step.item_of[:, rows]] for rows in step.links]
    if not any(s.any() for s in seconds) and not step.exposed[step.item_of[:, step.compute]].any():
        found.add("collectives")
    return tuple(cause for cause in jitter.causes if cause in found)


def draw(step: NoisyStep, jitter: Jitter, seed: int, sample: int) -> Draws:
    """Return the factors of one step."""
    program, count, members = step.program, step.mesh.count, step.mesh.members
    factors: dict[str, Factors] = {}
    links: tuple[Factors, ...] = ()

    def some(cause: str, rows: int, columns: int, generator: np.random.Generator, slowest_of: int = 1) -> Factors:
        out = np.empty((rows, columns), np.float32)
        for _, place in _blocks(np.arange(rows), columns):
            uniform = generator.random(out[place].shape, np.float32)
            if slowest_of > 1:
                np.power(uniform, np.float32(1.0 / slowest_of), out=uniform)
            out[place] = quantile(getattr(jitter, cause), uniform, mean_one=cause == "lengths")
        return out

    for cause in jitter.causes:
        generator = np.random.default_rng([seed, sample, CAUSES.index(cause)])
        if cause == "gpus":
            factors[cause] = some(cause, program.ranks, count, generator, members)
        elif cause == "compute":
            factors[cause] = some(cause, len(step.compute), count, generator, members)
        elif cause == "messages":
            factors[cause] = some(cause, len(step.transfers), count, generator)
        elif cause == "lengths":
            factors[cause] = some(cause, int(program.microbatch.max(initial=0)) + 1, count, generator)
        elif cause == "collectives":
            widths = [count, *(int(groups.max()) + 1 for groups in step.mesh.groups)]
            links = tuple(some(cause, len(rows), w, generator) for rows, w in zip(step.links, widths, strict=True))
            if step.exposed[step.item_of[:, step.compute]].any():
                factors["inside"] = some(cause, len(step.compute), count, generator)
    pauses = _pauses(step, jitter, seed, sample) if "pauses" in jitter.causes else None
    return Draws(factors=factors, links=links, pauses=pauses)


_MOST_PAUSES = 10_000_000
"""Pauses of a step that are drawn one by one."""


def _pauses(step: NoisyStep, jitter: Jitter, seed: int, sample: int) -> tuple[Ints, Ints, Floats]:
    """Pauses come at random while a rank computes: a Poisson process for each of its members.

    Raises:
        SpecError: more of them than anybody would draw.
    """
    generator = np.random.default_rng([seed, sample, CAUSES.index("pauses")])
    until = np.cumsum(step.prices.occupancy[step.item_of[:, step.compute]], axis=1)
    total = until[:, -1] if until.shape[1] else np.zeros(len(until))
    over = np.cumsum(total[step.class_of])
    expected = float(over[-1]) * (step.mesh.members / (jitter.pause_every or np.inf))
    if expected > _MOST_PAUSES:
        raise SpecError(
            f"jitter.pause_every = {show(jitter.pause_every or 0.0, 's')} makes {expected:.2g} pauses of GPUs in a step, more than the "
            f"{_MOST_PAUSES:,} that are drawn. Way out: a longer pause_every, or jitter.compute for what happens all the time"
        )
    number = int(generator.poisson(expected))
    at = generator.random(number) * over[-1]
    replica = np.minimum(np.searchsorted(over, at, side="right"), len(over) - 1)
    own = step.class_of[replica]
    inside = at - (over[replica] - total[own])
    place = np.empty(number, np.int64)
    turn = np.argsort(own, kind="stable")
    for some in np.split(turn, np.flatnonzero(np.diff(own[turn])) + 1):
        place[some] = np.searchsorted(until[own[some[:1]]].reshape(-1), inside[some], side="right")
    rows = np.minimum(place, len(step.compute) - 1)
    order = np.argsort(rows, kind="stable")
    return rows[order], replica[order].astype(np.int64), np.full(number, jitter.pause or 0.0)


def step_times(step: NoisyStep, draws: Draws, off: Collection[str] = ()) -> StepTimes:
    """Return the seconds of all rows for all replicas, some causes turned off."""
    prices, count = step.prices, step.mesh.count
    factors = {name: f for name, f in draws.factors.items() if ("collectives" if name == "inside" else name) not in off}
    occupancy = np.empty((step.program.size, count))
    if {"gpus", "compute", "lengths", "inside"} & set(factors):
        _compute(step, factors, occupancy)
    else:
        occupancy[step.compute] = step.priced(prices.occupancy, step.compute)
    if draws.pauses is not None and "pauses" not in off:
        at, replica, seconds = draws.pauses
        np.add.at(occupancy, (step.compute[at], replica), seconds)
    for kind, rows in enumerate(step.links):
        noisy = step.priced(prices.occupancy, rows)
        if draws.links and "collectives" not in off:
            own = draws.links[kind]
            noisy = noisy * (own if kind == 0 or own.shape[1] == 1 else own[:, step.mesh.groups[kind - 1]])
        occupancy[rows] = noisy
    occupancy[step.copies] = step.priced(prices.occupancy, step.copies)
    for rows, place in _blocks(step.transfers, count):
        moved = step.priced(prices.occupancy, rows)
        if "lengths" in factors:
            moved = moved * factors["lengths"][np.maximum(step.program.microbatch[rows], 0)]
        occupancy[rows] = moved * factors["messages"][place] if "messages" in factors else moved
    late = np.flatnonzero((prices.latency[step.item_of] > 0.0).any(axis=0))
    latency = np.ascontiguousarray(step.priced(prices.latency, late))
    if "messages" in factors:
        latency = np.array(np.broadcast_to(latency, (len(late), count)))
        sent = np.flatnonzero(step.program.kind[late] == TRANSFER)
        latency[sent] *= factors["messages"][np.searchsorted(step.transfers, late[sent])]
    latency_of = np.full(step.program.size, -1, np.int32)
    latency_of[late] = np.arange(len(late))
    return StepTimes(occupancy=occupancy, latency=latency, latency_of=latency_of)


def _blocks(rows: Ints, count: int) -> Iterator[tuple[Ints, slice]]:
    """Some rows at a time, and their places: what is worked on stays small."""
    size = max(1, _CELLS // count)
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size], slice(begin, begin + size)


def _compute(step: NoisyStep, factors: dict[str, Factors], occupancy: Floats) -> None:
    """Fill the compute rows of `occupancy`: kernels, what they hide of the host, and what is exposed of collectives."""
    from simulator.engine.noise_kernel import noisy_compute

    rows, program, items = step.compute, step.program, step.item_of[:, step.compute]
    stretch = 1.0 if step.stretch is None else step.stretch[:, rows]
    total = step.prices.occupancy[items] * stretch
    waiting = step.prices.account[:, ACCOUNTS.index("host")][items] * stretch
    communication = step.exposed[items] * stretch
    kernels = np.maximum(total - communication - waiting, 0.0)
    attention = step.attention[items] * stretch
    square = np.minimum(np.divide(attention, kernels, out=np.zeros_like(kernels), where=kernels > 0), 1.0)
    blocked = np.array([name == BLOCKED for name in step.prices.model])
    noise: Any = noisy_compute
    noise(
        rows,
        step.class_of,
        *(np.ascontiguousarray(a, np.float64) for a in (kernels, waiting, communication, square)),
        (program.action[rows] == _UPDATE) | blocked[items[0]],
        program.rank[rows],
        program.microbatch[rows],
        *(factors.get(name, _NONE) for name in ("gpus", "compute", "lengths", "inside")),
        occupancy,
    )


_NONE = np.zeros((0, 0), np.float32)
