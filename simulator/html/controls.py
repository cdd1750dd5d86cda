"""The what-if page's controls: one flat record per setting, the job it stands for, and the way back from a job.

    controls --job_of--> data of a job file --make_job--> Job        a dropped file --controls_of--> controls

A record holds what the page has a control for; all else of a job stands in `more`, one `table.key = value` each, as `--set`
takes it.  Whatever a request says, no name in it may be the path of a file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field

from simulator.errors import PlanError, SpecError
from simulator.job import apply_settings, check_equal_stages, make_job
from simulator.lowering import resolve
from simulator.specs import Listed, Spec, validate_spec
from simulator.specs.toml_text import toml_value

__all__ = [
    "Controls",
    "RequestError",
    "command_line",
    "controls_of",
    "job_of",
    "read_controls",
    "request_of",
]

S = TypeVar("S", bound=Spec)
Size = Annotated[int, Field(ge=1, le=10**7)]
Short = Annotated[str, Field(max_length=100)]
_PATH_LIKE = re.compile(r"[\\/\0]|\.\.|\.(toml|csv|json|py|yaml|yml|txt)$", re.IGNORECASE)
_QUANTITY = re.compile(r"[0-9.]+ ?[A-Za-z$]{1,6}/[sh]")
_TOLD = ("sources", "notes", "aliases", "measured_step_time")
"""Keys of a file that are for people, or about a run that was."""
_MOST_VALUES, _DEEPEST = 2_000, 8


class RequestError(SpecError):
    """A request that no page of ours sends: unknown fields, wrong types, numbers out of range, paths of files."""


class Controls(Spec):
    """What the page has a control for.

    Args:
        model, cluster: names; `table` holds a model of one's own in place of `model`.
        gpus: of the cluster.
        sequence_length: tokens.
        microbatches: per replica and step; the global batch is microbatches x microbatch_size x replicas.
        tensor_parallel, ..., attention: as in a plan; "" = the framework's habit.  What could have no effect (a schedule without a
            pipeline) is left out of the job.
        more: further settings, as `--set` takes them.
        tokens, price: to train on, and $ per GPU-hour; 0 = not asked, and the cluster's own.
    """

    name: Short = "what if"
    model: Short = "llama3_70b"
    table: dict[str, Any] | None = None
    cluster: Short = "dgx_h100"
    gpus: Size = 64
    sequence_length: Size = 8192
    microbatches: Size = 16
    microbatch_size: Size = 1
    precision: Short = "bf16"
    tensor_parallel: Size = 8
    pipeline_parallel: Size = 4
    context_parallel: Size = 1
    expert_parallel: Size = 1
    schedule: Short = "one_f_one_b"
    chunks_per_rank: Size = 1
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    sequence_parallel: bool = True
    recompute: Short = "selective"
    attention: Short = ""
    framework: Short = "megatron_core"
    more: Annotated[tuple[Annotated[str, Field(max_length=300)], ...], Listed, Field(max_length=60)] = ()
    tokens: Annotated[float, Field(ge=0, le=10**18)] = 0.0
    price: Annotated[float, Field(ge=0, le=10**6)] = 0.0

    @property
    def replicas(self) -> int:
        """Data-parallel replicas: what the model's own parallelism leaves of the GPUs.

        Raises:
            PlanError: it does not divide them.
        """
        each = self.tensor_parallel * self.context_parallel * self.pipeline_parallel
        if self.gpus % each:
            raise PlanError(
                f"tensor x context x pipeline parallelism must divide the GPUs, but {self.tensor_parallel} x {self.context_parallel} "
                f"x {self.pipeline_parallel} = {each} does not divide {self.gpus}. "
                f"Way out: other degrees, or {each * max(1, self.gpus // each)} GPUs"
            )
        return self.gpus // each


def read_controls(data: Any) -> Controls:
    """Return the controls that a request holds.

    Raises:
        RequestError: it is none, or a name in it is a path.
    """
    controls = request_of(data, Controls)
    _refuse_paths(controls.model_dump(exclude={"more"}))  # those are looked at in the job they make
    return controls


def request_of(data: Any, cls: type[S]) -> S:
    """Return a request's body as a `cls`.

    Raises:
        RequestError: it is none.
    """
    try:
        return validate_spec(data, cls, "request")
    except SpecError as error:
        raise RequestError(str(error)) from None


def job_of(controls: Controls) -> dict[str, Any]:
    """Return the data of the job file that controls stand for."""
    c, replicas = controls, controls.replicas
    plan: dict[str, object] = {"tensor_parallel": c.tensor_parallel, "pipeline_parallel": c.pipeline_parallel}
    plan |= {"context_parallel": c.context_parallel} if c.context_parallel > 1 else {}
    plan |= {"data_parallel": replicas}
    plan |= {"expert_parallel": c.expert_parallel} if c.expert_parallel > 1 else {}
    plan |= {"microbatch_size": c.microbatch_size}
    if c.pipeline_parallel > 1:
        plan |= {"schedule": c.schedule} if c.schedule else {}
        plan |= {"chunks_per_rank": c.chunks_per_rank} if c.chunks_per_rank > 1 else {}
    plan |= {"zero_stage": c.zero_stage} if replicas * c.context_parallel > 1 else {}
    plan |= {"sequence_parallel": True} if c.sequence_parallel and c.tensor_parallel > 1 else {}
    plan |= {key: value for key in ("recompute", "attention") if (value := getattr(c, key))}
    plan |= {"framework": c.framework}
    workload: dict[str, object] = {} if c.table is not None else {"model": c.model}
    workload |= {
        "sequence_length": c.sequence_length,
        "global_batch_size": c.microbatches * c.microbatch_size * replicas,
        "precision": c.precision,
    }
    data: dict[str, object] = {"name": c.name, "workload": workload}
    data |= {"model": c.table} if c.table is not None else {}
    data |= {"plan": plan, "cluster": {"name": c.cluster, "gpus": c.gpus}}
    whole = apply_settings(data, c.more)
    _refuse_paths(whole)
    return whole


def controls_of(data: Mapping[str, Any], place: str) -> dict[str, object]:
    """Return the controls of a job file's data, every choice that it leaves open made.

    Raises:
        SimulatorError: the job cannot be.
    """
    data = {key: value for key, value in data.items() if key not in _TOLD}
    if isinstance(data.get("model"), Mapping):
        data["model"] = {key: value for key, value in data["model"].items() if key not in _TOLD}
    _refuse_paths(data)
    job = make_job(data, place, "dropped")
    check_equal_stages(job, "this page has controls for")
    resolved = resolve(job.workload, job.plan, job.cluster.world_size, place)
    w, plan = job.workload, job.plan
    out: dict[str, Any] = {
        "name": job.name[:100],
        "table": dict(data["model"]) if "model" in data else None,
        "cluster": job.cluster.name,
        "gpus": job.cluster.world_size,
        "sequence_length": w.sequence_length,
        "microbatches": resolved.microbatches,
        "precision": w.precision,
        "schedule": resolved.schedule.name,
        "recompute": plan.recompute or "",
        "attention": plan.attention or "",
    }
    tables = {table: dict(data.get(table, {})) for table in ("workload", "plan", "cluster")}
    model = tables["workload"].get("model")
    if model is not None and out["table"] is None:
        out["model"] = model
        del tables["workload"]["model"]
    elif model is None:
        out["model"] = str(out["table"].get("name", "own model"))[:100] if out["table"] else ""
    for key in ("tensor_parallel", "context_parallel", "pipeline_parallel", "expert_parallel", "chunks_per_rank"):
        out[key] = getattr(plan, key)
    out |= {key: getattr(plan, key) for key in ("microbatch_size", "zero_stage", "sequence_parallel", "framework")}
    known = set(out) | {"data_parallel", "global_batch_size", "name"}
    more = [(f"{t}.{k}", v) for t, keys in tables.items() for k, v in keys.items() if k not in known]
    more += [(key, data[key]) for key in ("jitter",) if key in data]
    out["more"] = [f"{key} = {toml_value(value)}" for key, value in more]
    read_controls(out)  # a job may be larger than what the page takes
    return out


def command_line(data: Mapping[str, Any]) -> str:
    """Return the command that predicts a job: all by options, or by the file that holds its model."""
    if "model" in data:
        return "dtsim run job.toml"
    words = ["dtsim", "run", "--model", str(data["workload"]["model"]), "--cluster", str(data["cluster"]["name"])]
    for table, key, value in _settings(data):
        words += ["--set", f"{table}.{key}={value if isinstance(value, str) else toml_value(value)}"]
    return shlex.join(words)


def _settings(data: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    for table, keys in data.items():
        if isinstance(keys, Mapping):
            named = {"workload": "model", "cluster": "name"}.get(table)
            yield from ((table, key, value) for key, value in keys.items() if key != named)


def _refuse_paths(data: Any) -> None:
    """A request names models and clusters; a file of this machine it may neither read nor try.

    Raises:
        RequestError: a text looks like a path, or there are too many values, or too deep ones.
    """
    count = 0
    waiting: list[tuple[object, int]] = [(data, 0)]
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > _MOST_VALUES or depth > _DEEPEST:
            raise RequestError(f"a request holds at most {_MOST_VALUES} values, {_DEEPEST} deep")
        if isinstance(value, Mapping):
            waiting += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list | tuple):
            waiting += [(part, depth + 1) for part in value]
        elif isinstance(value, str) and _PATH_LIKE.search(value) and not _QUANTITY.fullmatch(value):
            raise RequestError(
                f"a page takes names, not paths of files: {value[:60]!r}. Way out: drop the file on the page"
            )
