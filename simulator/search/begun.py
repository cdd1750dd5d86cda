"""A plan of a space on its way to a step, as far as its bounds need it: a job, every choice made, what lowering begins with.

Its own bound and that of its family ask for the same plan soon after each other, so the latest are kept.
"""

from __future__ import annotations

from simulator.job import Job
from simulator.lowering import begin, resolve_on
from simulator.lowering.steps.state import State
from simulator.remembered import Remembered, kept
from simulator.search.space import Point, Space

__all__ = ["Begun", "begun"]


class Begun:
    """A plan that no rule refuses.

    Attributes:
        job, resolved: the plan as a job, and every choice made.

    Raises:
        SimulatorError: a rule refuses it.
    """

    def __init__(self, space: Space, point: Point) -> None:
        self.job: Job = space.job_of(point)
        cluster = self.job.cluster
        self.resolved = resolve_on(self.job.workload, self.job.plan, cluster)

    @kept
    def state(self) -> State:
        """What the passes of lowering begin with; not a row yet."""
        return begin(self.job.workload, self.resolved)


_BEGUN: Remembered[Begun] = Remembered(2**20, lambda one: 2**14)
"""A state holds little that others do not share."""


def begun(space: Space, point: Point) -> Begun:
    """Return a plan of a space.

    Args:
        point: which; with a number below zero one that is not of the space.

    Raises:
        SimulatorError: a rule refuses it.
    """
    if point.number < 0:
        return Begun(space, point)
    return _BEGUN.get((space, point.number), lambda: Begun(space, point))
