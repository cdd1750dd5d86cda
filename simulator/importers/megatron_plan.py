"""Megatron's arguments of parallelism, batches, precision and memory -> the fields of a plan and a workload."""

from __future__ import annotations

from typing import get_args

from simulator.importers.megatron_layout import read_layout
from simulator.importers.settings import Entry, Settings, flag_of, whole_of, word_of
from simulator.plan.values import GRAPH_PARTS, Module
from simulator.units import BYTES_PER_ELEMENT

__all__ = ["CONTEXT", "FP8", "KERNELS", "SHARDING", "read_deepspeed", "read_plan"]

_DEGREES = {
    "tensor_parallel": ("tensor_model_parallel_size", "model_parallel_size"),
    "pipeline_parallel": ("pipeline_model_parallel_size",),
    "context_parallel": ("context_parallel_size",),
    "expert_parallel": ("expert_model_parallel_size", "moe_expert_parallel_size"),
    "microbatch_size": ("micro_batch_size",),
}
CONTEXT = {"p2p": "ring", "all_gather": "all_gather", "allgather": "all_gather", "a2a": "ulysses", "a2a+p2p": "hybrid"}
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
FP8 = {"delayed": "fp8", "tensorwise": "fp8_current", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
KERNELS = {"flash": "flash2", "unfused": "unfused", "local": "unfused"}
"""Megatron's words -> ours, of an exchange of keys and values, a sharding strategy, a recipe and a backend of attention."""
_REDUCES, _GATHERS = ("overlap_grad_reduce", "overlap_grad_sync"), ("overlap_param_gather", "overlap_param_sync")
"""Megatron's names and, behind them, those of NeMo's optimizers."""
_MODULES: tuple[Module, ...] = get_args(Module)


def read_plan(settings: Settings, program: str = "Megatron") -> None:
    """Put the fields of plan and workload that the settings decide.

    Args:
        program: whose defaults fill what is not said: "Megatron", "Megatron-DeepSpeed" or "NeMo".

    Raises:
        SpecError: a value that is none of its kind.
    """
    for field, names in _DEGREES.items():
        settings.put_whole(f"plan.{field}", *names)
    if settings.put_whole("workload.global_batch_size", "global_batch_size") is None:
        settings.findings.per_replica = settings.get("plan.microbatch_size")
    settings.put_whole("workload.sequence_length", "seq_length", "encoder_seq_length")
    settings.put_whole("plan.expert_tensor_parallel", "expert_tensor_parallel_size")
    settings.put_flag("plan.sequence_parallel", "sequence_parallel")
    _precision(settings)
    _data_parallel(settings, program)
    _context(settings)
    read_layout(settings)
    _recompute(settings)
    _kernels(settings, program)
    _experts(settings, program)
    _offload(settings)


def read_deepspeed(settings: Settings) -> None:
    """Put what Megatron-DeepSpeed's own arguments decide (microsoft/Megatron-DeepSpeed, megatron/arguments.py); its JSON is a file beside.

    Raises:
        SpecError: a value that is none of its kind.
    """
    profile = "megatron_deepspeed_bf16" if settings.states("bf16") else "megatron_deepspeed"
    settings.say("plan.framework", profile, "deepspeed")
    stage = settings.take("zero_stage")
    if stage is None:
        settings.assume("plan.zero_stage", 1, "Megatron-DeepSpeed's default of zero_stage")
    elif whole_of(stage, 0) == 0 and profile.endswith("bf16"):
        settings.assume(
            "plan.zero_stage", 1, f"{stage.text} in bf16: DeepSpeed's BF16_Optimizer shards its states all the same"
        )
    else:
        settings.put("plan.zero_stage", stage, whole_of(stage, 0))
    entry = settings.take("deepspeed_config")
    if entry is not None:
        settings.refuse(entry, "give that file beside this one")
    sequence = settings.put_degree("plan.context_parallel", "ds_sequence_parallel_size")
    if sequence is not None:
        settings.put("plan.context_parallel_kind", sequence, "ulysses")


def _precision(settings: Settings) -> None:
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    base = "bf16" if bf16 else "fp16" if fp16 else None
    if bf16 and fp16:
        settings.findings.skip(settings.said("fp16"), "beside bf16, which is taken; Megatron refuses both")
    fp8, fp4 = settings.take("fp8_format", "fp8"), settings.take("fp4_format", "fp4")
    recipe = settings.take("fp8_recipe")
    settings.take("fp4_recipe")
    if fp4 is not None and fp4.value not in (False, None):
        settings.put("workload.precision", fp4, "nvfp4")
    elif fp8 is not None and fp8.value not in (False, None):
        word = word_of(recipe) if recipe is not None else "delayed"
        if word not in FP8 and recipe is not None:
            settings.refuse(recipe, "known: " + ", ".join(FP8))
        elif recipe is None:
            settings.assume("workload.precision", "fp8", "Megatron's default of fp8_recipe: delayed")
        else:
            settings.put("workload.precision", recipe, FP8[word])
    elif base is not None:
        settings.say("workload.precision", base, base)
    name = (settings.word("optimizer") or "").lower()
    if name in ("adam", "lion", "sgd", "muon", "dist_muon"):
        settings.say("workload.optimizer", name.removeprefix("dist_"), "optimizer")
        if name.startswith("dist_"):
            settings.assume("plan.zero_stage", 1, f"{name} shares states among the replicas, whole tensors each")
    elif name:
        settings.findings.skip(
            settings.said("optimizer"), f"{name} is not modelled; adam's states and updates are counted"
        )
    _states(settings, base)
    wide, narrow = settings.flag("accumulate_allreduce_grads_in_fp32"), settings.flag("grad_reduce_in_bf16")
    if narrow:
        settings.say("plan.gradient_dtype", "bf16", "grad_reduce_in_bf16")
    elif wide:
        settings.say("plan.gradient_dtype", "fp32", "accumulate_allreduce_grads_in_fp32")
    elif base == "fp16":
        settings.assume(
            "plan.gradient_dtype", "fp16", "Megatron keeps fp16 gradients unless accumulate_allreduce_grads_in_fp32"
        )


_FORMATS = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"} | {
    "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"
}  # fmt: skip


def _states(settings: Settings, base: str | None) -> None:
    """Formats of the optimizer's states, which Megatron takes with its precision-aware optimizer alone."""
    aware = settings.flag("use_precision_aware_optimizer")
    entries = [settings.take(name) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    gradients, masters = settings.take("main_grads_dtype"), settings.take("main_params_dtype")
    if not aware:
        for entry in (*entries, gradients, masters):
            if entry is not None:
                settings.waive(entry, "without use_precision_aware_optimizer")
        return

    def format_of(entry: Entry | None) -> str | None:
        return _FORMATS.get(word_of(entry).removeprefix("torch.")) if entry is not None else "fp32"

    for entry in entries:
        if entry is not None and format_of(entry) is None:
            settings.refuse(entry, "known: " + ", ".join(_FORMATS))
    formats = [format_of(entry) or "fp32" for entry in entries]
    if set(formats) != {"fp32"}:
        settings.say("plan.moment_dtype", tuple(formats), "exp_avg_dtype", "exp_avg_sq_dtype")
    if gradients is not None and format_of(gradients) in ("fp32", "bf16"):
        settings.put("plan.gradient_dtype", gradients, format_of(gradients))
    if masters is not None and format_of(masters) != "fp32":
        settings.refuse(masters, "master weights are fp32")
    elif base == "bf16":
        settings.assume(
            "plan.splits_master_weights",
            True,
            "the precision-aware optimizer keeps remainders beside bf16 weights (TE 2.1 on)",
        )


def _data_parallel(settings: Settings, program: str) -> None:
    sharded = settings.flag("use_distributed_optimizer")
    if sharded:
        settings.say("plan.zero_stage", 1, "use_distributed_optimizer")
    strategy = settings.take("data_parallel_sharding_strategy")
    fsdp = settings.flag("use_megatron_fsdp", "use_custom_fsdp")
    if strategy is not None and fsdp is not False:
        settings.put_known("plan.zero_stage", strategy, SHARDING)
    if settings.flag("use_torch_fsdp2"):
        settings.say("plan.zero_stage", 3, "use_torch_fsdp2")
    stage = settings.get("plan.zero_stage", 0)
    reduce, gather = settings.flag(*_REDUCES), settings.flag(*_GATHERS)
    if stage < 3:
        pairs = [("plan.overlap_gradients", reduce, _REDUCES)]
        pairs += [("plan.overlap_parameters", gather, _GATHERS)] if stage in (1, 2) else []
        for field, said, names in pairs:
            if said is not None:
                settings.say(field, said, *names)
            elif program == "Megatron":
                settings.assume(field, False, f"Megatron overlaps only with {names[0]}")
    size = settings.take("ddp_bucket_size")
    if size is not None:
        width = BYTES_PER_ELEMENT[settings.get("plan.gradient_dtype", "fp32")]
        settings.put("plan.bucket_size", size, f"{int(whole_of(size) * width)} B")
    size = settings.take("bucket_cap_mb")
    if size is not None and stage in (1, 2):
        settings.put("plan.bucket_size", size, f"{whole_of(size)} MiB")
    elif size is not None:
        settings.waive(size, "of the distributed optimizer")
    copies = settings.take("num_distributed_optimizer_instances")
    if copies is not None and whole_of(copies) > 1:
        world, degrees = settings.get("cluster.gpus"), 1
        for name in ("tensor_parallel", "pipeline_parallel"):
            degrees *= settings.get(f"plan.{name}", 1)
        if world and world % (degrees * whole_of(copies)) == 0:
            settings.put("plan.shard_size", copies, world // degrees // whole_of(copies))
        else:
            settings.refuse(copies, "the world size is needed to tell how many ranks an instance has")


def _context(settings: Settings) -> None:
    kind = settings.take("cp_comm_type")
    sizes = settings.take("hierarchical_context_parallel_sizes")
    if kind is not None:
        word = str(kind.value[0] if isinstance(kind.value, list) and kind.value else kind.value)
        settings.put_known("plan.context_parallel_kind", kind, CONTEXT, word)
    if sizes is not None:
        first = str(sizes.value[0] if isinstance(sizes.value, list) and sizes.value else sizes.value)
        if first.isdigit() and int(first) > 1:
            settings.put("plan.context_parallel_inner", sizes, int(first))
        else:
            settings.refuse(sizes)


def _recompute(settings: Settings) -> None:
    kind = settings.take("recompute_granularity", "activations_checkpoint_granularity")
    if kind is not None:
        word = word_of(kind)
        if word in ("full", "selective"):
            settings.put("plan.recompute", kind, word)
        else:
            settings.refuse(kind, "known: full, selective")
    if settings.flag("recompute_activations"):
        settings.say("plan.recompute", "selective", "recompute_activations")
    method = settings.take("recompute_method", "activations_checkpoint_method")
    count = settings.take("recompute_num_layers", "activations_checkpoint_num_layers")
    if settings.null("recompute_granularity", "activations_checkpoint_granularity"):
        for idle in filter(None, (method, count)):
            settings.waive(idle, "nothing is recomputed without a granularity")
        method = count = None
    if settings.flag("checkpoint_activations") or (method is not None and kind is None):
        settings.say(
            "plan.recompute", "full", "checkpoint_activations", "activations_checkpoint_method", "recompute_method"
        )
    if count is not None and whole_of(count, 0) == 0 and settings.get("plan.recompute") == "full":
        settings.drop("plan.recompute", f"{count.text}: of no layer")
        settings.waive(count)
        if method is not None:
            settings.waive(method)
        method = count = None
    full = settings.get("plan.recompute") == "full"
    for field, entry in (("recompute_method", method), ("recompute_layers", count)):
        if entry is not None and not full:
            settings.refuse(entry, "says which layers are recomputed, but none are recomputed whole")
        elif entry is not None:
            settings.put(f"plan.{field}", entry, word_of(entry) if entry is method else whole_of(entry))
    if settings.flag("distribute_saved_activations"):
        place = settings.said("distribute_saved_activations")
        if full:
            settings.findings.put("plan.partition_activations", True, place)
        else:
            settings.findings.ignore(place, "distribute_saved_activations: no layer is recomputed whole")
    if full and method is not None and count is None:
        settings.assume("plan.recompute_layers", 1, "Megatron's default of recompute_num_layers")
    modules = settings.take("recompute_modules")
    if modules is not None:
        names = modules.value if isinstance(modules.value, list) else str(modules.value).replace(",", " ").split()
        unknown = [name for name in names if name not in _MODULES]
        if unknown or settings.get("plan.recompute") != "selective":
            settings.refuse(
                modules, f"not modelled: {', '.join(map(str, unknown))}" if unknown else "no selective recompute"
            )
        else:
            settings.put("plan.recompute_modules", modules, list(names))


def _kernels(settings: Settings, program: str) -> None:
    backend = settings.take("attention_backend")
    flash = settings.flag("use_flash_attn", "use_flash_attn_v2", "use_flash_attn_triton", "use_flash_attention")
    word = str(backend.value).removeprefix("AttnBackend.") if backend is not None else ""
    if word in KERNELS and backend is not None:
        settings.put("plan.attention", backend, KERNELS[word])
    elif backend is not None and word not in ("auto", "fused"):
        settings.refuse(backend, "known: auto, fused, " + ", ".join(KERNELS))
    elif flash:
        settings.say("plan.attention", "flash2", "use_flash_attn")
    built = settings.take("transformer_impl")
    if built is not None and word_of(built) == "local" and settings.get("plan.framework") == "megatron_core":
        settings.refuse(built, "Transformer Engine's kernels are priced")
    elif built is not None:
        settings.waive(built)
    if settings.flag("cross_entropy_loss_fusion"):
        settings.say("plan.fused_cross_entropy", True, "cross_entropy_loss_fusion")
        settings.ignore("cross_entropy_fusion_impl")
    if settings.flag("tp_comm_overlap", "ub_tp_comm_overlap") and settings.get("plan.sequence_parallel"):
        settings.assume(
            "plan.tensor_parallel_splits", 4, "tp_comm_overlap with the pieces that Transformer Engine cuts by default"
        )
    settings.put_flag("plan.gradient_accumulation_fusion", "gradient_accumulation_fusion")
    settings.put_flag("plan.narrow_gate_input", "activation_func_fp8_input_store")
    if settings.flag("no_gradient_accumulation_fusion"):
        settings.say("plan.gradient_accumulation_fusion", False, "no_gradient_accumulation_fusion")
    drops = [settings.number("attention_dropout"), settings.number("hidden_dropout")]
    if all(share == 0 for share in drops):
        settings.say("plan.dropout", False, "attention_dropout", "hidden_dropout")
    elif any(drops):
        settings.say("plan.dropout", True, "attention_dropout", "hidden_dropout")
    elif program != "NeMo":
        settings.assume("plan.dropout", True, "Megatron's default of attention_dropout and hidden_dropout: 0.1")
    scope = settings.take("cuda_graph_scope", "cuda_graph_modules")
    if scope is not None:
        parts = scope.value if isinstance(scope.value, list) else str(scope.value).replace(",", " ").split()
        if parts == ["full_iteration"]:
            settings.put("plan.cuda_graphs", scope, "full_iteration")
        elif parts and all(part in GRAPH_PARTS for part in parts):
            settings.put("plan.cuda_graphs", scope, list(parts))
        else:
            settings.refuse(scope, "known: full_iteration, " + ", ".join(GRAPH_PARTS))


def _experts(settings: Settings, program: str) -> None:
    if not settings.get("model.experts"):
        return
    grouped = settings.take("moe_grouped_gemm")
    if grouped is not None and flag_of(grouped):
        settings.waive(grouped, "so experts' products are priced")
    elif program == "Megatron":
        why = "not given: Megatron runs one expert after the other then, which --set plan.expert_loop=modules comes near to"
        settings.findings.assumed_key("moe_grouped_gemm", True, why)
    kind = settings.take("moe_token_dispatcher_type")
    deep = settings.flag("moe_enable_deepep")
    backend = settings.word("moe_flex_dispatcher_backend")
    if kind is not None and word_of(kind) in ("alltoall", "flex"):
        once = word_of(kind) == "flex" and (deep is not False or backend is not None)
        settings.put("plan.expert_exchange", kind, "once_per_node" if once else "all_to_all")
    elif kind is not None:
        settings.refuse(kind, "not modelled; known: alltoall, flex")
    fuses = settings.flag("moe_permute_fusion")
    if fuses is not None and settings.get("plan.expert_exchange") != "once_per_node":
        settings.say("plan.expert_permute_fusion", fuses, "moe_permute_fusion")
    if settings.flag("overlap_moe_expert_parallel_comm"):
        settings.say("plan.schedule", "combined_1f1b", "overlap_moe_expert_parallel_comm")


def _offload(settings: Settings) -> None:
    share = settings.number("optimizer_offload_fraction")
    overlap = settings.flag("overlap_cpu_optimizer_d2h_h2d")
    if settings.flag("optimizer_cpu_offload"):
        settings.say("plan.optimizer_offload", 1.0 if share is None else share, "optimizer_cpu_offload")
        if overlap:
            settings.say("plan.optimizer_offload_overlap", True, "overlap_cpu_optimizer_d2h_h2d")
    layers = settings.take("cpu_offloading_num_layers")
    if layers is not None and whole_of(layers, 0):
        settings.put("plan.activation_offload", layers, whole_of(layers))
