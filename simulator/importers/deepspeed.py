"""DeepSpeed: its JSON configuration (ds_config.json).

Source of keys and defaults: deepspeedai/DeepSpeed, docs/_pages/config-json.md and deepspeed/runtime/config.py.  Sizes of buckets count
elements there and bytes here.  Which layers are recomputed, and how deep the pipeline is, user code decides, not this file.
"""

from __future__ import annotations

from typing import Any

from simulator.errors import SpecError
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.settings import Entry, Settings, flag_of, of_tree, whole_of, word_of
from simulator.plan.framework import load_framework
from simulator.units import BYTES_PER_ELEMENT

__all__ = ["DeepSpeed", "read_zero"]

_SIGNATURE = {
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps",
    "zero_allow_untested_optimizer",
    "steps_per_print", "wall_clock_breakdown", "activation_checkpointing", "gradient_clipping", "flops_profiler", "aio",
    "prescale_gradients",
}  # fmt: skip
_NO_EFFECT = {
    "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "memory_breakdown",
    "dump_state", "prescale_gradients", "gradient_predivide_factor", "seed", "load_from_fp32_weights",
    "zero_optimization.contiguous_gradients", "zero_optimization.reduce_scatter", "zero_optimization.allgather_partitions",
    "zero_optimization.allgather_bucket_size", "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save", "zero_optimization.load_from_fp32_weights",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.ignore_unused_parameters", "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_param.pin_memory", "zero_optimization.offload_optimizer.nvme_path",
    "zero_optimization.offload_optimizer.buffer_count", "zero_optimization.offload_optimizer.pipeline_read",
    "zero_optimization.offload_optimizer.pipeline_write", "zero_optimization.offload_optimizer.fast_init",
    "zero_optimization.offload_param.nvme_path", "zero_optimization.offload_param.buffer_count",
    "zero_optimization.offload_param.buffer_size", "zero_optimization.offload_param.max_in_cpu",
    "fp16.loss_scale", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis", "fp16.min_loss_scale", "fp16.auto_cast",
    "fp16.consecutive_hysteresis", "optimizer.legacy_fusion",
}  # fmt: skip
_PREFIXES = ("optimizer.params", "scheduler", "tensorboard", "wandb", "comet", "csv_monitor", "flops_profiler",
             "comms_logger", "checkpoint.",
             "monitor", "elasticity", "autotuning", "nebula")  # fmt: skip
_OPTIMIZERS = {
    "adam": "adam",
    "adamw": "adam",
    "fusedadam": "adam",
    "cpuadam": "adam",
    "deepspeedcpuadam": "adam",
    "sgd": "sgd",
    "lamb": "lamb",
    "fusedlamb": "lamb",
    "lion": "lion",
    "fusedlion": "lion",
    "deepspeedcpulion": "lion",
    "muon": "muon",
    "onebitadam": "adam",
    "onebitlamb": "lamb",
}
_SIGNS = ("onebitadam", "onebitlamb")
"""Optimizers whose momentum replicas exchange as signs."""
_DTYPES = {
    "fp32": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "bfp16": "bf16",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}


class DeepSpeed(Importer):
    """A ds_config.json."""

    name = "deepspeed"
    title = "DeepSpeed JSON"
    aliases = ("ds_config",)

    def recognises(self, document: Document) -> int:
        """Count the top keys that are DeepSpeed's own."""
        data = document.table if document.form == "json" else {}
        known = len(_SIGNATURE & set(data))
        return 3 if "zero_optimization" in data or known > 1 else known

    def read(self, document: Document) -> Findings:
        """Return batch, precision and ZeRO settings.

        Raises:
            SpecError: no JSON object, or a value that is none of its kind.
        """
        tree = document.tree_of("one JSON object with zero_optimization, train_batch_size, ...")
        findings = Findings(self.name)
        settings = of_tree(tree, findings)
        trainer = _automatic(settings)
        profile = "hugging_face_deepspeed" if trainer else "deepspeed"
        why = '"auto" is of the Hugging Face integration' if trainer else "DeepSpeed's own engine"
        plain = settings.take("zero_optimization.memory_efficient_linear")
        if plain is not None and not flag_of(plain) and trainer:
            settings.put("plan.framework", plain, "hugging_face_deepspeed_plain")
        else:
            settings.assume("plan.framework", profile, why)
            if plain is not None:
                settings.waive(plain, f"what {profile} has here")
        _precision(settings, trainer)
        _batch(settings)
        read_zero(settings, "zero_optimization.")
        _rest(settings)
        settings.report(_NO_EFFECT, _PREFIXES)
        return findings


def _automatic(settings: Settings) -> bool:
    """Take every value "auto", which the trainer fills in; say whether there are any."""
    found = [(name, entry) for name, entry in settings.left() if entry.value == "auto"]
    for name, entry in found:
        settings.take(name)
        settings.refuse(entry, "taken from the trainer's arguments")
    return bool(found)


def _precision(settings: Settings, trainer: bool) -> None:
    narrow = settings.take("bf16.enabled", "bfloat16.enabled")
    half = settings.take("fp16.enabled")
    alone = settings.take("bf16.bf16_master_weights_and_grads", "bfloat16.bf16_master_weights_and_grads")
    states = settings.take("bf16.bf16_optimizer_states", "bfloat16.bf16_optimizer_states")
    if narrow is not None and flag_of(narrow) and alone is not None and flag_of(alone):
        settings.put("workload.precision", alone, "bf16_true")
        if states is None or not flag_of(states):  # DeepSpeed has them on the host alone
            settings.refuse(
                alone, "without bf16_optimizer_states moments are fp32 beside bf16 weights, here they are bf16"
            )
    elif narrow is not None and flag_of(narrow):
        settings.put("workload.precision", narrow, "bf16")
    elif half is not None and flag_of(half):
        settings.put("workload.precision", half, "fp16")
    elif not trainer:
        settings.assume("workload.precision", "fp32", "neither bf16 nor fp16 is enabled")
    entry = settings.take("data_types.grad_accum_dtype")
    if entry is not None:
        _dtype(settings, "plan.gradient_dtype", entry)
    entry = settings.take("communication_data_type")
    if entry is not None:
        _dtype(settings, "plan.gradient_reduce_dtype", entry)


def _dtype(settings: Settings, field: str, entry: Entry) -> None:
    if word_of(entry) in _DTYPES:
        settings.put(field, entry, _DTYPES[word_of(entry)])
    else:
        settings.refuse(entry, "known: fp32, fp16, bf16")


def _batch(settings: Settings) -> None:
    """Any of the three numbers may be missing: batch = microbatch x accumulation x replicas."""
    micro = settings.put_whole("plan.microbatch_size", "train_micro_batch_size_per_gpu")
    batch = settings.put_whole("workload.global_batch_size", "train_batch_size")
    entry = settings.take("gradient_accumulation_steps")
    times = whole_of(entry) if entry is not None else None
    if entry is None and batch is None and micro:
        settings.findings.per_replica = micro
    elif times and micro and batch:
        if batch % (times * micro):
            raise SpecError(
                f"{settings.said('train_batch_size')}: must be train_micro_batch_size_per_gpu x gradient_accumulation_steps x "
                f"replicas, but {batch} / ({micro} x {times}) is no whole number"
            )
        replicas = batch // (times * micro)
        settings.assume(
            "plan.data_parallel",
            replicas,
            f"train_batch_size / (micro batch x accumulation) = {batch} / ({micro} x {times})",
        )
    elif times and micro:
        settings.findings.per_replica = micro * times
        settings.waive(entry, "with the replicas it makes the global batch") if entry else None
    elif entry is not None:
        settings.refuse(entry, "without train_micro_batch_size_per_gpu the microbatch follows from the replicas")


def read_zero(settings: Settings, at: str) -> None:
    """Put what a table of ZeRO settings decides.

    Args:
        at: the path of the table with its dot.

    Raises:
        SpecError: a value that is none of its kind.
    """
    stage = settings.put_whole("plan.zero_stage", f"{at}stage", least=0) or 0
    if stage > 3:
        raise SpecError(f"{settings.said(f'{at}stage')}: a ZeRO stage is 0, 1, 2 or 3")
    overlap = settings.take(f"{at}overlap_comm")
    if overlap is not None and stage < 3:
        settings.put("plan.overlap_gradients", overlap, flag_of(overlap))
    elif overlap is not None:
        settings.refuse(overlap, "ZeRO-3 is taken to gather and reduce beside compute") if not flag_of(
            overlap
        ) else settings.waive(overlap, "so ZeRO-3 always does here")
    bucket = settings.take(f"{at}reduce_bucket_size")
    if bucket is not None and 0 < stage < 3:
        kept = settings.get("plan.gradient_dtype") or settings.get("workload.precision") or "bf16"
        size = whole_of(bucket) * int(BYTES_PER_ELEMENT[kept])
        settings.put("plan.bucket_size", bucket, f"{size} B")
    elif bucket is not None:
        settings.waive(bucket, f"zero_stage = {stage} has no buckets here")
    _offload(settings, at, stage)
    group = settings.take(f"{at}sub_group_size")
    if group is not None and stage == 3 and whole_of(group) != load_framework("deepspeed").sub_group_size:
        settings.refuse(group, "an update is taken to join the gradients of a billion of a rank's weights at once")
    elif group is not None:
        settings.waive(group, "of ZeRO-3, where an update takes a billion weights at once here")
    settings.put_degree("plan.secondary_shard_size", f"{at}zero_hpz_partition_size")
    for key, field in (
        ("zero_quantized_weights", "quantized_weights"),
        ("zero_quantized_gradients", "quantized_gradients"),
    ):
        entry = settings.take(f"{at}{key}")
        if entry is not None and flag_of(entry):
            settings.put(f"plan.{field}", entry, True)
    shards = settings.take(f"{at}mics_shard_size")
    if shards is not None and whole_of(shards, -1) > 0:
        settings.put("plan.shard_size", shards, whole_of(shards))


def _offload(settings: Settings, at: str, stage: int) -> None:
    optimizer = settings.take(f"{at}offload_optimizer.device", f"{at}offload_optimizer_device")
    share = settings.number(f"{at}offload_optimizer.ratio")
    if settings.flag(f"{at}cpu_offload"):
        settings.say("plan.optimizer_offload", 1.0, f"{at}cpu_offload")
    weights = settings.take(f"{at}offload_param.device", f"{at}offload_param_device")
    for entry, field, value in (
        (optimizer, "optimizer_offload", 1.0 if share is None else share),
        (weights, "parameter_offload", 1.0),
    ):
        if entry is None or word_of(entry) in ("none", "None"):
            continue
        if word_of(entry) not in ("cpu", "nvme"):
            settings.refuse(entry, "states go to the CPU's memory or to its drives: cpu or nvme")
        elif field == "parameter_offload" and stage != 3:
            settings.refuse(entry, "weights are offloaded by ZeRO-3 only")
        elif word_of(entry) == "nvme" and stage != 3:
            settings.refuse(entry, "states go to drives under ZeRO-3 only")
        elif word_of(entry) == "nvme":
            settings.put(f"plan.{field}", entry, "nvme")
        else:
            settings.put(f"plan.{field}", entry, value)


def _rest(settings: Settings) -> None:
    settings.put_clipping("gradient_clipping")
    optimizer = settings.take("optimizer.type")
    if optimizer is not None:
        word = word_of(optimizer).lower()
        name = _OPTIMIZERS.get(word)
        if name:
            settings.put("workload.optimizer", optimizer, name)
            if word in _SIGNS:
                settings.put("plan.gradient_exchange", optimizer, "one_bit")
                _warm_up(settings)
        else:
            settings.refuse(optimizer, "not modelled")
    settings.put_whole("plan.tensor_parallel", "tensor_parallel.autotp_size", "tensor_parallel.tp_size")
    sequence = settings.put_degree("plan.context_parallel", "sequence_parallel_size")
    if sequence is not None:
        settings.put("plan.context_parallel_kind", sequence, "ulysses")
    for name, entry in list(settings.left()):
        off: Any = entry.value in (False, None, 0)
        if off and name.startswith(
            ("activation_checkpointing", "pipeline", "zero_optimization", "amp", "data_efficiency")
        ):
            settings.ignore(name)


def _warm_up(settings: Settings) -> None:
    """Dense steps before compressed ones, as a share of the run where the learning rate's schedule says how long that is."""
    dense, run = settings.take("optimizer.params.freeze_step"), settings.take("scheduler.params.total_num_steps")
    if dense is None:
        return
    steps, whole = whole_of(dense), 0 if run is None else whole_of(run)
    if steps < whole:
        settings.put("plan.exchange_warmup", dense, round(steps / whole, 4))
    else:
        settings.refuse(dense, "of how many steps in all is not said: --set plan.exchange_warmup=SHARE")
