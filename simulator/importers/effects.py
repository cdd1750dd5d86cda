"""What follows from all that was read together: the batch of all replicas, and fields that have no effect beside the others.

Programs accept flags that do nothing in the run at hand (sequence parallelism on one tensor-parallel rank); a job of ours refuses
them.  Here they are taken out, and listed.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.importers.imported import Findings
from simulator.plan.framework import load_framework

__all__ = ["resolved"]


def resolved(findings: Findings, world: int | None = None) -> Findings:
    """Complete what was read for a number of GPUs (by default that of the files) where one is known, and return it."""
    world = world or findings.get("cluster.gpus")
    replicas = _replicas(findings, world)
    each = findings.per_replica
    if replicas and each and findings.get("workload.global_batch_size") is None:
        why = f"{each} sequences on each of {replicas} replicas"
        findings.assume("workload.global_batch_size", replicas * each, why)
    for name, why in list(_idle(findings, replicas)):
        if findings.get(name) is not None:
            findings.drop(name, why)
    return findings


def _replicas(findings: Findings, world: int | None) -> int | None:
    """Data-parallel replicas; None when the GPUs are not known, or no multiple of a replica's."""
    if findings.get("plan.data_parallel"):
        return int(findings.get("plan.data_parallel"))
    inner = 1
    for name in ("tensor_parallel", "context_parallel", "pipeline_parallel"):
        inner *= findings.get(f"plan.{name}", 1)
    return world // inner if world and world % inner == 0 and world >= inner else None


def _idle(findings: Findings, replicas: int | None) -> Iterator[tuple[str, str]]:
    """Yield (field, why it has no effect)."""

    def plan(name: str) -> int:
        return int(findings.get(f"plan.{name}") or 1)

    if plan("tensor_parallel") == 1:
        for name in (
            "sequence_parallel",
            "tensor_parallel_splits",
            "expert_tensor_parallel",
            "vocabulary_parallel_loss",
            "partition_activations",
        ):
            yield f"plan.{name}", "tensor_parallel = 1"
    elif findings.get("plan.expert_tensor_parallel") == plan("tensor_parallel"):
        yield "plan.expert_tensor_parallel", "experts are split as other layers are"
    if findings.get("plan.sequence_parallel"):
        yield "plan.partition_activations", "sequence_parallel has divided them"
    if plan("context_parallel") == 1:
        for name in ("context_parallel_kind", "context_parallel_inner"):
            yield f"plan.{name}", "context_parallel = 1"
    elif findings.get("plan.context_parallel_kind") != "hybrid":
        yield "plan.context_parallel_inner", "context_parallel_kind is not hybrid"
    if plan("pipeline_parallel") == 1:
        for name in ("p2p", "schedule", "chunks_per_rank", "layer_split"):
            if findings.get("plan.schedule") != "combined_1f1b" or name == "p2p":
                yield f"plan.{name}", "pipeline_parallel = 1"
    model_known = bool(findings.tables.get("model"))
    if model_known and not findings.get("model.experts"):
        for name in ("expert_parallel", "expert_exchange", "expert_tensor_parallel", "expert_permute_fusion"):
            yield f"plan.{name}", "the model has no experts"
    elif plan("expert_parallel") == 1:
        yield "plan.expert_exchange", "expert_parallel = 1"
    stage = findings.get("plan.zero_stage", 0)
    if replicas is not None and replicas * plan("context_parallel") == 1:
        for name in ("overlap_gradients", "overlap_parameters", "bucket_size", "shard_size", "reshard_after_forward",
                     "fsdp_prefetch", "gradient_reduce_dtype", "secondary_shard_size"):  # fmt: skip
            yield f"plan.{name}", "one replica"
        if stage < 3 or not _hooks(findings):
            yield "plan.zero_stage", "one replica"
            yield "plan.parameter_offload", "one replica"
        elif findings.get("plan.parameter_offload") == "nvme":
            yield "plan.parameter_offload", "one replica, which keeps its weights"
    if stage == 3:
        yield "plan.overlap_gradients", "ZeRO-3 always reduces beside the backward pass"
        yield "plan.bucket_size", "ZeRO-3 reduces unit by unit"
    else:
        yield "plan.fsdp_prefetch", f"zero_stage = {stage}"
    if stage not in (1, 2):
        yield "plan.overlap_parameters", f"zero_stage = {stage}"
    if findings.get("plan.optimizer_offload"):
        for name in ("moment_dtype", "splits_master_weights"):
            yield f"plan.{name}", "states that the CPU updates are fp32"
    if findings.get("plan.overlap_gradients") is False:
        yield "plan.bucket_size", "gradients are not overlapped"
    if findings.get("plan.gradient_reduce_dtype") and findings.get("plan.gradient_reduce_dtype") == findings.get(
        "plan.gradient_dtype"
    ):
        yield "plan.gradient_reduce_dtype", "gradients are kept in it"


def _hooks(findings: Findings) -> bool:
    """Whether the code's hooks fetch and release sharded weights, as they do on one rank, too."""
    name = findings.get("plan.framework")
    return name is not None and load_framework(name).fetch_time > 0
