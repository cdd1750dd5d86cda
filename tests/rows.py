"""A row of measured runs for tests, as strangers' tables have them, and where it is placed with some columns changed."""

from __future__ import annotations

from simulator.importers.table.row_simulation import RowSimulation, row_simulation

__all__ = ["ROW", "placed"]

ROW = {
    "case_id": "test-1",
    "source": "a table nobody knows",
    "model": "gpt-1.3b",
    "arch_layers": "24",
    "hidden": "2048",
    "heads": "16",
    "kv_heads": "16",
    "head_dim": "128",
    "ffn_hidden": "8192",
    "gated_mlp": "0",
    "vocab": "51200",
    "tied_emb": "1",
    "seq_len": "2048",
    "gpu": "A100-80GB-SXM",
    "gpu_peak_bf16_tflops": "312",
    "gpu_mem_gb": "80",
    "gpus_per_node": "8",
    "n_gpus": "16",
    "intra_link": "NVLink3 600GB/s NVSwitch",
    "inter_gbps_per_gpu": "200",
    "precision": "bf16",
    "tp": "2",
    "pp": "2",
    "dp": "4",
    "zero_stage": "0",
    "mbs": "2",
    "gbs": "64",
    "recompute": "none",
    "schedule": "1F1B",
    "framework": "Megatron-LM",
}


def placed(**changes: str) -> RowSimulation:
    return row_simulation({**ROW, **changes})
