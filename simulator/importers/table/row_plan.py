"""The plan of a row: degrees as printed, defaults of the framework, and the rules for what tables leave blank."""

from __future__ import annotations

import re
from typing import Any, get_args

from simulator.errors import PlanError
from simulator.importers.table.row_experts import overlaps_exchange, row_experts
from simulator.importers.table.row_framework import (
    named_framework,
    profile_of_run,
    recipe,
    row_attention,
    row_precision,
    torch_attention,
    unsaid_attention,
)
from simulator.importers.table.row_notes import row_states, row_update, words_said, wraps_whole
from simulator.importers.table.row_overlap import gradient_overlap, overlap_off, pipeline_overlaps, tensor_pieces
from simulator.importers.table.rows import CannotPlace, Row, count, flag, text
from simulator.importers.vocabulary.name_specs import release_of
from simulator.importers.vocabulary.names import load_names
from simulator.importers.vocabulary.words import (
    recompute_by_words,
    recompute_policy,
    schedule_by_words,
    stages_of,
    zero_stage,
)
from simulator.plan.framework import load_framework
from simulator.plan.values import Module
from simulator.schedules import SCHEDULES
from simulator.schedules.base import Shape
from simulator.workload.model import Model
from simulator.workload.precision import precision_named

__all__ = ["open_choices", "row_plan"]


_OVERLAPS = (None, "one_f_one_b", "interleaved_1f1b")
"""Schedules that have a form in which forwards go together with backwards, so that each hides the other's exchange of experts."""
_ULYSSES = r"\bulysses\b(?! and ring| x ring)|\bcp_comm_type\W+a2a\b(?!\+)"
"""Words for heads that ranks exchange against tokens (Megatron-Core: cp_comm_type)."""
_ORDINALS = {"second": 2, "third": 3, "fourth": 4}
NEAR_BATCH = 0.05
"""How far a batch may lie from a multiple of its microbatches to be taken for it [1]."""


def row_plan(row: Row, model: Model) -> tuple[dict[str, Any], int, str | None, tuple[str, ...]]:
    """Return (fields of a Plan, global batch size [sequences], recompute or None if unknown, what was assumed).

    Raises:
        CannotPlace: sizes are missing or contradict each other, or the row uses what is not modelled.
    """
    if re.search(r"activation-offload\w*=true", text(row, "quality_note").lower()):
        raise CannotPlace("activations of single modules that move to the host are not modelled")
    assumed: list[str] = []
    tensor, pipeline, context = count(row, "tp") or 1, count(row, "pp") or 1, count(row, "cp") or 1
    world = count(row, "n_gpus")
    if world is None:
        raise CannotPlace("the row gives no n_gpus", counts=False)
    if world % (tensor * pipeline * context):
        raise CannotPlace(
            f"tp x pp x cp = {tensor} x {pipeline} x {context} does not divide the {world} GPUs", counts=False
        )
    replicas = world // (tensor * pipeline * context)
    said = count(row, "dp")
    if said is not None and said not in _replicas_as_printed(row, replicas, context):
        raise CannotPlace(f"tp x pp x dp = {tensor} x {pipeline} x {said} is not the {world} GPUs", counts=False)
    microbatch = count(row, "mbs")
    if microbatch is None:
        microbatch, why = _ruled_microbatch(row, pipeline, replicas) or (1, "")
        assumed.append(f"microbatch_size = {microbatch}{why}")
    batch = count(row, "gbs") or replicas * microbatch * (count(row, "grad_accum") or 0)
    if not batch and text(row, "peak_mem") and not text(row, "step_time_s"):
        batch = 2 * pipeline * replicas * microbatch  # peaks hardly depend on it, once the pipeline is full
        assumed.append(f"gbs = {batch}: {2 * pipeline} microbatches")
    if not batch:
        raise CannotPlace("the row gives neither gbs nor grad_accum", counts=False)
    batch = _whole_batch(batch, replicas, microbatch, assumed)
    fields: dict[str, Any] = {
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
        "microbatch_size": microbatch,
        "framework": named_framework(row, assumed),
    }
    fields["sequence_parallel"] = tensor > 1 and _sequence_parallel(row, fields["framework"], assumed)
    if context > 1 and re.search(_ULYSSES, words_said(row)):
        fewer = model.kv_heads % (tensor * context) > 0  # codes that repeat keys for it are not modelled
        fields |= {} if fewer else {"context_parallel_kind": "ulysses"}
        assumed.append("a ring for Ulysses of fewer key heads than ranks" if fewer else "Ulysses (the row's own words)")
    fields |= row_experts(row, fields["framework"], model, tensor, replicas * context, assumed)
    fields |= _schedule(row, model, pipeline, batch // (replicas * microbatch), assumed)
    fields |= _sharding(row, fields["framework"], replicas * context, context, assumed)
    fields |= row_states(row, fields)
    fields["framework"] = _replicated(fields, replicas * context, assumed)
    fields |= _gradient_dtype(row)
    fields |= row_update(row, fields["zero_stage"], batch > replicas * microbatch, assumed)
    fields |= row_attention(row, assumed)
    named = fields["framework"]
    fields["framework"] = profile_of_run(row, named, assumed)
    if "attention" not in fields:
        fields |= unsaid_attention(row, fields["framework"], assumed)
    fields |= torch_attention(row, fields, assumed)
    fields |= _recipe(row, named, fields, batch // (replicas * microbatch), assumed)
    if fields.get("attention") == "te" and load_framework(fields["framework"]).attention.startswith("te"):
        fields.pop("attention")  # the library by its name: the profile knows its year
    fields |= tensor_pieces(row, fields, assumed)
    if fields["zero_stage"] == 3 and wraps_whole(row):
        fields["fsdp_unit"] = "chunk"
        assumed.append("the whole model is one FSDP unit (the row's own words)")
    if replicas > 1 and fields["zero_stage"] < 3:
        fields |= gradient_overlap(row, fields, assumed)
    if overlap_off(row) and "TP" in text(row, "overlap") and tensor > 1:
        fields["overlap_tensor_parallel"] = False
    recompute = _recompute(row, assumed)
    if fields.get("recompute_modules"):
        recompute = "selective"
    fields |= _recompute_detail(row, recompute, -(-model.depth // (pipeline * fields.get("chunks_per_rank", 1))))
    if fields.get("recompute_method") == "every":
        recompute = "full"  # of those layers, whatever the row calls it
    policy = recompute_policy(f"{text(row, 'recompute')} {text(row, 'recompute_detail')}")
    if policy is not None:
        recompute, fields["recompute_policy"] = "policy", policy
    if recompute == "selective" and load_framework(fields["framework"]).recompute == "operators":
        recompute = "operators"
        fields.pop("recompute_modules", None)
        assumed.append("recompute 'selective' is per operator in this framework")
    return fields, batch, recompute, tuple(assumed)


def _replicated(fields: dict[str, Any], replicas: int, assumed: list[str]) -> str:
    """Return the framework of a run that shards nothing: torch codes then run under DistributedDataParallel."""
    name: str = fields["framework"]
    replicated = load_names().framework_variants.get(f"{name} replicated")
    if replicated is None or fields["zero_stage"] or replicas == 1:
        return name
    assumed.append(f"framework {replicated} (nothing is sharded)")
    return replicated


def _replicas_as_printed(row: Row, replicas: int, context: int) -> set[int]:
    """Return what tables call data parallelism: all replicas, with the context ranks of each, or without those that share experts."""
    expert = count(row, "ep") or 1
    printed = {replicas, replicas * context}
    for shared in (expert, expert * context):
        if replicas % shared == 0:
            printed.add(replicas // shared)
    return printed


def _whole_batch(batch: int, replicas: int, microbatch: int, assumed: list[str]) -> int:
    """Return the batch, or the nearest that whole microbatches make up where that is within a twentieth of it.

    Raises:
        CannotPlace: none is.
    """
    unit = replicas * microbatch
    if batch % unit == 0:
        return batch
    nearest = max(1, round(batch / unit)) * unit
    if abs(nearest - batch) > NEAR_BATCH * batch:
        raise CannotPlace(f"gbs = {batch} is no multiple of dp x mbs = {replicas} x {microbatch}")
    assumed.append(f"gbs = {nearest}, the nearest multiple of dp x mbs = {replicas} x {microbatch}")
    return nearest


def _sequence_parallel(row: Row, framework: str, assumed: list[str]) -> bool:
    """Return whether activations between tensor-parallel products are split: as printed, else by the framework's habit."""
    said = flag(row, "seq_parallel")
    habit = load_names().sequence_parallel_habit.get(framework)
    if said is not None or habit is None:
        return bool(said)
    assumed.append(f"sequence_parallel ({habit})")
    return True


def _schedule(row: Row, model: Model, pipeline: int, microbatches: int, assumed: list[str]) -> dict[str, Any]:
    """Return the schedule and the chunks per rank."""
    name, chunks = text(row, "schedule"), count(row, "vp")
    if pipeline == 1:
        return {}
    stages = _layout(row)
    if stages is not None and len(stages) % pipeline == 0 and sum(stages) == model.layers:
        chunks = len(stages) // pipeline
    wanted = _named_schedule(row) or name or ("interleaved_1f1b" if (chunks or 1) > 1 else "one_f_one_b")
    if wanted not in SCHEDULES:
        raise CannotPlace(f"no schedule {name!r}")
    wanted = SCHEDULES.get(wanted).name
    if name.lower() in ("", "none") and (chunks or 1) > 1:
        wanted = "interleaved_1f1b"
    if wanted != "interleaved_1f1b":
        if (chunks or 1) > 1 and wanted == "one_f_one_b":
            wanted = "interleaved_1f1b"
        else:
            chunks = chunks or _chunks(wanted, pipeline, microbatches, assumed)
            split = _own_chunks(model, pipeline * chunks, assumed) or (
                _uneven(row, model, pipeline) if chunks == 1 else {}
            )
            return {"schedule": wanted, "chunks_per_rank": chunks, **split}
    if chunks is None:
        chunks = 2
        why = "torchtitan's default" if _two_by_default(row) else "the depth of interleaving is not printed"
        assumed.append(f"2 chunks per rank ({why})")
    even = stages is None or len(stages) != pipeline * chunks or sum(stages) != model.layers
    split = _own_chunks(model, pipeline * chunks, assumed) if even else {"layer_split": stages}
    if chunks > 1 and (microbatches % pipeline or (model.depth < pipeline * chunks and not split)):
        why = f"{microbatches} microbatches, {model.depth} layers on {pipeline} ranks"
        assumed.append(f"1f1b without interleaving ({chunks} chunks per rank cannot be: {why})")
        chunks = 1
    if chunks == 1:
        return {"schedule": "one_f_one_b", **_uneven(row, model, pipeline)}
    return {"schedule": "interleaved_1f1b", "chunks_per_rank": chunks, **split}


def _own_chunks(model: Model, chunks: int, assumed: list[str]) -> dict[str, Any]:
    """Return the split of layers over chunks where embedding and head have a chunk each; else nothing, the usual rule."""
    if model.depth + 2 != chunks:
        return {}
    assumed.append("embedding and head have a chunk each")
    return {"layer_split": (0, *(1 for _ in range(model.depth)), 0)}


def _uneven(row: Row, model: Model, pipeline: int) -> dict[str, Any]:
    """Return the split of layers that the row's notes tell with Megatron's options for the layout, or the first and the last rank.

    The rest goes round evenly; a last rank that is not named has as many layers as the first where it does not.
    """
    stages = _layout(row)
    if stages is not None and len(stages) == pipeline and sum(stages) == model.layers:
        return {"layer_split": stages}
    said = {
        end: int(found.group(1))
        for end in ("first", "last")
        if (found := re.search(rf"decoder-{end}-pipeline-num-layers=(\d+)", text(row, "quality_note")))
    }
    if not said or pipeline < 3:
        return {}
    ends = dict(said)
    middle = pipeline - len(ends)
    if (model.layers - sum(ends.values())) % middle:
        ends = {"first": said.get("first", said.get("last", 0)), "last": said.get("last", said.get("first", 0))}
        middle = pipeline - 2
    rest, left = divmod(model.layers - sum(ends.values()), middle)
    if left or rest < 0:
        return {}
    split = [ends["first"]] if "first" in ends else []
    return {"layer_split": (*split, *[rest] * middle, *([ends["last"]] if "last" in ends else []))}


def _layout(row: Row) -> tuple[int, ...] | None:
    """Return the layers of each stage that the row's notes tell in the letters of Megatron's --pipeline-model-parallel-layout."""
    found = re.search(r"\blayout[= ](E[tmL|()*,\d]*)", text(row, "quality_note"))
    stages = stages_of(found.group(1)) if found else None
    return tuple(stage.count("t") for stage in stages) if stages else None


def _gradient_dtype(row: Row) -> dict[str, Any]:
    """Return the number format in which the row's notes say that gradients are added up; nothing where they say or choose none."""
    words = text(row, "quality_note").lower()
    found = re.search(r"(fp32|bf16|fp16) (?:main )?grad|\bgrad(?:ient)?s (?:are )?in (fp32|bf16|fp16)", words)
    if not found or not precision_named(row_precision(row)[0]).master_weights:
        return {}
    return {"gradient_dtype": found.group(1) or found.group(2)}


def _recipe(row: Row, named: str, fields: dict[str, Any], microbatches: int, assumed: list[str]) -> dict[str, Any]:
    """Return what the framework's recipe sets, or the row's words for the exchange of experts, less a schedule that has no form for the
    pipeline of the row."""
    found = recipe(row, named, assumed)
    if fields.get("expert_parallel", 1) > 1 and fields.get("schedule") in _OVERLAPS and overlaps_exchange(row):
        found.setdefault("schedule", "combined_1f1b")
    pipeline, chunks = fields["pipeline_parallel"], fields.get("chunks_per_rank", 1)
    if "schedule" not in found:
        return found
    try:
        SCHEDULES.get(found["schedule"]).check(Shape(pipeline, microbatches, chunks))
    except PlanError:
        name = found.pop("schedule")
        assumed.append(
            f"not {name} of the recipe (no form for {pipeline} ranks, {chunks} chunks, {microbatches} microbatches)"
        )
    return found


def _chunks(schedule: str, pipeline: int, microbatches: int, assumed: list[str]) -> int:
    """Return the chunks per rank of a schedule where none are printed: 1, or 2 where it has no other form (V placements)."""
    try:
        SCHEDULES.get(schedule).check(Shape(pipeline, microbatches, 1))
    except PlanError:
        assumed.append(f"2 chunks per rank (schedule {schedule} has no form with one)")
        return 2
    return 1


def open_choices(row: Row, model: Model) -> dict[str, tuple[int, ...]]:
    """Return the columns of sizes that a row leaves open, each with what may stand there: the microbatch, powers of two that divide a
    replica's batch, and chunks per rank of an interleaved schedule, into which layers, or layers and both ends, go evenly.

    None is open that a rule of its code tells.
    """
    pipeline, out = count(row, "pp") or 1, {}
    replicas = (count(row, "n_gpus") or 0) // (pipeline * (count(row, "tp") or 1) * (count(row, "cp") or 1))
    batch = count(row, "gbs") or 0
    if not text(row, "mbs") and replicas and batch % replicas == 0 and not _ruled_microbatch(row, pipeline, replicas):
        local = batch // replicas
        out["mbs"] = tuple([2**n for n in range(local.bit_length()) if local % 2**n == 0])
    told = text(row, "vp") or _layout(row) is not None or _two_by_default(row)
    if pipeline > 1 and _named_schedule(row) == "interleaved_1f1b" and not told:
        some = range(2, -(-model.depth // pipeline) + 1)
        out["vp"] = tuple([n for n in some if 0 in (model.depth % (n * pipeline), (model.depth + 2) % (n * pipeline))])
    return {column: values for column, values in out.items() if len(values) > 1 or (column == "vp" and values)}


def _named_schedule(row: Row) -> str | None:
    """Return our name of the schedule that a row names; None where it names none of ours."""
    name = text(row, "schedule")
    if not name and pipeline_overlaps(row):
        return "interleaved_1f1b"
    return load_names().find("schedules", name) or schedule_by_words(name) if name else None


def _two_by_default(row: Row) -> bool:
    """Whether the code has two chunks per rank of an interleaved schedule where nobody says how many.

    Source: pytorch/torchtitan distributed/pipeline_parallel.py: stages_per_rank is 1 of a schedule of single stages, else 2.
    """
    return "torchtitan" in text(row, "framework").lower()


def _ruled_microbatch(row: Row, pipeline: int, replicas: int) -> tuple[int, str] | None:
    """Return (microbatch size, why) where none is printed but follows: what is left of the batch, or the framework's rule; else None.

    torchtitan makes as many microbatches as there are stages; up to January 2025 as many as pipeline ranks (its pull request 781).
    """
    words, local = text(row, "framework").lower(), (count(row, "gbs") or 0) // replicas
    parts = count(row, "grad_accum") or 0
    if parts and local and local % parts == 0:
        return local // parts, f" (the batch in {parts} parts)"
    early = (release_of(text(row, "version")) or (25, 1)) < (25, 1)
    chunks = count(row, "vp") or (2 if "interleaved" in text(row, "schedule").lower() else 1)
    microbatches, many = pipeline * (1 if early else chunks), "pipeline ranks" if early else "stages"
    if "torchtitan" in words and pipeline > 1 and local and local % microbatches == 0:
        return local // microbatches, f" (torchtitan's rule of its time: as many microbatches as {many})"
    return None


def _sharding(row: Row, framework: str, replicas: int, context: int, assumed: list[str]) -> dict[str, Any]:
    """Return the ZeRO stage, the size of groups in which states are sharded, if any, and whether gathered weights stay, where they do.

    Args:
        replicas: ranks that hold the same weights, the `context` ranks that share sequences among them.
    """
    stage = zero_stage(text(row, "zero_stage"))
    if not text(row, "zero_stage"):
        stage = _usual_zero_stage(framework)
        if replicas > 1:
            assumed.append(f"zero_stage = {stage} (the framework's habit)")
    if stage is None or stage > 3:
        raise CannotPlace(f"zero_stage must be 0 to 3, but it is {text(row, 'zero_stage')[:20]!r}", counts=False)
    group = count(row, "shard_size")
    if group == 1 and replicas > 1:
        return {"zero_stage": 0}
    profile, kept = load_framework(framework), {}
    if stage == 2 and replicas > 1 and not any(profile.can("zero_stage", n) for n in (1, 2)):
        stage, kept = 3, {"reshard_after_forward": False}
        assumed.append("zero_stage 3 whose weights stay from forward to backward (2 in a code that has FSDP alone)")
    if stage and group and group < replicas:
        if group % context == 0 and replicas % group == 0:
            return {"zero_stage": stage, "shard_size": group, **kept}
        assumed.append(f"states sharded over all {replicas} replicas: groups of {group} do not divide them")
    hooks = stage == 3 and profile.fetch_time > 0  # run on one rank, too
    return {"zero_stage": stage if replicas > 1 or hooks else 0, **kept}


def _usual_zero_stage(framework: str) -> int:
    """Return the stage of a code's runs whose row names none: what is known of its profile, or of the nearest that this extends."""
    known, name = load_names().zero_stage_habit, framework
    while name not in known and (extends := load_framework(name).extends):
        name = extends
    return known[name].stage if name in known else 0


def _recompute_detail(row: Row, recompute: str | None, layers_of_chunk: int) -> dict[str, Any]:
    """Return the modules or layers that a row's own words name, in Megatron-LM's flags or as every so manieth layer.

    More layers than a chunk has are all of them (megatron/core/transformer/transformer_block.py, _checkpointed_forward).
    """
    words = text(row, "recompute_detail")
    every = re.search(
        r"every (?:(\d+)(?:nd|rd|th)|(second|third|fourth)) layer", f"{text(row, 'recompute')} {words}".lower()
    )
    if every:
        return {"recompute_method": "every", "recompute_layers": int(every.group(1) or _ORDINALS[every.group(2)])}
    modules = re.search(r"recompute-modules\W+([a-z_ ]+)", words)
    if recompute == "selective" and modules:
        names = tuple(modules.group(1).split())
        if wrong := [name for name in names if name not in get_args(Module)]:
            raise CannotPlace(
                f"recompute_detail has module {wrong[0]!r}, which is none of {', '.join(get_args(Module))}"
            )
        return {"recompute_modules": names}
    method = re.search(r"recompute-method\W+(uniform|block)", words)
    layers = re.search(r"recompute-num-layers\W+(\d+)", words)
    if recompute == "full" and method and layers:
        return {"recompute_method": method.group(1), "recompute_layers": min(int(layers.group(1)), layers_of_chunk)}
    return {}


def _recompute(row: Row, assumed: list[str]) -> str | None:
    name = text(row, "recompute")
    if name.lower() in ("", "unknown"):
        known = load_names().fact(text(row, "source"), "recompute")
        if known is None or known.recompute is None:
            return None
        assumed.append(f"recompute = {known.recompute} ({known.source})")
        name = known.recompute
    found = load_names().find("recompute", name) or recompute_by_words(name)
    if found is None:
        raise CannotPlace(f"recompute {name[:40]!r} is not known: none, selective or full")
    return found
