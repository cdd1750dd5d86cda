"""Hugging Face Trainer and Accelerate: arguments as JSON, YAML or flags, and Accelerate's own YAML.

Read too by their names: LLaMA-Factory and Axolotl, which hand the same arguments on.  Source of names: huggingface/transformers,
training_args.py; huggingface/accelerate, docs of the configuration file and of FullyShardedDataParallel.
"""

from __future__ import annotations

import re

from simulator.importers.adapters import read_adapters
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings
from simulator.importers.known_models import model_table
from simulator.importers.launch import read_launch
from simulator.importers.settings import Settings, flag_of, of_tree, whole_of, word_of
from simulator.importers.trainer_sharding import FSDP_NO_EFFECT, fsdp_names, read_sharding

__all__ = ["Trainer"]

_TRAINER = {"per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "num_train_epochs", "learning_rate",
            "micro_batch_size", "base_model", "model_name_or_path", "bf16", "fp16", "fsdp", "optim", "lr_scheduler_type"}  # fmt: skip
_ACCELERATE = {"distributed_type", "num_processes", "mixed_precision", "compute_environment", "fsdp_config", "deepspeed_config",
               "num_machines", "machine_rank", "dynamo_config", "megatron_lm_config"}  # fmt: skip
_NO_EFFECT = {
    "output_dir", "overwrite_output_dir", "do_train", "do_eval", "do_predict", "num_train_epochs", "max_steps", "learning_rate",
    "warmup_steps", "warmup_ratio", "seed", "report_to", "run_name", "remove_unused_columns", "dataloader_num_workers", "num_epochs",
    "compute_environment", "machine_rank", "main_process_ip", "main_process_port", "main_training_function", "rdzv_backend", "same_network",
    "use_cpu", "debug", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "enable_cpu_affinity", "downcast_bf16", "data_seed",
    "cutoff_len_strategy",
    "gradient_checkpointing_kwargs.use_reentrant", "gradient_checkpointing_use_reentrant", "trust_remote_code", "template",
    "overwrite_cache", "model_class", "train_dataset", "sample_backend", "max_new_tokens", "init_config.name", "dist_config.dcp_path",
    "model_type", "chat_template", "pad_to_sequence_len", "skip_prepare_dataset", "shuffle_merged_datasets",
    "eot_tokens", "processor_type", "use_tensorboard", "strict", "train_on_inputs", "train_on_prompt", "mask_history",
    "eta_min", "local_files_only",
    "preprocessing_num_workers", "plot_loss", "val_size", "max_samples", "val_set_size", "wandb_project", "datasets", "tf32", "local_rank",
    "disable_gradient_checkpointing", "load_best_model_at_end", "metric_for_best_model", "bf16_full_eval", "resume_from_checkpoint",
    "dispatch_batches", "even_batches", "num_cpu_threads_per_process",
    "deepspeed_config.zero3_init_flag", "deepspeed_config.zero3_save_16bit_model",
    "deepspeed_config.deepspeed_multinode_launcher", "config_file",
}  # fmt: skip
_FACTORY = ("finetuning_type", "cutoff_len", "disable_gradient_checkpointing")
"""Names by which a file is known to be LLaMA-Factory's."""
_LIGER = ("use_liger_kernel", "enable_liger_kernel", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy",
          "liger_rope", "liger_layer_norm", "liger_cross_entropy")  # fmt: skip
"""Trainer, LLaMA-Factory, and Axolotl kernel by kernel: the profiles with Liger's kernels have all of them."""
_PREFIXES = ("adam_", "save", "eval", "logging", "hub", "push_to_hub", "lr_", "weight_decay", "dataset", "data_", "dataloader",
             "per_device_eval",
             "max_eval", "tokenizer", "report", "wandb", "label", "greater_is", "include_", "ddp_timeout", "neftune", "special_tokens",
             "eos_", "loss_watchdog", "trackio_", "cosine_", "mlflow_", "comet_", "swanlab", "image_", "video_", "pref_",
             "accelerator_config.", "hf_")  # fmt: skip


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
        if not data or (document.form == "json" and "model_type" in data) or "zero_optimization" in data:
            return 0
        if "distributed_type" in data or "per_device_train_batch_size" in data:
            return 3
        if "dist_config" in data and "micro_batch_size" in data:
            return 3
        return 2 if max(len(_ACCELERATE & set(data)), len(_TRAINER & set(data)) - 1) > 1 else 0

    def read(self, document: Document) -> Findings:
        """Return batch, precision, sharding and GPUs.

        Raises:
            SpecError: a value that is none of its kind.
        """
        findings = Findings(self.name)
        if document.tree is None:
            settings = read_launch(document, findings, _TRAINER.__contains__).flags
        else:
            settings = of_tree(document.tree_of("a table of arguments"), findings)
        _model(settings)
        _precision(settings)
        _batch(settings)
        read_sharding(settings)
        _memory(settings)
        _trained(settings)
        settings.report(_NO_EFFECT | FSDP_NO_EFFECT, _PREFIXES)
        return findings


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


def _model(settings: Settings) -> None:
    entry = settings.take("model_name_or_path", "base_model", "model_name", "model_id", "model")
    if entry is None:
        return
    table = model_table(word_of(entry))
    if table is None:
        settings.refuse(entry, "its shape is not known here: give its config.json by --model")
        return
    for field, value in table.items():
        settings.findings.put(f"model.{field}", value, f"{entry.place}: {entry.text}, as shipped here")


def _precision(settings: Settings) -> None:
    narrow = settings.take("bf16")
    if narrow is not None and narrow.value == "auto":
        settings.assume("workload.precision", "bf16", f"{narrow.text}: the GPU has it")
    elif narrow is not None and flag_of(narrow):
        settings.put("workload.precision", narrow, "bf16")
    elif settings.flag("fp16"):
        settings.say("workload.precision", "fp16", "fp16")
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


def _batch(settings: Settings) -> None:
    micro = settings.put_whole("plan.microbatch_size", "per_device_train_batch_size", "micro_batch_size")
    times_entry = settings.take("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps")
    times = 1 if times_entry is None or times_entry.value == "auto" else whole_of(times_entry)
    if micro:
        settings.findings.per_replica = micro * times
        if times_entry is not None:
            settings.waive(times_entry, "with the replicas it makes the global batch")
    elif times_entry is not None:
        settings.refuse(times_entry, "without a microbatch it makes no batch")
    settings.put_whole("workload.global_batch_size", "global_batch_size")
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
            settings.waive(machines, "num_processes counts all of them")
    settings.ignore("gpu_ids", "machine_rank")


def _trained(settings: Settings) -> None:
    """Adapters, and second models: what this program does not model is said beside what it takes it for."""
    read_adapters(settings)
    stage = settings.take("stage", "rl")
    if stage is not None and str(stage.value).lower() in ("pt", "sft"):
        settings.waive(stage)
    elif stage is not None:
        settings.refuse(stage, "only the model that is trained is modelled, none beside it")


def _memory(settings: Settings) -> None:
    names = ("gradient_checkpointing", "enable_activation_checkpointing", *fsdp_names("activation_checkpointing"))
    again = settings.take(*names)
    if again is not None and str(again.value).lower() == "offload":
        settings.say("plan.recompute", "full", *names)
        settings.refuse(again, "its inputs of layers stay on the GPU here: --set plan.activation_offload=LAYERS")
    elif again is not None:
        settings.put("plan.recompute", again, "full" if flag_of(again) else "none")
    elif any(name in settings for name in _FACTORY):
        if settings.flag("disable_gradient_checkpointing"):
            settings.say("plan.recompute", "none", "disable_gradient_checkpointing")
        else:
            settings.assume(
                "plan.recompute", "full", "LLaMA-Factory's default: disable_gradient_checkpointing is false"
            )
    kernel = settings.take("attn_implementation", "attn_impl", "flash_attn", "flash_attention")
    if kernel is not None:
        known = {
            "flash_attention_2": "flash2",
            "fa2": "flash2",
            "true": "flash2",
            "sdpa": "sdpa",
            "eager": "unfused",
            "flash_attention_3": "flash3",
        }
        settings.put_known("plan.attention", kernel, known, str(kernel.value).lower())
    settings.put_clipping("max_grad_norm")
    liger = settings.flag(*_LIGER)
    beside = {"hugging_face_fsdp": "hugging_face_liger", "hugging_face_deepspeed": "hugging_face_deepspeed_liger"}
    with_liger = beside.get(settings.get("plan.framework"))
    if liger and with_liger:
        settings.say("plan.framework", with_liger, *_LIGER)
    elif liger:
        settings.findings.skip(settings.said(*_LIGER), "Liger's kernels are known beside FSDP and DeepSpeed only")
