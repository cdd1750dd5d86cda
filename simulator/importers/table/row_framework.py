"""The framework of a row: its profile by name, release, kernel, number format and source, and what its recipes set."""

from __future__ import annotations

import re
from typing import Any

from simulator.hardware.compute_coefficients import load_attention_coefficients
from simulator.importers.table.row_cluster import row_gpu
from simulator.importers.table.row_experts import exchange_apart
from simulator.importers.table.row_notes import graphs_off, keeps_16_bits, words_said
from simulator.importers.table.rows import CannotPlace, Row, number, text
from simulator.importers.vocabulary.name_specs import month_of, time_told
from simulator.importers.vocabulary.names import load_names
from simulator.importers.vocabulary.words import kernel_by_words, precision_by_words
from simulator.plan.framework import load_framework
from simulator.plan.values import sdpa_of
from simulator.workload.precision import precision_named

__all__ = [
    "named_framework",
    "profile_of_run",
    "recipe",
    "row_attention",
    "row_precision",
    "stands_in",
    "torch_attention",
    "torch_kernel",
    "unsaid_attention",
]

_BEFORE_FLASH = ("kepler", "pascal", "volta", "turing")
"""Architectures that FlashAttention (Dao-AILab/flash-attention README: 2 needs Ampere) and Transformer Engine leave out."""
_CUDNN_SINCE, _BY_MONTH = "202605", ("sdpa_2025", "sdpa")
"""The month from which on a run is of PyTorch 2.11 where only that is told, and its attention before and after."""
_IN_8_BITS = r"\battention (is |runs )?in (8 bits|8-bit|mxfp8|fp8)\b|\bfp8[-_]dot[-_]product[-_]attention\b"


def row_precision(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return (precision, what was assumed).

    Raises:
        CannotPlace: a precision that is not modelled.
    """
    name = text(row, "precision")
    if not name:
        old = text(row, "gpu") != "" and "bf16" not in row_gpu(row)[0].peak_flops
        blank = "fp16" if old else "bf16"
        return blank, (f"precision = {blank}",)
    own = load_names().meant_by(text(row, "source"), "precision", name)
    if own is not None:
        return own[0], (f"{name} taken for {own[0]} ({own[1]})",)
    found = load_names().find("precisions", name) or precision_by_words(name)
    if found is None:
        raise CannotPlace(f"precision {name[:40]!r} is not modelled")
    if found == "bf16" and keeps_16_bits(row):
        return "bf16_true", ("weights, gradients and moments in bf16 (the row's own words)",)
    if found == "fp32" and _turns_tf32_on(row) and "tf32" in row_gpu(row)[0].peak_flops:
        return "tf32", ("fp32 taken for tf32, which NVIDIA's containers of PyTorch turn on",)
    return found, ()


def _turns_tf32_on(row: Row) -> bool:
    """Whether a run in fp32 is one of NVIDIA's containers of PyTorch, by its words or as Megatron-LM's README asks for.

    They set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE = 1 (MONAI's documentation, precision_accelerating: a layer of NGC's containers).
    """
    said = f"{words_said(row)} {text(row, 'version')}".lower()
    return bool(re.search(r"\bngc\b|nvcr\.io|\bmegatron-lm\b", said)) and "tf32 off" not in said


def named_framework(row: Row, assumed: list[str]) -> str:
    """Return the profile that a row's words for its framework mean; what is guessed is added to `assumed`."""
    name = text(row, "framework")
    found = load_names().find("frameworks", name) if name else None
    if found is None:
        found = load_names().framework_by_words(name)
        if found is None:
            found, why = _of_kind(row)
            assumed.append(f"nothing is known of framework {name!r}: {why}")
        found = load_names().framework_as_built(found, name)
        assumed.append(f"framework {name!r} taken for {found}")
    said = " ".join((name, text(row, "version"), text(row, "attn_kernel"), text(row, "model")))
    where = " ".join((text(row, "source"), text(row, "source_loc")))
    later = load_names().framework_today(found, said, row_gpu(row)[0].architecture, where)
    if later is not None:
        assumed.append(f"framework {later.profile} ({later.source})")
        return load_names().framework_as_built(later.profile, name)
    return found


def stands_in(row: Row) -> bool:
    """Whether the code that a row names has no profile of its own."""
    return load_names().framework_stands_in(text(row, "framework"))


def _of_kind(row: Row) -> tuple[str, str]:
    """Return (profile, why) for a framework that nobody knows, by what the row does: never the quickest, the plainest of its kind."""
    if row_gpu(row)[0].vendor == "google":
        return "jax_xla", "on a TPU it is taken for plain JAX"
    if number(row, "zero_stage") == 3:
        return "pytorch_fsdp", "what shards weights is taken for eager PyTorch under FSDP"
    if max(number(row, name) or 1 for name in ("tp", "pp", "ep")) > 1:
        return "megatron_lm", "what splits layers or deals out stages is taken for a Megatron-LM of its year"
    return "pytorch_ddp", "what only makes replicas is taken for eager PyTorch"


def profile_of_run(row: Row, named: str, assumed: list[str]) -> str:
    """Return the profile of a framework as this run had it: by release and GPU; by kernel, format or architecture; by source."""
    names, found = load_names(), named
    named_release = re.search(r"\b\d\d\.\d\d\b", text(row, "framework"))
    version = text(row, "version") or (named_release.group() if named_release else "")
    where = "" if version else month_of(f"{text(row, 'source')} {text(row, 'source_loc')}")
    own = names.framework_at(found, version or f"{where[2:4]}.{where[4:]}", row_gpu(row)[0].architecture)
    if own is not None:
        found = own
        assumed.append(
            f"framework {own} ({f'version {version}' if version else f'published in {where[:4]}-{where[4:]}'})"
        )
    words = (text(row, "attn_kernel"), row_precision(row)[0], row_gpu(row)[0].architecture)
    variants = (names.find("framework_variants", f"{found} {word}") for word in words)
    found = next(filter(None, variants), found)
    noted = names.framework_noted(found, words_said(row))
    if noted is not None:
        found = noted.profile
        assumed.append(f"framework {found} ({noted.source})")
    of_source = names.framework_of(text(row, "source"), found, text(row, "version"))
    if of_source is not None:
        found = of_source[0]
        assumed.append(f"framework {of_source[0]} ({of_source[1]})")
    return found


_FLASH_2_SINCE = "202307"
"""Dao, FlashAttention-2, arXiv 2307.08691 (July 2023): before it FlashAttention was the first."""


def row_attention(row: Row, assumed: list[str]) -> dict[str, Any]:
    """Return the attention kernel that a row names, as a field of the plan; {} leaves it to the framework."""
    names, kernel = load_names(), text(row, "attn_kernel")
    in_8_bits = re.search(_IN_8_BITS, words_said(row)) and _blackwell(row)
    if in_8_bits and precision_named(number_format := row_precision(row)[0]).quantises:
        if number_format != "mxfp8":
            assumed.append("attention in 8 bits taken for that of cuDNN with MXFP8 operands")
        return {"attention": "te_mxfp8"}
    if not kernel:
        return {}
    own = names.meant_by(text(row, "source"), "attention", kernel)
    if own is not None:
        assumed.append(f"attention {kernel!r} is {own[0]} ({own[1]})")
        return {"attention": own[0]}
    found = names.find("attention", kernel)
    if found is None:
        found = kernel_by_words(kernel)
        assumed.append(f"attention {kernel!r} taken for {found or 'the habit of the framework'}")
    note = names.find("attention_notes", kernel)
    if note:
        assumed.append(f"attention {kernel!r}: {note}")
    told = time_told(text(row, "version")) or time_told(text(row, "framework"))
    if found == "flash2" and "2" not in kernel and told and told < _FLASH_2_SINCE:
        found = "flash1"
        assumed.append(f"attention {kernel!r} is FlashAttention 1 in a run of {told[:4]}-{told[4:]}")
    if found == "flash3" and not load_attention_coefficients(gpu := row_gpu(row)[0]).runs(found):
        found = "flash2"
        assumed.append(
            f"attention {kernel!r} is flash2 on {gpu.name} (FlashAttention-3 has kernels of its own for Hopper alone)"
        )
    return {"attention": found} if found else {}


def _blackwell(row: Row) -> bool:
    """Whether the GPU is one for which Transformer Engine has attention in MXFP8 (compute capability 10)."""
    return row_gpu(row)[0].architecture == "blackwell"


def unsaid_attention(row: Row, profile: str, assumed: list[str]) -> dict[str, Any]:
    """Return the attention of a row that names none: its model's, or plain where the GPU came before the profile's; else {}."""
    known = load_names().attention_of(text(row, "model"), text(row, "framework"), text(row, "version"))
    if known is not None and known.attention is not None:
        assumed.append(f"attention = {known.attention} ({known.source})")
        return {"attention": known.attention}
    if row_gpu(row)[0].architecture not in _BEFORE_FLASH or load_framework(profile).attention in ("unfused", "sdpa"):
        return {}
    assumed.append("attention = unfused (FlashAttention and Transformer Engine start with Ampere)")
    return {"attention": "unfused"}


def torch_attention(row: Row, fields: dict[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Return PyTorch's attention of its release, where a run has PyTorch's; else {}.  From 2.11 on it takes cuDNN's kernel by itself on
    Hopper and Blackwell; a run that tells no release and no month is of one before.
    """
    kernel = fields.get("attention") or load_framework(fields["framework"]).attention
    if kernel != "sdpa":
        return {}
    found = torch_kernel(text(row, "version"))
    if found == "sdpa" and row_gpu(row)[0].architecture in ("hopper", "blackwell"):
        assumed.append("SDPA takes cuDNN's kernel (PyTorch from 2.11 on, on this GPU)")
    return {"attention": found}


def torch_kernel(version: str) -> str:
    """Return PyTorch's attention of the release that a text tells, or of its month where only that is told.

    >>> torch_kernel("torch 2.11"), torch_kernel("torch 2.10, 2026-08"), torch_kernel("2026-08"), torch_kernel("")
    ('sdpa', 'sdpa_2025', 'sdpa', 'sdpa_2025')
    """
    told = re.search(r"\btorch (\d+)\.(\d+)", version.lower())
    return sdpa_of(int(told[1]), int(told[2])) if told else _BY_MONTH[month_of(version) >= _CUDNN_SINCE]


def recipe(row: Row, framework: str, assumed: list[str]) -> dict[str, Any]:
    """Return what the framework's recipe for this model and GPU sets, where results do not print it."""
    said = (text(row, "source"), text(row, "model"), text(row, "gpu"), text(row, "version"), row_precision(row)[0])
    found = load_names().recipe_of(framework, said)
    if found is None:
        return {}
    out: dict[str, Any] = {"framework": found.profile} if found.profile else {}
    if found.cuda_graphs and not text(row, "cuda_graphs"):
        scopes = tuple(scope.strip() for scope in found.cuda_graphs.split(","))
        out["cuda_graphs"] = scopes if len(scopes) > 1 else scopes[0]
    if found.recompute_modules:
        out["recompute_modules"] = tuple(name.strip() for name in found.recompute_modules.split(","))
    out |= {name: value for name in ("schedule", "attention") if (value := getattr(found, name))}
    if out.get("schedule") == "combined_1f1b" and exchange_apart(row):
        del out["schedule"]
    if graphs_off(row):
        out.pop("cuda_graphs", None)
    if words := ", ".join(f"{name} = {value}" for name, value in out.items()):
        assumed.append(f"{words} ({found.source})")
    return out
