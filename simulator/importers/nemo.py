"""NeMo and Megatron-Bridge: recipes as YAML, whose model keeps Megatron's names.

NeMo             trainer {devices, num_nodes, precision}, model {..., optim {name}}
Megatron-Bridge  model {...}, train {micro_batch_size, global_batch_size}, ddp {...}, optimizer {...}, mixed_precision
"""

from __future__ import annotations

import re
from typing import Any

from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.megatron import NO_EFFECT, NO_EFFECT_PREFIXES
from simulator.importers.megatron_model import read_model
from simulator.importers.megatron_plan import read_plan
from simulator.importers.settings import Settings, of_tree, whole_of, word_of
from simulator.importers.trees import Tree

__all__ = ["Nemo"]

_MODEL = {
    "tensor_model_parallel_size",
    "micro_batch_size",
    "num_layers",
    "hidden_size",
    "encoder_seq_length",
    "seq_length",
}
_POINTER = re.compile(r"\$\{\.*([A-Za-z_][\w.]*)\}")
_PRODUCT = re.compile(r"\$\{multiply:\s*(\d+)\s*,\s*(?:(\d+)|\$\{\.*([A-Za-z_][\w.]*)\})\s*\}")
_MIXED = {
    "fp8_delayed": "fp8",
    "delayed": "fp8",
    "current": "fp8_current",
    "mxfp8": "mxfp8",
    "subchannel": "fp8_block",
    "blockwise": "fp8_block",
    "nvfp4": "nvfp4",
}
_SHARDING = {"full": 3, "grad": 2}
"""fsdp_sharding_strategy of NeMo."""
_ASIDE = {"exp_manager", "run", "hydra", "nsys_profile", "sched", "logger", "webdataset"}
"""Tables of runs, files and logs."""
_NO_EFFECT = {
    "_target_", "name", "restore_from_path", "mcore_gpt", "accelerator", "logger", "enable_checkpointing", "max_epochs",
    "max_steps", "max_time",
    "use_distributed_sampler", "benchmark", "enable_model_summary", "val_check_interval", "limit_val_batches", "limit_test_batches",
    "log_every_n_steps", "transformer_engine", "native_amp_init_scale", "native_amp_growth_interval", "sync_batch_comm",
    "fp32_residual_connection",
    "fp16_lm_cross_entropy", "megatron_amp_O2", "megatron_amp_o2", "grad_allreduce_chunk_size_mb", "gradient_as_bucket_view",
    "resume_if_exists", "resume_ignore_no_checkpoint", "explicit_log_dir", "exp_dir", "create_wandb_logger",
    "create_checkpoint_callback", "betas",
    "warmup_steps", "constant_steps", "contiguous_grad_buffer", "contiguous_param_buffer", "hidden_act", "nsys_profile", "hybrid_override",
    "accumulate_grad_batches", "create_tensorboard_logger", "monitor", "mode", "pre_process", "post_process", "headscale",
    "persist_layer_norm",
    "bias_activation_fusion", "bias_dropout_add_fusion", "apply_rope_fusion", "layernorm_zero_centered_gamma",
    "attention_type", "library", "type",
    "tokenizer_library", "model", "sentencepiece_legacy", "delimiter", "index_mapping_dir", "skip_warmup",
    "grad_div_ar_fusion", "transformer_block_type", "batch_p2p_comm", "ffn_dropout", "resume_from_checkpoint", "do_layer_norm_weight_decay",
    "use_scaled_init_method", "normalize_attention_scores", "onnx_safe", "apex_transformer_log_level", "gc_interval", "splits_string",
    "defaults", "fsdp_sharded_checkpoint",
    "enable_autocast", "use_cpu_initialization",
}  # fmt: skip


class Nemo(Importer):
    """A NeMo or Megatron-Bridge recipe."""

    name = "nemo"
    title = "NeMo or Megatron-Bridge YAML"
    aliases = ("megatron_bridge", "nemo_yaml")

    def recognises(self, document: Document) -> int:
        """Look for a model with Megatron's names beside a trainer, train or ddp section."""
        if document.form not in ("yaml", "json"):
            return 0
        data = document.table
        if not isinstance(data.get("model"), dict):
            return 0
        around = {"trainer", "train", "ddp", "exp_manager", "dist", "dataset", "optimizer"} & set(data)
        own = _MODEL & set(data["model"])
        return 3 if around and own else 0

    def read(self, document: Document) -> Findings:
        """Return model, batch, plan and GPUs.

        Raises:
            SpecError: a value that is none of its kind.
        """
        tree = document.tree_of("a table with model and trainer")
        findings = Findings(self.name)
        bridge = "trainer" not in tree.data
        tree = Tree(_resolved(tree.data, tree.data), tree.lines, tree.place)
        settings = of_tree(tree, findings, last_part=True, aside=_ASIDE)
        _optimizer(settings, tree)
        _trainer(settings)
        _fsdp(settings)
        profile = "megatron_bridge" if bridge else "nemo"
        findings.put("plan.framework", profile, f"{document.place}: " + ("no section trainer" if bridge else "trainer"))
        read_model(settings, "NeMo's default", tokenizer=_tokenizer(tree))
        read_plan(settings, "NeMo")
        _narrow(settings)
        settings.report(NO_EFFECT | _NO_EFFECT, (*NO_EFFECT_PREFIXES, "sched", "optim", "exp_", "checkpoint"))
        return findings


def _resolved(value: Any, root: dict[str, object]) -> object:
    """Values with pointers such as ${.hidden_size} and ${multiply:4, ${.hidden_size}} replaced, where they lead to a number or word."""
    if isinstance(value, dict):
        return {key: _resolved(inner, root) for key, inner in value.items()}
    if not isinstance(value, str) or "${" not in value or len(value) > 300:
        return value
    product = _PRODUCT.fullmatch(value.strip())
    if product:
        other = int(product.group(2)) if product.group(2) else _target(root, product.group(3))
        return int(product.group(1)) * other if isinstance(other, int) else value
    pointer = _POINTER.fullmatch(value.strip())
    found = _target(root, pointer.group(1)) if pointer else None
    return value if found is None or isinstance(found, dict | list) or "${" in str(found) else found


def _target(root: dict[str, Any], path: str) -> object:
    """What a dotted path leads to from the top, or inside the model."""
    for start in (root, root.get("model")):
        value: object = start
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _optimizer(settings: Settings, tree: Tree) -> None:
    """optim.name of NeMo says whether states are sharded."""
    data = tree.data
    model = data.get("model", {})
    optim = (model.get("optim") if isinstance(model, dict) else None) or data.get("optim") or {}
    name = str(optim.get("name", "")) if isinstance(optim, dict) else ""
    if "distributed" in name or name == "mcore_distributed_optim":
        settings.findings.put("plan.zero_stage", 1, f"optim.name: {name}")
    if "adam" in name:
        settings.findings.put("workload.optimizer", "adam", f"optim.name: {name}")


def _tokenizer(tree: Tree) -> str:
    """The type of model.tokenizer; "" where it is not said."""
    model = tree.data.get("model")
    said = (model.get("tokenizer") if isinstance(model, dict) else None) or tree.data.get("tokenizer")
    return str(said.get("type", "")) if isinstance(said, dict) else ""


def _fsdp(settings: Settings) -> None:
    """model.fsdp of NeMo; what stands beside it has no effect where it is off."""
    names = ("fsdp_sharding_strategy", "fsdp_grad_reduce_dtype", "fsdp_use_orig_params")
    if not settings.flag("fsdp"):
        settings.ignore(*names)
        return
    strategy = settings.take(names[0])
    word = "full" if strategy is None else word_of(strategy)
    if word in _SHARDING:
        settings.say("plan.zero_stage", _SHARDING[word], names[0], "fsdp")
    elif strategy is not None:
        settings.refuse(strategy, "known: " + ", ".join(_SHARDING))


def _trainer(settings: Settings) -> None:
    devices, nodes = settings.take("devices", "num_gpus_per_node", "gpus_per_node"), settings.take("num_nodes", "nodes")
    if devices is not None and str(devices.value).isdigit() and (nodes is None or str(nodes.value).isdigit()):
        settings.put("cluster.gpus", devices, whole_of(devices) * (whole_of(nodes) if nodes is not None else 1))
    else:
        for unknown in filter(None, (devices, nodes)):
            settings.refuse(unknown, "how many GPUs is not said")
    entry = settings.take("precision", "mixed_precision")
    if entry is None:
        return
    word = str(entry.value).lower()
    narrow = (
        next((ours for theirs, ours in _MIXED.items() if theirs in word), None)
        if "fp8" in word or "fp4" in word
        else None
    )
    base = "bf16" if "bf16" in word else "fp16" if "16" in word else "fp32" if "32" in word else ""
    if narrow or base:
        settings.put("workload.precision", entry, narrow or base)
    else:
        settings.refuse(entry, "known: 32, 16, bf16, bf16-mixed, bf16_with_fp8_...")


def _narrow(settings: Settings) -> None:
    """A length that stands with the data, and what NeMo ties to fp8."""
    if settings.get("workload.sequence_length") is None:
        settings.put_whole("workload.sequence_length", "sequence_length")
    settings.ignore(
        "sequence_length", "fp8_hybrid", "fp8_e4m3", "fp8_wgrad", "fp8_params", "reduce_amax", "fp8_amax_reduction"
    )
