"""How a row deals out experts, and what its words tell of the exchange of their rows."""

from __future__ import annotations

import re
from typing import Any

from simulator.importers.table.row_notes import words_said
from simulator.importers.table.rows import CannotPlace, Row, count, text
from simulator.workload.model import Model

__all__ = ["overlaps_exchange", "row_experts"]

_ONCE = r"\b(deep|hybrid)[- ]?ep\b"
"""Libraries that send a row once to every node (deepseek-ai/DeepEP and its branch hybrid-ep)."""
_COPIES = r"\ball[- ]?to[- ]?all (token )?dispatcher\b|\ball[- ]?to[- ]?all (\(nccl|of (megatron|nccl))|\bfell back to all[- ]?to[- ]?all\b"
_LOOP = r"\bloop over (the )?experts\b|\bexperts (one after (an|the )other )?in a loop\b"
_SLICES = r"\bslices of (joined|fused|all)\b"
"""Words for experts whose weights are parts of one tensor."""
_GROUPED = r"\bgrouped (products|gemms?|mm|matmuls?)\b|\bgrouped_(mm|gemm)\b|\bmegablocks\b|\btransformers v?[5-9]"
"""transformers has grouped products since release 5 (huggingface/transformers at 0261a467, integrations/moe.py)."""
_OVERLAPPED = (
    r"\bexchanges?( is| are)? overlap(ped)?\b|\boverlap of (the )?(expert )?exchange\b|\b(ep|moe)[ _-](a2a|all-?to-?all)[ _-]overlap"
    r"|\bmoe_a2a_overlap\b|\boverlap[-_]moe[-_]expert[-_]parallel[-_]comm\b"
)
_NOT = r"\b(no|without) (expert )?exchange overlap"


def overlaps_exchange(row: Row) -> bool:
    """Whether a row's words tell that experts exchange rows beside the compute of another microbatch.

    >>> overlaps_exchange({"overlap": "expert exchange overlap"}), overlaps_exchange({"overlap": "DP overlap"})
    (True, False)
    """
    said = words_said(row)
    return bool(re.search(_OVERLAPPED, said)) and not re.search(_NOT, said)


def _exchange(row: Row, expert: int, assumed: list[str]) -> dict[str, Any]:
    """How rows of experts on `expert` ranks are exchanged; {} where the row does not tell."""
    said = words_said(row)
    if expert == 1:
        return {}
    if not re.search(f"{_ONCE}|{_COPIES}", said):
        assumed.append("rows of experts go as the code or its recipe has it (the row names no dispatcher)")
        return {}
    return {"expert_exchange": "once_per_node" if re.search(_ONCE, said) else "all_to_all"}


def _loop(row: Row, expert: int) -> dict[str, Any]:
    """Whether experts run one after the other; {} where the row does not tell."""
    said = f"{words_said(row)} ; {text(row, 'version')}".lower()
    if re.search(_GROUPED, said):
        return {"expert_loop": "none"}
    if expert == 1 and re.search(_LOOP, said):
        return {"expert_loop": "slices" if re.search(_SLICES, said) else "modules"}
    return {}


def row_experts(row: Row, model: Model, tensor: int, replicas: int, assumed: list[str]) -> dict[str, Any]:
    """Return how experts are dealt out over `replicas` ranks of each tensor-parallel slice, and who exchanges their rows where the row's
    words tell; of a dense model nothing.

    Raises:
        CannotPlace: experts are dealt out, and the model has none.
    """
    expert = count(row, "ep") or 1
    if not model.experts:
        if expert > 1:
            raise CannotPlace(f"ep = {expert}, but the row's model has no experts", counts=False)
        return {}
    if tensor == 1:
        return {"expert_parallel": expert, **_exchange(row, expert, assumed), **_loop(row, expert)}
    split = count(row, "etp")
    if split is None:
        recipe = "bridge" in text(row, "framework").lower()
        fits = replicas % expert == 0
        split = 1 if (recipe and expert > 1) or not fits else tensor
        why = (
            "as the recipes of Megatron Bridge say"
            if recipe
            else "Megatron's habit"
            if fits
            else "too few replicas for more"
        )
        assumed.append(f"expert_tensor_parallel = {split} ({why})")
    elif split not in (1, tensor):
        whole = expert * split
        expert, split = (whole // tensor, tensor) if whole % tensor == 0 else (whole, 1)
        assumed.append(
            f"experts over {expert} ranks and {split} slices: the same part of them as etp = {text(row, 'etp')}"
        )
    fields = {
        "expert_parallel": expert,
        "expert_tensor_parallel": split,
        **_exchange(row, expert, assumed),
        **_loop(row, expert),
    }
    if expert > 1 or split == 1:
        fields["sequence_parallel"] = True
        assumed.append("sequence_parallel (experts are dealt out)")
    return fields
