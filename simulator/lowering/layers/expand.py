"""Pass 2: the cost of every kind of layer on one GPU: its operators divided and joined into tables, and what it holds; per layer and
direction one `OperatorTable`, made once and shared by every block that runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simulator.lowering.layers.asks import Asks, layer_asks
from simulator.lowering.layers.contexts import contexts_of
from simulator.lowering.layers.fused_experts import with_kernels
from simulator.lowering.layers.gathered import gathered_bytes
from simulator.lowering.layers.graphs import graph_inputs, started_by
from simulator.lowering.layers.holdings import (
    Frozen,
    Matrix,
    WeightTensor,
    expert_parameters,
    frozen_parameters,
    parameters,
    summed_parameters,
    trained_by,
    weight_matrices,
    weight_tensors,
)
from simulator.lowering.layers.joins import gather_pieces
from simulator.lowering.layers.layer_context import LayerContext
from simulator.lowering.layers.loss_memory import loss_marks
from simulator.lowering.layers.recompute import (
    AGAIN,
    CHAINS,
    INNER,
    Recompute,
    policies_of,
    policy_named,
    runs_again,
)
from simulator.lowering.layers.rows import Rows, synchronise
from simulator.lowering.layers.saved_tensors import marks, saved_tensors, widest_output
from simulator.lowering.layers.temporaries import backward_temporaries
from simulator.lowering.layers.write import write
from simulator.lowering.layers.writer import Writer
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.partition.layout import MATRICES
from simulator.partition.strategies.experts import EXPERT
from simulator.program.calls import Traffic
from simulator.program.program import OperatorTable, Tensor
from simulator.workload.families import FAMILIES
from simulator.workload.graph import Dim
from simulator.workload.layer_case import LayerCase
from simulator.workload.layer_kind import DECODER_EMBEDDING, MTP_HEAD, MTP_LAYER, is_layer, layer_kind
from simulator.workload.model_fields import ModelFields
from simulator.workload.operator import LayerPart, Operator
from simulator.workload.workload import Workload

__all__ = ["LayerCost", "layer_costs", "layer_kinds"]


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerCost:
    """One kind of layer on one GPU.

    Args:
        tables: makes its operators: "forward" and "backward", with recomputed ones in front, "input_gradient" and
            "weight_gradient", the two halves of a split backward, of which recompute comes first (design 5b E).  Each is made
            when it is asked for: of a plan without room nobody does.
        saved: tensors held from forward to backward.
        forward_mark, backward_mark: temporaries that stand while it runs.
        again: tensors made again for its backward while another layer's, kept by the forward, may stand in their place.
        unit_mark: as `backward_mark`, of a unit of FSDP's whose gradients stay as they are made: with those that are there by then.
        parameters: weights on this GPU before ZeRO [count]; `expert_parameters` are held by other sets of ranks than the rest.
        frozen: those that are never trained.
        summed: (what, mesh axes, count) of those of whose gradients ranks that split layers have a term each, which they add up.
        input_bytes: activation that crosses a chunk boundary, per GPU [B].
        weights: its weight tensors, those of routed experts left out.
        between: gradients of what operators with weights made, from which those of the weights are made [B].
        matrices: makes the list of its matrices of weights; nothing of what is no layer.
        rows: makes the rows of "forward" and "backward" with the operation that each runs; `asks`: what it asks its allocator for; of a
            part of a layer nothing.
    """

    tables: Mapping[str, Callable[[], OperatorTable]] = field(default_factory=dict)
    saved: tuple[Tensor, ...] = ()
    forward_mark: tuple[Tensor, ...] = ()
    backward_mark: tuple[Tensor, ...] = ()
    parameters: float = 0.0
    input_bytes: float = 0.0
    again: tuple[Tensor, ...] = ()
    unit_mark: tuple[Tensor, ...] = ()
    expert_parameters: float = 0.0
    frozen: Frozen = Frozen()
    summed: tuple[tuple[str, tuple[str, ...], float], ...] = ()
    weights: tuple[WeightTensor, ...] = ()
    between: float = 0.0
    matrices: Callable[[], tuple[Matrix, ...]] = tuple
    rows: Mapping[str, Callable[[], Rows]] = field(default_factory=dict)
    asks: Callable[[], Asks] = lambda: Asks((), (), ())

    @property
    def trained(self) -> float:
        """Weights on this GPU that have gradients [count]."""
        return self.parameters - self.frozen.all

    @property
    def tensors(self) -> tuple[float, ...]:
        """Sizes of `weights` [count]."""
        return tuple(tensor.size for tensor in self.weights)

    @property
    def trained_tensors(self) -> tuple[float, ...]:
        """Sizes of those of `weights` that are updated [count]."""
        return tuple(tensor.size for tensor in self.weights if not tensor.frozen)

    @functools.cached_property
    def forward(self) -> OperatorTable:
        """What its forward runs."""
        return self.tables["forward"]()

    @functools.cached_property
    def backward(self) -> OperatorTable:
        """What its backward runs."""
        return self.tables["backward"]()

    @functools.cached_property
    def input_gradient(self) -> OperatorTable:
        """What the half of its backward runs that others wait for."""
        return self.tables["input_gradient"]()

    @functools.cached_property
    def weight_gradient(self) -> OperatorTable:
        """What the other half runs."""
        return self.tables["weight_gradient"]()


def layer_costs(
    workload: Workload, resolved: ResolvedPlan, sequences: int = 0, length: int = 0, context: int = 0
) -> dict[str, LayerCost]:
    """Return the cost of the embedding, of every kind of layer that the model has, and of its head(s), on one GPU of the plan.

    Args:
        sequences, length: of what runs at once; 0 = a whole microbatch, whole sequences.
        context: tokens of these sequences that ran before.
    """
    source = length or workload.sequence_length
    target = workload.decoder_length
    shared = resolved.context_parallel
    sequences = sequences or resolved.microbatch_size
    far = source // shared if target else 0
    stacks = []
    for own in (source, target) if target else (source,):
        contexts = contexts_of(resolved, workload, sequences, own // shared)
        case = LayerCase(
            model=workload.model,
            kind="embedding",
            sequences=sequences,
            length=own // shared,
            precision=contexts[0].precision,
            style=contexts[0].style,
            vocabulary=resolved.vocabulary,
            context=context,
            peers=shared,
            source=far,
        )
        stacks.append((contexts, case))
    apart, graphs, waits = resolved.experts_apart, resolved.cuda_graphs, resolved.framework.layer_wait > 0
    return dict(_layer_costs(tuple(stacks), resolved.recomputes, apart, graphs, waits))


@functools.lru_cache(maxsize=1024)
def _layer_costs(
    stacks: tuple[tuple[tuple[LayerContext, LayerContext], LayerCase], ...],
    recompute: Recompute,
    apart: bool,
    graphs: tuple[str, ...],
    waits: bool,
) -> tuple[tuple[str, LayerCost], ...]:
    """As `layer_costs`; `stacks`: of the model's stack, or of its encoder and its decoder, the contexts without and with experts, and any
    kind of layer."""
    out = []
    for name, kind, ending, decodes, sparse, policy in _kinds(stacks[0][1].model, recompute):
        contexts, case = stacks[-1 if decodes else 0]
        own = replace(case, kind=kind)
        out.append((name, _layer_cost(contexts[sparse], own, policy, ending, apart and sparse, graphs, waits)))
    return tuple(out)


@functools.lru_cache(maxsize=256)
def _kinds(model: ModelFields, recompute: Recompute) -> tuple[tuple[str, str, str, bool, bool, Recompute], ...]:
    """Of every kind of layer, as often as layers are recomputed differently: its name with the ending, its kind, the ending, whether it
    runs on the decoder's tokens, whether it has experts, and what it makes again."""
    return tuple(
        [
            (kind + ending, kind, ending, in_decoder(kind), _sparse(kind, model), _policy(kind, ending, recompute))
            for kind in layer_kinds(model)
            for ending in (policies_of(recompute) if is_layer(kind) else ("",))
        ]
    )


def _sparse(kind: str, model: ModelFields) -> bool:
    """Whether a kind of layer has experts."""
    return layer_kind(model.layer_kinds[-1] if kind == MTP_LAYER else kind).mlp == "moe"


def _policy(kind: str, ending: str, recompute: Recompute) -> Recompute:
    """What a kind of layer makes again: the ends of a model nothing, that of multi-token prediction the same whatever the method."""
    if kind == MTP_LAYER:
        return replace(recompute, method="", layers=0)
    return policy_named(ending, recompute) if is_layer(kind) else Recompute("none")


@functools.lru_cache(maxsize=64)
def layer_kinds(model: ModelFields) -> tuple[str, ...]:
    """Return the kinds of layers that a model has, its ends included."""
    middle = tuple(dict.fromkeys(model.layer_kinds))
    between = (DECODER_EMBEDDING,) if model.encoder_layers else ()
    after = (MTP_LAYER, MTP_HEAD) if model.mtp_layers else ()
    return ("embedding", *middle, *between, "head", *after)


def in_decoder(kind: str) -> bool:
    """Return whether a kind of layer of an encoder-decoder runs on the decoder's tokens."""
    return kind in (DECODER_EMBEDDING, "head") or layer_kind(kind).stack == "cross"


@functools.lru_cache(maxsize=2048)
def _layer_cost(
    ctx: LayerContext,
    case: LayerCase,
    recompute: Recompute,
    ending: str,
    experts_apart: bool,
    graphs: tuple[str, ...],
    synchronised: bool,
) -> LayerCost:
    """The cost of one kind of layer."""
    style, precision, kind, part = ctx.style, ctx.precision, case.kind, _part(case)
    plain, stream = _plain(ctx, case, experts_apart), _stream_ways(ctx)
    kept_in_parts = recompute.kind == "full" and style.divides_checkpoints and ctx.tensor > 1 and stream == 1
    input_ways = ctx.tensor if kept_in_parts else stream
    kept, again, rows_of_experts = saved_tensors(ctx, part, recompute, ending, input_ways)
    gathered = gathered_bytes(ctx, part)[0] if len(ctx.layout.tensor) > 1 else 0.0
    widest = widest_output(ctx, part, stream, recompute) + gathered
    starts = [started_by(o.op, graphs, is_layer(kind)) for o in part.operators]
    saved = kept + graph_inputs(rows_of_experts, starts, part.input_bytes / stream)
    waits, once = synchronised and recompute.kind == "full", _once(ctx)
    stacked = kept if style.stacks_saved and is_layer(kind) else ()
    add = functools.partial(_add, ctx, kind, graphs)

    on_the_way, chained = ending.endswith(AGAIN), recompute.method in CHAINS

    def backward() -> Rows:
        rows = Rows(f"{kind}{ending}" if on_the_way else f"{kind}{ending} backward")
        if kept_in_parts and not ending.startswith(INNER):
            gather_pieces(rows, "layer input", part.input_bytes, ctx.groups.tensor, precision.compute, "recompute")
        repeated = with_kernels(part.operators if on_the_way else runs_again(part, recompute), style, once)
        add(rows, repeated, "recompute")
        if not on_the_way:
            rows.join(_backward(ctx, case, graphs))
        if waits:
            synchronise(rows, "backward")
        return rows

    forward = functools.partial(_forward, ctx, case, ending, graphs, waits, stacked)

    if on_the_way:
        carried = Tensor(name="layer input", category="activations", bytes=part.input_bytes / stream)
        return LayerCost(
            tables=dict.fromkeys(("backward", "input_gradient"), lambda: backward().table())
            | dict.fromkeys(("forward", "weight_gradient"), Rows("nothing").table),
            rows={"forward": lambda: Rows("nothing"), "backward": backward},
            backward_mark=(carried, *marks(kind, "workspace", widest)),
            input_bytes=part.input_bytes / stream,
        )
    return replace(
        plain,
        tables={
            "forward": lambda: _table(forward()),
            "backward": lambda: backward().table(),
            "input_gradient": lambda: backward().table("input"),
            "weight_gradient": lambda: backward().table("weight"),
        },
        rows={"forward": forward, "backward": backward},
        asks=functools.partial(layer_asks, ctx, part, recompute, (plain.forward_mark, saved, plain.backward_mark)),
        saved=saved,
        forward_mark=plain.forward_mark or marks(kind, "workspace", widest),
        backward_mark=plain.backward_mark if chained else (*again, *plain.backward_mark),
        again=again if chained else (),
        unit_mark=(*again, *plain.unit_mark),
        input_bytes=(part.boundary_bytes or part.input_bytes) / stream,
        matrices=functools.partial(weight_matrices, ctx, part, experts_apart)
        if is_layer(kind) or kind == MTP_LAYER
        else tuple,
    )


@functools.lru_cache(maxsize=2048)
def _plain(ctx: LayerContext, case: LayerCase, experts_apart: bool) -> LayerCost:
    """What of a layer's cost is the same whatever it makes again."""
    model, kind, vocabulary, part = case.model, case.kind, case.vocabulary, _part(case)
    style, precision, layout = ctx.style, ctx.precision, ctx.layout
    if len(layout.tensor) > 1:
        products = (o.op for o in part.operators if o.work == "gemm")
        layout.check(t for op in products for t in (*op.inputs, *op.outputs, *op.weights))
    if kind == "head":
        columns = Dim("vocabulary", vocabulary)
        words = int(ctx.ways((columns,)))
        sharing = ctx.ways((Dim("batch", case.sequences), Dim("sequence", case.length), columns))
        logits = (
            float(case.sequences * case.length * vocabulary) / sharing * words
        )  # of the tokens of ranks that share the vocabulary
        held = layout.ways((Dim("hidden", model.hidden), columns), MATRICES)
        gradient = precision.element * model.hidden * vocabulary / held
        forward_mark, backward_mark = loss_marks(style, logits, words, precision.element, gradient)
        unit_mark = backward_mark
    else:
        plain_norm = not style.fused_norm and model.norm != "layer_norm"
        temporaries = functools.partial(
            backward_temporaries, ctx, part, part.input_bytes / _stream_ways(ctx), plain_norm
        )
        back = gathered_bytes(ctx, part)[1] if len(layout.tensor) > 1 else 0.0
        (grad, _), (beside, made) = temporaries(), temporaries(stay=True)
        forward_mark, backward_mark = (), marks(kind, "gradients of activations", grad + back)
        gradients = Tensor(name=f"unsharded gradients of {kind} so far", category="gradients", bytes=made)
        unit_mark = (*marks(kind, "gradients of activations", beside + back), gradients)
    return LayerCost(
        forward_mark=forward_mark,
        backward_mark=backward_mark,
        unit_mark=unit_mark,
        parameters=parameters(ctx, part),
        summed=summed_parameters(ctx, part),
        expert_parameters=expert_parameters(ctx, part) if experts_apart else 0.0,
        frozen=frozen_parameters(ctx, part, experts_apart),
        weights=weight_tensors(ctx, part, model.norm, experts_apart),
        between=sum(_made(ctx, o) for o in part.operators if trained_by(ctx, o)),
    )


def _made(ctx: LayerContext, o: Operator) -> float:
    """Bytes of what an operator makes, of a norm without what it keeps for itself."""
    return sum(t.bytes / ctx.ways(t.dims) for t in (o.op.outputs if o.work == "gemm" else o.op.outputs[:1]))


def _once(ctx: LayerContext) -> bool:
    """Whether ranks exchange rows of experts, and a node gets each of them once."""
    return ctx.layout.ranks(EXPERT) > 1 and ctx.experts.kind == "once_per_node"


def _part(case: LayerCase) -> LayerPart:
    """The operators of a kind of layer."""
    found: LayerPart = FAMILIES.get(case.model.architecture).part(case)
    return found


@functools.lru_cache(maxsize=2048)
def _forward(
    ctx: LayerContext,
    case: LayerCase,
    ending: str,
    graphs: tuple[str, ...],
    waits: bool,
    stacked: tuple[Tensor, ...],
) -> Rows:
    """What a layer runs forward, whatever it makes again; the host waits behind it, or what it keeps is copied to `stacked`."""
    rows = Rows(f"{case.kind}{ending} forward")
    _add(ctx, case.kind, graphs, rows, with_kernels(_part(case).operators, ctx.style, _once(ctx)), "forward")
    if waits:
        synchronise(rows, "forward")
    _stack(rows, stacked, ctx.precision.compute)
    return rows


_table = functools.lru_cache(maxsize=2048)(Rows.table)
"""The table of rows that several layers share, which they share, too."""


@functools.lru_cache(maxsize=2048)
def _backward(ctx: LayerContext, case: LayerCase, graphs: tuple[str, ...]) -> Rows:
    """What a layer runs backward, whatever it makes again first; what runs twice goes again by itself."""
    rows, kind = Rows(f"{case.kind} backward"), case.kind
    operators = with_kernels(_part(case).operators, ctx.style, _once(ctx))
    again = [o for o in operators if o.op.runs_twice]
    _add(ctx, kind, graphs, rows, again, "recompute")
    _add(ctx, kind, graphs, rows, operators[::-1], "backward")
    return rows


def _add(
    ctx: LayerContext,
    kind: str,
    graphs: tuple[str, ...],
    rows: Rows,
    operators: Sequence[Operator],
    phase: str,
) -> None:
    """Write operators down one by one, each with what starts it."""
    for operator in operators:
        first = len(rows.rows)
        write(Writer(ctx, rows, operator, phase))
        rows.mark(first, started_by(operator.op, graphs, is_layer(kind)), operator.op)


def _stream_ways(ctx: LayerContext) -> float:
    """How many ways a layer's input is divided."""
    return ctx.ways((Dim("batch", 1), Dim("sequence", ctx.tokens), Dim("hidden", ctx.hidden)))


def _stack(rows: Rows, saved: tuple[Tensor, ...], dtype: str) -> None:
    """Copy what a layer keeps into the stacks of all layers, where layers are turns of one loop."""
    for tensor in saved:
        rows.moves(f"{tensor.name} to its stack", dtype, tensor.bytes, tensor.bytes, "forward", call=Traffic("stack"))
