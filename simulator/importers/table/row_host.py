"""What a row puts on the host or starts by graphs, by columns of its own or in its own words, and documents packed into a sequence."""

from __future__ import annotations

import re
from typing import Any

from simulator.importers.table.row_notes import graphs_off, words_said
from simulator.importers.table.row_task import usual_documents
from simulator.importers.table.rows import CannotPlace, Row, number, text

__all__ = ["row_documents", "row_graphs", "row_host"]

_STATES = (
    r"offload\w*( of)?( the)? optimi[sz]er|optimi[sz]er[-_ ](cpu[-_ ])?offload|\bcpu[-_ ]offload|\bzero-?\d?[- ]offload"
    r"|\badamw? on the host"
)
"""Words for optimizer states that live on the host and are updated there."""
_WEIGHTS = r"weights, gradients and moments on the host|offload[-_]params?\b|param\w*[-_ ]offload|\bfsdp\d?\b.*\bcpu[-_ ]offload(?! of)"
"""Words for shards of weights that live there, too: PyTorch's and fairscale's FSDP move weights, gradients and states together."""
_ACTIVATIONS = (
    r"offload[-_]activations=(?:1|true)|activation offload"
    r"|activations? (?:of (?P<layers>\d+) layers )?(?:checkpoints? )?(?:are )?(?:offload\w*|move to the host)"
    r"|(?<!whether )inputs of layers (?:go|move) to the host|decoder_layer_input(?:=| and \w+ )offload"
)
"""Words for activations that wait there, and for how many layers'; of what runs again whole those are its inputs (MaxText's
decoder_layer_input).  Those of single operators are not modelled."""
_GRAPHED = {"attention": "attn", "mlp": "mlp", "router": "moe_router", "preprocess": "moe_preprocess"}
"""Words for parts of layers that CUDA graphs start."""
_NOT = r"\b(no|without) (cpu )?offload"


def row_host(row: Row, layers: int, zero_stage: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (fields of the plan, what was assumed): parts of states and weights, and layers of activations, on the host.

    Columns: optimizer_offload and parameter_offload (a part, 0 to 1), activation_offload (layers of each chunk).

    Args:
        layers: of a chunk, all of which are meant where words alone tell that activations go.

    Raises:
        CannotPlace: a part outside 0 to 1, or no number.

    >>> row_host({"framework": "DeepSpeed ZeRO-3 offload"}, 32, 3)[0]
    {'optimizer_offload': 1.0}
    >>> row_host({"activation_offload": "8"}, 32, 0)[0]
    {'activation_offload': 8}
    >>> row_host({"quality_note": "activations of 15 layers offloaded to the host"}, 16, 0)[0]
    {'activation_offload': 15}
    """
    said = "" if re.search(_NOT, words_said(row)) else words_said(row)
    out: dict[str, Any] = {}
    for name, pattern, whole in (
        ("optimizer_offload", _STATES, 1.0),
        ("parameter_offload", _WEIGHTS, 1.0 if zero_stage == 3 else 0.0),
        ("activation_offload", _ACTIVATIONS, layers),
    ):
        part = number(row, name)
        if part is not None and name != "activation_offload" and not 0 <= part <= 1:
            raise CannotPlace(f"{name} = {part:g} is outside 0 to 1", counts=False)
        if part is not None and name == "activation_offload" and (part < 0 or part != int(part)):
            raise CannotPlace(f"{name} is a number of layers, but it is {part:g}", counts=False)
        found = re.search(pattern, said)
        if found and (some := found.groupdict().get("layers")):
            whole = min(int(some), layers)
        value = part if part is not None else whole if found else 0
        if value:
            out[name] = int(value) if name == "activation_offload" else float(value)
    told = ", ".join(f"{name} = {value:g}" for name, value in out.items() if not text(row, name))
    return out, (f"{told} (the row's own words)",) if told else ()


def row_graphs(row: Row, experts: bool = False, recomputes: bool = False, sized: bool = True) -> dict[str, Any]:
    """Return what CUDA graphs start, where the column cuda_graphs or the row's words tell: none, full_iteration, or parts of layers.

    Args:
        experts: whether layers have experts, whose own kernels graphs of layers leave out.
        recomputes: whether whole layers run again, which graphs of layers cannot.
        sized: whether kernels of experts learn their rows on the GPU, as a graph of the whole step needs.

    >>> row_graphs({"cuda_graphs": "attn, moe_router"}), row_graphs({"quality_note": "CUDA graphs of attention and router"})
    ({'cuda_graphs': ('attn', 'moe_router')}, {'cuda_graphs': ('attn', 'moe_router')})
    >>> row_graphs({"quality_note": "full-iteration CUDA graphs"}), row_graphs({"quality_note": "CUDA graphs of layers"})
    ({'cuda_graphs': 'full_iteration'}, {'cuda_graphs': ('attn', 'mlp')})
    >>> row_graphs({"quality_note": "CUDA graph of the whole iteration"})
    {'cuda_graphs': 'full_iteration'}
    """
    said = text(row, "cuda_graphs").strip().lower()
    if not said:
        found = re.search(
            r"\b(?:(no|without|(?:full|whole)[- ](?:iteration|step)) )?cuda graphs?( of [a-z ,]+)?",
            words_said(row),
        )
        if found is None:
            return {}
        if graphs_off(row):
            return {"cuda_graphs": "none"}
        kind, of = found.group(1) or "", found.group(2) or ""
        if kind in ("no", "without"):
            return {"cuda_graphs": "none"}
        if kind or re.search(r"(whole|full) (step|iteration)", of):
            return {"cuda_graphs": "full_iteration"} if sized or not experts else {}
        parts = tuple(part for word, part in _GRAPHED.items() if word in of)
        if not parts:
            parts = ("attn", "moe_router", "moe_preprocess") if experts else ("attn", "mlp")
        return {} if recomputes else {"cuda_graphs": parts}
    parts = tuple(part.strip() for part in said.split(","))
    return {"cuda_graphs": parts if parts not in (("none",), ("full_iteration",)) else said}


def row_documents(row: Row) -> float | None:
    """Return the mean tokens of the documents packed into a sequence (column document_length, else its code's usual ones); None where
    nothing is known, and where one fills a sequence.

    Raises:
        CannotPlace: less than one token, or no number.

    >>> row_documents({"document_length": "8192", "seq_len": "8192"}), row_documents({"document_length": "1024", "seq_len": "8192"})
    (None, 1024.0)
    """
    length = number(row, "document_length")
    if length is not None and length < 1:
        raise CannotPlace(f"document_length = {length:g} is less than a token", counts=False)
    if length is not None and length == number(row, "seq_len"):
        return None
    return usual_documents(row) if length is None else length
