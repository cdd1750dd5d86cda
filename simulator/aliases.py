"""Other programs' names for the fields of a job, taken where ours are: Megatron-LM's, torchtitan's, DeepSpeed's, Hugging Face's.

Only names of the same meaning and the same values are aliases.  Names that mean something else, or half of a field, are explained
instead (`explained`), so that a hint never leads to a field of another meaning.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.errors import SpecError

__all__ = ["ALIASES", "explained", "renamed", "renamed_tables"]

_FIELDS = {
    "plan.tensor_parallel": "tp tp_size tp_degree tensor_model_parallel_size tensor_parallel_size tensor_parallel_degree",
    "plan.pipeline_parallel": "pp pp_size pp_degree pipeline_model_parallel_size pipeline_parallel_size pipeline_parallel_degree",
    "plan.context_parallel": "cp cp_size context_parallel_size context_parallel_degree",
    "plan.data_parallel": "dp dp_size data_parallel_size data_parallel_degree",
    "plan.expert_parallel": "ep ep_size expert_model_parallel_size expert_parallel_size expert_parallel_degree",
    "plan.expert_tensor_parallel": "etp expert_tensor_parallel_size expert_tensor_parallel_degree",
    "plan.sequence_parallel": "sp",
    "plan.microbatch_size": "mbs micro_batch_size train_micro_batch_size_per_gpu per_device_train_batch_size",
    "plan.chunks_per_rank": "vpp vp virtual_pipeline_model_parallel_size num_virtual_stages_per_pipeline_rank",
    "plan.schedule": "pipeline_schedule pipeline_parallel_schedule",
    "plan.recompute": "recompute_granularity activations_checkpoint_granularity",
    "plan.recompute_layers": "recompute_num_layers activations_checkpoint_num_layers",
    "plan.overlap_gradients": "overlap_grad_reduce",
    "plan.overlap_parameters": "overlap_param_gather",
    "plan.zero_stage": "zero",
    "workload.global_batch_size": "gbs train_batch_size",
    "workload.sequence_length": "seq_length seq_len sequence_len max_seq_length encoder_seq_length",
    "model.layers": "num_layers num_hidden_layers n_layer n_layers",
    "model.hidden": "hidden_size n_embd d_model",
    "model.heads": "num_attention_heads n_head n_heads",
    "model.kv_heads": "num_key_value_heads num_query_groups n_kv_heads",
    "model.head_dim": "kv_channels",
    "model.ffn": "intermediate_size ffn_hidden_size d_ff",
    "model.vocabulary": "vocab_size",
    "model.sequence_length": "max_position_embeddings n_positions",
    "model.experts": "num_experts num_local_experts n_routed_experts num_moe_experts",
    "model.experts_per_token": "num_experts_per_tok moe_router_topk",
    "model.expert_ffn": "moe_intermediate_size moe_ffn_hidden_size",
    "model.shared_expert_ffn": "moe_shared_expert_intermediate_size shared_expert_intermediate_size",
    "cluster.gpus": "world_size num_gpus ngpus",
}
ALIASES = {f"{field.partition('.')[0]}.{name}": field for field, names in _FIELDS.items() for name in names.split()}
"""table.alias -> table.field."""
_BARE = {name: field for field, names in _FIELDS.items() for name in names.split()}
"""An alias without its table, which --set may give: tp=8."""

_BATCH = "follows: global_batch_size / (microbatch_size x data_parallel)"
_EXPLAINED = {
    "gradient_accumulation_steps": _BATCH,
    "batch_accumulation_per_replica": _BATCH,
    "num_microbatches": _BATCH,
    "num_pp_microbatches": _BATCH,
    "microbatches": _BATCH,
    "local_batch_size": "sequences of a replica: microbatch_size without a pipeline; global_batch_size over all replicas",
    "batch_size": "global_batch_size (workload) counts sequences of a step, microbatch_size (plan) those that pass together",
    "gradient_checkpointing": 'recompute = "full" or "none"',
    "activation_checkpointing": 'recompute = "none", "selective" or "full"',
    "recompute_activations": 'recompute = "selective"',
    "use_distributed_optimizer": "zero_stage = 1",
    "fsdp": "zero_stage = 3",
    "use_fsdp": "zero_stage = 3",
    "stage": "zero_stage, or chunks_per_rank for stages of a pipeline",
    "bf16": 'precision = "bf16" of [workload]',
    "fp16": 'precision = "fp16" of [workload]',
    "fp8": 'precision = "fp8" of [workload]',
    "dtype": "precision of [workload]",
    "swiglu": "gated_mlp = true of [model]",
    "untie_embeddings_and_output_weights": "tied_embeddings = false of [model]",
    "num_layers_per_virtual_pipeline_stage": "chunks_per_rank = layers / (pipeline_parallel x these)",
    "num_stages": "pipeline_parallel x chunks_per_rank",
    "dp_replicate": "shard_size: ranks that hold one copy of the sharded states",
    "data_parallel_replicate_degree": "shard_size: ranks that hold one copy of the sharded states",
    "data_parallel_shard_degree": "shard_size, with zero_stage = 3",
    "num_layers_per_stage": "layer_split, a number per chunk",
    "reduce_bucket_size": 'bucket_size, in bytes with a unit: "1 GB"',
    "ddp_bucket_size": 'bucket_size, in bytes with a unit: "160 MB"',
    "num_nodes": "gpus of [cluster] counts all GPUs",
    "nnodes": "gpus of [cluster] counts all GPUs",
    "gpus_per_node": "the cluster's node says it: dtsim list clusters",
    "model_parallel_size": "tensor_parallel and pipeline_parallel",
    "mp": "tensor_parallel and pipeline_parallel",
    "lr": "a learning rate changes neither time nor memory",
    "learning_rate": "a learning rate changes neither time nor memory",
}


def explained(name: str) -> str:
    """Return what to write in place of another program's name that is no alias; "" when it is not known.

    >>> explained("gradient_accumulation_steps")
    'follows: global_batch_size / (microbatch_size x data_parallel)'
    """
    return _EXPLAINED.get(name.rsplit(".", 1)[-1].lower().replace("-", "_"), "")


def renamed(setting: str) -> str:
    """Return a setting or a key with our own name for its field.

    >>> renamed("plan.tensor_model_parallel_size=8"), renamed("tp=8"), renamed("plan.zero_stage=1")
    ('plan.tensor_parallel=8', 'plan.tensor_parallel=8', 'plan.zero_stage=1')
    """
    key, equals, value = setting.partition("=")
    plain = key.strip()
    return f"{ALIASES.get(plain) or _BARE.get(plain) or key}{equals}{value}"


def short(field: str) -> str:
    """Return a field's name without its table, where it stands beside others.

    >>> short("plan.zero_stage"), short("cluster.name")
    ('zero_stage', 'cluster')
    """
    return "cluster" if field == "cluster.name" else field.partition(".")[2] or field


def renamed_tables(data: Mapping[str, object], place: str) -> dict[str, object]:
    """Return a job's tables with our own names.

    Raises:
        SpecError: a field is given under two names.
    """
    out: dict[str, object] = {}
    for table, fields in data.items():
        out[table] = fields
        if not isinstance(fields, Mapping):
            continue
        out[table] = made = {}
        for key, value in fields.items():
            name = ALIASES.get(f"{table}.{key}", f"{table}.{key}").partition(".")[2]
            if name in made:
                raise SpecError(f"{place}: {table}.{name} is given twice, once as {key}. Leave one out")
            made[name] = value
    return out
