"""What is lost where a job goes out as another program's settings and is read back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from simulator.errors import SimulatorError
from simulator.importers.jobs import load_any_job
from simulator.job import Job
from simulator.lowering import ResolvedPlan, resolve
from simulator.specs import is_path, names
from simulator.specs.written import spec_toml

__all__ = ["lost_on_the_way"]

_PLAIN = (bool, int, float, str, tuple, type(None))


def lost_on_the_way(job: Job, text: str, ending: str, in_code: Sequence[str] = ()) -> list[str]:
    """Return which choices are others when settings are read back for the same model and cluster, as "choice: ours, as read: theirs".

    Nothing where the job's cluster was made by hand and so has neither a name nor a file.

    Args:
        text: the settings.
        ending: of their file, by which they are known: ".sh", ".toml" or ".json".
        in_code: what user code says beside them, as settings of a job.
    """
    if not is_path(job.cluster.given_as) and job.cluster.given_as not in names("clusters"):
        return []
    said = (f"cluster.gpus={job.cluster.world_size}", f"workload.sequence_length={job.workload.sequence_length}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"settings{ending}"
        path.write_text(text, encoding="utf-8")
        model = Path(folder) / "model.toml"
        model.write_text(spec_toml(job.workload.model, "The model of the job."), encoding="utf-8")
        try:
            read = load_any_job(str(path), (*said, *in_code), str(model), job.cluster.given_as)
            theirs = dict(_choices(read))
        except SimulatorError as refusal:
            return [f"they cannot be read back: {refusal}"]
    return [f"{name}: {ours}, as read: {theirs[name]}" for name, ours in _choices(job) if ours != theirs[name]]


def _choices(job: Job) -> Iterator[tuple[str, object]]:
    """What a job and its plan come to, by field; parts that have a name by it."""
    work, plan = job.workload, resolve(job.workload, job.plan, job.cluster.world_size)
    yield from (
        ("precision", work.precision),
        ("optimizer", work.optimizer),
        ("global_batch_size", work.global_batch_size),
    )
    yield from (("recompute", plan.recompute), ("attention", plan.style.attention))
    for field in fields(ResolvedPlan):
        value = getattr(plan, field.name)
        named = getattr(value, "name", value)
        if field.name != "precision" and isinstance(named, _PLAIN):
            yield field.name, named
