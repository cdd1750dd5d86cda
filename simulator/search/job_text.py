"""A plan that was found, as the text of a job file."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import SimulatorError
from simulator.hardware.power import Power
from simulator.job import Job
from simulator.specs.toml_text import table_lines, toml_value
from simulator.units import WRITTEN
from simulator.workload.model import Model, load_model

__all__ = ["found_text", "job_text", "unwritten"]

_UNWRITTEN = ("jitter", "reliability", "checkpoint", "sites", "neighbours")


def unwritten(job: Job) -> tuple[str, ...]:
    """Return the tables of a job that `job_text` does not write."""
    power = ("[power]",) if job.power != Power() else ()
    return (*power, *(f"[{name}]" for name in _UNWRITTEN if getattr(job, name)))


def job_text(job: Job, found: Sequence[str] = ()) -> str:
    """Return a job as TOML that `load_job` reads back.

    Args:
        found: settings that a search chose; told in a comment.
    """
    work = job.workload
    named = _is_shipped(work.model)
    workload: dict[str, object] = {"model": work.model.name} if named else {}
    workload |= {
        "sequence_length": work.sequence_length,
        "global_batch_size": work.global_batch_size,
        "precision": work.precision,
        "optimizer": work.optimizer,
        "document_length": None if work.document_length is None else int(work.document_length),
        "document_spread": work.document_spread or None,
        "target_length": work.target_length or None,
    }
    spread = job.cluster.spec.gpu_spread
    parts = [part.model_dump(exclude_unset=True, exclude_none=True, context=WRITTEN) for part in job.cluster.own_parts]
    cluster = {
        "name": job.cluster.given_as,
        "gpus": job.cluster.world_size,
        "gpu_spread": spread,
        **job.cluster.changes.model_dump(exclude_none=True, context=WRITTEN),
        "parts": parts or None,
    }
    tables: dict[str, dict[str, object]] = {
        "workload": workload,
        "model": {} if named else work.model.model_dump(exclude_unset=True, exclude={"aliases", "sources"}),
        "plan": job.plan.model_dump(exclude_unset=True, context=WRITTEN),
        "cluster": cluster,
    }
    lines = [f"name = {toml_value(job.name)}"]
    if found:
        lines += ["# Found by dtsim: " + " ".join(found)]
    for name, table in tables.items():
        held = {key: value for key, value in table.items() if value is not None}
        if held:
            lines += table_lines(name, held)
    return "\n".join(lines) + "\n"


def found_text(job: Job, found: Sequence[str]) -> str | None:
    """Return a job that was found as TOML; None where it has tables that are not written."""
    return None if unwritten(job) else job_text(job, found)


def _is_shipped(model: Model) -> bool:
    try:
        return load_model(model.name) == model
    except SimulatorError:
        return False
