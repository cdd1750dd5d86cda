"""torchtitan: TOML files, the JSON that a run saves, and --section.option flags.

Source of options and defaults: pytorch/torchtitan, torchtitan/config/job_config.py (2026-02, the last release with TOML) and
configs.py after it.  A Python recipe cannot be read without running it.
"""

from __future__ import annotations

import re

from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.known_models import model_table
from simulator.importers.launch import read_launch
from simulator.importers.settings import Settings, flag_of, of_tree, whole_of, word_of
from simulator.importers.torchtitan_stages import read_stages

__all__ = ["CONTEXT", "FLAVORS", "Torchtitan"]

_SECTIONS = {
    "training",
    "parallelism",
    "activation_checkpoint",
    "model",
    "job",
    "metrics",
    "checkpoint",
    "compile",
    "quantize",
    "experimental",
}
FLAVORS = {
    "llama3 8b": "llama3_8b", "llama3 70b": "llama3_70b", "llama3 405b": "llama3_1_405b", "llama3 1b": "llama3_2_1b",
    "llama3 3b": "llama3_2_3b", "llama2 7b": "llama2_7b", "llama2 13b": "llama2_13b", "llama2 70b": "llama2_70b",
    "deepseek_v3 671b": "deepseek_v3", "deepseek_v3 236b": "deepseek_v2", "llama4 17bx16e": "llama4_scout",
    "llama4 17bx128e": "llama4_maverick", "qwen3 8b": "qwen3_8b", "qwen3 32b": "qwen3_32b", "qwen3 30b-a3b": "qwen3_30b_a3b",
    "qwen3 0.6b": "qwen3_0_6b", "qwen3 1.7b": "qwen3_1_7b", "qwen3 4b": "qwen3_4b", "qwen3 14b": "qwen3_14b",
    "deepseek_v3 16b": "deepseek_v2_lite", "qwen3 235b-a22b": "qwen3_235b_a22b", "gpt_oss 20b": "gpt_oss_20b", "gpt_oss 120b":
    "gpt_oss_120b",
}  # fmt: skip
"""Name and flavour of torchtitan's models -> the models shipped here."""
_NO_EFFECT = {
    "training.steps", "training.dataset", "training.dataset_path", "training.gc_freq", "training.gc_debug", "training.seed",
    "training.deterministic",
    "model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion", "training.warmup_steps", "model.norm_type",
    "parallelism.context_parallel_load_balancer", "training.data_parallel_degree", "compile.backend",
    "float8.filter_fqns", "float8.emulate", "quantize.linear.float8.filter_fqns", "quantize.linear.float8.emulate",
    "quantize.linear.mx.filter_fqns", "optimizer.implementation",
    "activation_checkpoint.early_stop", "activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check",
    "activation_checkpoint.debug", "activation_checkpoint.visualize_memory_budget_pareto",
}  # fmt: skip
_PREFIXES = ("job.", "profiling.", "metrics.", "checkpoint.", "lr_scheduler.", "experimental.", "comm.", "fault_tolerance.", "validation.",
             "debug.", "memory_estimation.", "optimizer.", "training.dataloader", "tokenizer.")  # fmt: skip
CONTEXT = {"allgather": "all_gather", "alltoall": "ring"}
"""How torchtitan exchanges keys and values: all gathered first, or passed round."""


class Torchtitan(Importer):
    """A job configuration of torchtitan."""

    name = "torchtitan"
    title = "torchtitan TOML, saved JSON or flags"

    def recognises(self, document: Document) -> int:
        """Look for torchtitan's sections."""
        if document.form == "text":
            flags = re.findall(r"(?<![\w-])--(?:training|parallelism|activation_checkpoint)\.[a-z_]+", document.head)
            return min(3, len(set(flags)))
        data = document.table
        tables = {key for key, value in data.items() if isinstance(value, dict)}
        if not {"training"} <= tables or len(tables & _SECTIONS) < 2:
            return 0
        own = {
            "local_batch_size",
            "batch_size",
            "seq_len",
            "num_tokens_per_microbatch_per_dp_rank",
            "max_context_length",
        }
        return 3 if "parallelism" in tables or own & set(data["training"]) else 1

    def read(self, document: Document) -> Findings:
        """Return model, batch and plan.

        Raises:
            SpecError: a value that is none of its kind.
        """
        findings = Findings(self.name)
        tree = document.tree
        if tree is None:
            settings = read_launch(
                document, findings, lambda name: name.split(".")[0] in _SECTIONS and "." in name
            ).flags
        else:
            settings = of_tree(tree, findings)
        _model(settings)
        _precision(settings)
        _degrees(settings)
        read_stages(settings)
        _batch(settings)
        _recompute(settings)
        _rest(settings)
        settings.report(_NO_EFFECT, _PREFIXES)
        return findings


def _model(settings: Settings) -> None:
    name = settings.take("model.name", "model_spec.name")
    flavor = settings.take("model.flavor", "model_spec.flavor")
    if name is None or flavor is None:
        for entry in filter(None, (name, flavor)):
            settings.refuse(entry, "a model has a name and a flavour")
        return
    known = FLAVORS.get(f"{word_of(name)} {word_of(flavor)}".lower())
    table = model_table(known) if known else None
    if table is None:
        settings.refuse(
            flavor, f"the shape of {word_of(name)} {word_of(flavor)} is not known here: --model NAME or config.json"
        )
        return
    for field, value in table.items():
        settings.findings.put(f"model.{field}", value, f"{flavor.place}: {word_of(name)} {word_of(flavor)} is {known}")


def _precision(settings: Settings) -> None:
    kept = settings.take("training.dtype")
    param = settings.take("training.mixed_precision_param")
    if kept is not None and word_of(kept) == "bfloat16":
        settings.put("workload.precision", kept, "bf16_true")
    elif param is not None and word_of(param) == "float32":
        settings.put("workload.precision", param, "fp32")
    elif param is not None and word_of(param) == "bfloat16":
        settings.put("workload.precision", param, "bf16")
    else:
        settings.assume("workload.precision", "bf16", "torchtitan's default of mixed_precision_param: bfloat16")
    reduced = settings.take("training.mixed_precision_reduce")
    if reduced is not None and word_of(reduced) == "bfloat16" and settings.get("workload.precision") != "bf16_true":
        settings.put("plan.gradient_reduce_dtype", reduced, "bf16")
    elif reduced is not None:
        settings.waive(reduced, "so gradients are added here")
    converters = settings.take("model.converters")
    words = str(converters.value) if converters is not None else ""
    recipe = settings.take("quantize.linear.float8.recipe_name", "float8.recipe_name")
    if "mx" in words and converters is not None:
        settings.put("workload.precision", converters, "mxfp8")
    elif "float8" in words and converters is not None:
        word = word_of(recipe) if recipe is not None else "tensorwise"
        known = {"tensorwise": "fp8_current", "rowwise": "fp8_rowwise"}
        if word in known:
            settings.put("workload.precision", converters, known[word])
        elif recipe is not None:
            settings.refuse(recipe, "only tensorwise and rowwise scales are modelled")
    else:
        settings.ignore(*(name for name, _ in [*settings.left()] if name.startswith(("float8.", "mx.", "quantize."))))


def _degrees(settings: Settings) -> None:
    at = "parallelism."
    tensor = (
        settings.put_whole("plan.tensor_parallel", f"{at}tensor_parallel_degree", "training.tensor_parallel_degree")
        or 1
    )
    context = (
        settings.put_whole(
            "plan.context_parallel", f"{at}context_parallel_degree", "experimental.context_parallel_degree"
        )
        or 1
    )
    pipeline = (
        settings.put_whole(
            "plan.pipeline_parallel", f"{at}pipeline_parallel_degree", "experimental.pipeline_parallel_degree"
        )
        or 1
    )
    expert = settings.put_whole("plan.expert_parallel", f"{at}expert_parallel_degree") or 1
    inner = settings.take(f"{at}expert_tensor_parallel_degree")
    if inner is not None and expert > 1 and tensor > 1:
        settings.put("plan.expert_tensor_parallel", inner, whole_of(inner))
    if tensor > 1:
        settings.assume(
            "plan.sequence_parallel", True, "torchtitan's tensor parallelism splits norms along the sequence"
        )
    if settings.flag(f"{at}disable_loss_parallel") and tensor > 1:
        settings.say("plan.vocabulary_parallel_loss", False, f"{at}disable_loss_parallel")
    if settings.flag(f"{at}enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel") and tensor > 1:
        settings.assume(
            "plan.tensor_parallel_splits", tensor, "asynchronous tensor parallelism cuts products in a piece per rank"
        )
    rotate = settings.take(f"{at}context_parallel_rotate_method", "experimental.context_parallel_rotate_method")
    if rotate is not None:
        settings.put_known("plan.context_parallel_kind", rotate, CONTEXT)
    elif context > 1:
        settings.assume("plan.context_parallel_kind", "all_gather", "torchtitan's default: allgather")
    comm = settings.word(f"{at}expert_parallel_comm_backend")
    if comm == "deepep" and expert > 1:
        settings.say("plan.expert_exchange", "once_per_node", f"{at}expert_parallel_comm_backend")
    _replicas(settings, tensor * context * pipeline, context)


def _replicas(settings: Settings, inner: int, context: int) -> None:
    """data_parallel_shard_degree: -1 takes all GPUs that are left; above 1, or with context parallelism, FSDP."""
    at = "parallelism."
    copies_entry = settings.take(f"{at}data_parallel_replicate_degree", "training.data_parallel_replicate_degree")
    shards_entry = settings.take(f"{at}data_parallel_shard_degree", "training.data_parallel_shard_degree")
    copies = whole_of(copies_entry) if copies_entry is not None else 1
    shards = whole_of(shards_entry, -1) if shards_entry is not None else -1
    place = settings.said(f"{at}data_parallel_shard_degree", "training.data_parallel_shard_degree")
    sharded = shards != 1 or context > 1
    if shards_entry is None:
        settings.assume(
            "plan.zero_stage", 3, "torchtitan's default of data_parallel_shard_degree: all GPUs that are left shard"
        )
    else:
        settings.findings.put("plan.zero_stage", 3 if sharded else 0, place)
    if shards > 0:
        settings.findings.put("plan.data_parallel", copies * shards, place)
        settings.findings.put(
            "cluster.gpus", copies * shards * inner, f"{place}: replicate x shard x the other degrees"
        )
    if copies > 1 and sharded and shards > 0:
        settings.findings.put("plan.shard_size", shards * context, place)
    elif copies > 1 and sharded and copies_entry is not None:
        settings.refuse(copies_entry, "how many ranks shard follows from the GPUs: --set plan.shard_size=N")
    keeps = settings.take(f"{at}fsdp_reshard_after_forward")
    if keeps is not None and word_of(keeps) in ("always", "never") and sharded:
        settings.put("plan.reshard_after_forward", keeps, word_of(keeps) == "always")
    elif keeps is not None:
        settings.waive(keeps)


def _batch(settings: Settings) -> None:
    length = settings.put_whole("workload.sequence_length", "training.seq_len", "training.max_context_length")
    if length is None:
        settings.assume("workload.sequence_length", 2048, "torchtitan's default of seq_len")
    tokens = settings.whole("training.num_tokens_per_microbatch_per_dp_rank")
    local = settings.whole("training.local_batch_size", "training.batch_size")
    if tokens and length and tokens % length == 0:
        local = tokens // length
    pieces = settings.take("parallelism.pipeline_parallel_microbatch_size")
    if settings.get("plan.pipeline_parallel", 1) > 1:
        if pieces is not None:
            settings.put("plan.microbatch_size", pieces, whole_of(pieces))
    elif local:
        settings.say(
            "plan.microbatch_size",
            local,
            "training.local_batch_size",
            "training.batch_size",
            "training.num_tokens_per_microbatch_per_dp_rank",
        )
    else:
        settings.assume("plan.microbatch_size", 8, "torchtitan's default of local_batch_size")
    if local is None:
        local = 8
    everything = settings.take("training.global_batch_size")
    if everything is not None and whole_of(everything, -1) > 0:
        settings.put("workload.global_batch_size", everything, whole_of(everything))
    else:
        settings.findings.per_replica = local
        per_step = settings.take("training.num_tokens_per_train_step")
        if per_step is not None and length and whole_of(per_step, -1) > 0 and whole_of(per_step) % length == 0:
            settings.put("workload.global_batch_size", per_step, whole_of(per_step) // length)


def _recompute(settings: Settings) -> None:
    mode = settings.take("activation_checkpoint.mode")
    option = settings.take("activation_checkpoint.selective_ac_option")
    settings.ignore("activation_checkpoint.memory_budget") if mode is None or word_of(mode) != "memory_budget" else None
    word = word_of(mode) if mode is not None else "selective"
    if word in ("none", "full"):
        settings.say("plan.recompute", word, "activation_checkpoint.mode")
        if option is not None:
            settings.waive(option)
        return
    if word != "selective" and mode is not None:
        settings.refuse(mode, "not modelled; known: none, selective, full")
        return
    every = word_of(option) if option is not None else "2"
    why = "torchtitan's default of activation_checkpoint: every second layer" if option is None else option.text
    if every == "op":
        settings.say("plan.recompute", "operators", "activation_checkpoint.selective_ac_option")
    elif every.isdigit() and int(every) >= 1:
        settings.assume("plan.recompute", "full", f"{why}: whole layers")
        if int(every) > 1:
            settings.assume("plan.recompute_method", "every", f"{why}: whole layers")
            settings.assume("plan.recompute_layers", int(every), f"{why}: whole layers")
    elif option is not None:
        settings.refuse(option, 'known: "op", or a number of layers')


def _rest(settings: Settings) -> None:
    compiled = settings.take("compile.enable", "training.compile")
    parts = settings.take("compile.components")
    if compiled is not None and flag_of(compiled):
        loss = parts is None or "loss" in str(parts.value)
        settings.put("plan.framework", compiled, "torchtitan_2025" if loss else "torchtitan")
    else:
        settings.assume("plan.framework", "torchtitan_eager", "compile is not enabled")
    if settings.flag("training.enable_cpu_offload"):
        place = settings.said("training.enable_cpu_offload")
        settings.findings.put("plan.parameter_offload", 1.0, place)
        settings.findings.put("plan.optimizer_offload", 1.0, place)
    name = settings.take("optimizer.name")
    if name is not None and word_of(name) in ("Adam", "AdamW"):
        settings.put("workload.optimizer", name, "adam")
    elif name is not None:
        settings.refuse(name, "not modelled")
    if settings.flag("optimizer.early_step_in_backward"):
        settings.say("plan.optimizer_in_backward", True, "optimizer.early_step_in_backward")
    settings.put_clipping("training.max_norm")
