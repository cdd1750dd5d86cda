"""What every search strategy must keep, ours and other people's: true figures, no more tries than asked for, and what it says it proves.

`SearchContract(strategy).check_all()` raises an AssertionError that names the broken promise.  Spaces are small; all their plans are
simulated, by the grid.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

from simulator.job import job_from_names
from simulator.search.answer import Answer
from simulator.search.search import search
from simulator.search.space import Space, make_space, read_ranges
from simulator.search.strategies import STRATEGIES
from simulator.search.strategies.base import Strategy
from simulator.testing.member_contract import MemberContract

__all__ = ["SearchContract", "small_spaces", "trying"]

_TRIES = 8
_SPACES = (
    ("gpt3_1_3b", ("tensor_parallel=1,2,4", "microbatch_size=1,2", "zero_stage=0,1", "recompute=none,full")),
    ("llama3_8b", ("tensor_parallel=1,2", "pipeline_parallel=1,2", "zero_stage=0,3", "recompute=none,full")),
)
"""Model and what is searched over, on eight H100: of the second most plans do not fit."""


@functools.lru_cache(maxsize=1)
def small_spaces() -> tuple[Space, ...]:
    """Return spaces of which all plans are tried in a second."""
    jobs = [job_from_names(name, "h100_x8", ["workload.global_batch_size=32"]) for name, _ in _SPACES]
    return tuple(make_space(job, read_ranges(ranges), {}) for job, (_, ranges) in zip(jobs, _SPACES, strict=True))


def trying(strategy: Strategy) -> AbstractContextManager[None]:
    """A strategy that is not saved in its family's folder is known by its name inside."""
    return STRATEGIES.trying(strategy)


class SearchContract(MemberContract[Strategy]):
    """The promises of one strategy."""

    what = "search strategy"

    def check_all(self) -> None:
        """Check every promise below on small spaces.

        Raises:
            AssertionError: one is broken.
        """
        self.check_identity()
        for space in small_spaces():
            self.check(space)

    def check_identity(self) -> None:
        """Check that the name is the file's, and that it says its source and what it proves.

        Raises:
            AssertionError: one is missing or wrong.
        """
        self.check_named()
        self._require(bool(getattr(self.member, "proves", "")), "it says what it proves")

    def check(self, space: Space) -> None:
        """Check the answer to one space against all its plans, those included that the strategy adds.

        Raises:
            AssertionError: it finds nothing, exceeds its tries, says what is not so, or proves what is not the best.
        """
        whole = search(self.member.prepared(space), "grid", top=1).best
        with trying(self.member):
            found, again = self._answer(space), self._answer(space)
        where = f"{space.job.name}: "
        self._require(bool(found.best), where + "it finds a plan that fits, where there are some")
        best, least = found.best[0], whole[0].step_time
        said = [one.step_time for one in found.best]
        self._require(said == sorted(said), where + f"the best comes first: {said}")
        self._require(
            best.step_time >= least, where + f"its best, {best.step_time} s, is no better than the best, {least} s"
        )
        if found.proven:
            self._require(best.step_time == least, where + f"it proves {best.step_time} s the best, which is {least} s")
        if self.member.exact:
            self._require(found.proven, where + "it ends with the proof that it promises")
        else:
            tried = len(found.candidates)
            self._require(
                tried <= _TRIES + 1, where + f"it simulates at most {_TRIES} plans and one to begin with, not {tried}"
            )
        same = [one.point.number for one in again.best] == [one.point.number for one in found.best]
        self._require(same, where + "the same seed gives the same answer")

    def _answer(self, space: Space) -> Answer:
        draws = self.member.draws
        return search(space, self.member.name, tries=_TRIES if draws else None, seed=1 if draws else None)
