"""Families of plans: the ways to train in parallel that guides tell apart, each a small space of plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.job import Job
from simulator.search.defaults import default_ranges
from simulator.search.space import Space, make_space

__all__ = ["FAMILIES", "Family"]

_TENSOR, _PIPELINE, _STAGE = "plan.tensor_parallel", "plan.pipeline_parallel", "plan.zero_stage"
_SEQUENCE, _CHUNKS = "plan.sequence_parallel", "plan.chunks_per_rank"
_ANY = ("plan.microbatch_size", "plan.recompute", "plan.context_parallel", "plan.expert_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One way to train in parallel.

    Args:
        name: as it is told.
        stages: ZeRO stages.
        tensor, pipeline: whether layers, and the model's depth, are split.
        fixed: what else it does.
        needs: whether it is worth asking for a job.
    """

    name: str
    stages: tuple[int, ...] = (0,)
    tensor: bool = False
    pipeline: bool = False
    fixed: Mapping[str, Any]
    needs: Callable[[Job], bool]

    @property
    def splits(self) -> bool:
        """Whether a copy of the model lies on several GPUs that hold different parts of it."""
        return self.tensor or self.pipeline

    @property
    def competes(self) -> bool:
        """Whether it is one of the ways that a network may make the best: nothing on the host, no copy of the weights cut twice."""
        return not self.fixed and not (self.splits and max(self.stages) > 1)

    def space(self, job: Job) -> Space | None:
        """Return its plans of the default space; None where there are none."""
        if not self.needs(job):
            return None
        offered = default_ranges(job)
        ranges = {field: offered[field] for field in _ANY if field in offered}
        fixed: dict[str, tuple[Any, ...]] = {field: (value,) for field, value in self.fixed.items()}
        fixed |= {"plan.data_parallel": (None,), "plan.schedule": (None,), _SEQUENCE: (self.tensor,)}
        for field, wanted in ((_TENSOR, self.tensor), (_PIPELINE, self.pipeline)):
            degrees = tuple(degree for degree in offered.get(field, ()) if degree > 1)
            if wanted and not degrees:
                return None
            if wanted:
                ranges[field] = degrees
            else:
                fixed[field] = (1,)
        if self.pipeline:
            ranges[_CHUNKS] = (1, 2)
        else:
            fixed[_CHUNKS] = (1,)
        ranges[_STAGE] = self.stages
        return make_space(job, ranges, fixed)


def _always(job: Job) -> bool:
    return True


def _several(job: Job) -> bool:
    return job.cluster.world_size > 1


FAMILIES = (
    Family(name="as it is", fixed={}, needs=lambda job: not _several(job)),
    Family(name="data parallel (DDP)", fixed={}, needs=_several),
    Family(name="ZeRO-1", stages=(1,), fixed={}, needs=_several),
    Family(name="ZeRO-2", stages=(2,), fixed={}, needs=_several),
    Family(name="ZeRO-3 (FSDP)", stages=(3,), fixed={}, needs=_several),
    Family(name="tensor and data", stages=(0, 1), tensor=True, fixed={}, needs=_several),
    Family(name="pipeline and data", stages=(0, 1), pipeline=True, fixed={}, needs=_several),
    Family(name="tensor, pipeline and data (3D)", stages=(0, 1), tensor=True, pipeline=True, fixed={}, needs=_several),
    Family(name="3D with ZeRO-2", stages=(2,), tensor=True, pipeline=True, fixed={}, needs=_several),
    Family(name="3D with ZeRO-3", stages=(3,), tensor=True, pipeline=True, fixed={}, needs=_several),
    Family(name="optimizer on the host", stages=(0, 1, 2), fixed={"plan.optimizer_offload": 1.0}, needs=_always),
    Family(
        name="optimizer and weights on the host",
        stages=(3,),
        fixed={"plan.optimizer_offload": 1.0, "plan.parameter_offload": 1.0},
        needs=_several,
    ),
)
"""In the order in which they are told."""
