"""Which columns of a table of measured runs are read, and under which other names people know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simulator.errors import TYPING_SLIP, nearest

__all__ = ["COLUMNS", "unread"]

_RUNS: Mapping[str, str] = {
    "case_id": "name",
    "source": "paper",
    "source_loc": "",
    "version": "release",
    "task": "",
    "quality": "",
    "quality_note": "notes",
    "model": "model_name",
    "arch_layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "",
    "ffn_hidden": "intermediate_size",
    "gated_mlp": "swiglu",
    "vocab": "vocabulary",
    "tied_emb": "tied_embeddings",
    "attn_type": "",
    "moe_experts": "num_experts",
    "moe_topk": "experts_per_token",
    "moe_ffn_hidden": "expert_ffn",
    "moe_shared_ffn": "shared_expert_ffn",
    "moe_dense_layers": "dense_layers",
    "moe_layer_freq": "",
    "seq_len": "sequence_length",
    "document_length": "",
    "gpu": "gpu_name",
    "gpu_peak_bf16_tflops": "peak_flops",
    "gpu_mem_gb": "gpu_memory",
    "n_gpus": "num_gpus",
    "gpus_per_node": "",
    "intra_link": "",
    "inter_gbps_per_gpu": "network_bandwidth",
    "framework": "",
    "precision": "dtype",
    "optimizer": "",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "vp": "chunks_per_rank",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
    "seq_parallel": "sequence_parallel",
    "zero_stage": "sharding_stage",
    "shard_size": "",
    "mbs": "microbatch_size",
    "gbs": "global_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "recompute": "activation_checkpointing",
    "recompute_detail": "recompute_granularity",
    "attn_kernel": "attention",
    "loss_kernel": "loss_chunks",
    "schedule": "pipeline_schedule",
    "overlap": "",
    "optimizer_offload": "",
    "parameter_offload": "",
    "activation_offload": "",
    "cuda_graphs": "",
    "oom": "out_of_memory",
    "step_time_s": "step_time",
}
"""Column -> another name that people give it, "" = none."""

_MEMORY = {**_RUNS, "peak_mem": "peak_memory", "mem_unit": "memory_unit", "mem_kind": "", "mem_rank": ""}

COLUMNS: Mapping[str, Mapping[str, str]] = {"runs": _RUNS, "memory": _MEMORY}
"""By kind of table (docs/data_files.md says what each holds); other kinds have few, and say which they miss."""


def unread(kind: str, rows: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the columns that say something and that nothing is read from -> the column that may be meant, "" = none.

    >>> unread("runs", [{"tp": "8", "zero_stag": "3", "tensor_parallel": "8", "remark": "", "colour": "red"}])
    {'zero_stag': 'zero_stage', 'tensor_parallel': 'tp', 'colour': ''}
    >>> unread("runs", [{"n_gpus": "8", "Global batch": "64"}])
    {'Global batch': 'gbs'}
    """
    known = COLUMNS.get(kind, {})
    said = dict.fromkeys(name for row in rows for name, word in row.items() if name and word) if known else {}
    others = {other: column for column, other in known.items() if other}
    slips = {name: column for name, column in (*others.items(), *zip(known, known, strict=True)) if column not in said}

    def meant(name: str) -> str:
        plain = name.lower().replace(" ", "_")
        return others.get(plain) or slips.get(nearest(plain, slips, TYPING_SLIP) or "", "")

    return {name: meant(name) for name in said if name not in known}
