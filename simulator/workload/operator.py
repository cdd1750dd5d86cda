"""One operator of a layer: the work it does forward and backward and what it keeps, before any division over GPUs.

Sizes are those of one microbatch on one model replica (no tensor parallelism).  Which of its dimensions lie on which ranks a layout says
(`simulator/partition`); `lowering/layers` writes the rows of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.remembered import hashed_once
from simulator.workload.graph import Dim, Op, Product, Tensor

__all__ = ["KernelStyle", "LayerPart", "Operator", "Saved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor kept from forward to backward.

    Args:
        name: what it is, as the memory report prints it.
        bytes: its size undivided.
        dims: by which it is divided; () = every rank keeps all of it.
        category: memory category: activations or logits.
        droppable: dropped under selective recompute (made again in backward).
        cheap: dropped under per-operator recompute: the output of a memory-bound kernel, or of a product that is run again.
        idle: kept only under per-operator recompute: outputs of every second product, though nothing reads them, and what was sent.
        sent: kept because it came from other ranks.
        gathered: all of what ranks have parts of, kept beside their part; nothing where each has all of it.
        joined: of all rows that tensor-parallel ranks gather for the product beside an adapter.
        role: "operand" of a layer's own attention, "statistics" of a softmax.
    """

    name: str
    bytes: float
    dims: tuple[Dim, ...]
    category: str = "activations"
    droppable: bool = False
    cheap: bool = False
    idle: bool = False
    sent: bool = False
    gathered: bool = False
    joined: bool = False
    role: str = ""

    @property
    def of_experts(self) -> bool:
        """Whether its rows are copies of tokens for experts."""
        return any(d.name in ("copies", "expert_rows") for d in self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What runs for one operation of a layer's graph.

    Args:
        op: the operation.
        work: gemm, attention, memory_bound, lookup; dispatch or combine (exchange of rows between ranks that share experts),
            sort (a memory-bound kernel that runs only after such an exchange), counts (rows per expert, for which the host waits)
            or wait (it waits for a small copy); nothing of the last two runs backward.
        sources: its inputs as they were made, of which the operation may see a part or other dimensions.
        peers: ranks that hold the other queries of the same sequences (context parallelism).
        shape: (batch, m, n, k) of the forward product; for attention (sequences, heads, sequence_length, head_dim); for experts
            (experts, rows over all of them, n, k).
        columns: of each separate product that makes up a GEMM with a weight, undivided; () = one product.
        read, written: bytes moved forward by a memory-bound kernel (a GEMM's follow from its shape).
        backward_read, backward_written: the same backward.
        sums_read: bytes that a kernel of its own reads once more backward, for sums over tokens (a norm's weights).
        parameters: weights it owns, undivided [count].
        saved: tensors kept for backward.
        again: part of it that is recomputed under per-operator recompute: memory-bound kernels, every second product, grouped ones.
    """

    op: Op
    work: str
    sources: tuple[Tensor, ...] = ()
    peers: int = 1
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    columns: tuple[int, ...] = ()
    read: float = 0.0
    written: float = 0.0
    backward_read: float = 0.0
    backward_written: float = 0.0
    sums_read: float = 0.0
    parameters: int = 0
    saved: tuple[Saved, ...] = ()
    again: float = 0.0

    @property
    def label(self) -> str:
        """Name of the operation, for people."""
        return self.op.label

    @property
    def role(self) -> str:
        """What the operation is to others."""
        return self.op.role

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of selective recompute that it is part of."""
        return self.op.modules

    @property
    def launches(self) -> int:
        """Kernels started on the host forward."""
        return self.op.launches

    @property
    def backward_launches(self) -> int:
        """Kernels started on the host backward."""
        return self.op.backward_launches

    @property
    def has_weight(self) -> bool:
        """Whether it is a product with a weight (else both operands are activations)."""
        return isinstance(self.op, Product) and bool(self.op.matrices)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each separate product, undivided."""
        return self.columns or (self.shape[2],)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """The operators of one kind of layer: "embedding", "layer", "moe layer", "head", ...

    Args:
        kind: which.
        operators: in forward order.
        input_bytes: its input activation undivided [B], what full recompute keeps.
        boundary_bytes: what crosses a pipeline boundary in front of it [B]; 0 = its input.
    """

    kind: str
    operators: tuple[Operator, ...]
    input_bytes: float
    boundary_bytes: float = 0.0

    @property
    def parameters(self) -> int:
        """Weights of the layer, undivided [count]."""
        return sum(o.parameters for o in self.operators)


@hashed_once
@dataclass(frozen=True, kw_only=True)
class KernelStyle:
    """Which kernels a framework runs: facts of its code, no speeds.

    Args:
        attention: "unfused" (scores in memory), "chunked" (those of a chunk at a time) or a flash kernel name.
        fused_softmax: scale, mask and softmax in one kernel (unfused attention only).
        fused_bias_activation: a gate, or an activation function that is written out, in one kernel.
        fused_residual: bias, dropout and residual addition in one kernel.
        fused_rotary: rotary embedding in one kernel.
        scales_rotary: that kernel takes cosines and sines that are scaled; else such a model's embedding is plain operations.
        complex_rotary: rotary embedding as a product of complex numbers, for which no compiler makes a fused kernel.
        rotary_tables: where it is plain operations, kernels that make cosines and sines from angles in every layer, for queries and again
            for keys, which are then joined with what was not turned, be it nothing; 0 = both are made once a step.
        fused_norm: normalisation in one kernel.
        autocast: weights, residual stream and norms are fp32, and operands of products are cast; apart from the kernels that make them
            unless residual additions are fused with others.
        keeps_inner_results: fused norms and gates write and keep what their plain operations would for their own backward.
        norms_in_fp32: the residual stream is cast to fp32 before every norm, and its gradient back; the norm itself is one kernel.
        measures_accuracy: accuracy and perplexity of every microbatch are computed from its logits, beside the loss.
        splits_qkv: queries, keys and values are parts of one tensor; their gradients are copied into one (attention that keeps
            its scores does so everywhere).
        copies_qkv: each is copied out of that tensor.
        keeps_values_in_place: latent attention keeps its values where the up projection made them, beside keys that nothing reads
            again; else they are copied out.
        packs_qkv: before a fused kernel queries, keys and values are each put in batch-first order and then packed into one tensor.
        softmax_by_reductions: a fused softmax is three kernels: the maximum, the sum, and the quotient, each of which reads the scores.
        stacks_saved: layers are turns of one loop, and what each keeps is copied into stacks of all layers.
        embeds_by_product: the embedding is a product of one-hot rows with the table.
        fused_cross_entropy: cross-entropy computed without a full fp32 copy of the logits.
        widens_fused_loss: that one still makes fp32 logits, and exponentials beside them, which it keeps.
        widens_logits: a cross-entropy that is not fused works on an fp32 copy of the logits; else on what the head makes.
        loss_chunks: parts of the tokens whose logits stand one after the other; of more than one the gradient of the head's input
            is kept in place of the logits.
        torch_loss: an unfused loss is torch's: log_softmax, one kernel, and a pick, or, where ranks share the vocabulary
            (`splits_logits`), the operations of DTensor's loss_parallel; else those of Megatron-LM.
        in_place_cross_entropy: an unfused cross-entropy reuses the fp32 copy of the logits for softmax and gradient.
        fused_wgrad_accumulation: weight gradients are added into the gradient buffer by the GEMM itself.
        dropout: whether dropout masks are made and kept.
        joined_gate: gate and up projection of a gated MLP are one product; else two, each with its own gradient of the input.
        joined_expert_gate: so it is of experts: one grouped product; else two.
        joined_qkv: queries, keys and values are one product; else three, as in codes of Llama (models of learned positions stay with
            GPT-2's one).
        narrow_gate_input: the inputs of a gate are kept in 8 bits, by kernels of their own.
        norm_sums_apart: the sums over tokens of a LayerNorm's backward are a kernel of their own, which reads both operands again.
        plain_gate: a gate is joined by plain tensor operations, even where bias and activation function are one kernel.
        picks_masked: of an encoder's tokens the head sees those alone that were masked.
        plain_router: the choice of experts and the loss that balances them are plain tensor operations.
        repeats_keys: keys and values are repeated for every query head before attention.
        fuses_experts: the grouped products of experts apply the activation function and write narrow results (mxfp8) themselves.
        copies_rows_apart: rows of tokens are repeated and then sorted by expert, and put back in order and then summed.
        fuses_permute: rows of tokens are copied for their experts, and summed, by one kernel each; else by plain operations.
        picks_rows: how these find rows: by "mask" or "gather", whose sums are atomic additions, or "index", whose sums follow the rows'
            sorted indices, and so does the gradient of a rank's own sort by expert.
        grouped_kernel: products of all experts are one kernel; else the host starts each.
        expert_loop: experts run one after the other: "modules", "slices" or "none" (blocks/expert_loop.py).
        exchange_sorts: an exchange of rows once per node sorts them by expert and back, by kernels on its own stream.
        pads_expert_rows: each expert's rows are copied to places whose number products in 8 bits take, and back.
        ring_in_fp32: partial results of ring attention are joined by plain fp32 operations.
        ring_traced: the ring is part of a compiled graph, which waits for every exchange where it starts.
        casts_apart: operands are quantised by kernels of their own, the transposed copy from the narrow one.
        gathers_logits: the loss is computed over all logits, gathered, on every tensor-parallel rank.
        gathers_rotary: each layer keeps its tokens' cosines and sines, for queries and for keys.
        copies_attention_output: attention kernels of batch-first tensors in a sequence-first layer: their output is kept twice.
        makes_gradients: weight gradients are made by the first backward, in places that the freed logits leave.
        weighs_rows_in_fp32: the router's weights scale the experts' outputs in fp32, by plain operations, and the wide copy is kept.
        weights_in_experts: the router's weights scale the experts' inner activation, not their outputs.
        keeps_gathered_inputs: the gathered input of a column-split product is kept, not gathered again in backward.
        gathers_by_product: each product of an operation gathers its input for itself, and scatters that one's gradient by itself.
        sums_by_product: where that gradient is summed whole on every rank, each product's is summed by itself.
        divides_checkpoints: of a recomputed layer's input each tensor-parallel rank keeps its part, and gathers it before the backward.
        keeps_idle_products: per-operator recompute keeps a layer's last product too.
        keeps_compute_gradients: gradients are made in the compute dtype, and added to wider ones in passes of their own.
        expert_group: tokens that one-hot masks send to experts together, at most; 0 = rows are copied by a gather.
        loss_metrics: how often the loss of a microbatch is evaluated again, for training metrics.
    """

    attention: str = "flash2"
    fused_softmax: bool = True
    fused_bias_activation: bool = True
    fused_residual: bool = True
    fused_rotary: bool = True
    scales_rotary: bool = True
    complex_rotary: bool = False
    rotary_tables: int = 0
    fused_norm: bool = True
    autocast: bool = False
    keeps_inner_results: bool = False
    norms_in_fp32: bool = False
    measures_accuracy: bool = False
    splits_qkv: bool = False
    copies_qkv: bool = False
    keeps_values_in_place: bool = False
    packs_qkv: bool = False
    softmax_by_reductions: bool = False
    stacks_saved: bool = False
    embeds_by_product: bool = False
    fused_cross_entropy: bool = False
    widens_fused_loss: bool = False
    widens_logits: bool = True
    torch_loss: bool = False
    splits_logits: bool = False
    loss_chunks: int = 1
    in_place_cross_entropy: bool = True
    fused_wgrad_accumulation: bool = True
    dropout: bool = False
    joined_gate: bool = True
    joined_expert_gate: bool = True
    joined_qkv: bool = True
    narrow_gate_input: bool = False
    norm_sums_apart: bool = False
    plain_gate: bool = False
    picks_masked: bool = False
    plain_router: bool = False
    repeats_keys: bool = False
    ring_in_fp32: bool = False
    ring_traced: bool = False
    casts_apart: bool = False
    fuses_experts: bool = False
    copies_rows_apart: bool = False
    fuses_permute: bool = True
    picks_rows: str = "mask"
    grouped_kernel: bool = False
    expert_loop: str = "none"
    exchange_sorts: bool = False
    pads_expert_rows: bool = False
    gathers_logits: bool = False
    gathers_rotary: bool = False
    copies_attention_output: bool = False
    makes_gradients: bool = False
    weighs_rows_in_fp32: bool = False
    weights_in_experts: bool = False
    keeps_gathered_inputs: bool = False
    gathers_by_product: bool = False
    sums_by_product: bool = True
    divides_checkpoints: bool = False
    keeps_idle_products: bool = False
    keeps_compute_gradients: bool = False
    expert_group: int = 0
    loss_metrics: int = 0
