"""What a row's own words say of number formats that are kept, of the optimizer and of the loss, where no column is for it."""

from __future__ import annotations

import math
import re
from typing import Any

from simulator.importers.table.rows import CannotPlace, Row, text
from simulator.importers.vocabulary.names import load_names
from simulator.importers.vocabulary.words import first_said
from simulator.workload.model import Model
from simulator.workload.optimizers import OPTIMIZERS

__all__ = [
    "graphs_off",
    "keeps_16_bits",
    "mean_length",
    "pages_states",
    "row_accumulation",
    "row_dropout",
    "row_gates",
    "row_loss",
    "row_optimizer",
    "row_states",
    "row_update",
    "words_said",
    "wraps_whole",
]

_WORDS = ("framework", "optimizer", "recompute_detail", "zero_stage", "overlap", "quality_note", "task")
_OPTIMIZERS = (
    (r"8-?bit[ -](paged[ -])?(adam|optim)|adam\w*[ _-]?8-?bit|\b(bnb|bitsandbytes)\b[^;]*optim", "adam_8bit"),
    (r"adafactor", "adafactor"),
    (r"fused[ _-]adam|adam\w*[ _-]fused", "adam_fused"),
    (r"\b(without|no)[ _-]foreach|\bforeach ?= ?false", "adam_loop"),
    (r"\bsgd\b", "sgd"),
    (r"\blamb\b", "lamb"),
    (r"\blars\b", "lars"),
    (r"\blion\b", "lion"),
)
_OF_16_BITS = (
    r"\b(all|everything|states?|full|pure|true)[ -](in )?(bf16|bfloat16)\b|\b(bf16|bfloat16)[ -_]true\b"
    r"|\b(without|no) (an? )?(fp32 )?master( cop(y|ies)| weights?|s)\b"
)
"""Words for training without anything wider than 16 bits, in the notes of a row whose precision says bf16 alone."""
_MOMENTS = r"\bmoments (?:of adam\w* )?(?:are )?in (bf16|fp16|fp8|fp32)\b|\b(bf16|fp16|fp8) (?:adam )?moments\b"
_REMAINDERS = (
    r"\bremainders? of (the )?(parameters|weights)\b|param(eter)?[_ -]remainders|precision-aware optimizer(?! in later)"
)
_NO_BRAIN_FLOATS = r"\b(fp32|tf32|fp16|float32|float16)\b"
"""Formats of weights of which no fp32 copy is the upper half's remainder."""
_ACROSS = r"(stands|copies|a copy) on every group of experts|\b(fsdp|shard\w*) across (the )?groups of experts|\bmesh of dp x ep\b"
_IN_CHUNKS = (
    r"(?<!without )(?<!no )(liger|fused[ -]linear[ -]cross|cut[ -]cross)|chunked loss|loss (is )?in (chunks|pieces)"
)
_FUSED_LOSS = r"fused cross[ -]?entropy|chunked cross[ -]?entropy|cross[-_ ]entropy[-_ ]loss[-_ ]fusion(=true)?(?!=)|\bloss fusion"
_LOSS_APART = r"loss (is |stands )?outside"
"""Words for a compiled model whose loss is computed by the caller."""
_LOSS_KERNELS = (
    (r"outside|unfused|eager|plain|separate|\b(no|not|none|off|false)\b|^0+$", "apart"),
    (r"chunked[ _-]cross", "fused"),
    (r"liger|linear[ _-]cross|cut[ _-]cross|\bcce\b|pieces|chunk|^\d+$", "pieces"),
    (r"fused|fusion|\b(true|yes|on|te)\b", "fused"),
)
"""Words of the column for it; a number is that of the pieces."""
_TOKENS = r"(?:chunk|piece)s? of ([\d,]+) tokens|(\d+) (?:chunk|piece)s|^(\d+)$"
CHUNKS = 8
"""Parts of a loss in chunks where nothing tells how many (torchtitan docs: "8 chunks" before lengths were given)."""


def words_said(row: Row) -> str:
    """Return what a row says in words, in lower case: of its code, optimizer, recompute, sharding, overlap, task and notes."""
    return " ; ".join(text(row, column) for column in _WORDS).lower()


def graphs_off(row: Row) -> bool:
    """Whether a row's words tell that CUDA graphs were switched off.

    >>> graphs_off({"quality_note": "CUDA graphs off"}), graphs_off({"quality_note": "CUDA graphs of attention"})
    (True, False)
    """
    return bool(re.search(r"\bcuda[ _]graphs?( are| is)?( switched)?\W+(off|disabled|false)\b", words_said(row)))


def keeps_16_bits(row: Row) -> bool:
    """Whether a row's notes say that weights, gradients and moments are all bf16.

    >>> keeps_16_bits({"quality_note": "all in bf16 (weights, gradients, Adam)"})
    True
    """
    return bool(re.search(_OF_16_BITS, words_said(row)))


def row_optimizer(row: Row) -> tuple[str, tuple[str, ...]]:
    """Return (optimizer, what was assumed): the one that a row's words name, else Adam.

    >>> row_optimizer({"framework": "torchtune + PagedAdamW8bit"})[0]
    'adam_8bit'
    """
    found = first_said(_OPTIMIZERS, words_said(row))
    return (found, (f"optimizer {found} (the row's own words)",)) if found else ("adam", ())


def row_states(row: Row, fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of the plan where a row's words tell the format of moments, that fp32 weights are bf16 ones with a remainder, or that
    every group of experts has a copy of the other weights, FSDP being between these groups.

    Args:
        fields: of the plan, so far.

    Megatron-LM's precision-aware optimizer keeps remainders (core/optimizer: store_param_remainders, Transformer Engine 2.1 on).

    >>> sharded = {"zero_stage": 3, "expert_parallel": 2}
    >>> row_states({"quality_note": "AdamW with moments in bf16"}, sharded)
    {'moment_dtype': ('bf16',)}
    >>> row_states({"quality_note": "FSDP of 2, what is no expert stands on every group of experts; remainders of parameters"}, sharded)
    {'shard_across_experts': True, 'splits_master_weights': True}
    >>> row_states({"quality_note": "all in bf16 (weights, gradients, moments in bf16)"}, sharded), row_states({}, sharded)
    ({}, {})
    """
    said, out = words_said(row), dict[str, Any]()
    if fields["zero_stage"] and fields.get("expert_parallel", 1) > 1 and re.search(_ACROSS, said):
        out["shard_across_experts"] = True
    if keeps_16_bits(row):
        return out
    found = re.search(_MOMENTS, said)
    if found and OPTIMIZERS.get(row_optimizer(row)[0]).moments:
        out["moment_dtype"] = (found.group(1) or found.group(2),)
    if re.search(_REMAINDERS, said) and not re.search(_NO_BRAIN_FLOATS, text(row, "precision").lower()):
        out["splits_master_weights"] = True
    return out


def row_update(row: Row, zero_stage: int, accumulates: bool, assumed: list[str]) -> dict[str, Any]:
    """Return fields of the plan where a row's words say that weights are updated in the backward pass, and its plan allows it.

    >>> assumed: list[str] = []
    >>> row = {"framework": "torchtune, optimizer in backward"}
    >>> row_update(row, 0, False, assumed), row_update(row, 0, True, assumed), row_update({}, 0, False, assumed)
    ({'optimizer_in_backward': True}, {}, {})
    """
    if not re.search(r"(optim\w*|update|step)[ _-](fused )?(in|into)[ _-](the )?(backward|bwd)", words_said(row)):
        return {}
    if accumulates or zero_stage in (1, 2):
        needs = "one microbatch per step" if accumulates else "zero_stage = 0 or 3"
        assumed.append(f"optimizer_in_backward is left out, though the row's words name it: it needs {needs}")
        return {}
    assumed.append("optimizer_in_backward (the row's own words)")
    return {"optimizer_in_backward": True}


def pages_states(row: Row) -> bool:
    """Whether a row's words name an optimizer whose states lie in managed memory, which no allocator of tensors counts (bitsandbytes,
    get_paged).

    >>> pages_states({"quality_note": "bitsandbytes PagedAdamW8bit"}), pages_states({"quality_note": "paged stash"})
    (True, False)
    """
    return bool(re.search(r"\bpaged[ _-]?((8|32)[ -]?bit[ _-]?)?(adam|lion|optim)", words_said(row)))


def wraps_whole(row: Row) -> bool:
    """Whether a row's words say that FSDP gathers and reduces the model as one unit.

    >>> wraps_whole({"framework": "PyTorch FSDP (whole model one unit)"}), wraps_whole({"quality_note": "wrapped by layer"})
    (True, False)
    """
    return bool(re.search(r"\b(the )?whole model (is )?one unit\b", words_said(row)))


def mean_length(row: Row) -> int | None:
    """Return the tokens that sequences have in the mean, padding included, where a row's words tell it beside the most they may have.

    >>> mean_length({"quality_note": "bins of 64 tokens: 288 tokens in the mean"}), mean_length({"quality_note": "padded"})
    (288, None)
    """
    found = re.search(r"([\d,]+) tokens in the mean", words_said(row))
    return int(found.group(1).replace(",", "")) if found else None


def row_dropout(row: Row, model: Model, profile: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (fields of the plan, what was assumed): dropout as the row's words say, as its model's configuration has it, or as the
    script of the code has it by default, where the model has the script's default layers, too: layer norms, biases, learned positions."""
    said = words_said(row)
    if "dropout" in said:
        with_it = not re.search(r"\b(no|without) dropout|dropout (of )?0(\.0*)?(?![.\d])", said)
        return {"dropout": with_it}, (f"dropout = {with_it} (the row's own words)".lower(),)
    known = load_names().dropout_of(text(row, "model"), text(row, "framework"))
    if known is not None:
        return {"dropout": True}, (f"dropout ({known.source})",)
    default = load_names().dropout_by_default.get(profile)
    if default and model.positions == "learned" and model.norm == "layer_norm" and model.linear_bias:
        return {"dropout": True}, (f"dropout ({default})",)
    return {}, ()


def row_accumulation(row: Row) -> dict[str, Any]:
    """Return fields of the plan where a row says that no product adds up weight gradients; {} where it says nothing.

    >>> row_accumulation({"quality_note": "no gradient accumulation fusion"})
    {'gradient_accumulation_fusion': False}
    """
    apart = re.search(
        r"\b(no|without)[- ](gradient[- ]accumulation[- ]fusion|fusion of gradient accumulation)", words_said(row)
    )
    return {"gradient_accumulation_fusion": False} if apart else {}


def row_gates(row: Row) -> dict[str, Any]:
    """Return fields of the plan where a row says that the inputs of gates are kept in 8 bits; {} where it says nothing.

    >>> row_gates({"quality_note": "inputs of gates kept in fp8"}), row_gates({"quality_note": "FP8_ACT=1"})
    ({'narrow_gate_input': True}, {'narrow_gate_input': True})
    """
    said = r"\binputs of (layers|gates) kept in (fp8|8 bits)\b|\bfp8_act(ivation)?=(1|true)\b|\bactivation_func_fp8_input_store\b"
    return {"narrow_gate_input": True} if re.search(said, words_said(row)) else {}


def row_loss(row: Row, model: Model, tokens: int) -> dict[str, Any]:
    """Return fields of the plan for a loss that makes no whole logits, or no fp32 copy of them; {} where nothing says so.

    Args:
        tokens: of a microbatch on one GPU.

    Raises:
        CannotPlace: a column that is not understood.

    Liger (linkedin/Liger-Kernel ops/fused_linear_cross_entropy.py) takes as many chunks as the vocabulary is wider than the
    model, rounded so that a chunk has a power of two of tokens.
    """
    said = text(row, "loss_kernel").lower() or words_said(row)
    kind = _loss_of_column(said) if text(row, "loss_kernel") else _loss_of_words(said)
    if kind != "pieces":
        return {"fused_cross_entropy": kind == "fused"} if kind else {}
    told = re.search(_TOKENS, said)
    if told and told.group(1):
        chunks = -(-tokens // max(1, int(told.group(1).replace(",", ""))))
    elif told:
        chunks = int(told.group(2) or told.group(3))
    elif "liger" in said:
        part = -(-tokens // max(1, -(-model.vocabulary // model.hidden)))
        chunks = -(-tokens // 2 ** math.ceil(math.log2(part)))
    else:
        chunks = CHUNKS
    return {"loss_chunks": chunks, "fused_cross_entropy": True} if chunks > 1 else {"fused_cross_entropy": True}


def _loss_of_column(said: str) -> str:
    """Return apart, fused or pieces."""
    found = first_said(_LOSS_KERNELS, said)
    if found is None:
        raise CannotPlace(
            f"loss_kernel {said[:40]!r} is not known: unfused, fused, in pieces, or how many pieces", counts=False
        )
    return found


def _loss_of_words(said: str) -> str:
    """Return apart, fused or pieces; "" where the words say none of them."""
    return first_said(((_LOSS_APART, "apart"), (_IN_CHUNKS, "pieces"), (_FUSED_LOSS, "fused")), said) or ""
