"""What choices of a plan may say: names of kernels, messages and modules, numbers within bounds, parts that CUDA graphs start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.specs import Listed

__all__ = [
    "AXES",
    "GRAPH_PARTS",
    "WHOLE_STEP",
    "Attention",
    "Deal",
    "Degree",
    "Exchange",
    "ExpertLoop",
    "LayerSplits",
    "Layers",
    "MeshShape",
    "Messages",
    "Module",
    "MomentFormat",
    "Offload",
    "Part",
    "RecomputeExtent",
    "RecomputeKind",
    "RowPicks",
    "graphs",
    "one_or_several",
    "part_away",
    "sdpa_of",
    "tier_of",
]

AXES = ("tp", "cp", "dp", "pp")
"""Mesh axes, innermost (consecutive ranks) first: the order Megatron-LM uses."""

Degree = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
MeshShape = Annotated[tuple[Degree, ...] | None, Listed]
Layers = Annotated[int, Field(strict=True, ge=0, le=100_000)]
LayerSplits = tuple[Annotated[tuple[Layers, ...], Listed], ...]
Part = Annotated[float, Field(ge=0, le=1)]
Tier = Literal["host", "nvme"]
Offload = Part | Tier
"""Where states lie that leave the GPU: a part of them in the host's memory, or all there, or all on its drives."""
Attention = Literal[
    "unfused", "chunked", "flash1", "flash2", "flash3", "te", "te_2024", "te_mxfp8", "sdpa", "sdpa_2025"
]
Exchange = Literal["all_to_all", "once_per_node", "einsum"]
ExpertLoop = Literal["none", "modules", "slices"]
RowPicks = Literal["mask", "gather", "index"]
MomentFormat = Literal["fp32", "bf16", "fp16", "fp8"]
Messages = Literal["latency", "blocking"]
RecomputeKind = Literal["none", "selective", "operators", "full", "revolve"]
Deal = Literal["evenly", "ends_as_layers", "by_weights"]
RecomputeExtent = Literal["layer", "until_kept", "needed"]
Module = Literal["core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"]

GRAPH_PARTS = ("attn", "mlp", "moe", "moe_router", "moe_preprocess")
"""Parts of layers that CUDA graphs may start, as Megatron-Core's --cuda-graph-scope names them."""
WHOLE_STEP = "full_iteration"
"""One graph of the whole step's forward and backward."""
_WHOLE_GRAPHS = ("none", WHOLE_STEP)


def sdpa_of(major: int, minor: int) -> str:
    """Return PyTorch's attention of a release; from 2.11 on it takes cuDNN's kernel by itself on Hopper and Blackwell.

    Source: pytorch/pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention (cuDNN above 9.15, compute
    capability 9.0, 10.0 and 10.3); huggingface/transformers pull 48163: wheels bring that cuDNN from 2.11 on.

    >>> sdpa_of(2, 10), sdpa_of(2, 11)
    ('sdpa_2025', 'sdpa')
    """
    return "sdpa" if (major, minor) >= (2, 11) else "sdpa_2025"


def part_away(offload: float | str) -> float:
    """Return the part that leaves the GPU.

    >>> part_away(0.3), part_away("nvme")
    (0.3, 1.0)
    """
    return 1.0 if isinstance(offload, str) else offload


def tier_of(offload: float | str) -> Tier:
    """Return the tier that it goes to.

    >>> tier_of(0.3), tier_of("nvme")
    ('host', 'nvme')
    """
    return "nvme" if offload == "nvme" else "host"


def one_or_several(value: object) -> object:
    """A word, or a list of words, as a tuple.

    >>> one_or_several("bf16"), one_or_several(["bf16", "fp8"])
    (('bf16',), ('bf16', 'fp8'))
    """
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def graphs(value: object) -> object:
    """What CUDA graphs start: none, full_iteration, or parts of layers as a tuple; one part may stand alone."""
    if value is None or value in _WHOLE_GRAPHS:
        return value
    parts = (value,) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(part in GRAPH_PARTS for part in parts):
        raise ValueError(
            f"expected {' or '.join(_WHOLE_GRAPHS)}, or a list of parts of layers such as ['attn']: {', '.join(GRAPH_PARTS)}"
        )
    return tuple(parts)
