"""What several choices of a plan need to matter, and what one choice needs in several ways (`simulator.options.option.Need`)."""

from __future__ import annotations

from dataclasses import replace

from simulator.options.option import more_than, one_of

__all__ = ["BY_GATHER", "COPIES", "EXPERT_CHOICE", "GATHERS", "IN_BACKWARD", "SHARED_EXPERTS", "UNITS"]

EXPERT_CHOICE = more_than(
    "model.experts",
    0,
    "{name} is about a mixture of experts",
    values="model {model.name!r} is dense",
    way="leave {name} out, or a model with experts",
)
SHARED_EXPERTS = more_than(
    "expert_parallel",
    1,
    "{name} is between ranks that share experts",
    values="{name} = {value} and expert_parallel = 1",
)
BY_GATHER = replace(SHARED_EXPERTS, when=("all_to_all", "once_per_node"))
COPIES = more_than(
    "copies",
    1,
    "gradients are reduced only between replicas",
    values="data_parallel = 1",
    way="leave out overlap_gradients, bucket_size",
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
