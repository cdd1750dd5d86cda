"""What several choices of a plan need to matter, and what one choice needs in several ways (`simulator.options.option.Need`)."""

from __future__ import annotations

from dataclasses import replace

from simulator.options.option import given, more_than, one_of

__all__ = [
    "ACROSS_EXPERTS",
    "ADDED",
    "AHEAD",
    "BESIDE_MASTER",
    "BY_GATHER",
    "BY_MASKS",
    "COPIES",
    "DEALT",
    "EACH_MICROBATCH",
    "ENDS_APART",
    "EXPERT_CHOICE",
    "GATHERED_AFTER",
    "GATHERS",
    "IN_BACKWARD",
    "IN_TURNS",
    "MESSAGES",
    "OF_MASTER",
    "ON_DRIVES",
    "ON_GPU",
    "PARTITIONED",
    "REGISTERS",
    "SHARDED",
    "SHARED_EXPERTS",
    "UNITS",
]

EXPERT_CHOICE = more_than(
    "model.experts",
    0,
    "{name} is about a mixture of experts",
    values="model {model.name!r} is dense",
    way="leave {name} out, or a model with experts",
)
BY_MASKS = one_of(
    "expert_exchange",
    ("einsum",),
    "expert_group_size is the number of tokens that one-hot masks dispatch together",
    values="expert_exchange = {found!r} has none (expert_group_size = {value})",
    way="leave it out, or expert_exchange = 'einsum'",
)
SHARED_EXPERTS = more_than(
    "expert_parallel",
    1,
    "{name} is between ranks that share experts",
    values="{name} = {value} and expert_parallel = 1",
)
ACROSS_EXPERTS = (
    more_than(
        "zero_stage",
        0,
        "shard_across_experts says over which ranks ZeRO shards",
        values="shard_across_experts = true and zero_stage = 0",
    ),
    more_than(
        "expert_parallel",
        1,
        "shards across groups of experts need several ranks that share experts",
        values="shard_across_experts = true and expert_parallel = 1",
    ),
)
SHARDED = more_than(
    "zero_stage",
    0,
    "shard_size is the group over which ZeRO shards",
    values="shard_size = {value} and zero_stage = 0",
)
ADDED = more_than(
    "copies",
    1,
    "gradients are added only between replicas",
    values="data_parallel = 1 (gradient_reduce_dtype = {value!r})",
    way="leave gradient_reduce_dtype out",
)
ON_GPU = one_of(
    "optimizer_offload",
    (0.0,),
    "{name} is about states on the GPU; those that the CPU updates are fp32",
    values="optimizer_offload = {found}",
    way="leave {name} or optimizer_offload out",
)
BY_GATHER = replace(SHARED_EXPERTS, when=("all_to_all", "once_per_node"))
COPIES = more_than(
    "copies",
    1,
    "gradients are reduced only between replicas",
    values="data_parallel = 1",
    way="leave out overlap_gradients, bucket_size, reduce_gradients",
)
UNITS = one_of("zero_stage", (3,), "{name} is about the gathered units of zero_stage 3")
GATHERS = one_of(
    "zero_stage",
    (3,),
    "fsdp_prefetch and reshard_after_forward belong to zero_stage 3",
    way="leave them out, or zero_stage = 3",
)

IN_BACKWARD = (
    one_of(
        "turns",
        (1,),
        "an update in the backward pass takes each gradient as soon as it is there, so one backward must make all of it",
        values="a step has several microbatches or pipeline ranks",
        way="leave optimizer_in_backward out, or a smaller global_batch_size and pipeline_parallel = 1",
    ),
    one_of(
        "zero_stage",
        (0, 3),
        "ZeRO-1 and 2 update flat shards of all gradients at the end of a step, not tensor by tensor",
        values="zero_stage = {found}",
        way="leave optimizer_in_backward out, or zero_stage = 0 or 3",
    ),
    one_of(
        "optimizer_offload",
        (0.0,),
        "states on the host are updated there",
        values="optimizer_offload = {found}",
        way="leave optimizer_in_backward or optimizer_offload out",
    ),
    one_of(
        "precision.loss_scaling",
        (False,),
        "loss scaling checks all gradients before the first weight changes",
        values="precision = {precision.name!r}",
        way="leave optimizer_in_backward out, or precision = 'bf16'",
    ),
    one_of(
        "clip_gradients",
        (None, False),
        "the norm of all gradients is known only when the last of them is there",
        values="clip_gradients = true",
        way="leave optimizer_in_backward or clip_gradients out",
    ),
)
"""Needs of optimizer_in_backward."""

EACH_MICROBATCH = (
    more_than(
        "microbatches",
        1,
        "gradients of one microbatch are added once in any case",
        values="reduce_gradients = {value!r} and a step has 1 microbatch",
        way="leave reduce_gradients out",
    ),
    one_of(
        "zero_stage",
        (0,),
        "reduce_gradients says when replicas add whole gradients (ZeRO-2 adds after every microbatch, FSDP by fsdp_reduce)",
        way="leave reduce_gradients out",
    ),
    one_of(
        "schedule.replicas",
        (1,),
        "copies of a chunk on several pipeline ranks add its gradients once they are complete",
        values="schedule = {schedule.name!r}",
        way="leave reduce_gradients out",
    ),
    one_of(
        "schedule.flush",
        (True,),
        "without a flush gradients are added where weights change",
        values="schedule = {schedule.name!r}",
        way="leave reduce_gradients out",
    ),
)
"""Needs of reduce_gradients."""

ENDS_APART = (
    more_than(
        "pipeline_parallel",
        1,
        "post_validation: it lets pipeline ranks begin their next step apart",
        way="leave post_validation out",
        when=(True,),
    ),
    given(
        "schedule.flush",
        "post_validation: it is about the end of a step",
        values="schedule {schedule.name!r} never flushes",
        way="leave post_validation out",
        when=(True,),
    ),
)
"""Needs of post_validation."""

GATHERED_AFTER = (
    one_of(
        "zero_stage",
        (1, 2),
        "overlap_parameters gathers the weights of ZeRO-1 and ZeRO-2",
        way="leave overlap_parameters out",
    ),
    more_than(
        "replicas",
        1,
        "updated weights are gathered from the replicas that shard them",
        values="data_parallel = 1",
        way="leave overlap_parameters out",
    ),
)
"""Needs of overlap_parameters."""
AHEAD = (
    more_than(
        "pipeline_parallel",
        1,
        "schedule {value!r} sends forwards to the next pipeline rank ahead of time",
        way="leave schedule out, or pipeline_parallel > 1",
        when=("eager_one_f_one_b", "eager_1f1b", "dapple_pb"),
    ),
    more_than(
        "turns",
        1,
        "schedule {value!r} puts the forwards of microbatches in front of their backwards",
        values="a step has 1 microbatch on 1 pipeline rank",
        way="leave schedule out, or a larger global_batch_size",
        when=("gpipe", "fill_drain"),
    ),
)
"""Needs of schedule."""
ON_DRIVES = replace(
    one_of(
        "zero_stage",
        (3,),
        "optimizer_offload = 'nvme' updates what ZeRO-3 shards, layer by layer",
        values="zero_stage = {found}",
        way="zero_stage = 3, or optimizer_offload = 'host'",
    ),
    when=("nvme",),
)
IN_TURNS = one_of(
    "recompute",
    ("revolve",),
    "recompute_checkpoints is the number of inputs of layers that recompute = 'revolve' keeps",
    values="recompute = {found!r} (recompute_checkpoints = {value})",
    way="recompute = 'revolve', or leave it out",
)
PARTITIONED = (
    more_than("tensor_parallel", 1, "partition_activations divides inputs of layers over the tensor-parallel group"),
    one_of(
        "recompute",
        ("full", "revolve"),
        "partition_activations is about inputs from which whole layers run again",
        values="recompute = {found!r}",
        way="leave partition_activations out, or recompute = 'full'",
    ),
    one_of(
        "sequence_parallel",
        (False,),
        "inputs that sequence parallelism has divided are not divided again",
        values="partition_activations = {value} and sequence_parallel = true",
        way="leave partition_activations or sequence_parallel out",
    ),
)
"""Needs of partition_activations."""
BESIDE_MASTER = given(
    "precision.master_weights",
    "gradient_dtype is that of buffers beside fp32 master weights",
    values="precision = {precision.name!r} has none: gradients are {precision.compute} like the weights",
    way="leave gradient_dtype out, or precision = 'bf16'",
)
OF_MASTER = given(
    "precision.master_weights",
    "splits_master_weights is about fp32 weights beside narrower ones",
    values="precision = {precision.name!r} has none",
    way="leave splits_master_weights out, or precision = 'bf16'",
)
MESSAGES = more_than("pipeline_parallel", 1, "p2p is about messages between pipeline ranks", way="leave p2p out")
REGISTERS = more_than("pipeline_parallel", 1, "registers hold messages between pipeline ranks")
DEALT = more_than(
    "chunks",
    1,
    "{name} deals layers out over the chunks of pipeline ranks",
    values="there is 1 chunk, which holds them all",
    way="leave {name} out, or pipeline_parallel > 1",
)
