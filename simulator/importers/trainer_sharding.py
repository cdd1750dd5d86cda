"""How the Trainer, Accelerate and what hands their arguments on shard a model: FSDP under each of its names, DeepSpeed, or copies.

FSDP's settings stand as `fsdp_config.fsdp_offload_params` (Accelerate), `fsdp_config.offload_params` (Trainer, Axolotl) and
`fsdp_offload_params` (flags of accelerate launch).  Source of names: huggingface/accelerate, utils/dataclasses.py
(FullyShardedDataParallelPlugin, ParallelismConfig) and commands/launch.py; huggingface/transformers, training_args.py.
"""

from __future__ import annotations

from simulator.importers.deepspeed import read_zero
from simulator.importers.settings import Entry, Settings, flag_of, whole_of

__all__ = ["FSDP_NO_EFFECT", "fsdp_names", "read_sharding"]

_SHARDING = {
    "full_shard": 3,
    "1": 3,
    "shard_grad_op": 2,
    "2": 2,
    "no_shard": 0,
    "3": 0,
    "hybrid_shard": 3,
    "4": 3,
    "hybrid_shard_zero2": 2,
    "5": 2,
}
_AXES = {
    "plan.tensor_parallel": ("parallelism_config_tp_size", "tp_size", "tensor_parallel_size"),
    "plan.context_parallel": ("parallelism_config_cp_size", "cp_size", "context_parallel_size", "sequence_parallel_degree"),
    "plan.expert_parallel": ("expert_parallel_size",),
}  # fmt: skip
_PREFETCHES = {"no_prefetch": 0, "backward_pre": 1, "1": 1}
"""FSDP1's units gathered ahead in the backward.  BACKWARD_POST gathers ahead too, but beside the reduction alone, which no field says."""
_ROTATES = {"allgather": "all_gather", "alltoall": "ring"}
"""How PyTorch's context parallelism brings keys and values: all of them at once, or a piece from neighbour to neighbour."""


def fsdp_names(name: str) -> tuple[str, ...]:
    """Return the names that a setting of FSDP goes by.

    >>> fsdp_names("offload_params")
    ('fsdp_config.fsdp_offload_params', 'fsdp_config.offload_params', 'fsdp_offload_params')
    """
    return (f"fsdp_config.fsdp_{name}", f"fsdp_config.{name}", f"fsdp_{name}")


FSDP_NO_EFFECT = {
    one
    for name in (
        "state_dict_type", "final_state_dict_type", "sync_module_states", "cpu_ram_efficient_loading", "use_orig_params",
        "transformer_layer_cls_to_wrap", "auto_wrap_policy", "forward_prefetch", "version", "min_num_params",
        "xla", "limit_all_gathers", "buffer_dtype",
    )
    for one in fsdp_names(name)
}  # fmt: skip
"""Settings of FSDP that change neither time nor memory as modelled, under each of their names."""


def read_sharding(settings: Settings) -> None:
    """Put framework, ZeRO stage, offload and the degrees of a mesh.

    Raises:
        SpecError: a value that is none of its kind.
    """
    _axes(settings)
    kind = _kind(settings)
    if kind == "deepspeed":
        _deepspeed(settings)
    elif kind == "fsdp":
        _fsdp(settings)
    else:
        settings.assume("plan.framework", "hugging_face_ddp", "neither FSDP nor DeepSpeed is named")
        settings.assume("plan.zero_stage", 0, "every GPU holds all states")


def _inside(*names: str) -> tuple[str, ...]:
    """Names as Accelerate writes them inside parallelism_config, and as they stand alone."""
    return (*(f"parallelism_config.{name}" for name in names), *names)


def _axes(settings: Settings) -> None:
    for field, names in _AXES.items():
        settings.put_degree(field, *_inside(*names))
    ulysses = settings.put_degree("plan.context_parallel", *_inside("parallelism_config_sp_size", "sp_size"))
    if ulysses is not None:
        settings.put("plan.context_parallel_kind", ulysses, "ulysses")
    rotates = settings.take(*_inside("parallelism_config_cp_comm_strategy"))
    if rotates is not None:
        settings.put_known("plan.context_parallel_kind", rotates, _ROTATES, str(rotates.value))


def _kind(settings: Settings) -> str:
    """fsdp, deepspeed or ddp."""
    named = (settings.word("distributed_type", "dist_config.name") or "").lower()
    left = {name for name, _ in settings.left()}
    if "deepspeed" in named or any(n == "deepspeed" or n.startswith("deepspeed_config.") for n in left):
        return "deepspeed"
    meshed = {name for name in left if name.rpartition(".")[2] in ("dp_shard_size", "parallelism_config_dp_shard_size")}
    if "fsdp" in named or meshed or any(n == "fsdp" or n.startswith(("fsdp_config.", "fsdp_")) for n in left):
        return "fsdp"
    return "ddp"


def _deepspeed(settings: Settings) -> None:
    settings.say("plan.framework", "hugging_face_deepspeed", "distributed_type", "dist_config.name", "deepspeed")
    entry = settings.take("deepspeed", "deepspeed_config.deepspeed_config_file", "dist_config.config_file")
    if entry is not None:
        settings.refuse(entry, "give that file beside this one")
    settings.put_whole("plan.zero_stage", "deepspeed_config.zero_stage", least=0)
    read_zero(settings, "deepspeed_config.")
    settings.put_clipping("deepspeed_config.gradient_clipping")


def _fsdp(settings: Settings) -> None:
    strategies = fsdp_names("sharding_strategy")
    settings.say(
        "plan.framework",
        "hugging_face_fsdp",
        "distributed_type",
        "dist_config.name",
        "fsdp",
        *strategies,
        "fsdp_version",
    )
    strategy = settings.take(*strategies)
    words = settings.take("fsdp")
    parts = [] if words is None else words.value if isinstance(words.value, list) else str(words.value).split()
    parts = [str(part).lower() for part in parts]
    keeps = settings.take(*fsdp_names("reshard_after_forward"))
    _stage(settings, strategy, words, parts, keeps)
    _mesh(settings)
    _prefetch(settings)
    place = settings.said(*fsdp_names("offload_params"), "fsdp")
    if settings.flag(*fsdp_names("offload_params")) or "offload" in parts:
        settings.findings.put("plan.parameter_offload", 1.0, place)
        settings.findings.put("plan.optimizer_offload", 1.0, place)


def _stage(
    settings: Settings, strategy: Entry | None, words: Entry | None, parts: list[str], keeps: Entry | None
) -> None:  # fmt: skip
    said = str(strategy.value).lower() if strategy is not None else ""
    said = next((part for part in parts if part in _SHARDING), said)
    entry = strategy or words
    if keeps is not None and str(keeps.value).lower() in _SHARDING:
        said, entry = str(keeps.value).lower(), keeps
    elif keeps is not None and not said:
        settings.findings.put("plan.zero_stage", 3, keeps.text)
        settings.put("plan.reshard_after_forward", keeps, flag_of(keeps))
        return
    if said in _SHARDING and entry is not None:
        settings.put("plan.zero_stage", entry, _SHARDING[said])
        if said.startswith("hybrid") or said in ("4", "5"):
            settings.refuse(entry, "how many ranks share one copy is not said: --set plan.shard_size=GPUS_OF_A_NODE")
    elif entry is not None and entry.value is not True:
        settings.refuse(entry, "known: " + ", ".join(_SHARDING))
    else:
        settings.assume("plan.zero_stage", 3, "FSDP's default: FULL_SHARD")


def _mesh(settings: Settings) -> None:
    """Ranks that share one copy, where there are several copies."""
    shard = settings.take(*_inside("parallelism_config_dp_shard_size", "dp_shard_size"))
    copies = settings.take(*_inside("parallelism_config_dp_replicate_size", "dp_replicate_size"))
    if shard is not None and copies is not None and whole_of(copies) > 1:
        settings.put("plan.shard_size", shard, whole_of(shard))
        settings.waive(copies, "follows from the GPUs and plan.shard_size")
    elif shard is not None:
        settings.waive(shard, "all replicas share one copy")


def _prefetch(settings: Settings) -> None:
    """Units gathered ahead; accelerate leaves FSDP2, which always gathers one ahead, without the setting."""
    entry = settings.take(*fsdp_names("backward_prefetch"))
    version = settings.take(*fsdp_names("version"))
    if version is not None:
        settings.waive(version)
    if entry is None:
        return
    word = str(entry.value).lower()
    if version is not None and str(version.value) == "2":
        settings.waive(entry, "FSDP2 has no such setting")
    elif word in _PREFETCHES:
        settings.put("plan.fsdp_prefetch", entry, _PREFETCHES[word])
    else:
        settings.refuse(entry, "read are: NO_PREFETCH, BACKWARD_PRE")
