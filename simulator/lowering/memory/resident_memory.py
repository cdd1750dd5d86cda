"""What a training code keeps on a GPU beside the states of its model and the tensors of its layers.

Libraries' workspaces, contexts and communicators; receive buffers; gradients beside their buffers; and memory that the caching
allocator holds without a tensor in it (category fragmentation), each from the sizes of the tensors that leave it behind.
"""

from __future__ import annotations

from simulator.lowering.resolve.mesh_rules import MESH_AXES
from simulator.lowering.resolve.resolved_plan import ResolvedPlan
from simulator.lowering.steps.connect import message_links
from simulator.lowering.steps.parameters import Held, in_full_width, rank_chunks, rank_held
from simulator.lowering.steps.state import State
from simulator.lowering.steps.unit_parts import kept_tensors
from simulator.lowering.steps.update import listed_results, master_bytes, optimizer_bytes, states_kept
from simulator.program.program import Axes, Tensor
from simulator.workload.graph import Dim

__all__ = ["beside_states"]


def beside_states(state: State, rank: int) -> list[Tensor]:
    """Return what stands through the whole step on a rank because of its framework's habits."""
    resolved, framework, held = state.resolved, state.resolved.framework, rank_held(state, rank).trained
    out = [
        Tensor(name="GEMM workspace", category="workspace", bytes=_workspace(state)),
        Tensor(name="driver context and kernels", category="context", bytes=framework.context),
        *_beside_compute(state, held),
        *_whole_buckets(state),
        *_kept_gathered(state, rank),
        *(_fsdp_pools(state, held) if resolved.zero_stage == 3 else _flat_buckets(state, rank, held)),
        *_received_ahead(state, rank),
        *_registers(state, rank),
        *_broken_places(state, rank, held),
    ]
    groups = _communicators(resolved.axes)
    if groups:
        out.append(Tensor(name="communicator buffers", category="context", bytes=groups * framework.communicator))
    return out


def _workspace(state: State) -> float:
    """Bytes that GEMM libraries hold, those for the experts' products included."""
    framework = state.resolved.framework
    return framework.workspace + (framework.grouped_workspace if state.workload.model.experts else 0.0)


def _communicators(axes: Axes) -> int:
    """Process groups that hold buffers: one per mesh axis, all ranks, and, for the norm, those that split a model's weights.

    >>> _communicators((("tp", 2), ("dp", 4), ("pp", 2))), _communicators((("tp", 1), ("dp", 4), ("pp", 1)))
    (5, 2)
    """
    axis = sum(size > 1 for _, size in axes)
    splits = sum(size > 1 for name, size in axes if name in ("tp", *MESH_AXES, "pp"))
    return axis + (axis > 0) + (splits > 1)


def _registers(state: State, rank: int) -> list[Tensor]:
    """Buffers of messages to and from every neighbour, each as large as the largest of its messages."""
    registers, largest = state.resolved.registers, dict[tuple[int, ...], float]()
    for link in message_links(state) if registers else ():
        if rank in link.pipeline_ranks:
            largest[link.pipeline_ranks] = max(largest.get(link.pipeline_ranks, 0.0), link.message)
    size = registers * sum(largest.values())
    return [Tensor(name="registers of messages", category="communication", bytes=size)] if size else []


def _received_ahead(state: State, rank: int) -> list[Tensor]:
    """Receive buffers of a runtime that makes them for all microbatches at once, and the outputs that its last chunk collects."""
    resolved, framework = state.resolved, state.resolved.framework
    if resolved.pipeline_parallel == 1:
        return []
    last, boundary = len(state.chunks) - 1, max(cost.input_bytes for cost in state.costs.values())
    out = []
    held = [chunk for _, chunk in rank_chunks(state, rank)]
    messages = sum((chunk > 0) + (chunk < last) for chunk in held)
    if framework.receives_ahead and messages:
        size = messages * resolved.microbatches * boundary
        out.append(Tensor(name="receive buffers", category="communication", bytes=size))
    if framework.returns_outputs and last in held and resolved.microbatches > 1:
        tokens = resolved.microbatch_size * state.workload.sequence_length / resolved.context_parallel
        logits_dims = (
            Dim("batch", resolved.microbatch_size),
            Dim("sequence", int(tokens)),
            Dim("vocabulary", resolved.vocabulary),
        )
        ways = resolved.layout.ways(logits_dims)
        logits = tokens * resolved.vocabulary / ways * resolved.precision.element
        out.append(
            Tensor(name="outputs of other microbatches", category="logits", bytes=(resolved.microbatches - 1) * logits)
        )
    return out


def _beside_compute(state: State, held: Held) -> list[Tensor]:
    """Whole gradients that stand beside the buffers or shards: not yet reduced, in flat buckets, or in the compute dtype."""
    resolved = state.resolved
    element = resolved.precision.element
    if resolved.framework.keeps_buckets and resolved.zero_stage == 0 and resolved.reduces and not resolved.on_servers:
        return [Tensor(name="buckets of gradients", category="gradients", bytes=held.all * resolved.gradient_bytes)]
    if (
        resolved.framework.keeps_compute_gradients
        and resolved.gradient_bytes > element
        and not resolved.optimizer_in_backward
    ):
        return [Tensor(name="gradients in the compute dtype", category="gradients", bytes=held.all * element)]
    return []


def _whole_buckets(state: State) -> list[Tensor]:
    """Buckets of DeepSpeed's ZeRO, which backward makes whole, however small the model: two, where one fills as the other is added."""
    resolved = state.resolved
    if not _holds_buckets(resolved):
        return []
    several = 2 if resolved.zero_stage == 2 and resolved.overlap_gradients else 1
    return [Tensor(name="buckets, made whole", category="gradients", bytes=several * resolved.bucket_size)]


def _holds_buckets(resolved: ResolvedPlan) -> bool:
    return resolved.framework.holds_buckets and resolved.zero_stage > 1 and resolved.replicas > 1


def _kept_gathered(state: State, rank: int) -> list[Tensor]:
    """Small tensors that ZeRO-3 does not drop, whole beside their shards."""
    if state.resolved.zero_stage < 3:
        return []
    kept = sum(kept_tensors(state, (kind for _, c in rank_chunks(state, rank) for kind in state.chunks[c].kinds)))
    size = kept * state.resolved.precision.element
    return [Tensor(name="small tensors, kept gathered", category="gathered", bytes=size)] if size else []


def _flat_buckets(state: State, rank: int, held: Held) -> list[Tensor]:
    """Flat copies of gradients that are reduced: too large for the places that activations leave, so that both are held.

    DeepSpeed's ZeRO-1 and 2 reduce through a buffer of bucket_size.  Gradients that are fp32 already are reduced through flat copies of
    as many numbers as a bucket has, or of one tensor where that is larger.
    """
    resolved, element = state.resolved, state.resolved.precision.element
    if not resolved.framework.flattens_gradients or resolved.replicas == 1 or _holds_buckets(resolved):
        return []
    if resolved.gradient_bytes > element:
        table = max(state.costs[kind].trained for kind in ("embedding", "head"))
        largest = table if any(c in (0, len(state.chunks) - 1) for _, c in rank_chunks(state, rank)) else 0.0
        size = min(max(resolved.bucket_size / element, largest), held.all) * resolved.gradient_bytes
    else:
        size = resolved.bucket_size if resolved.zero_stage else 0.0
    return [Tensor(name="flat copies of gradients, place idle", category="fragmentation", bytes=size)]


def _broken_places(state: State, rank: int, held: Held) -> list[Tensor]:
    """Places of the first step's activations, in which its update put moments and results: the next step needs others.

    As much as the update makes, and not more than the activations took; without pipelines, where one microbatch's stand at a time.
    """
    resolved = state.resolved
    if not resolved.framework.states_break_places or resolved.pipeline_parallel > 1:
        return []
    late = states_kept(state, held) * (
        optimizer_bytes(state, held.others / held.all if held.others else 0.0) - master_bytes(state)
    ) * (1.0 - resolved.optimizer_offload) + listed_results(state, rank)
    kinds = [kind for chunk in state.chunks for kind in chunk.kinds]
    marks = [state.costs[kind].forward_mark for kind in kinds] + [state.costs[kind].backward_mark for kind in kinds]
    kept = sum(tensor.bytes for kind in kinds for tensor in state.costs[kind].saved)
    taken = kept + max(sum(tensor.bytes for tensor in mark) for mark in marks)
    return [Tensor(name="places broken up by the first update", category="fragmentation", bytes=min(late, taken))]


def _gathered(state: State, kind: str) -> float:
    """Weights of a layer as they are gathered, in those of full width [count]."""
    cost = state.costs[kind]
    return in_full_width(cost.parameters, cost.frozen.narrow, state.resolved.precision.element)


def _fsdp_pools(state: State, held: Held) -> list[Tensor]:
    """What the stream that gathers keeps for itself: the allocator hands no block of one stream to another.

    What is reduced is copied in the compute stream (PyTorch 2.5); the place of gradients' shards is `unit_parts`'.
    """
    resolved = state.resolved
    if not resolved.framework.copies_gathered:
        return []
    ends = ("embedding", "head")
    together = resolved.fsdp_unit or max(chunk.layers for chunk in state.chunks)
    sizes = [together * _gathered(state, kind) for kind in state.costs if kind not in ends]
    whole = [_gathered(state, kind) for kind in ends]
    sizes.append(sum(whole) if resolved.framework.fsdp_root_unit and resolved.pipeline_parallel == 1 else max(whole))
    gathered = max(max(sizes), (1 + resolved.fsdp_prefetch) * max(sizes[:-1])) * resolved.precision.element
    return [Tensor(name="buffers of the gathering stream", category="fragmentation", bytes=gathered)]
