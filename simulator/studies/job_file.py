"""Write a commented job file whose plan runs: what a quick search found (`search/quick.py`).

When no plan fits, the one that lacks least is written, and says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import SimulatorError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.job import Job, make_job
from simulator.report.prediction import Prediction
from simulator.search.quick import proposed
from simulator.simulation import simulate_job
from simulator.specs import validate_spec
from simulator.specs.toml_text import toml_value
from simulator.units import show
from simulator.workload.model import Model, load_model

__all__ = ["JobFileText", "write_job"]

_PER_GPU = 4
_MOST_TOKENS = 2**24
"""Tokens of a step beyond which a GPU gets fewer than `_PER_GPU` sequences."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobFileText:
    """A job file that runs: its text, the job, and what it leads to."""

    text: str
    job: Job
    prediction: Prediction


def write_job(
    name: str,
    model: str | Mapping[str, object],
    cluster: str,
    gpus: int | None = None,
    sequence_length: int | None = None,
) -> JobFileText:
    """Return a commented job file for a model on a cluster.

    Args:
        name: of the job.
        model: a model's name, or a table [model] (see `hugging_face.model_from_config`).
        cluster: a cluster's name.
        gpus: how many GPUs; None = the cluster's own size.
        sequence_length: tokens; None = the model's, at most 8192 (`Model.usual_length`).

    Raises:
        SimulatorError: an unknown name, or no plan that the rules allow.
    """
    hardware = load_cluster(cluster, gpus)
    described = load_model(model) if isinstance(model, str) else validate_spec(model, Model, "table [model]")
    length = sequence_length or described.usual_length
    plan: dict[str, object] = {"framework": "megatron_core"}
    start = _data(name, model, hardware, length, plan)
    answer, found = proposed(make_job(start, "dtsim init", name))
    if found is None:
        raise SimulatorError(next(iter(answer.refused.values()), "no plan can be made for this model and cluster"))
    made = answer.space.job_of(found.point)
    data = _data(name, model, hardware, length, _plan(made, found.point.values) | plan)
    prediction = simulate_job(make_job(data, "dtsim init", name))
    text = _text(data, prediction, described.sequence_length)
    return JobFileText(text=text, job=make_job(tomllib.loads(text), "dtsim init", name), prediction=prediction)


def _plan(job: Job, chosen: Mapping[str, object]) -> dict[str, object]:
    """The plan of a job, as its file says it: the degrees always, else what was chosen and is not off."""
    plan = job.plan
    replicas = job.cluster.world_size // plan.model_parallel_size
    out: dict[str, object] = {
        "tensor_parallel": plan.tensor_parallel,
        "pipeline_parallel": plan.pipeline_parallel,
        "data_parallel": replicas,
        "microbatch_size": plan.microbatch_size,
    }
    if plan.pipeline_parallel > 1:
        out["schedule"] = "one_f_one_b" if plan.chunks_per_rank == 1 else "interleaved_1f1b"
    names = [field.partition(".")[2] for field in chosen]
    kept = {name: getattr(plan, name) for name in names if name not in out}
    alone = {"chunks_per_rank"} if plan.pipeline_parallel == 1 else set()
    return out | {name: value for name, value in kept.items() if _said(name, value) and name not in alone}


def _said(name: str, value: object) -> bool:
    """Whether a choice is written: recompute always, others where they are not off."""
    return name == "recompute" or value is True or value not in (None, 0, 1) or (name == "zero_stage" and bool(value))


def _data(
    name: str, model: str | Mapping[str, Any], cluster: Cluster, length: int, plan: dict[str, object]
) -> dict[str, Any]:
    workload: dict[str, object] = {"model": model} if isinstance(model, str) else {}
    batch = _batch(cluster.world_size, length)
    workload |= {
        "sequence_length": length,
        "global_batch_size": batch,
        "precision": cluster.gpu.usual_precision,
        "optimizer": "adam",
    }
    data = {
        "name": name,
        "workload": workload,
        "plan": plan,
        "cluster": {"name": cluster.given_as, "gpus": cluster.world_size},
    }
    return data if isinstance(model, str) else data | {"model": dict(model)}


def _batch(gpus: int, length: int) -> int:
    """Sequences of a step: a few per GPU, fewer where that would be very many tokens."""
    batch = _PER_GPU * gpus
    while batch * length > _MOST_TOKENS and batch % 2 == 0:
        batch //= 2
    return batch


_COMMENTS = {
    "model": "dtsim list models; or a table [model] in this file",
    "sequence_length": "tokens per sequence",
    "global_batch_size": "sequences per step, over all replicas: a multiple of data_parallel x microbatch_size",
    "precision": "fp32, tf32, fp16, bf16, or what the GPU has of fp8, mxfp8, mxfp4, nvfp4, int8",
    "optimizer": "dtsim list optimizers",
    "tensor_parallel": "GPUs that share every layer; best within a node",
    "pipeline_parallel": "groups of layers, one behind the other",
    "data_parallel": "replicas; tensor x pipeline x data = GPUs",
    "microbatch_size": "sequences that pass through the pipeline together",
    "sequence_parallel": "norms and residuals split over the tensor-parallel group",
    "schedule": "dtsim list schedules",
    "chunks_per_rank": "model chunks per pipeline rank: a smaller bubble, more messages",
    "expert_parallel": "GPUs over which the experts of a layer are dealt out",
    "context_parallel": "GPUs that share the tokens of a sequence",
    "zero_stage": "0: nothing sharded over the replicas, 1: optimizer states, 2: and gradients, 3: and weights (FSDP)",
    "recompute": "none, selective (the attention core) or full (every layer from its input)",
    "framework": "whose habits fill what is not said here; dtsim list frameworks",
    "gpus": "how many of the cluster's GPUs",
}


def _text(data: dict[str, Any], prediction: Prediction, longest: int) -> str:
    comments = dict(_COMMENTS)
    if data["workload"]["sequence_length"] < longest:
        comments["sequence_length"] += f"; the model takes up to {longest:,}"
    verdict = "fits" if prediction.fits else "DOES NOT FIT"
    lines = [
        "# A job: what is trained, how it is split, and on what.  Run it with: dtsim run THIS_FILE",
        "# Written by dtsim init, which chose the plan by a quick search; dtsim search looks at all plans and proves the best.",
        f"# Predicted when written: {show(prediction.step_time, 's')} per step, {show(prediction.peak_memory, 'B')} of "
        f"{show(prediction.capacity, 'B')} on the fullest rank: {verdict}.",
        f"name = {toml_value(data['name'])}",
    ]
    for table in ("workload", "model", "plan", "cluster"):
        if table in data:
            lines += ["", f"[{table}]"]
            for key, value in data[table].items():
                comment = comments.get(key, "") if table != "model" else ""
                comment = "dtsim list clusters" if (table, key) == ("cluster", "name") else comment
                lines.append(f"{key} = {toml_value(value)}" + (f"  # {comment}" if comment else ""))
        if table == "plan":
            lines += [
                '# attention = "flash2"  # in place of the kernel that the framework takes',
                "# overlap_gradients = true  # reduce gradients beside the backward pass",
            ]
    lines += [
        "",
        '# measured_step_time = "2.31 s" above the first table puts a measured step beside the predicted one.',
    ]
    return "\n".join(lines) + "\n"
