"""What a row trains: all weights or low-rank adapters, in pretraining or on packed documents of fine-tuning."""

from __future__ import annotations

import re
from typing import Any

from simulator.importers.table.rows import CannotPlace, Row, text
from simulator.importers.vocabulary.words import is_pretraining, trains_all_weights
from simulator.workload.model import Model
from simulator.workload.model_fields import ADAPTED, Adapted

__all__ = ["as_trained", "refuse_other_tasks", "usual_documents"]

_ADAPTERS = re.compile(r"\b(q?)lora\b")
_IN_8_BITS = re.compile(r"frozen weights (?:stand |are )?in (?:8 bits|fp8)|\bfp8_params\b(?!\W+(?:false|0))")
_UNKNOWN = re.compile(r"\bq?dora\b|\bpeft\b")
_DORA = re.compile(r"\bq?dora\b")
_RANK = re.compile(r"adapters of rank (\d{1,4})(?: beside ([a-z, ]+))?")
_SHORT = {"q": "query", "k": "key", "v": "value", "o": "output"}
_GROUPS: dict[str, tuple[Adapted, ...]] = {
    "attention": ("query", "key", "value", "output"),
    "all": ADAPTED,
    "all linear layers": ADAPTED,
}
_USUAL: tuple[tuple[str, int, tuple[Adapted, ...], str], ...] = (
    ("nemo|megatron", 32, ("query", "key", "value"), "NeMo's configurations of performance: linear_qkv, rank 32"),
    ("litgpt", 32, ("query", "value"), "litgpt/config_hub/finetune: lora_r, lora_query, lora_value"),
    ("torchtune", 8, ("query", "value", "output", "gate", "up", "down"), "torchtune's recipes"),
    ("", 16, ADAPTED, "what is usual"),
)
"""Part of a code's name -> the rank and the modules of its adapters where a row gives none, and the source."""
_DROPS = "mlperf"
"""Part of a source's name whose adapters drop a tenth of their input: mlcommons/training run_llama_70B_scrolls_r16.sh, and
all settings of NVIDIA and AMD in mlcommons/training_results v4.0 to v5.1 (adapter_dropout 0.1, dropout_position pre)."""
_DOCUMENTS = ("nemo|megatron", 190.0)
"""Part of a code's name, and the mean tokens of the documents it packs where a row gives none: NeMo's recipes of fine-tuning take SQuAD 1.1
(llm.SquadDataModule), 94.06 MiB of 98,169 examples (TensorFlow Datasets), of whose 1,005 bytes some 840 are text."""


def refuse_other_tasks(row: Row) -> None:
    """Refuse what is neither pretraining nor fine-tuning of all weights or of low-rank adapters.

    Raises:
        CannotPlace: it is another task.
    """
    task, code = text(row, "task").lower(), text(row, "framework").lower()
    known = _ADAPTERS.search(task)
    unknown = _DORA if known else _UNKNOWN  # PEFT is a library, too, whose adapters a task may name
    other = unknown.search(f"{code} {task}")
    if other or not (is_pretraining(task) or trains_all_weights(task) or known):
        what = f"adapters of code {code[:40]!r}" if other and not task else f"task {task!r}"
        raise CannotPlace(
            f"{what} is not modelled: pretraining, fine-tuning of all weights and low-rank adapters (LoRA, QLoRA) are",
            counts=False,
        )


def as_trained(row: Row, model: Model, assumed: tuple[str, ...]) -> tuple[Model, tuple[str, ...]]:
    """Return the model with its adapters, where the row trains such, and what was assumed."""
    code, task = text(row, "framework").lower(), text(row, "task").lower()
    found = _ADAPTERS.search(task) or _ADAPTERS.search(code)
    if is_pretraining(task) and not found:
        return model, assumed
    length = None if text(row, "document_length") else usual_documents(row)
    full = "sequences are full" + (f" of documents of {length:g} tokens" if length else "")
    if not found:
        return model, (*assumed, full)
    rank, modules, why = _adapters(text(row, "quality_note").lower(), code)
    kept = "nf4" if found[1] else "fp8" if _IN_8_BITS.search(text(row, "quality_note").lower()) else ""
    drops = _DROPS in text(row, "source").lower()
    fields: dict[str, Any] = {"lora_rank": rank, "lora_modules": modules, "frozen_format": kept, "lora_dropout": drops}
    said = f"adapters of rank {rank} beside {', '.join(modules)} ({why})" + (
        ", with dropout (MLPerf's)" if drops else ""
    )
    return model.model_copy(update=fields), (*assumed, said, full)


def _adapters(note: str, code: str) -> tuple[int, tuple[Adapted, ...], str]:
    """Return (rank, modules with adapters, who says so): the row's own words, else what is usual in its code."""
    _, rank, modules, why = next(usual for usual in _USUAL if re.search(usual[0], code))
    told = _RANK.search(note)
    if told is None or not int(told[1]):
        return rank, modules, why
    words = re.sub(r"\b[qkvo]\b", lambda found: _SHORT[found[0]], (told[2] or "").strip())
    named = _GROUPS.get(words, tuple(m for m in ADAPTED if m in re.split(r",\s*|\s+and\s+", words)))
    return (
        int(told[1]),
        named or modules,
        "the row's own words" if named else f"the rank is the row's own, the modules {why}",
    )


def usual_documents(row: Row) -> float | None:
    """Return the mean tokens of the documents that a code of fine-tuning packs into a sequence; None where nothing is known."""
    tuned = not is_pretraining(text(row, "task"))
    return _DOCUMENTS[1] if tuned and re.search(_DOCUMENTS[0], text(row, "framework").lower()) else None
