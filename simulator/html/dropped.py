"""A file that was dropped on the what-if page: a job file, or a file of another program, beside what stands on the page.

    name, text, controls of the page --read_dropped--> data of a job file

A plan that the file describes counts whole; what it does not say of model, cluster, sequence and batch is as on the page.  A file that
names no plan keeps the page's, where that plan can be, and has a good one by a quick search where it cannot.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from simulator.errors import SimulatorError, SpecError
from simulator.html.controls import Controls, job_of
from simulator.importers.effects import resolved
from simulator.importers.imported import Findings
from simulator.importers.jobs import import_files, is_foreign, job_data
from simulator.job import make_job
from simulator.lowering import resolve
from simulator.specs.toml_text import parse_toml
from simulator.studies.other_plan import with_a_plan
from simulator.workload.model import LONGEST_UNASKED

__all__ = ["read_dropped"]

_DEGREES = ("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel")


def read_dropped(name: str, text: str, page: Controls | None = None) -> dict[str, object]:
    """Return the data of the job that a dropped file describes.

    Args:
        name: of the file, without its folder: a job file, or a file of another program (`dtsim import`).
        text: what is in it.
        page: what stands on the page; None = its start.

    Raises:
        SpecError: it is neither, or says nothing that a page has.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        try:
            path.write_text(text, encoding="utf-8")
            if not is_foreign(str(path)):
                return parse_toml(text, name)
            return _job(import_files([path]), name, page or Controls())
        except (OSError, ValueError):
            raise SpecError(f"{name[:100]!r} is no name of a file") from None
        except SpecError as error:
            raise SpecError(str(error).replace(str(path), name)) from None


def _job(imported: Findings, name: str, page: Controls) -> dict[str, Any]:
    """The data of a job file, completed from the page."""
    if imported.files:
        raise SpecError(
            f"{name} describes a machine, and a page knows clusters by name. Way out: dtsim import {name} -o job.toml writes "
            "files of it; start dtsim serve in that folder"
        )
    if not any(imported.tables.get(table) for table in ("workload", "model", "plan")):
        raise SpecError(
            f"{name} says nothing of model, plan or batch. Way out: dtsim import {name} shows what it says; a log or trace "
            f"belongs to dtsim run JOB --measured {name}"
        )
    if str(imported.tables.get("plan", {}).get("schedule", "")).endswith(name):
        raise SpecError(
            f"{name} is an order of your own, and a page holds no files. Way out: dtsim schedule {name}, or "
            f"dtsim run JOB --set plan.schedule={name}"
        )
    gpus = _gpus(imported, page)
    found = job_data(resolved(imported, gpus), Path(name).stem[:100] or "what if")
    data: dict[str, Any] = {
        "name": found["name"],
        "workload": dict(found.get("workload", {})),
        "plan": found.get("plan", {}),
    }
    data["cluster"] = {"name": page.cluster, **found.get("cluster", {}), "gpus": gpus}
    model = found.get("model") or (None if "model" in data["workload"] else page.table)
    if model:
        data["model"] = model
        length = model.get("sequence_length")
        own = (
            min(int(length), LONGEST_UNASKED)
            if isinstance(length, int) and found.get("model")
            else page.sequence_length
        )
        data["workload"].setdefault("sequence_length", own)
    else:
        data["workload"].setdefault("model", page.model)
        data["workload"].setdefault("sequence_length", page.sequence_length)
    data["workload"].setdefault("precision", page.precision)
    return _planned(data, name, page)


def _gpus(imported: Findings, page: Controls) -> int:
    """GPUs that the file says, else those of its plan's degrees where it has replicas, else the page's."""
    plan = imported.tables.get("plan", {})
    told = imported.tables.get("cluster", {}).get("gpus")
    if told is None and "data_parallel" in plan:
        told = 1
        for degree in _DEGREES:
            told *= plan.get(degree, 1)
    return int(told or page.gpus)


def _planned(data: dict[str, Any], name: str, page: Controls) -> dict[str, Any]:
    """The data with a plan, and with a batch where the file says none."""
    plan = data["plan"]
    named = set(plan) - {"framework"}
    if not named:
        kept = {**job_of(page)["plan"], **plan} if page.gpus == data["cluster"]["gpus"] else plan
        if _can_be({**data, "plan": kept}, name):
            plan = data["plan"] = kept
    if "global_batch_size" not in data["workload"]:
        inner = [plan.get(degree, 1) for degree in _DEGREES[:3]]
        replicas = max(1, data["cluster"]["gpus"] // (inner[0] * inner[1] * inner[2]))
        data["workload"]["global_batch_size"] = page.microbatches * plan.get("microbatch_size", 1) * replicas
    if not named and not set(plan) - {"framework"}:
        chosen = with_a_plan(make_job(data, name, "dropped")).plan
        data["plan"] = chosen.model_dump(exclude_unset=True, exclude_none=True)
    return data


def _can_be(data: dict[str, Any], name: str) -> bool:
    try:
        job = make_job(data, name, "dropped")
        resolve(job.workload, job.plan, job.cluster.world_size, name)
    except SimulatorError:
        return False
    return True
