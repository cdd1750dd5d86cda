"""A job: workload, plan and cluster by name, from one TOML file, from names on the command line, or from both.

    [workload]                      [plan]                     [cluster]
    model = "gpt3_175b"             tensor_parallel = 8        name = "selene"
    sequence_length = 2048          pipeline_parallel = 8      gpus = 1024
    global_batch_size = 1536        ...

Names of other programs for these fields (tensor_model_parallel_size, gbs, seq_length, ...) are taken too: `aliases`.

A job that holds its own model has a table [model] in place of `workload.model`; with both, the table changes the named model.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from simulator.aliases import explained, renamed, renamed_tables
from simulator.errors import PlanError, SimulatorError, SpecError, UnknownNameError
from simulator.hardware.checkpoint import Checkpoint
from simulator.hardware.cluster import Cluster, ClusterChanges, load_cluster
from simulator.hardware.jitter import Jitter
from simulator.hardware.neighbours import Neighbour
from simulator.hardware.parts import Part
from simulator.hardware.power import Power
from simulator.hardware.reliability import Reliability
from simulator.hardware.run_residuals import Unknown
from simulator.hardware.sites import Sites
from simulator.plan.plan import Plan
from simulator.specs import Listed, Spec, find_spec, name_of, named_in, read_toml, together, validate_spec
from simulator.units import Seconds, show
from simulator.workload.model import Model, load_model
from simulator.workload.optimizers import OPTIMIZERS
from simulator.workload.precision import PrecisionName
from simulator.workload.workload import Workload

__all__ = [
    "Job",
    "SearchChoice",
    "apply_settings",
    "check_equal_stages",
    "check_keys",
    "job_from_data",
    "job_from_names",
    "load_job",
    "make_job",
    "parse_value",
    "setting_keys",
]

Tokens = Annotated[int, Field(ge=1, le=10**8)]
Sequences = Annotated[int, Field(ge=1, le=10**8)]


class WorkloadChoice(Spec):
    """The table [workload] of a job file."""

    model: str | None = None
    sequence_length: Tokens | None = None
    global_batch_size: Sequences | None = None
    precision: PrecisionName = "bf16"
    optimizer: str = "adam"
    document_length: Tokens | None = None
    document_spread: Annotated[float, Field(ge=0, le=100)] = 0.0
    target_length: Tokens | None = None


class ClusterChoice(ClusterChanges):
    """The table [cluster] of a job file: which, how large (`gpus` or `nodes`), and what holds in place of its files' words."""

    name: str
    gpus: Annotated[int, Field(ge=1, le=10**7)] | None = None
    nodes: Annotated[int, Field(ge=1, le=10**7)] | None = None
    parts: Annotated[tuple[Part, ...], Listed] = ()
    gpu_spread: Annotated[float, Field(ge=0, le=0.5)] | None = None


class SearchChoice(Spec):
    """The table [search] of a job file: what `dtsim search` is to do where its options do not say; fields and values as its --range
    and --fix take them."""

    range: dict[str, Annotated[list[Any], Field(min_length=1, max_length=1000)]] = Field(default_factory=dict)
    fix: dict[str, Any] = Field(default_factory=dict)
    strategy: str | None = None
    objective: str | None = None
    fit_probability: Annotated[float, Field(ge=0, le=1)] | None = None


class JobFile(Spec):
    """A job file."""

    name: str = "job"
    notes: str | None = None
    aliases: list[str] = Field(default_factory=list)
    sources: dict[str, str] = Field(default_factory=dict)
    workload: WorkloadChoice = WorkloadChoice()
    model: dict[str, Any] | None = None
    plan: Plan = Plan()
    cluster: ClusterChoice
    jitter: Jitter | None = None
    reliability: Reliability | None = None
    checkpoint: Checkpoint | None = None
    power: Power | None = None
    sites: Sites | None = None
    neighbours: Annotated[tuple[Neighbour, ...], Listed, Field(max_length=16)] = ()
    search: SearchChoice | None = None
    measured_step_time: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job with every name looked up.

    Args:
        assumptions: what was filled in because the job did not say, in words.
        measured_step_time: a published step time of this very job [s], if the file has one.
        jitter: what varies from step to step; None = nothing.
        reliability, checkpoint: what fails over weeks, and how state is saved; None = nothing is said.
        power: electricity.
        sites: that train together, each with this job's cluster; None = one.
        neighbours: other jobs on the same cluster (`simulator.studies.neighbours`).
        unknown: what of code, plan and machine was assumed; each widens the band of the step time.
        search: what `dtsim search` is to do; None = its options say all.
        batch_follows: whether the global batch follows from the replicas: what it was read from says sequences per replica.
        replicas_told: whether the job that this one was made of says how many replicas it has.
    """

    name: str
    workload: Workload
    plan: Plan
    cluster: Cluster
    assumptions: tuple[str, ...] = ()
    measured_step_time: float | None = None
    notes: str = ""
    jitter: Jitter | None = None
    reliability: Reliability | None = None
    checkpoint: Checkpoint | None = None
    power: Power = Power()
    sites: Sites | None = None
    neighbours: tuple[Neighbour, ...] = ()
    unknown: frozenset[Unknown] = frozenset()
    search: SearchChoice | None = None
    batch_follows: bool = False
    replicas_told: bool = False


def load_job(name: str | Path, settings: Iterable[str] = ()) -> Job:
    """Return the job of this name (under workloads/jobs) or file, with settings such as "plan.tensor_parallel=8" applied.

    Raises:
        SpecError: the file or a setting is wrong.
        UnknownNameError: no such job, model, cluster, ...
    """
    path = _job_file(name_of(name))
    settings = _read_settings(settings)
    data = read_toml(path)
    if "layers" in data and not {"workload", "cluster"} & data.keys():
        raise _is_model(str(name))
    return make_job(apply_settings(data, settings), str(path), Path(path).stem, _keys(settings))


def _is_model(name: str) -> SpecError:
    return SpecError(f"{name!r} is a model, not a job. Way out: --model {name} --cluster NAME in its place")


def _job_file(name: str) -> Path:
    try:
        return find_spec("jobs", name)
    except UnknownNameError:
        try:
            find_spec("models", name)
        except SimulatorError:
            pass
        else:
            raise _is_model(name) from None
        raise


def job_from_names(model: str, cluster: str, settings: Iterable[str] = ()) -> Job:
    """Return a job for a model and a cluster by name; everything else from settings or by default."""
    data = {"workload": {"model": model}, "cluster": {"name": cluster}}
    settings = _read_settings(settings)
    made = make_job(apply_settings(data, settings), "the command line", f"{model} on {cluster}", _keys(settings))
    named = {"workload.model", "cluster.name"} & {".".join(key) for key in _keys(settings)}
    return replace(made, name=f"{made.workload.model.name} on {made.cluster.name}") if named else made


def job_from_data(data: Mapping[str, Any], place: str, settings: Iterable[str], notes: tuple[str, ...] = ()) -> Job:
    """Return the job of a job file's content, with settings applied.

    Args:
        place: where it was read, for messages.
        notes: what was assumed when it was read.
    """
    settings = _read_settings(settings)
    name = str(data.get("name", "job"))
    made = make_job(apply_settings(data, settings), place, name, _keys(settings))
    return replace(made, assumptions=(*made.assumptions, *notes))


def check_equal_stages(job: Job, what: str) -> None:
    """Refuse a plan whose stages have ranks of their own, where nothing is known of such.

    Raises:
        PlanError: with what is asked and the way out.
    """
    if job.plan.stages:
        ranks = ", ".join(str(stage.ranks) for stage in job.plan.stages)
        raise PlanError(
            f"{what} pipelines whose stages are equally wide, but plan.stages have {ranks} ranks. Way out: leave plan.stages out, or "
            "dtsim run, compare, sweep or explain."
        )


def _keys(settings: Iterable[str]) -> frozenset[tuple[str, ...]]:
    """The keys that settings give."""
    return frozenset(tuple(setting.partition("=")[0].strip().split(".")) for setting in settings)


_TABLES: dict[str, type[Spec]] = {
    "workload": WorkloadChoice,
    "plan": Plan,
    "cluster": ClusterChoice,
    "jitter": Jitter,
    "reliability": Reliability,
    "checkpoint": Checkpoint,
    "power": Power,
    "sites": Sites,
}
"""Tables of a job whose keys are known."""


def setting_keys() -> frozenset[str]:
    """Return what `--set` may change in every job: plan.zero_stage, cluster.gpus, ..."""
    return frozenset(f"{table}.{key}" for table, cls in _TABLES.items() for key in cls.model_fields)


def check_keys(settings: Iterable[str]) -> None:
    """Refuse settings whose key no job has.

    Raises:
        UnknownNameError: the nearest key is offered.
    """
    known = setting_keys()
    whole = set(JobFile.model_fields)
    for key in sorted(_keys(map(renamed, settings))):
        fits = key[0] in whole and (len(key) == 1 or key[0] not in _TABLES)
        if not fits and ".".join(key[:2]) not in known:
            raise UnknownNameError("setting", ".".join(key), known, few=True, meant=explained(key[-1]))


def _read_settings(settings: Iterable[str]) -> tuple[str, ...]:
    """Settings with our own names; a key without its table is refused, with the one that is meant: zero_stage for plan.zero_stage."""
    if isinstance(settings, str):
        raise TypeError(f"settings are a list of texts, not one. Way out: [{settings!r:.80}]")
    read = tuple(map(renamed, settings))
    check_keys(setting for setting in read if "=" in setting[1:] and "." not in setting.partition("=")[0])
    return read


def apply_settings(data: Mapping[str, Any], settings: Iterable[str]) -> dict[str, object]:
    """Return a job's data with `table.key=value` settings applied; values are read as TOML, else as text.  One without a value takes
    out what the job says, so that the default counts.

    >>> apply_settings({"plan": {"zero_stage": 1, "data_parallel": 8}}, ["plan.zero_stage=3", "plan.data_parallel="])
    {'plan': {'zero_stage': 3}}
    """
    out = renamed_tables(copy.deepcopy(dict(data)), "the job")
    for setting in map(renamed, settings):
        path, equals, text = setting.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys) or len(keys) > 4:
            raise SpecError(
                f"--set {setting[:80]!r}: expected TABLE.KEY=VALUE such as plan.tensor_parallel=8; "
                "tables are workload, model, plan, cluster, jitter, reliability, checkpoint, power, sites, neighbours"
            )
        table: Any = out
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise SpecError(f"--set {setting[:80]!r}: {key!r} is a value, not a table of keys")
        if text.strip() or keys[-1] not in table:
            table[keys[-1]] = parse_value(text.strip())
        else:
            del table[keys[-1]]
    return out


def parse_value(text: str) -> Any:
    """Return a value as TOML has it; text that is none stands for itself.

    Raises:
        SpecError: it is too long to be one.

    >>> parse_value("8"), parse_value("[1, 2]"), parse_value("chimera")
    (8, [1, 2], 'chimera')
    """
    if len(text) > 2000:
        raise SpecError(f"--set: a value of {len(text)} characters; expected at most 2000")
    try:
        value = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text
    return value["value"] if set(value) == {"value"} else text


def make_job(data: Mapping[str, Any], place: str, name: str, given: Collection[tuple[str, ...]] = ()) -> Job:
    """Return the job that `data` describes; for messages, `place` is where it was read, all but the keys `given` by --set."""
    data = renamed_tables(data, place)
    held, choice = data.get("model"), data.get("workload", {})
    if isinstance(held, Mapping) and held and isinstance(choice, Mapping) and "model" not in choice:
        together(lambda: validate_spec(data, JobFile, place, given=given), lambda: _own_model(held, place, given))
    spec = validate_spec(data, JobFile, place, given=given)
    assumptions: list[str] = []
    model = _model(spec, place, given)
    OPTIMIZERS.get(spec.workload.optimizer)
    (spec.reliability or Reliability()).resolved()  # of a fleet that nobody knows every verb says so
    cluster = _cluster(spec, place, assumptions, given)
    cluster = replace(cluster, parts=cluster.parts + spec.cluster.parts)
    length = spec.workload.sequence_length
    if length is None:
        length, longest = model.usual_length, model.sequence_length
        if not model.network:
            whose = "the model's" if length == longest else f"the model takes up to {longest}"
            assumptions.append(f"sequence_length = {length} ({whose})")
    batch = spec.workload.global_batch_size
    if batch is None:
        replicas = spec.plan.data_parallel or max(1, cluster.world_size // spec.plan.model_parallel_size)
        batch = (
            replicas
            * spec.plan.microbatch_size
            * (4 * spec.plan.pipeline_parallel if spec.plan.pipeline_parallel > 1 else 1)
        )
        assumptions.append(f"global_batch_size = {batch} (one microbatch per replica, four per pipeline rank)")
    workload = Workload(
        model=model,
        sequence_length=length,
        global_batch_size=batch,
        precision=spec.workload.precision,
        optimizer=spec.workload.optimizer,
        document_length=spec.workload.document_length,
        document_spread=spec.workload.document_spread,
        target_length=spec.workload.target_length or 0,
    )
    if workload.decoder_length and not workload.target_length:
        assumptions.append(f"target_length = {workload.decoder_length} (the model's)")
    jitter = spec.jitter or cluster.spec.jitter
    if jitter is not None and "gpus" in jitter.causes:
        cluster = cluster.with_spread(0.0)
        assumptions.append("cluster.gpu_spread = 0: [jitter] gpus says how GPUs differ")
    elif spec.cluster.gpu_spread is not None:
        cluster = cluster.with_spread(spec.cluster.gpu_spread)
    if jitter is not None:
        assumptions.append(
            "the step time is without the noise of [jitter]; dtsim run has p50, p95 and their causes beside it"
        )
    power = cluster.electricity(spec.power)
    cluster = cluster.under(power)
    if power.cap is not None:
        assumptions.append(
            f"power.cap = {show(power.cap, 'W')}: every GPU keeps below it, at a slower clock where it would draw more"
        )
    if spec.sites is not None:
        assumptions.append("a step is that of one site; dtsim goodput adds the exchange between sites of [sites]")
    unknown: frozenset[Unknown] = frozenset()
    if "framework" not in spec.plan.model_fields_set:
        unknown = frozenset(("code",))
        assumptions.append(f"plan.framework = {spec.plan.framework} (the job names no code)")
    return Job(
        name=spec.name if spec.name != "job" else name,
        workload=workload,
        plan=spec.plan,
        cluster=cluster,
        assumptions=tuple(assumptions),
        measured_step_time=spec.measured_step_time,
        notes=spec.notes or "",
        jitter=jitter,
        reliability=spec.reliability or cluster.spec.reliability,
        checkpoint=spec.checkpoint or cluster.spec.checkpoint,
        power=power,
        sites=spec.sites,
        neighbours=spec.neighbours,
        unknown=unknown,
        search=spec.search,
    )


def _model(spec: JobFile, place: str, given: Collection[tuple[str, ...]]) -> Model:
    """The named model, the one the job holds, or the named one with the job's changes."""
    if spec.workload.model is None and not spec.model:
        raise SpecError(
            f"{place}: a job names a model (workload.model = NAME) or holds one (table [model]): this has neither. "
            "Way out: --set workload.model=NAME (dtsim list models)"
        )
    if spec.workload.model is None:
        return _own_model(spec.model or {}, place, given)
    named = load_model(named_in(place, spec.workload.model))
    if not spec.model:
        return named
    held = named.model_dump(exclude_none=True, exclude={"parameters_published", "aliases"})
    if named.head_dim * named.heads == named.hidden:
        held.pop("head_dim")
    if named.kv_heads == named.heads:
        held.pop("kv_heads")
    return _own_model({**held, "name": f"{named.name} (changed)", **spec.model}, place, given)


def _own_model(table: Mapping[str, Any], place: str, given: Collection[tuple[str, ...]]) -> Model:
    own = [key[1:] for key in given if key[0] == "model"]
    return validate_spec(table, Model, f"{place} [model]", given=own)


def _cluster(spec: JobFile, place: str, assumptions: list[str], given: Collection[tuple[str, ...]]) -> Cluster:
    """The cluster at the size the job asks for, else at what its plan needs, else at its file's own size."""
    choice, name = spec.cluster, named_in(place, spec.cluster.name)
    changes = ClusterChanges.model_construct(**choice.given) if choice.given else None
    over = {("cluster", "gpus"), ("cluster", "nodes")} & set(given)
    if choice.gpus is not None and choice.nodes is not None and len(over) != 1:
        raise SpecError(
            f"cluster.gpus = {choice.gpus} and cluster.nodes = {choice.nodes} both say how large the job is. Leave one out"
        )
    if choice.gpus is not None and over != {("cluster", "nodes")}:  # a setting takes the place of what the file says
        return load_cluster(name, choice.gpus, changes)
    cluster = load_cluster(name, changes=changes)
    if choice.nodes is not None:
        return cluster.resized(choice.nodes * cluster.node.gpus)
    if spec.plan.data_parallel is not None or spec.plan.stages:
        wanted = spec.plan.model_parallel_size * (spec.plan.data_parallel or 1)
        factors = "tensor_parallel x context_parallel x pipeline_parallel x data_parallel"
        if wanted < cluster.world_size and (wanted <= cluster.node.gpus or wanted % cluster.node.gpus == 0):
            assumptions.append(f"cluster.gpus = {wanted} (what the plan needs)")
            return cluster.resized(wanted)
        if wanted > cluster.world_size:
            raise PlanError(
                f"the plan needs {'the ranks of its stages' if spec.plan.stages else factors} = {wanted} GPUs, but cluster "
                f"{cluster.name!r} has {cluster.world_size} by default. Way out: cluster.gpus = {wanted}, or a smaller plan."
            )
        return cluster
    assumptions.append(f"cluster.gpus = {cluster.world_size} (the cluster's own size)")
    return cluster
