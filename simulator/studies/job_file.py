"""Write a commented job file whose plan runs, tried on the simulator itself.

Plans are tried from the least model parallelism on; of the first few that fit the quickest is taken.  When none fits, the
one that lacks least is written, and says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import SimulatorError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.job import Job, make_job
from simulator.report.prediction import Prediction
from simulator.simulation import simulate_job
from simulator.specs.toml_text import toml_value
from simulator.units import show
from simulator.workload.model import load_model

__all__ = ["JobFileText", "write_job"]

_MOST_SEQUENCE = 8192
_MOST_TRIED = 24
_ENOUGH_FITTING = 4
_STATE_BYTES = 18.0
"""Bytes per parameter of mixed-precision Adam: weight 2, fp32 gradient 4, fp32 weight and two moments 12."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobFileText:
    """A job file that runs: its text, the job, and what it leads to."""

    text: str
    job: Job
    prediction: Prediction


def write_job(
    name: str, model: str | Mapping[str, Any], cluster: str, gpus: int | None = None, sequence_length: int | None = None
) -> JobFileText:
    """Return a commented job file for a model on a cluster.

    Args:
        name: of the job.
        model: a model's name, or a table [model] (see `hugging_face.model_from_config`).
        cluster: a cluster's name.
        gpus: how many GPUs; None = the cluster's own size.
        sequence_length: tokens; None = the model's, at most 8192.

    Raises:
        SimulatorError: an unknown name, or no plan that the rules allow.
    """
    hardware = load_cluster(cluster, gpus)
    layers, parameters, length = _shape(model)
    length = sequence_length or min(length, _MOST_SEQUENCE)
    tried: list[tuple[Prediction, Job, dict[str, Any]]] = []
    refusal: SimulatorError | None = None
    for plan, batch in _plans(hardware, layers, parameters):
        data = _data(name, model, hardware, length, batch, plan)
        try:
            job = make_job(data, "dtsim init", name)
            prediction = simulate_job(job)
        except SimulatorError as error:
            refusal = refusal or error
            continue
        tried.append((prediction, job, data))
        if len(tried) >= _MOST_TRIED or sum(one[0].fits for one in tried) >= _ENOUGH_FITTING:
            break
    if not tried:
        raise refusal or SimulatorError("no plan can be made for this model and cluster")
    prediction, _, data = min(tried, key=lambda one: _order(one[0]))
    text = _text(data, prediction)
    return JobFileText(text=text, job=make_job(tomllib.loads(text), "dtsim init", name), prediction=prediction)


def _order(p: Prediction) -> tuple[bool, float]:
    """What fits first, the quickest per token first; else the least memory."""
    return not p.fits, -p.tokens_per_second_per_gpu if p.fits else p.peak_memory


def _shape(model: str | Mapping[str, Any]) -> tuple[int, int, int]:
    """Layers, parameters and sequence length."""
    if isinstance(model, str):
        known = load_model(model)
    else:
        from simulator.specs import validate_spec
        from simulator.workload.model import Model

        known = validate_spec(model, Model, "table [model]")
    return known.depth, known.parameters, known.sequence_length


def _powers(limit: int) -> Iterator[int]:
    value = 1
    while value <= limit:
        yield value
        value *= 2


def _plans(cluster: Cluster, layers: int, parameters: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (plan, global batch size) from little to much model parallelism; those hopeless by their states come last."""
    world, node = cluster.world_size, cluster.gpus_per_node
    splits = sorted(
        ((t, p) for t in _powers(node) for p in _powers(min(layers, world)) if world % (t * p) == 0),
        key=lambda split: (split[0] * split[1], split[1]),
    )
    hopeless = []
    for t, p in splits:
        replicas = world // (t * p)
        states = parameters / (t * p) * (6.0 + (_STATE_BYTES - 6.0) / replicas)
        offered = [
            (_plan(t, p, replicas, kind), replicas * max(1, 4 * p if p > 1 else 1)) for kind in ("selective", "full")
        ]
        if states > cluster.gpu.memory:
            hopeless += offered
        else:
            yield from offered
    yield from reversed(hopeless)


def _plan(t: int, p: int, replicas: int, recompute: str) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "tensor_parallel": t,
        "pipeline_parallel": p,
        "data_parallel": replicas,
        "microbatch_size": 1,
    }
    if t > 1:
        plan["sequence_parallel"] = True
    if p > 1:
        plan["schedule"] = "one_f_one_b"
    if replicas > 1:
        plan["zero_stage"] = 1
    return plan | {"recompute": recompute, "framework": "megatron_core"}


def _data(
    name: str, model: str | Mapping[str, Any], cluster: Cluster, length: int, batch: int, plan: dict[str, Any]
) -> dict[str, Any]:
    peaks = cluster.gpu.peak_flops
    precision = next((kind for kind in ("bf16", "fp16", "fp32") if kind in peaks), "fp32")
    workload: dict[str, Any] = {"model": model} if isinstance(model, str) else {}
    workload |= {"sequence_length": length, "global_batch_size": batch, "precision": precision, "optimizer": "adam"}
    data = {
        "name": name,
        "workload": workload,
        "plan": plan,
        "cluster": {"name": cluster.name, "gpus": cluster.world_size},
    }
    return data if isinstance(model, str) else data | {"model": dict(model)}


_COMMENTS = {
    "model": "dtsim list models; or a table [model] in this file",
    "sequence_length": "tokens per sequence",
    "global_batch_size": "sequences per step, over all replicas: a multiple of data_parallel x microbatch_size",
    "precision": "fp32, tf32, fp16, bf16, or what the GPU has of fp8, mxfp8, nvfp4",
    "optimizer": "dtsim list optimizers",
    "tensor_parallel": "GPUs that share every layer; best within a node",
    "pipeline_parallel": "groups of layers, one behind the other",
    "data_parallel": "replicas; tensor x pipeline x data = GPUs",
    "microbatch_size": "sequences that pass through the pipeline together",
    "sequence_parallel": "norms and residuals split over the tensor-parallel group",
    "schedule": "dtsim list schedules",
    "zero_stage": "0: nothing sharded over the replicas, 1: optimizer states, 2: and gradients, 3: and weights (FSDP)",
    "recompute": "none, selective (the attention core) or full (every layer from its input)",
    "framework": "whose habits fill what is not said here; dtsim list frameworks",
    "gpus": "how many of the cluster's GPUs",
}


def _text(data: dict[str, Any], prediction: Prediction) -> str:
    verdict = "fits" if prediction.fits else "DOES NOT FIT"
    lines = [
        "# A job: what is trained, how it is split, and on what.  Run it with: dtsim run THIS_FILE",
        "# Written by dtsim init, which chose the plan: the quickest of the simplest few that fit.",
        f"# Predicted when written: {show(prediction.step_time, 's')} per step, {show(prediction.peak_memory, 'B')} of "
        f"{show(prediction.capacity, 'B')} on the fullest rank: {verdict}.",
        f"name = {toml_value(data['name'])}",
    ]
    for table in ("workload", "model", "plan", "cluster"):
        if table in data:
            lines += ["", f"[{table}]"]
            for key, value in data[table].items():
                comment = _COMMENTS.get(key, "") if table != "model" else ""
                comment = "dtsim list clusters" if (table, key) == ("cluster", "name") else comment
                lines.append(f"{key} = {toml_value(value)}" + (f"  # {comment}" if comment else ""))
        if table == "plan":
            lines += [
                '# chunks_per_rank = 2  # model chunks per pipeline rank, with schedule = "interleaved_1f1b"',
                '# attention = "flash2"  # in place of the kernel that the framework takes',
                "# overlap_gradients = true  # reduce gradients beside the backward pass",
            ]
    lines += [
        "",
        '# measured_step_time = "2.31 s" above the first table puts a measured step beside the predicted one.',
    ]
    return "\n".join(lines) + "\n"
