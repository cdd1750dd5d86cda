"""Files of other programs as jobs: one or several joined, with a model and a cluster by name where they say none.

files --importers--> Findings, each --join--> Findings --cluster, settings--> Job
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.aliases import renamed
from simulator.errors import SpecError
from simulator.importers import IMPORTERS
from simulator.importers.document import MOST_TREE, Document, open_document
from simulator.importers.effects import resolved
from simulator.importers.imported import Findings, brief
from simulator.job import Job, job_from_data, job_from_names, load_job
from simulator.program.text_words import PROGRAM_BEGINS
from simulator.specs.toml_text import parse_toml

__all__ = ["import_file", "import_files", "is_foreign", "job_data", "load_any_job", "model_of"]

_TOLD = 3
"""Lines that were not understood which a job repeats."""


def is_foreign(name: str) -> bool:
    """Return whether a JOB or model is a file of another program: it exists, and is no job or model file of ours."""
    path = os.path.expanduser(name)
    if not os.path.exists(path) or (os.path.isdir(path) and os.sep not in name and "." not in name):
        return False
    if not name.lower().endswith(".toml"):
        return os.sep in name or "." in name or os.path.isfile(path)
    return _importer_of(open_document(name)) is not None


def import_file(path: str | Path, way: str = "dtsim init writes a job file to fill in") -> Findings:
    """Return what one file says.

    Args:
        way: out of a file that nobody knows.

    Raises:
        SpecError: it cannot be read, or no importer knows it.
    """
    document = open_document(path)
    importer = _importer_of(document)
    if importer is None:
        document.tree  # a broken file says why it is broken  # noqa: B018
        if _is_own(document):
            place = shlex.quote(document.place)
            way = (
                f"dtsim run {place}"
                if document.suffix == ".toml"
                else f"mv {place} {shlex.quote(document.place + '.toml')}"
            )
            raise SpecError(f"{document.place}: is a job of dtsim. Way out: {way}")
        if document.head.startswith(PROGRAM_BEGINS):
            raise SpecError(
                f"{document.place}: is a program: what happens in a step, without a plan to change. Way out: dtsim run "
                f"{shlex.quote(document.place)} --cluster C; for other plans, dtsim import torch FILE.py:BUILD makes a model"
            )
        if document.suffix == ".py":
            way = f"dtsim capture {shlex.quote(document.place)} records a step of your own code"
        raise SpecError(
            f"{document.place}: is of none of the {len(IMPORTERS.members)} formats that are known here (dtsim list importers). "
            f"Way out: {way}"
        )
    found: Findings = importer.read(document)
    return found


def _is_own(document: Document) -> bool:
    """Whether a file is a job of ours, whatever its name ends in."""
    if len(document.data) > MOST_TREE:
        return False
    try:
        data = parse_toml(document.text, document.place)
    except SpecError:
        return False
    return isinstance(data.get("cluster"), dict) and bool({"workload", "model"} & set(data))


def _importer_of(document: Document) -> Any:
    scores = [(one.recognises(document), one) for one in IMPORTERS]
    best = max(scores, key=lambda pair: pair[0])
    return best[1] if best[0] else None


def import_files(paths: Sequence[str | Path], cluster: str | None = None) -> Findings:
    """Return what several files say together; where two differ the first counts, and the other is listed.

    Args:
        cluster: a cluster's name, which counts before any file's.

    Raises:
        SpecError: a file cannot be read.
        UnknownNameError: no such cluster.
    """
    return resolved(_joined(paths, cluster))


def _joined(paths: Sequence[str | Path], cluster: str | None) -> Findings:
    """What the files say, the first that says a field before the others."""
    found = [import_file(path) for path in paths]
    if not found:
        raise SpecError("which file? Give one or more")
    joined, *others = found
    for one in others:
        joined.source_format += f" + {one.source_format}"
        joined.steps = joined.steps or one.steps
        if one.operations is not None:
            joined.operations = one.operations.joined(joined.operations)
        joined.per_replica = joined.per_replica or one.per_replica
        joined.files += one.files
        joined.no_effect += one.no_effect
        joined.not_understood += one.not_understood
        _add(joined, one)
    if cluster is not None:
        from simulator.hardware.cluster import load_cluster

        load_cluster(cluster)
        joined.put("cluster.name", cluster, "--cluster")
    return joined


def _add(joined: Findings, one: Findings) -> None:
    """Add the fields of one more file; what it says counts before what an earlier one only assumed."""
    sure = {read.field: read.place for read in one.read}
    why = {assumed.field: assumed.why for assumed in one.assumed}
    for table, fields in one.tables.items():
        for key, value in fields.items():
            name = f"{table}.{key}"
            known = joined.get(name)
            if known is None or (name in sure and any(a.field == name for a in joined.assumed)):
                if name in why:
                    joined.assume(name, value, why[name])
                else:
                    joined.put(name, value, sure.get(name, "another file"))
            elif known != value and name in sure and key not in ("name", "family"):
                joined.skip(sure[name], f"{name} = {brief(value)} (an earlier file says {brief(known)})")


def job_data(imported: Findings, name: str) -> dict[str, Any]:
    """Return a job file's content: tables workload, model, plan and cluster."""
    data: dict[str, Any] = {"name": name}
    for table in ("workload", "model", "plan", "cluster"):
        if imported.tables.get(table):
            data[table] = dict(imported.tables[table])
    if "model" in data:
        data["model"].setdefault("name", name)
        data["model"].setdefault("family", "imported")
    return data


def model_of(path: str | Path) -> dict[str, Any]:
    """Return the table [model] that a file describes.

    Raises:
        SpecError: it cannot be read, or describes no model.
    """
    table = import_file(path).tables.get("model")
    if not table:
        raise SpecError(f"{path}: says nothing about a model. Way out: a model's name, or a config.json")
    return {"name": Path(path).stem, "family": "imported"} | table


def load_any_job(
    job: str | None, settings: Iterable[str] = (), model: str | None = None, cluster: str | None = None
) -> Job:
    """Return the job that is named, or that files of other programs describe, with settings applied.

    Args:
        job: a job's name or file, a file of another program, or None with a model and a cluster.
        model: a model's name or file; with a file of another program as job, in place of its model.
        cluster: a cluster's name.

    Raises:
        SimulatorError: it cannot be; the message says what is missing.
    """
    settings = tuple(settings)
    if job is None:
        return _job_of_model(str(model), str(cluster), settings)
    if not is_foreign(job):
        return load_job(job, settings)
    changes = dict(map(_change, settings))
    imported = _for_cluster(_joined([job], cluster), changes)
    data = job_data(imported, Path(job).stem)
    if model is not None:
        data.pop("model", None)
        if is_foreign(model):
            data["model"] = model_of(model)
        else:
            data.setdefault("workload", {})["model"] = model
    if not data.get("model") and not data.get("workload", {}).get("model") and "workload.model" not in changes:
        raise SpecError(f"{job}: says nothing about the model. Way out: --model NAME, or --model config.json")
    if "name" not in data.get("cluster", {}) and "cluster.name" not in changes:
        raise SpecError(f"{job}: does not say on which cluster it runs. Way out: --cluster NAME (dtsim list clusters)")
    try:
        made = job_from_data(data, job, settings, (*_left(imported, job), *_notes(imported)))
    except SpecError as error:
        missing = re.search(r"missing keys? ([\w, ]+)", str(error))
        if missing:
            keys = missing.group(1).split(", ")
            named = "--model NAME, or --model config.json"
            each = ", ".join(f"--set model.{key}=VALUE" for key in keys)
            way = named if len(keys) > _FEW else f"{each}, which the file leaves to other files; or --model NAME"
            raise SpecError(f"{error}. Way out: {way}") from None
        raise
    name = "workload.global_batch_size"
    return replace(made, batch_follows=name not in changes and any(a.field == name for a in imported.assumed))


_FEW = 3
"""Missing keys of a model that somebody may set one by one."""
_COUNTS = (
    "cluster.gpus",
    "plan.tensor_parallel",
    "plan.context_parallel",
    "plan.pipeline_parallel",
    "plan.data_parallel",
)
"""Settings from which the replicas follow."""


def _change(setting: str) -> tuple[str, str]:
    key, _, value = renamed(setting).partition("=")
    return key.strip(), value.strip().strip("\"'")


def _for_cluster(findings: Findings, changes: Mapping[str, str]) -> Findings:
    """What was read, completed for the GPUs that the job will have: those set, those of the files, else the cluster's own."""
    for name in _COUNTS:
        if changes.get(name, "").isdigit() and len(changes[name]) < 10:
            findings.assume(name, int(changes[name]), "--set")
    world = findings.get("cluster.gpus")
    named = changes.get("cluster.name") or findings.get("cluster.name")
    if world is None and named is not None:
        from simulator.hardware.cluster import load_cluster

        world = load_cluster(named).world_size
    return resolved(findings, world)


def _job_of_model(model: str, cluster: str, settings: tuple[str, ...]) -> Job:
    if not is_foreign(model):
        return job_from_names(model, cluster, settings)
    imported = import_files([model], cluster)
    table = model_of(model)
    data = {"model": table, "cluster": {"name": cluster}}
    return job_from_data({"name": f"{table['name']} on {cluster}", **data}, model, settings, _left(imported, model))


def _notes(imported: Findings) -> tuple[str, ...]:
    return tuple(f"{a.field} = {brief(a.value)} ({a.why})" for a in imported.assumed)


def _left(imported: Findings, path: str) -> tuple[str, ...]:
    """What was passed over, before the rest: a flag of a plan that is misspelt makes it another plan."""
    lines = imported.not_understood
    if not lines:
        return ()
    told = ", ".join(line.text for line in lines[:_TOLD]) + (", ..." if len(lines) > _TOLD else "")
    count = f"{len(lines)} line{'s' * (len(lines) > 1)}"
    return (f"{count} of {path} not understood and left out: {told}; dtsim import {path} lists what was read",)
