"""GPT-NeoX: its YAML, with names of its own for Megatron's sizes beside DeepSpeed's tables.

Source of names and defaults: EleutherAI/gpt-neox, megatron/neox_arguments/neox_args.py and deepspeed_args.py (2026-08); how wide an
MLP with a gate is: megatron/model/transformer.py, ParallelMLP.
"""

from __future__ import annotations

from simulator.importers.base import Importer
from simulator.importers.deepspeed import read_zero
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.megatron import NO_EFFECT, NO_EFFECT_PREFIXES
from simulator.importers.settings import Settings, of_tree, plain_name, whole_of, word_of

__all__ = ["GptNeoX"]

_OWN = {
    "pipe_parallel_size",
    "pos_emb",
    "no_weight_tying",
    "gpt_j_residual",
    "output_layer_parallelism",
    "attention_config",
}
_SIZES = {
    "model.layers": ("num_layers",),
    "model.hidden": ("hidden_size",),
    "model.heads": ("num_attention_heads",),
    "model.kv_heads": ("num_kv_heads",),
    "model.sequence_length": ("max_position_embeddings",),
    "workload.sequence_length": ("seq_length",),
    "plan.tensor_parallel": ("model_parallel_size",),
}
_POSITIONS = {"learned": "learned", "rotary": "rotary", "alibi": "alibi", "none": "none", "rpe": "relative_bias"}
_GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")
_NORMS = {"layernorm": "layer_norm", "te_layernorm": "layer_norm", "rmsnorm": "rms_norm", "te_rmsnorm": "rms_norm"}
_PRECISIONS = {"fp16": "fp16", "bfloat16": "bf16", "fp32": "fp32"}
_KERNELS = {"flash": "flash2", "global": "unfused"}
_NO_EFFECT = {
    "gpt_j_residual", "output_layer_parallelism", "scaled_upper_triang_masked_softmax_fusion", "bias_gelu_fusion",
    "output_layer_init_method", "zero_optimization.allgather_partitions", "zero_optimization.allgather_bucket_size",
    "zero_optimization.reduce_scatter", "zero_optimization.contiguous_gradients", "warmup", "steps_per_print", "wall_clock_breakdown",
    "keep_last_n_checkpoints", "synchronize_each_layer", "partition_activations", "rms_norm_epsilon", "use_bias_in_norms",
    "extra_save_iters", "hostfile", "layernorm_fusion", "launcher", "comment", "master_port",
}  # fmt: skip
_PREFIXES = ("optimizer.params", "fp16.", "bf16.", "scheduler", "sample_", "temperature", "prompt")


class GptNeoX(Importer):
    """A configuration of GPT-NeoX."""

    name = "gpt_neox"
    title = "GPT-NeoX YAML"
    aliases = ("neox", "gpt-neox")

    def recognises(self, document: Document) -> int:
        """Look for the names that are its own."""
        keys = {plain_name(key) for key in document.table} if document.form in ("yaml", "json") else set()
        return 4 if len(keys & _OWN) > 1 or ("pipe_parallel_size" in keys and "model_parallel_size" in keys) else 0

    def read(self, document: Document) -> Findings:
        """Return model, plan, batch and precision.

        Raises:
            SpecError: no table, or a value that is none of its kind.
        """
        tree = document.tree_of("a table of GPT-NeoX's arguments")
        findings = Findings(self.name)
        settings = of_tree(tree, findings)
        for field, names in _SIZES.items():
            settings.put_whole(field, *names)
        stages = settings.whole("pipe_parallel_size", least=0)
        if stages is not None and stages > 1:
            settings.say("plan.pipeline_parallel", stages, "pipe_parallel_size")
            settings.assume("plan.schedule", "one_f_one_b", "DeepSpeed's only order of a pipeline")
        if settings.get("model.layers"):
            _model(settings)
        _precision(settings)
        _batch(settings)
        read_zero(settings, "zero_optimization.")
        again = settings.flag("checkpoint_activations")
        if again is not None:
            settings.say("plan.recompute", "full" if again else "none", "checkpoint_activations")
        settings.ignore("checkpoint_num_layers")
        drops = [settings.number("attention_dropout"), settings.number("hidden_dropout")]
        if any(share is not None for share in drops):
            settings.say("plan.dropout", any(drops), "attention_dropout", "hidden_dropout")
        settings.put_clipping("gradient_clipping")
        settings.report(NO_EFFECT | _NO_EFFECT, (*NO_EFFECT_PREFIXES, *_PREFIXES))
        return findings


def _model(settings: Settings) -> None:
    why = "GPT-NeoX's default"
    settings.assume("model.family", "gpt_neox", "GPT-NeoX builds a GPT")
    activation = settings.word("activation") or "gelu"
    gated = activation in _GATED
    settings.say("model.gated_mlp", gated, "activation")
    wide = settings.whole("intermediate_size") or 4 * (settings.get("model.hidden") or 0)
    step = settings.whole("mlp_multiple_of") or 1
    inner = int(wide * 2 / 3) // 2 if gated else wide
    if inner:
        settings.assume(
            "model.ffn", -(-inner // step) * step, "intermediate_size (4 x hidden); with a gate a third of it"
        )
    _word(settings, "model.norm", "norm", _NORMS, "layernorm")
    _word(settings, "model.positions", "pos_emb", _POSITIONS, "learned")
    share = settings.number("rotary_pct")
    if share is not None and 0 < share < 1:
        settings.say("model.rotary_share", share, "rotary_pct")
    for field, name, default in (
        ("model.qkv_bias", "use_bias_in_attn_linear", True),
        ("model.linear_bias", "use_bias_in_mlp", True),
        ("model.qk_norm", "use_qk_layernorm", False),
    ):
        if settings.put_flag(field, name) is None and default:
            settings.assume(field, default, why)
    untied = settings.flag("no_weight_tying")
    settings.assume("model.tied_embeddings", not untied, settings.said("no_weight_tying") if untied else why)
    kind = settings.take("tokenizer_type")
    if kind is None or word_of(kind) in ("GPT2BPETokenizer", "HFGPT2Tokenizer"):
        settings.assume("model.vocabulary", 50257, "GPT-2's vocabulary, by GPT-NeoX's default of tokenizer_type")
    else:
        settings.refuse(kind, "how many words it has is not said: --set model.vocabulary=N")


def _word(settings: Settings, field: str, name: str, known: dict[str, str], default: str) -> None:
    """A field whose words have others' names."""
    entry = settings.take(name)
    if entry is None:
        settings.assume(field, known[default], f"GPT-NeoX's default of {name}: {default}")
    else:
        settings.put_known(field, entry, known)


def _precision(settings: Settings) -> None:
    said = settings.take("precision")
    half, narrow = settings.flag("fp16.enabled"), settings.flag("bf16.enabled")
    settings.ignore("fp16.type")
    if said is not None:
        settings.put_known("workload.precision", said, _PRECISIONS)
    elif half or narrow:
        name = "bf16" if narrow else "fp16"
        settings.say("workload.precision", name, f"{name}.enabled")
    profile = "gpt_neox_bf16" if settings.get("workload.precision") == "bf16" else "gpt_neox"
    settings.findings.put("plan.framework", profile, "GPT-NeoX's arguments")
    kernels = settings.take("attention_config")
    words = {word for word in _KERNELS if kernels is not None and f"'{word}'" in str(kernels.value)}
    if kernels is not None and len(words) == 1:
        settings.put("plan.attention", kernels, _KERNELS[words.pop()])
    elif kernels is not None:
        settings.refuse(kernels, "known: all layers of one of " + ", ".join(_KERNELS))
    optimizer = settings.take("optimizer.type")
    if optimizer is not None and word_of(optimizer).lower() in ("adam", "adamw", "cpu_adam", "sgd"):
        settings.put("workload.optimizer", optimizer, "sgd" if word_of(optimizer).lower() == "sgd" else "adam")
    elif optimizer is not None:
        settings.refuse(optimizer, "not modelled")


def _batch(settings: Settings) -> None:
    micro = settings.put_whole("plan.microbatch_size", "train_micro_batch_size_per_gpu")
    times = settings.take("gradient_accumulation_steps")
    if settings.put_whole("workload.global_batch_size", "train_batch_size") is None and micro:
        settings.findings.per_replica = micro * (1 if times is None else whole_of(times))
    if times is not None:
        settings.waive(times, "with the replicas it makes the global batch")
    settings.put_whole("cluster.gpus", "global_num_gpus", "num_gpus")
