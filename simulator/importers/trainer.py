"""Hugging Face Trainer and Accelerate: arguments as JSON, YAML or flags, and Accelerate's own YAML.

Read too by their names: LLaMA-Factory and Axolotl, which hand the same arguments on.  Source of names: huggingface/transformers,
training_args.py; huggingface/accelerate, docs of the configuration file and of FullyShardedDataParallel.
"""

from __future__ import annotations

import re

from simulator.errors import SpecError
from simulator.importers.base import Importer
from simulator.importers.deepspeed import read_zero
from simulator.importers.document import Document
from simulator.importers.imported import Findings, Imported
from simulator.importers.known_models import model_table
from simulator.importers.launch import read_launch
from simulator.importers.settings import Settings, flag_of, of_tree, whole_of, word_of

__all__ = ["Trainer"]

_TRAINER = {"per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "num_train_epochs", "learning_rate",
            "micro_batch_size", "base_model", "model_name_or_path", "bf16", "fp16", "fsdp", "optim", "lr_scheduler_type"}  # fmt: skip
_ACCELERATE = {"distributed_type", "num_processes", "mixed_precision", "compute_environment", "fsdp_config", "deepspeed_config",
               "num_machines", "machine_rank", "dynamo_config", "megatron_lm_config"}  # fmt: skip
_SHARDING = {
    "full_shard": 3,
    "1": 3,
    "shard_grad_op": 2,
    "2": 2,
    "no_shard": 0,
    "3": 0,
    "hybrid_shard": 3,
    "4": 3,
    "hybrid_shard_zero2": 2,
    "5": 2,
}
_NO_EFFECT = {
    "output_dir", "overwrite_output_dir", "do_train", "do_eval", "do_predict", "num_train_epochs", "max_steps", "learning_rate",
    "warmup_steps", "warmup_ratio", "seed", "report_to", "run_name", "remove_unused_columns", "dataloader_num_workers", "num_epochs",
    "compute_environment", "machine_rank", "main_process_ip", "main_process_port", "main_training_function", "rdzv_backend", "same_network",
    "use_cpu", "debug", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "enable_cpu_affinity", "downcast_bf16", "data_seed",
    "cutoff_len_strategy",
    "gradient_checkpointing_kwargs.use_reentrant", "gradient_checkpointing_use_reentrant", "trust_remote_code", "template",
    "stage", "overwrite_cache",
    "preprocessing_num_workers", "plot_loss", "val_size", "max_samples", "val_set_size", "wandb_project", "datasets", "tf32", "local_rank",
    "disable_gradient_checkpointing", "load_best_model_at_end", "metric_for_best_model", "bf16_full_eval", "resume_from_checkpoint",
    "fsdp_config.fsdp_state_dict_type", "fsdp_config.fsdp_sync_module_states", "fsdp_config.fsdp_cpu_ram_efficient_loading",
    "fsdp_config.fsdp_use_orig_params", "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp_config.fsdp_auto_wrap_policy",
    "fsdp_config.fsdp_backward_prefetch", "fsdp_config.fsdp_forward_prefetch", "fsdp_config.fsdp_version",
    "fsdp_config.fsdp_min_num_params",
    "fsdp_config.transformer_layer_cls_to_wrap", "fsdp_config.xla", "dispatch_batches", "even_batches", "num_cpu_threads_per_process",
    "deepspeed_config.zero3_init_flag", "deepspeed_config.zero3_save_16bit_model",
    "deepspeed_config.deepspeed_multinode_launcher", "config_file",
}  # fmt: skip
_PREFIXES = ("adam_", "save", "eval", "logging", "hub", "push_to_hub", "lr_", "weight_decay", "dataset", "data_", "dataloader",
             "per_device_eval",
             "max_eval", "tokenizer", "report", "wandb", "label", "greater_is", "include_", "ddp_timeout", "neftune", "special_tokens",
             "eos_", "fsdp_transformer")  # fmt: skip


class Trainer(Importer):
    """Arguments of the Trainer, or Accelerate's configuration."""

    name = "hugging_face_trainer"
    title = "Hugging Face Trainer or Accelerate arguments (JSON, YAML, flags)"
    aliases = ("accelerate", "trainer", "llama_factory", "axolotl")

    def recognises(self, document: Document) -> int:
        """Count the names that are theirs."""
        if document.form == "text":
            flags = set(re.findall(r"(?<![\w-])--([a-z_]+)", document.head.replace("-", "_").replace("__", "--")))
            return 2 if "per_device_train_batch_size" in flags else 0
        data = document.table
        if not data or "model_type" in data or "zero_optimization" in data:
            return 0
        if "distributed_type" in data or "per_device_train_batch_size" in data:
            return 3
        return 2 if max(len(_ACCELERATE & set(data)), len(_TRAINER & set(data)) - 1) > 1 else 0

    def read(self, document: Document) -> Imported:
        """Return batch, precision, sharding and GPUs.

        Raises:
            SpecError: a value that is none of its kind.
        """
        findings = Findings(self.name)
        tree = document.tree
        if tree is None:
            settings = read_launch(document, findings, _TRAINER.__contains__).flags
        elif isinstance(tree.data, dict):
            settings = of_tree(tree, findings)
        else:
            raise SpecError(f"{document.place}: expected a table of arguments")
        _model(settings, findings)
        _precision(settings, findings)
        _batch(settings, findings)
        kind = _kind(settings)
        if kind == "deepspeed":
            _deepspeed(settings, findings)
        elif kind == "fsdp":
            _fsdp(settings, findings)
        else:
            findings.assume("plan.framework", "hugging_face_ddp", "neither FSDP nor DeepSpeed is named")
            findings.assume("plan.zero_stage", 0, "every GPU holds all states")
        _memory(settings, findings)
        settings.report(_NO_EFFECT, _PREFIXES)
        return findings.done()


_OPTIMIZERS = (
    ("lion_8bit", ""),
    ("8bit", "adam_8bit"),
    ("adafactor", "adafactor"),
    ("lion", "lion"),
    ("lamb", "lamb"),
    ("fused", "adam_fused"),
    ("adam", "adam"),
)
"""Part of a name of `optim` -> the optimizer; the first that is in it."""


def _model(settings: Settings, findings: Findings) -> None:
    entry = settings.take("model_name_or_path", "base_model", "model_name", "model_id")
    if entry is None:
        return
    table = model_table(word_of(entry))
    if table is None:
        settings.refuse(entry, "its shape is not known here: give its config.json by --model")
        return
    for field, value in table.items():
        findings.put(f"model.{field}", value, f"{entry.place}: {entry.text}, as shipped here")


def _precision(settings: Settings, findings: Findings) -> None:
    if settings.flag("bf16"):
        findings.put("workload.precision", "bf16", settings.said("bf16"))
    elif settings.flag("fp16"):
        findings.put("workload.precision", "fp16", settings.said("fp16"))
    settings.take("fp16")
    mixed = settings.take("mixed_precision")
    if mixed is not None:
        word = {"no": "fp32", "false": "fp32", "False": "fp32"}.get(str(mixed.value), str(mixed.value))
        if word in ("fp32", "bf16", "fp16", "fp8"):
            settings.put("workload.precision", mixed, word)
        else:
            settings.refuse(mixed, "known: no, fp16, bf16, fp8")
    optimizer = settings.take("optim", "optimizer")
    if optimizer is not None:
        word = word_of(optimizer).lower()
        name = next((name for part, name in _OPTIMIZERS if part in word), "sgd" if word == "sgd" else "")
        if name:
            settings.put("workload.optimizer", optimizer, name)
        else:
            settings.refuse(optimizer, "not modelled")


def _batch(settings: Settings, findings: Findings) -> None:
    micro = settings.put_whole("plan.microbatch_size", "per_device_train_batch_size", "micro_batch_size")
    times_entry = settings.take("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps")
    times = 1 if times_entry is None or times_entry.value == "auto" else whole_of(times_entry)
    if micro:
        findings.per_replica = micro * times
        if times_entry is not None:
            findings.ignore(times_entry.place, f"{times_entry.text}: with the replicas it makes the global batch")
    elif times_entry is not None:
        settings.refuse(times_entry, "without a microbatch it makes no batch")
    settings.put_whole(
        "workload.sequence_length",
        "max_seq_length",
        "max_length",
        "model_max_length",
        "cutoff_len",
        "sequence_len",
        "block_size",
    )
    gpus = settings.take("num_processes", "nproc_per_node")
    machines = settings.take("num_machines", "nnodes")
    if gpus is not None:
        settings.put("cluster.gpus", gpus, whole_of(gpus))
        if machines is not None:
            findings.ignore(machines.place, f"{machines.text}: num_processes counts all of them")
    settings.ignore("gpu_ids", "machine_rank")


def _kind(settings: Settings) -> str:
    """fsdp, deepspeed or ddp."""
    named = (settings.word("distributed_type") or "").lower()
    if "deepspeed" in named or any(
        name == "deepspeed" or name.startswith("deepspeed_config.") for name, _ in settings.left()
    ):
        return "deepspeed"
    if "fsdp" in named or any(name == "fsdp" or name.startswith("fsdp_config.") for name, _ in settings.left()):
        return "fsdp"
    return "ddp"


def _deepspeed(settings: Settings, findings: Findings) -> None:
    findings.put("plan.framework", "hugging_face_deepspeed", settings.said("distributed_type", "deepspeed"))
    entry = settings.take("deepspeed", "deepspeed_config.deepspeed_config_file")
    if entry is not None:
        settings.refuse(entry, "give that file beside this one")
    stage = settings.take("deepspeed_config.zero_stage")
    if stage is not None:
        settings.put("plan.zero_stage", stage, whole_of(stage, 0))
    read_zero(settings, findings, "deepspeed_config.")
    clip = settings.number("deepspeed_config.gradient_clipping")
    if clip is not None:
        findings.put("plan.clip_gradients", clip > 0, settings.said("deepspeed_config.gradient_clipping"))


def _fsdp(settings: Settings, findings: Findings) -> None:
    at = "fsdp_config."
    findings.put(
        "plan.framework", "hugging_face_fsdp", settings.said("distributed_type", "fsdp", f"{at}fsdp_sharding_strategy")
    )
    strategy = settings.take(f"{at}fsdp_sharding_strategy")
    words = settings.take("fsdp")
    said = str(strategy.value).lower() if strategy is not None else ""
    if words is not None:
        parts = words.value if isinstance(words.value, list) else str(words.value).split()
        said = next((str(part).lower() for part in parts if str(part).lower() in _SHARDING), said)
    keeps = settings.take(f"{at}fsdp_reshard_after_forward")
    entry = strategy or words
    if keeps is not None and str(keeps.value).lower() in _SHARDING:
        said, entry = str(keeps.value).lower(), keeps
    elif keeps is not None and not said:
        findings.put("plan.zero_stage", 3, keeps.text)
        settings.put("plan.reshard_after_forward", keeps, flag_of(keeps))
        return
    if said in _SHARDING and entry is not None:
        settings.put("plan.zero_stage", entry, _SHARDING[said])
        if said.startswith("hybrid") or said in ("4", "5"):
            settings.refuse(entry, "how many ranks share one copy is not said: --set plan.shard_size=GPUS_OF_A_NODE")
    elif entry is not None:
        settings.refuse(entry, "known: " + ", ".join(_SHARDING))
    else:
        findings.assume("plan.zero_stage", 3, "FSDP's default: FULL_SHARD")
    if settings.flag(f"{at}fsdp_offload_params"):
        place = settings.said(f"{at}fsdp_offload_params")
        findings.put("plan.parameter_offload", 1.0, place)
        findings.put("plan.optimizer_offload", 1.0, place)


def _memory(settings: Settings, findings: Findings) -> None:
    again = settings.flag(
        "gradient_checkpointing", "fsdp_config.fsdp_activation_checkpointing", "fsdp_config.activation_checkpointing"
    )
    if again is not None:
        place = settings.said(
            "gradient_checkpointing",
            "fsdp_config.fsdp_activation_checkpointing",
            "fsdp_config.activation_checkpointing",
        )
        findings.put("plan.recompute", "full" if again else "none", place)
    kernel = settings.take("attn_implementation", "attn_impl", "flash_attn", "flash_attention")
    if kernel is not None:
        word = str(kernel.value).lower()
        known = {
            "flash_attention_2": "flash2",
            "fa2": "flash2",
            "true": "flash2",
            "sdpa": "sdpa",
            "eager": "unfused",
            "flash_attention_3": "flash3",
        }
        if word in known:
            settings.put("plan.attention", kernel, known[word])
        else:
            settings.refuse(kernel, "known: " + ", ".join(known))
    clip = settings.number("max_grad_norm")
    if clip is not None:
        findings.put("plan.clip_gradients", clip > 0, settings.said("max_grad_norm"))
    liger = settings.flag("use_liger_kernel", "enable_liger_kernel", "liger_rms_norm")
    beside = {"hugging_face_fsdp": "hugging_face_liger", "hugging_face_deepspeed": "hugging_face_deepspeed_liger"}
    with_liger = beside.get(findings.get("plan.framework"))
    if liger and with_liger:
        said = settings.said("use_liger_kernel", "enable_liger_kernel", "liger_rms_norm")
        findings.put("plan.framework", with_liger, said)
