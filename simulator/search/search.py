"""search(): from a space to an answer."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.processes import Helpers, processes_of
from simulator.remembered import undisturbed
from simulator.search.answer import Answer
from simulator.search.candidate import OBJECTIVES, Looked, look
from simulator.search.choices import choices_of
from simulator.search.run import Run
from simulator.search.space import Space
from simulator.search.strategies import STRATEGIES
from simulator.search.strategies.exact import Exact
from simulator.specs import files_as_they_are

__all__ = ["search"]

_TRIES = 200


def search(
    space: Space,
    strategy: str = "exact",
    objective: str = "step_time",
    fit_probability: float = 0.9,
    top: int = 10,
    tries: int | None = None,
    seed: int | None = None,
    deadline: float | None = None,
    budget: float | None = None,
    processes: int = 1,
    like: Mapping[str, object] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    partial: bool = False,
) -> Answer:
    """Return the best plans of a space.

    Args:
        space: from `make_space`.
        strategy: a name of `STRATEGIES`.
        objective: one of `OBJECTIVES`.
        fit_probability: with which a plan must fit, 0 to 1; 0 = by the point estimate.
        top: how many of the best are wanted, and proven by an exact strategy.
        tries, seed: of a strategy that draws.
        deadline: seconds after which to stop.
        budget: seconds of processor time after which to stop.
        processes: that simulate; the answer does not depend on it.
        like: field -> value of a plan; among ties the nearest to it is chosen.
        tell: called with a line about once a second.
        partial: whether Ctrl-C ends the search with what is known so far; else nobody gets half an answer for a whole one.

    Raises:
        SpecError: an argument is out of range, or means nothing to the strategy.
        KeyboardInterrupt: of Ctrl-C, unless `partial`.
        UnknownNameError: no such strategy.
    """
    method = STRATEGIES.get(strategy)
    if objective not in OBJECTIVES:
        raise SpecError(f"an objective is one of {', '.join(OBJECTIVES)}, got {objective[:40]!r}")
    if not 0 <= fit_probability <= 1:
        raise SpecError(f"a probability to fit lies between 0 (the point estimate) and 1, got {fit_probability:g}")
    for name, count in (("top", top), ("processes", processes)):
        if count < 1:
            raise SpecError(f"{name} is 1 or more, got {count}")
    if (tries is not None or seed is not None) and not method.draws:
        raise SpecError(
            f"strategy {method.name!r} draws nothing, so it takes no tries and no seed. Way out: --strategy random"
        )
    if tries is not None and tries < 1:
        raise SpecError(f"tries are 1 or more, got {tries}")
    if objective == "cost":
        _check_prices(space)
    space = method.prepared(space)
    started = time.monotonic()
    pool: Helpers | nullcontext[None] = processes_of(processes) if processes > 1 else nullcontext()
    run = Run(
        space=space,
        objective=objective,
        probability=fit_probability,
        top=top,
        until=None if deadline is None else started + deadline,
        budget=budget,
        whole=method.exact,
        tell=tell,
    )
    stopped = False
    with pool as executor, undisturbed(), files_as_they_are():
        run.executor = executor
        try:
            method.search(run, tries or _TRIES, seed or 0)
        except KeyboardInterrupt:
            stopped = True
            if isinstance(pool, Helpers):
                pool.leave()
            if not partial:
                raise
    if not run.best and run.large:
        _look_for_nearest(run, soon=stopped)
    gap = 0.0 if run.complete and method.exact else _gap(run)
    return Answer(
        space=space,
        strategy=method.name,
        proves=method.proves if method.exact else Exact.proves,
        objective=objective,
        probability=fit_probability,
        ledger=run.ledger,
        candidates=run.candidates,
        best=tuple(run.best),
        choices=choices_of(run, lambda one: one.value(objective)),
        proven=gap == 0.0,
        gap=gap,
        seconds=time.monotonic() - started,
        top=top,
        like=dict(like or {}),
        stopped=stopped,
    )


def _look_for_nearest(run: Run, soon: bool) -> None:
    """Simulate what may be nearest to fit, so that it can be said what is lacking.

    Plans that were found too large together have one bound in common: the least is asked for its own, and simulated once it is the least
    with that.

    Args:
        soon: whether any will do.
    """
    numbers, looked, looks = run.large.numbers, dict[int, Looked](), 0
    heap = list(zip(run.ledger.least(numbers).tolist(), numbers.tolist(), strict=True))
    heapq.heapify(heap)
    nearest = min((one.peak_memory / one.capacity for one in run.candidates.values()), default=math.inf)
    while heap and heap[0][0] < nearest and (nearest == math.inf or (looks < _NEAREST and not run.over and not soon)):
        full, number = heapq.heappop(heap)
        if number in looked:
            found = run.simulate([looked[number]])
            nearest = min([nearest, *(one.peak_memory / one.capacity for one in found)])
            continue
        looks += 1
        one = look(run.space, run.space.at(number), "memory")
        if one.job is not None:  # others may be refused: nobody asked before whether they may be
            looked[number] = replace(one, objective=run.objective)
            heapq.heappush(heap, (max(full, one.full), number))


_NEAREST = 4000
"""Plans that are asked for their own bound where none fits: two seconds or so."""


def _gap(run: Run) -> float | None:
    """How much better an open plan may be, as a part of the best; None where nothing bounds it."""
    bound = run.open_bound
    if bound is None:  # whatever drew them, every plan was refused, too large or simulated
        return 0.0
    if not run.best or bound <= 0:
        return None
    return max(0.0, 1.0 - bound / run.best[0].value(run.objective))


def _check_prices(space: Space) -> None:
    """Dollars of one cluster are not beside GPU-seconds of another."""
    names = [str(name) for name in space.ranges.get("cluster.name", ())]
    if space.job.cluster.changes.price_per_gpu_hour is not None:
        return
    told = {name: load_cluster(name).price_per_gpu_hour is not None for name in names}
    if any(told.values()) and not all(told.values()):
        without = ", ".join(name for name in names if not told[name])
        raise SpecError(
            f"the least cost needs a price of every cluster or of none, but {without} names none. Way out: price_per_gpu_hour in a cluster "
            "file of your own (docs/data_files.md), one for all by --set 'cluster.price_per_gpu_hour=2 $/h', or another --objective"
        )
