"""Low-rank adapters of a training file: their rank, the modules that have them, and whether what is frozen stands in 4 bits."""

from __future__ import annotations

import re

from simulator.importers.settings import Entry, Settings, flag_of, word_of
from simulator.importers.vocabulary.adapters import adapted_modules
from simulator.workload.model_fields import ADAPTED

__all__ = ["read_adapters"]

_OFF = ("false", "0", "no", "none", "")
_KINDS = {"adapter": ("lora", "qlora"), "finetuning_type": ("lora",), "use_peft": ("true",), "use_lora": ("true",),
          "lora_enable": ("true",), "peft_config.name": ("lora",)}  # fmt: skip
"""Settings that say what is trained, and their values for adapters."""
_WIDTHS = {"load_in_4bit": "nf4", "quantization_bit": "nf4", "quant_config.name": "nf4", "load_in_8bit": "", "gptq": ""}
"""Settings by which frozen weights stand in fewer bits."""
_ALL_WEIGHTS = {"finetuning_type": ("full",)}
_RANKS = ("lora_rank", "lora_r", "lora_dim", "peft_config.r", "peft_config.lora_r")
_TARGETS = ("lora_target", "lora_target_modules", "lora_modules", "peft_config.target_modules")
_DEFAULT_RANK = 8
"""Of PEFT (LoraConfig.r) and LLaMA-Factory (lora_rank)."""
_QUERY_VALUE = ("query", "value")
"""What PEFT adapts of a llama that names no modules (peft/utils/constants.py)."""
_NO_EFFECT = ("lora_alpha", "lora_bias", "use_rslora", "loraplus_lr_ratio", "loraplus_lr_embedding", "lora_task_type",
              "lora_fan_in_fan_out", "pissa_init", "create_new_adapter", "peft_init_lora_weights", "bnb_4bit_quant_type",
              "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype", "double_quantization", "quantization_method",
              "quantization_type", "use_bnb_nested_quant", "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")  # fmt: skip


def read_adapters(settings: Settings) -> None:
    """Set the model's adapters where the file has some; other frozen weights, and 8 bits, are said to be left out."""
    low = [_says(settings, name, entry) for name in _KINDS if (entry := settings.take(name)) is not None]
    narrow = [(name, e) for name in _WIDTHS if (e := settings.take(name)) is not None and _on(name, e)]
    if not any(low):
        for _, entry in narrow:
            _refuse(settings, entry)
        settings.ignore(*_RANKS, *_TARGETS, *_NO_EFFECT, "lora_dropout", "lora_target_linear", "additional_target")
        return
    if settings.put_whole("model.lora_rank", *_RANKS) is None:
        settings.assume("model.lora_rank", _DEFAULT_RANK, "PEFT's default (LoraConfig.r)")
    _modules(settings)
    dropout = settings.number("lora_dropout", "peft_config.lora_dropout")
    if dropout:
        settings.say("model.lora_dropout", True, "lora_dropout", "peft_config.lora_dropout")
    for name, entry in narrow:
        if _WIDTHS[name] and str(entry.value).lower() != "8":
            settings.put("model.frozen_format", entry, _WIDTHS[name])
        else:
            _refuse(settings, entry)
    also = settings.take("additional_target", "lora_modules_to_save", "modules_to_save")
    if also is not None:
        _refuse(settings, also)
    settings.ignore(*_NO_EFFECT)


def _says(settings: Settings, name: str, entry: Entry) -> bool:
    """Whether a setting asks for adapters."""
    word = str(entry.value).lower()
    if word in _KINDS[name]:
        settings.waive(entry, "as the rank says")
        return True
    if word in _OFF or word in _ALL_WEIGHTS.get(name, ()):
        settings.waive(entry)
        return False
    _refuse(settings, entry)
    return False


def _on(name: str, entry: Entry) -> bool:
    return str(entry.value).lower() not in _OFF and not (name.startswith("load_in") and not flag_of(entry))


def _refuse(settings: Settings, entry: Entry) -> None:
    settings.refuse(entry, "not modelled: other weights frozen than by low-rank adapters, or in 8 bits")
    why = f"{entry.text}: not modelled: the run takes less memory than this, and another time"
    settings.findings.assumed_key("trained", "as without it", why)


def _modules(settings: Settings) -> None:
    """Which modules have adapters."""
    every = settings.flag("lora_target_linear", "lora_target_linear_modules")
    entry = settings.take(*_TARGETS)
    names = (
        [] if entry is None else entry.value if isinstance(entry.value, list) else re.split(r"[,\s]+", word_of(entry))
    )
    if every:
        settings.say("model.lora_modules", list(ADAPTED), "lora_target_linear")
        return
    if entry is None or not names:
        if "finetuning_type" in settings:
            settings.assume("model.lora_modules", list(ADAPTED), "LLaMA-Factory's default: lora_target is all")
        else:
            settings.assume("model.lora_modules", list(_QUERY_VALUE), "PEFT's default of a llama")
        return
    found, unknown = adapted_modules(map(str, names))
    for name in unknown:
        settings.findings.skip(entry.place, f"{name}: no matrix of a layer, or of none known here")
    if found:
        settings.put("model.lora_modules", entry, list(found))
