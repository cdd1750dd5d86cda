"""Variants of a job: every combination of some settings, each a job of its own or the reason why it cannot be read.

What is compared does the same work on the same number of GPUs unless the settings say otherwise: where a degree or the cluster
changes, the replicas are what is left of the world, and the global batch stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from simulator.aliases import renamed
from simulator.errors import SimulatorError, SpecError
from simulator.importers.jobs import load_any_job
from simulator.job import Job, check_keys
from simulator.schedules import SCHEDULES
from simulator.schedules.own_code import is_code_file
from simulator.schedules.own_schedule import is_order_file
from simulator.studies.changes import Change, changed
from simulator.studies.sizes import MOST_VARIANTS

__all__ = ["AS_IT_IS", "SHORT_KEYS", "VariantLoader", "named", "variants"]

AS_IT_IS = "as it is"
"""The name of a variant without settings."""
SHORT_KEYS = {"cluster": "cluster.name", "gpus": "cluster.gpus", "model": "workload.model", "nodes": "cluster.nodes"}
"""What may be written for a longer key."""
_MOVES = {
    "plan.tensor_parallel",
    "plan.context_parallel",
    "plan.pipeline_parallel",
    "cluster.name",
    "cluster.gpus",
    "cluster.nodes",
    "cluster.node",
}
"""Settings after which the replicas are counted anew."""


def variants(
    schedules: Sequence[str], stages: Sequence[int], settings: Sequence[str], most: int = MOST_VARIANTS
) -> list[tuple[str, ...]]:
    """Return the settings of every variant: all combinations of what is compared.

    Args:
        schedules: names for plan.schedule.
        stages: values for plan.zero_stage.
        settings: `table.key=a,b,c`; one value alone is fixed for all.
        most: the largest number of combinations.

    Raises:
        SpecError: a setting is malformed, or there are too many combinations.
        UnknownNameError: no job has a key of this name, or no schedule has one of these.

    >>> variants(["gpipe"], [0, 1], ["cluster=dgx_h100"])[1]
    ('plan.schedule=gpipe', 'plan.zero_stage=1', 'cluster.name=dgx_h100')
    """
    if schedules and not any(is_order_file(name) or is_code_file(name) or name in SCHEDULES for name in schedules):
        SCHEDULES.get(schedules[0])
    axes = [[f"plan.schedule={name}" for name in schedules], [f"plan.zero_stage={stage}" for stage in stages]]
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise SpecError(f"--set {setting[:80]!r}: expected TABLE.KEY=VALUE or TABLE.KEY=A,B,C")
        values = [text] if text.strip()[:1] in ("[", '"', "'") else text.split(",")
        key = SHORT_KEYS.get(key.strip()) or renamed(key)
        axes.append([f"{key}={value.strip()}" for value in values])
    axes = [axis for axis in axes if axis]
    check_keys(axis[0] for axis in axes)
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > most:
        raise SpecError(f"a comparison has at most {most} rows, but the lists combine to {count}. Shorten one")
    return list(product(*axes))


def named(asked: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a name for every variant: the settings in which they differ; of one alone all of them.

    >>> named([("plan.zero_stage=0", "plan.p2p=latency"), ("plan.zero_stage=1", "plan.p2p=latency")])
    ['zero_stage 0', 'zero_stage 1']
    """
    alone = len(asked) == 1
    varied = [i for i in range(len(asked[0])) if alone or len({settings[i] for settings in asked}) > 1] if asked else []

    def short(setting: str) -> str:
        return (
            setting.removeprefix("plan.")
            .removeprefix("workload.")
            .replace("cluster.name", "cluster")
            .replace("=", " ", 1)
        )

    return [", ".join(short(settings[i]) for i in varied) or AS_IT_IS for settings in asked]


class VariantLoader:
    """Reads a job with settings; `job` is a name or file, a file of another program, or None with a model and a cluster."""

    def __init__(self, job: str | None, model: str | None = None, cluster: str | None = None) -> None:
        self._read: Callable[[Sequence[str]], Job] = lambda settings: load_any_job(job, settings, model, cluster)
        self.base = self._read(())

    def like(self, asked: Sequence[tuple[str, ...]]) -> Job:
        """Return the job with the settings that all variants share; without them where they cannot be."""
        shared = [setting for setting in asked[0] if all(setting in other for other in asked)] if asked else []
        try:
            return self._read(shared)
        except SimulatorError:
            return self.base

    def load(self, settings: Sequence[str], like: Job) -> Job:
        """Return the job with these settings, for the rest doing the work of `like` on as many GPUs.

        Raises:
            SimulatorError: it cannot be.
        """
        keys = {setting.partition("=")[0].strip() for setting in settings}
        if not keys & _MOVES:
            return self._read(settings)
        pinned = [
            f"{key}={value}"
            for key, value in (
                ("cluster.gpus", like.cluster.world_size),
                ("workload.global_batch_size", like.workload.global_batch_size),
            )
            if key not in keys and not (key == "cluster.gpus" and "cluster.nodes" in keys)
        ]
        found = self._read([*settings, *pinned])
        if "plan.data_parallel" in keys or found.plan.data_parallel is None:
            return found
        return changed(found, Change(name="data_parallel", plan={"data_parallel": None}))
