"""Options that several verbs take, and how a job is read from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from simulator.cli import completion
from simulator.errors import SpecError

if TYPE_CHECKING:
    from simulator.hardware.cluster import ClusterChanges
    from simulator.job import Job

__all__ = [
    "ClusterOption",
    "EngineOption",
    "ForceOption",
    "JobArgument",
    "JsonOption",
    "ModelOption",
    "SetOption",
    "TableOption",
    "cluster_changes",
    "numbers",
    "quantity",
    "read_job",
    "run_own_schedules",
    "with_plan_of_run",
    "words",
]

JobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A job's name (dtsim list jobs), its TOML file, or a file of another program.",
        autocompletion=completion.jobs,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="M",
        help="A model or its config.json, in place of a JOB; with --cluster.",
        autocompletion=completion.models,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="C", help="A cluster; with --model.", autocompletion=completion.clusters),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.KEY=VALUE",
        help="Change a setting, e.g. plan.tensor_parallel=8; plan.data_parallel= takes it out. Repeatable.",
        autocompletion=completion.settings,
    ),
]
EngineOption = Annotated[str, typer.Option("--engine", help="compiled (quick) or simpy (readable, slow).")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
TableOption = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="OUT.csv|OUT.parquet", help="Write the table, too (docs/frames.md)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def read_job(
    job: str | None, model: str | None, cluster: str | None, settings: Sequence[str] | None, neighbours: bool = False
) -> Job:
    """Return the job that the options name.

    Args:
        neighbours: whether the verb knows what other jobs on the cluster do to this one.

    Raises:
        SpecError: neither a job nor a model with a cluster, or both; neighbours where they would have no effect; or what
            `load_job` raises.
    """
    from simulator.importers.jobs import is_foreign, load_any_job

    run_own_schedules(settings or ())
    if job is not None and (model or cluster) and not is_foreign(job):
        if "." in job and not os.path.exists(os.path.expanduser(job)):
            raise SpecError(f"{job[:200]}: no such file")
        load_any_job(job)  # what is no job at all says so
        raise SpecError(
            "a job is named by JOB or by --model and --cluster, but both were given. To change the model of a job: "
            "--set workload.model=NAME; its cluster: --set cluster.name=NAME"
        )
    if job is None and not (model and cluster):
        raise SpecError("what to run? Give a JOB (dtsim list jobs), or --model M with --cluster C")
    found = load_any_job(job, settings or (), model, cluster)
    if found.neighbours and not neighbours:
        raise SpecError(
            "the table [[neighbours]] counts in dtsim run and dtsim goodput only. Way out: --set neighbours=[], or one of these"
        )
    return found


def with_plan_of_run(the_job: Job, job: str | None, model: str | None, cluster: str | None) -> Job:
    """Return a job with the plan that a quick search finds, where names or another program's files name none.

    Args:
        the_job: as `read_job` read it.
        job, model, cluster: as `read_job` took them. A job file that names no plan means the plain one.
    """
    from simulator.importers.jobs import is_foreign

    if not (model or cluster or (job is not None and is_foreign(job))):
        return the_job
    from simulator.studies.other_plan import with_a_plan

    return with_a_plan(the_job)


def run_own_schedules(asked: Sequence[str]) -> None:
    """Execute the schedules that a user names as code on the command line, saying so: mine.py, or plan.schedule=mine.py,1f1b.

    Raises:
        SpecError: one is no schedule.
    """
    for setting in asked:
        key, equals, value = setting.rpartition("=")
        if equals and key.strip() not in ("plan.schedule", "schedule"):
            continue
        for name in (word.strip().strip("'\"") for word in value.split(",")):
            if name.lower().endswith(".py"):
                from simulator.cli.output import note
                from simulator.schedules.own_code import run_schedule_file

                note(f"running your own code: {name}")
                run_schedule_file(name)


def cluster_changes(settings: Iterable[str]) -> ClusterChanges | None:
    """Return what `--set cluster.KEY=VALUE` changes where there is a cluster and no job.

    Raises:
        SpecError: another setting, or a value that cannot be.
    """
    from simulator.hardware.cluster import ClusterChanges
    from simulator.job import apply_settings
    from simulator.specs import validate_spec

    asked = apply_settings({}, settings)
    made = cast("dict[str, object]", asked.pop("cluster", {}))
    others = [*asked, *(f"cluster.{key}" for key in made if key not in ClusterChanges.model_fields)]
    if others:
        known = ", ".join(f"cluster.{key}" for key in ClusterChanges.model_fields)
        raise SpecError(
            f"--set {', '.join(others)}: without a job, settings change what the cluster is made of: {known}"
        )
    return validate_spec(made, ClusterChanges, "--set cluster") if made else None


def quantity(option: str, text: str, symbol: str) -> float:
    """Return the SI value of an option such as `--size 1GiB`, above zero.

    Raises:
        SpecError: it is no such quantity; the message names the option.
    """
    from simulator.units import parse

    try:
        value = parse(text, symbol)
    except ValueError as error:
        raise SpecError(f"{option}: {error}") from None
    if value <= 0:
        raise SpecError(f"{option}: expected a quantity above zero, got {text!r}")
    return value


def words(option: str, text: str | None) -> list[str]:
    """Return the entries of a list such as `gpipe,1f1b`.

    Raises:
        SpecError: an entry is empty.
    """
    if text is None:
        return []
    found = [word.strip() for word in text.split(",")]
    if not all(found):
        raise SpecError(f"{option}: expected a list such as a,b,c, got {text[:80]!r}")
    return found


def numbers(option: str, text: str | None) -> list[int]:
    """Return the whole numbers of a list such as `0,1,2,3`.

    Raises:
        SpecError: an entry is no whole number.
    """
    found: list[Any] = words(option, text)
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in found):
        raise SpecError(f"{option}: expected whole numbers such as 0,1,2, got {str(text)[:80]!r}")
    return [int(word) for word in found]
