"""What a table's row says runs beside compute: exchanges of gradients, tensor-parallel collectives, messages between stages."""

from __future__ import annotations

import re
from typing import Any

from simulator.importers.table.row_notes import words_said
from simulator.importers.table.rows import Row, text
from simulator.importers.vocabulary.names import load_names

__all__ = ["gradient_overlap", "overlap_off", "pipeline_overlaps", "tensor_pieces"]

_ASYNC_TP = re.compile(r"(?<!no )(?<!without )\basync[ -]tp\b")
_TP_OVERLAP = re.compile(r"\btp( comm)? overlap")
_DP_OVERLAP = re.compile(r"\b(dp|grad\w*)[ _-]overlap|overlap[ _-]grad")
_PP_OVERLAP = re.compile(r"\b(pp|pipeline|p2p)( comm)? overlap")


def tensor_pieces(row: Row, fields: dict[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Return how products are cut where the row says that tensor-parallel collectives run beside them: Megatron's four pieces, or
    one for each rank under PyTorch's async TP (torch/distributed/_symmetric_memory, _pipelined_all_gather_and_consume)."""
    if not fields["sequence_parallel"]:
        return {}
    if _ASYNC_TP.search(words_said(row)):
        assumed.append("async TP cuts products in a piece for each tensor-parallel rank (torch's symmetric memory)")
        return {"overlap_tensor_parallel": True, "tensor_parallel_splits": fields["tensor_parallel"]}
    if not _TP_OVERLAP.search(text(row, "overlap").lower()) or overlap_off(row):
        return {}
    assumed.append("tensor_parallel_splits = 4 (the default of Transformer Engine)")
    return {"tensor_parallel_splits": 4}


def gradient_overlap(row: Row, fields: dict[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Return whether gradients and updated weights are exchanged beside compute: as the row says, off where its code overlaps only when
    asked to; else the framework's habit."""
    words = text(row, "overlap").lower()
    if "torch ddp" in words:
        return {"overlap_gradients": True} if fields["zero_stage"] < 2 else {}
    asked = load_names().overlaps_when_asked.get(fields["framework"])
    if not overlap_off(row) and (asked is None or _DP_OVERLAP.search(words)):
        return {}
    if not overlap_off(row):
        assumed.append(f"gradients are not overlapped ({asked})")
    return {"overlap_gradients": False} | ({"overlap_parameters": False} if fields["zero_stage"] else {})


def pipeline_overlaps(row: Row) -> bool:
    """Whether a row of Megatron's says that messages between stages run beside compute, as they do in the interleaved schedule alone
    (NVIDIA/Megatron-LM megatron/training/arguments.py: overlap_p2p_comm is turned off without it)."""
    said = _PP_OVERLAP.search(text(row, "overlap").lower())
    return bool(said) and "megatron" in text(row, "framework").lower() and not overlap_off(row)


def overlap_off(row: Row) -> bool:
    """Whether a row says that nothing overlaps, gradients at least."""
    words = text(row, "overlap").lower()
    return words == "off" or words.startswith(("none", "no gradient"))
