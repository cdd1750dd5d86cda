"""Framework profiles: facts of a training code's behaviour, read from hardware_specs/frameworks.

A profile says which kernels exist, when gradients are reduced, what the host costs.  It cannot scale a time: the only
numbers allowed are counts, byte sizes and host seconds (a test checks the types of all fields).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from simulator.specs import NamedSpec, load_named
from simulator.units import Bytes, Seconds

__all__ = ["Framework", "load_framework"]


class Framework(NamedSpec):
    """How a training framework behaves.

    Kernels: attention, fused_*, dropout, joined_gate, regathers_inputs and parallel_cross_entropy as in `KernelStyle`.
    Communication: gradient_dtype of the gradients that are kept; reduction_dtype of their copies on the wire ("gradient": as
    they are kept); reduces_whole (ZeRO-1 sums all gradients on all replicas, though each uses its shard only);
    gradients_overlap and parameters_overlap (with compute);
    bucket_size; p2p "latency" (receives are posted ahead) or "blocking"; scatters_p2p (tensor-parallel ranks share the
    sending); tensor_parallel_overlap (input-gradient collective beside the weight-gradient GEMM); fuses_pairs (forward and
    backward of two microbatches interleaved, so that the communication of one hides under the compute of the other; else
    one after the other); separate_communicators (gathers and reductions do not queue behind each other).
    FSDP: shards_in_master_precision (the fp32 shard is the only copy of the weights); fsdp_prefetch; gathers_by_tensor (every
    weight tensor is gathered and reduced by collectives of its own, and under full recompute gathered once more, for hooks
    of every module fetch and drop its weights; else a layer at a time); reshards_after_forward
    (if not, weights are gathered once per step and kept).
    Host: launch_time per kernel launch; step_time per optimizer step spent with the GPU idle.
    Memory outside tensors: context (driver context and loaded kernels), workspace (GEMM libraries), communicator (buffers
    of one communicator).
    """

    attention: Literal["unfused", "flash1", "flash2", "flash3"]
    fused_softmax: bool
    fused_bias_activation: bool
    fused_residual: bool
    fused_rotary: bool
    fused_norm: bool
    fused_cross_entropy: bool
    in_place_cross_entropy: bool
    fused_wgrad_accumulation: bool
    fused_optimizer: bool
    dropout: bool
    gradient_dtype: Literal["fp32", "bf16", "fp16", "compute"]
    gradients_overlap: bool
    parameters_overlap: bool
    bucket_size: Bytes
    p2p: Literal["latency", "blocking"]
    scatters_p2p: bool
    tensor_parallel_overlap: bool
    fuses_pairs: bool
    separate_communicators: bool
    shards_in_master_precision: bool
    fsdp_prefetch: int = Field(ge=0, le=16)
    reshards_after_forward: bool
    clips_gradients: bool
    vocabulary_multiple: int = Field(ge=1, le=4096)
    recompute: Literal["none", "selective", "operators", "full"]
    launch_time: Seconds
    step_time: Seconds
    context: Bytes
    workspace: Bytes
    communicator: Bytes
    joined_gate: bool = True
    regathers_inputs: bool = True
    parallel_cross_entropy: bool = True
    reduction_dtype: Literal["fp32", "bf16", "fp16", "gradient"] = "gradient"
    reduces_whole: bool = False
    gathers_by_tensor: bool = False


def load_framework(name: str) -> Framework:
    """Return the framework profile with this name, from hardware_specs/frameworks."""
    return load_named("frameworks", name, Framework)
