"""How a row deals out experts, and what its words tell of the exchange of their rows."""

from __future__ import annotations

import re
from typing import Any

from simulator.importers.table.row_notes import words_said
from simulator.importers.table.rows import CannotPlace, Row, count, text
from simulator.importers.vocabulary.names import load_names
from simulator.plan.framework import load_framework
from simulator.workload.model import Model

__all__ = ["exchange_apart", "forced_balance", "natural_routing", "overlaps_exchange", "row_experts"]

_ONCE = r"\b(deep|hybrid)[- ]?ep\b"
"""Libraries that send a row once to every node (deepseek-ai/DeepEP and its branch hybrid-ep)."""
_COPIES = r"\ball[- ]?to[- ]?all (token )?dispatcher\b|\ball[- ]?to[- ]?all (\(nccl|of (megatron|nccl))|\bfell back to all[- ]?to[- ]?all\b"
_LOOP = r"\bloop over (the )?experts\b|\bexperts (one after (an|the )other )?in a loop\b"
_SLICES = r"\bslices of (joined|fused|all)\b"
"""Words for experts whose weights are parts of one tensor."""
_GROUPED = r"\bgrouped (products|gemms?|mm|matmuls?)\b|\bgrouped_(mm|gemm)\b|\bmegablocks\b|\btransformers v?[5-9]"
"""transformers has grouped products since release 5 (huggingface/transformers at 0261a467, integrations/moe.py)."""
_FUSED = r"\b(no |without )?(?:permut(?:e|ation) fusion|fused permut(?:e|ation)|permutation (?:is )?fused)\b"
_KERNELS = r"\bmegablocks\b|\b(scatter|sonic|mega)[- ]?moe\b|\bdistmoe\b"
"""Libraries whose kernels copy and sum rows for experts themselves (databricks/megablocks ops; shawntan/scattermoe; Dao-AILab/sonic-moe;
deepseek-ai/DeepGEMM's Mega MoE; DistMoE of torchtitan's users)."""
_OVERLAPPED = (
    r"\bexchanges?( is| are)? overlap(ped)?\b|\boverlap of (the )?(expert )?exchange\b|\b(ep|moe)[ _-](a2a|all-?to-?all)[ _-]overlap"
    r"|\bmoe_a2a_overlap\b|\boverlap[-_]moe[-_]expert[-_]parallel[-_]comm\b"
)
_NATURAL = r"\bnatural(ly)?[ -]rout|\bown routing"
NATURAL_IMBALANCE = 1.23
"""Rows of the fullest rank over the mean where routers choose as they were trained to: with 128 experts on 8 ranks GPUs wait for 18.6 %
of a layer's time in the mean, 1 / (1 - 0.186) (arXiv 2604.19654, GLM-5's layers without a balancing loss on H100).  With more ranks it
is alike: the ratio changes by at most 5 % from 4 to 32 (arXiv 2605.20982)."""
LOSS_IMBALANCE = 1.08
"""The same where a loss alone balances them: 5,120 rows of 8 experts, mean over 16 layers of the fullest over the mean, printed at step
38,350 of a training with such a loss (shawntan/scattermoe issue 10; 1.02 to 1.22)."""
_FORCED = r"\bforced? balanc|\bbalanced by force|\bforce[_ -]load[_ -]balanc|\brandom routing"
_APART = (
    r"\b(no|without) ((expert )?exchange overlap|overlap of (the )?(experts|(expert )?exchanges?)\b)"
    r"|\bexchanges?( is| are)? not overlapped\b|\bmoe_a2a_overlap\W+(false|off|0)\b"
)


def overlaps_exchange(row: Row) -> bool:
    """Whether a row's words tell that experts exchange rows beside the compute of another microbatch.

    >>> overlaps_exchange({"overlap": "expert exchange overlap"}), overlaps_exchange({"overlap": "DP overlap"})
    (True, False)
    """
    said = words_said(row)
    return bool(re.search(_OVERLAPPED, said)) and not exchange_apart(row)


def exchange_apart(row: Row) -> bool:
    """Whether a row's words tell that nothing else runs while experts exchange rows.

    >>> exchange_apart({"quality_note": "no overlap of experts"}), exchange_apart({"overlap": "DP overlap"})
    (True, False)
    """
    return bool(re.search(_APART, words_said(row)))


def natural_routing(row: Row) -> bool:
    """Whether a row's words tell that routers chose the experts themselves, and nobody balanced them by force.

    >>> natural_routing({"quality_note": "natural routing"}), natural_routing({"quality_note": "forced balance"})
    (True, False)
    """
    return bool(re.search(_NATURAL, words_said(row)))


def forced_balance(row: Row) -> bool:
    """Whether a row's words tell that experts were balanced by force, or rows dealt out by chance.

    >>> forced_balance({"quality_note": "routing balanced by force"}), forced_balance({"quality_note": "own routing"})
    (True, False)
    """
    return bool(re.search(_FORCED, words_said(row)))


def _imbalance(row: Row, framework: str, model: Model, expert: int, assumed: list[str]) -> dict[str, Any]:
    """How full the fullest rank is where routing is natural, or where nobody forces a balance; {} where every rank takes as many rows."""
    if expert == 1 or model.capacity_factor:
        return {}
    if natural_routing(row):
        most, why = NATURAL_IMBALANCE, "natural routing"
    elif forced_balance(row) or framework in load_names().balanced_by_force:
        return {}
    else:
        most, why = LOSS_IMBALANCE, "no balance by force is said"
    assumed.append(f"the fullest rank has {most} times the mean rows of experts ({why})")
    return {"expert_imbalance": most}


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


def _fusion(row: Row, exchange: str) -> dict[str, Any]:
    """Whether one kernel copies rows for their experts; {} where the row does not tell, or the exchange makes the copies.

    >>> [_fusion({"quality_note": said}, "all_to_all") for said in ("permutation fused", "no permute fusion")]
    [{'expert_permute_fusion': True}, {'expert_permute_fusion': False}]
    """
    words = words_said(row)
    said = re.search(_FUSED, words)
    if exchange == "once_per_node" or not (said or re.search(_KERNELS, words)):
        return {}
    return {"expert_permute_fusion": not (said and said.group(1))}


def row_experts(
    row: Row, framework: str, model: Model, tensor: int, replicas: int, assumed: list[str]
) -> dict[str, Any]:
    """Return how experts are dealt out over `replicas` ranks of each tensor-parallel slice, and who exchanges their rows where the row's
    words tell; of a dense model nothing.  `framework`: the code's profile, as the row names it.

    Raises:
        CannotPlace: experts are dealt out, and the model has none.
    """
    expert = count(row, "ep") or 1
    if not model.experts:
        if expert > 1:
            raise CannotPlace(f"ep = {expert}, but the row's model has no experts", counts=False)
        return {}
    exchange = _exchange(row, expert, assumed)
    known = exchange.get("expert_exchange") or load_framework(framework).expert_exchange
    kernels = {**exchange, **_loop(row, expert), **_fusion(row, known)}
    if tensor == 1:
        return {"expert_parallel": expert, **kernels, **_imbalance(row, framework, model, expert, assumed)}
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
    kernels |= _imbalance(row, framework, model, expert, assumed)
    fields = {"expert_parallel": expert, "expert_tensor_parallel": split, **kernels}
    if expert > 1 or split == 1:
        fields["sequence_parallel"] = True
        assumed.append("sequence_parallel (experts are dealt out)")
    return fields
