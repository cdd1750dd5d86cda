"""Pass 2: the cost of every kind of layer on one GPU: its operators divided and joined into tables, and what it holds.

Per layer and direction one `OperatorTable`, made once and shared by every block that runs it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from simulator.lowering.layers.fused_experts import with_kernels
from simulator.lowering.layers.graphs import graph_inputs, started_by
from simulator.lowering.layers.joins import gather_pieces
from simulator.lowering.layers.loss_memory import loss_marks
from simulator.lowering.layers.recompute import Recompute, dropped, policies_of, policy_named, runs_again
from simulator.lowering.layers.rows import Rows, synchronise
from simulator.lowering.layers.saved_values import kept_values
from simulator.lowering.layers.splitter import ExpertSplit, Splitter
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.program.calls import Traffic
from simulator.program.program import OperatorTable, Tensor
from simulator.workload.families import FAMILIES
from simulator.workload.layer_kind import DECODER_EMBEDDING, MTP_HEAD, MTP_LAYER, is_layer
from simulator.workload.model import Model
from simulator.workload.operator import KernelStyle, LayerPart, Operator
from simulator.workload.precision import Precision
from simulator.workload.workload import Workload

__all__ = ["LayerCost", "layer_costs", "layer_kinds"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerCost:
    """One kind of layer on one GPU.

    Args:
        forward, backward: operators, recomputed ones in front of the backward.
        input_gradient, weight_gradient: the two halves of a split backward; recompute comes first (design 5b E).
        saved: tensors held from forward to backward.
        forward_mark, backward_mark: temporaries that stand while it runs.
        parameters: weights on this GPU before ZeRO [count]; `small_parameters` of them are the same on every
            tensor-parallel rank, `expert_parameters` are held by other sets of ranks than the rest.
        input_bytes: activation that crosses a chunk boundary, per GPU [B].
        tensors: sizes of its weight tensors, those of routed experts left out [count].
    """

    forward: OperatorTable
    backward: OperatorTable
    input_gradient: OperatorTable
    weight_gradient: OperatorTable
    saved: tuple[Tensor, ...]
    forward_mark: tuple[Tensor, ...]
    backward_mark: tuple[Tensor, ...]
    parameters: float
    small_parameters: float
    input_bytes: float
    expert_parameters: float = 0.0
    tensors: tuple[float, ...] = ()


def layer_costs(
    workload: Workload, resolved: ResolvedPlan, sequences: int = 0, length: int = 0, context: int = 0
) -> dict[str, LayerCost]:
    """Return the cost of the embedding, of every kind of layer that the model has, and of its head(s), on one GPU of the plan.

    Args:
        sequences, length: of what runs at once; 0 = a whole microbatch, whole sequences.
        context: tokens of these sequences that ran before.
    """
    experts = ExpertSplit(
        parallel=resolved.expert_parallel,
        tensor=resolved.expert_tensor_parallel,
        imbalance=resolved.expert_imbalance,
        exchange=resolved.expert_exchange,
        sorts=1 < resolved.expert_parallel < workload.model.experts,
        groups=resolved.groups,
        count=workload.model.experts,
    )
    source = length or workload.sequence_length
    target = workload.decoder_length
    return {
        kind + ending: _layer_cost(
            workload.model,
            kind,
            sequences or resolved.microbatch_size,
            (target if target and in_decoder(kind) else source) // resolved.context_parallel,
            source // resolved.context_parallel if target else 0,
            context,
            resolved.precision,
            resolved.style,
            resolved.vocabulary,
            resolved.tensor_parallel,
            (resolved.context_parallel, resolved.context_parallel_kind, resolved.context_parallel_inner),
            resolved.sequence_parallel,
            policy_named(ending, resolved.recomputes),
            ending,
            resolved.overlap_tensor_parallel,
            experts,
            resolved.experts_apart,
            resolved.gradient_bytes,
            0.0 if workload.document_length is None else workload.attended,
            resolved.tensor_parallel_splits,
            resolved.cuda_graphs,
            resolved.framework.layer_wait > 0,
        )
        for kind in layer_kinds(workload.model)
        for ending in (policies_of(resolved.recomputes) if is_layer(kind) else ("",))
    }


@functools.lru_cache(maxsize=64)
def layer_kinds(model: Model) -> tuple[str, ...]:
    """Return the kinds of layers that a model has, its ends included."""
    middle = tuple(dict.fromkeys(model.layer_kinds))
    between = (DECODER_EMBEDDING,) if model.encoder_layers else ()
    after = (MTP_LAYER, MTP_HEAD) if model.mtp_layers else ()
    return ("embedding", *middle, *between, "head", *after)


def in_decoder(kind: str) -> bool:
    """Return whether a kind of layer of an encoder-decoder runs on the decoder's tokens."""
    return kind in (DECODER_EMBEDDING, "head") or kind.startswith("cross ")


@functools.lru_cache(maxsize=256)
def _layer_cost(
    model: Model,
    kind: str,
    sequences: int,
    length: int,
    source: int,
    context: int,
    precision: Precision,
    style: KernelStyle,
    vocabulary: int,
    tensor: int,
    peers: tuple[int, str, int],
    sequence_parallel: bool,
    recompute: Recompute,
    ending: str,
    overlaps: bool,
    experts: ExpertSplit,
    experts_apart: bool,
    gradient_bytes: int,
    attended: float,
    splits: int,
    graphs: tuple[str, ...],
    synchronised: bool,
) -> LayerCost:
    part = FAMILIES.get(model.architecture).part(
        model, kind, sequences, length, precision, style, vocabulary, context, peers[0], source
    )
    if attended:
        alone = (replace(o, attended=attended) if o.work == "attention" else o for o in part.operators)
        part = replace(part, operators=tuple(alone))
    split = Splitter(
        tensor,
        peers,
        sequence_parallel,
        overlaps,
        precision,
        sequences * length,
        model.hidden,
        style,
        experts,
        gradient_bytes,
        splits,
    )
    if kind == MTP_LAYER:
        recompute = replace(recompute, method="", layers=0)
    elif not is_layer(kind):
        recompute = Recompute("none")
    forward, backward = Rows(f"{kind}{ending} forward"), Rows(f"{kind}{ending} backward")
    if split.divides(recompute.kind) and not ending:
        gather_pieces(backward, "layer input", part.input_bytes, split.groups.tensor, precision.compute, "recompute")
    operators = with_kernels(part.operators, style, experts.parallel > 1)
    repeated = with_kernels(runs_again(part, recompute), style, experts.parallel > 1)
    starts = [started_by(o, graphs, is_layer(kind)) for o in part.operators]
    for rows, chosen, write in (
        (forward, operators, lambda rows, o: split.forward(rows, o, "forward")),
        (backward, repeated, lambda rows, o: split.forward(rows, o, "recompute")),
        (backward, operators[::-1], split.backward),
    ):
        for operator in chosen:
            first = len(rows.rows)
            write(rows, operator)
            rows.mark(first, started_by(operator, graphs, is_layer(kind)))
    if synchronised and recompute.kind == "full":
        synchronise(forward, "forward")
        synchronise(backward, "backward")
    saved, again, rows_of_experts = _saved(part, split, recompute, ending)
    if style.stacks_saved and is_layer(kind):
        _stack(forward, saved, precision.compute)
    saved += graph_inputs(rows_of_experts, starts, part.input_bytes / split.factor("sequence"))
    if kind == "head":
        logits, gradient = (
            float(sequences * length * vocabulary),
            precision.element * model.hidden * vocabulary / tensor,
        )
        forward_mark, backward_mark = loss_marks(style, logits, tensor, precision.element, gradient)
    else:
        out, grad = split.widest(part, not style.fused_norm and model.norm != "layer_norm")
        forward_mark, backward_mark = _marks(kind, "workspace", out), _marks(kind, "gradients of activations", grad)
    return LayerCost(
        forward=forward.table(),
        backward=backward.table(),
        input_gradient=backward.table("input"),
        weight_gradient=backward.table("weight"),
        saved=saved,
        forward_mark=forward_mark,
        backward_mark=(*again, *backward_mark),
        parameters=sum(
            (o.parameters - o.small_parameters) / split.weights(o) + o.small_parameters for o in part.operators
        ),
        small_parameters=float(sum(o.small_parameters for o in part.operators)),
        input_bytes=(part.boundary_bytes or part.input_bytes) / split.factor("sequence"),
        expert_parameters=sum(o.parameters / split.weights(o) for o in part.operators if o.split.startswith("expert"))
        if experts_apart
        else 0.0,
        tensors=tuple(size for o in part.operators for size in _tensors(o, split, model.norm)),
    )


def _stack(rows: Rows, saved: tuple[Tensor, ...], dtype: str) -> None:
    """Copy what a layer keeps into the stacks of all layers, where layers are turns of one loop."""
    for tensor in saved:
        rows.add(
            label=f"{tensor.name} to its stack",
            work="memory_bound",
            call=Traffic("stack"),
            dtype=dtype,
            read=tensor.bytes,
            written=tensor.bytes,
            phase="forward",
        )


def _tensors(operator: Operator, split: Splitter, norm: str) -> tuple[float, ...]:
    """Sizes of the weight tensors of an operator on one GPU, those of routed experts left out [count]."""
    if not operator.parameters or operator.split.startswith("expert"):
        return ()
    if operator.work == "gemm":
        batch, _, n, k = operator.shape
        main = batch * n * k
        parts = [main / split.weights(operator) * width / n for width in operator.widths]
        bias = operator.parameters - main
        if bias:
            parts.append(bias if operator.small_parameters else bias / split.weights(operator))
        return tuple(parts)
    if operator.work == "memory_bound" and norm == "layer_norm":
        return (operator.parameters / 2.0, operator.parameters / 2.0)
    main = operator.parameters - operator.small_parameters
    return tuple(size for size in (main / split.weights(operator), operator.small_parameters) if size)


def _marks(kind: str, name: str, size: float) -> tuple[Tensor, ...]:
    return (Tensor(name=f"{kind} {name}", category="workspace", bytes=size),) if size else ()


def _saved(
    part: LayerPart, split: Splitter, recompute: Recompute, ending: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], float]:
    """Tensors kept for backward, and those made again in backward instead, of layers recomputed together of all of them; and the bytes
    kept of the rows of experts."""
    out = dropped(part, recompute)
    kept: list[Tensor] = []
    again: list[Tensor] = []
    rows = 0.0
    for i, o in enumerate(part.operators):
        for j, s in enumerate(o.saved):
            if s.bytes and (recompute.kind == "operators" or not s.idle):
                tensor = Tensor(name=s.name, category=s.category, bytes=s.bytes / split.factor(s.region))
                (again if (i, j) in out else kept).append(tensor)
                rows += tensor.bytes if s.of_experts and (i, j) not in out else 0.0
    together = recompute.layers if recompute.method == "uniform" else 1
    if recompute.kind in ("full", "policy"):
        size = part.input_bytes / (split.t if split.divides(recompute.kind) else split.factor("sequence"))
        kept = [] if ending else [Tensor(name="layer input", category="activations", bytes=size)]
        values = kept_values(part, recompute.saves, split.e)
        made = [Tensor(name=v.name, category="activations", bytes=v.bytes / split.factor(v.region)) for v in values]
        kept += made
        rows = sum((t.bytes for t, v in zip(made, values, strict=True) if v.of_experts), 0.0)
        again += [Tensor(name="layer input", category="activations", bytes=size)] if together > 1 else []
    if together > 1:
        again = [replace(tensor, bytes=together * tensor.bytes) for tensor in again]
    return tuple(kept), tuple(again), rows
