"""Megatron-LM: launch lines, shell scripts and YAML files.

A script is cut into words and never run (`shell`); its flags, like the keys of a YAML file, are read by `megatron_model` and
`megatron_plan`.  Source of the names: NVIDIA/Megatron-LM, megatron/training/arguments.py (2026-08).
"""

from __future__ import annotations

import re

from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.launch import read_launch
from simulator.importers.megatron_model import read_model, usual_tokenizer
from simulator.importers.megatron_plan import read_deepspeed, read_plan
from simulator.importers.settings import Settings, of_tree, plain_name

__all__ = ["NO_EFFECT", "NO_EFFECT_PREFIXES", "SIGNATURE", "Megatron"]

SIGNATURE = {
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers", "hidden_size", "num_attention_heads",
    "micro_batch_size", "global_batch_size", "seq_length", "ffn_hidden_size", "num_query_groups", "context_parallel_size",
    "expert_model_parallel_size", "use_distributed_optimizer", "sequence_parallel", "recompute_granularity", "num_experts",
    "use_mcore_models", "max_position_embeddings", "swiglu", "untie_embeddings_and_output_weights", "transformer_impl",
}  # fmt: skip
"""Settings by which Megatron's files are known."""
NO_EFFECT_PREFIXES = (
    "lr", "min_lr", "adam_", "weight_decay", "start_weight_decay", "end_weight_decay", "save", "load", "ckpt", "eval", "log_",
    "tensorboard", "wandb", "data_", "train_", "valid_", "test_", "exit_", "dist_ckpt", "tokenizer", "rotary_",
    "init_method", "use_tokenizer",
    "no_load", "no_save", "async_", "profile", "timing", "inference", "one_logger", "rope", "use_rope", "yarn", "mscale", "manual_gc",
    "loss_scale", "initial_loss", "min_loss", "distributed_timeout", "muon", "moe_aux", "moe_z_loss", "moe_router_", "hysteresis",
    "dataloader", "check_", "error_injection", "straggler", "mock_", "mid_level", "object_storage", "fim_", "reset_", "pretrained",
    "checkpoint", "auto_detect", "replication", "non_persistent", "te_rng", "nccl_communicator", "high_priority",
)  # fmt: skip
"""Beginnings of flags of learning rates, files, logs and data."""
NO_EFFECT = {
    "seed", "split", "vocab_file", "merge_file", "merges_file", "num_workers", "clip_grad", "log_interval", "train_iters", "train_samples",
    "use_mcore_models", "distributed_backend", "norm_epsilon", "layernorm_epsilon", "apply_layernorm_1p", "apply_query_key_layer_scaling",
    "attention_softmax_in_fp32", "override_opt_param_scheduler", "use_checkpoint_args", "eod_mask_loss", "make_vocab_size_divisible_by",
    "calculate_per_token_loss", "no_create_attention_mask_in_dataloader", "use_dist_ckpt", "no_check_for_nan_in_loss_and_grad",
    "finetune", "bert_no_binary_head", "moe_grouped_gemm", "is_hybrid_model",
    "moe_token_drop_policy", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_margin", "fp8_interval", "enable_experimental",
    "masked_softmax_fusion", "overlap_p2p_comm", "decoupled_lr", "decoupled_min_lr",
    "no_position_embedding", "group_query_attention", "local_rank", "disable_msc", "ddp_average_in_collective", "position_embedding_type",
    "tokenizer_type", "tokenizer_model", "hf_tokenizer", "squared_relu", "openai_gelu", "use_cpu_initialization",
    "empty_unused_memory_level",
    "gradient_clip_val", "moe_shared_expert_gate", "trust_remote_code", "num_dataset_builder_threads", "data_cache_path",
    "qk_clip", "beta_fast", "no_pipeline_parallel", "deepspeed_activation_checkpointing", "create_moe_param_group", "vocab_extra_ids",
}  # fmt: skip
"""Settings that change neither time nor memory of a step as modelled, or follow from others."""


class Megatron(Importer):
    """Megatron-LM's flags, in a script, on a line or in YAML."""

    name = "megatron"
    title = "Megatron-LM launch line, shell script or YAML"
    aliases = ("megatron_lm", "mcore")

    def recognises(self, document: Document) -> int:
        """Count the settings that are Megatron's own."""
        if document.form == "text":
            flags = {plain_name(flag) for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]+", document.head)}
            known = len(flags & SIGNATURE)
            return 0 if known < 2 else 3 if known > 4 or re.search(r"pretrain_\w+\.py", document.head) else 2
        if document.form != "yaml":
            return 0
        keys = {
            plain_name(key)
            for key in re.findall(r"^\s*\"?(-{0,2}[a-z][a-z0-9_-]+)\"?\s*:", document.head, re.MULTILINE)
        }
        return 2 if len(keys & SIGNATURE) > 2 else 0

    def read(self, document: Document) -> Findings:
        """Return model, plan, batch and GPUs as far as the flags say them.

        Raises:
            SpecError: a flag's value is none of its kind, or a quote is not closed.
        """
        findings = Findings(self.name)
        if document.tree is None:
            launch = read_launch(document, findings, SIGNATURE.__contains__)
            settings, launched = launch.flags, launch.program
            named = re.search(r"tokenizer|vocab[-_]size", document.text, re.IGNORECASE)
            tokenizer = "" if named else usual_tokenizer(launched)
        else:
            tree = document.tree_of("a table of Megatron's arguments")
            settings, launched, tokenizer = of_tree(tree, findings, last_part=True), "", ""
        deepspeed = settings.flag("deepspeed")
        if deepspeed:
            read_deepspeed(settings)
        elif settings.flag("use_legacy_models"):
            settings.say("plan.framework", "megatron_lm_2023", "use_legacy_models")
        else:
            findings.put("plan.framework", "megatron_core", "Megatron's arguments")
        read_arguments(settings, "Megatron-DeepSpeed" if deepspeed else "Megatron", launched, tokenizer)
        return findings


def read_arguments(settings: Settings, program: str = "Megatron", launched: str = "", tokenizer: str = "") -> None:
    """Put all that Megatron's arguments decide, and report the rest.

    Raises:
        SpecError: a value that is none of its kind.
    """
    read_model(settings, launched=launched, tokenizer=tokenizer)
    read_plan(settings, program)
    settings.report(NO_EFFECT, NO_EFFECT_PREFIXES)
