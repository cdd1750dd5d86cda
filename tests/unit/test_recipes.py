"""Recipes: what the published settings of a run say that its table of results does not print."""

from __future__ import annotations

import pytest

from simulator.importers.table.row_simulation import row_simulation

QWEN = {
    "case_id": "test-1",
    "tied_emb": "0",
    "gpus_per_node": "8",
    "zero_stage": "1",
    "precision": "mxfp8",
    "schedule": "1F1B",
    "source": "NVIDIA Megatron-Bridge performance summary",
    "framework": "NeMo/Megatron-Bridge (Megatron-Core)",
    "model": "Qwen3-30B-A3B",
    "arch_layers": "48",
    "hidden": "2048",
    "heads": "32",
    "kv_heads": "4",
    "head_dim": "128",
    "ffn_hidden": "6144",
    "gated_mlp": "1",
    "vocab": "151936",
    "seq_len": "4096",
    "moe_experts": "128",
    "moe_topk": "8",
    "moe_ffn_hidden": "768",
    "moe_dense_layers": "0",
    "gpu": "B200-SXM",
    "gpu_peak_bf16_tflops": "",
    "gpu_mem_gb": "",
    "intra_link": "",
    "n_gpus": "8",
    "tp": "1",
    "pp": "1",
    "dp": "8",
    "ep": "8",
    "mbs": "4",
    "gbs": "512",
    "recompute": "unknown",
}


@pytest.mark.parametrize(
    ("version", "profile", "graphs"),
    [
        ("26.02", "megatron_bridge", ("moe_router", "moe_preprocess")),
        ("26.02.01", "megatron_bridge_hybridep", ("attn", "moe_router", "moe_preprocess")),
        ("26.04.01", "megatron_bridge_hybridep", ("attn", "moe_router", "moe_preprocess")),
        ("26.06", "megatron_bridge_26_06", None),
        ("", "megatron_bridge", None),
    ],
)
def test_recipes_say_what_tables_do_not_print(version: str, profile: str, graphs: tuple[str, ...] | None) -> None:
    row = row_simulation({**QWEN, "version": version})
    assert (profile, graphs) == (row.fields["framework"], row.fields.get("cuda_graphs"))
    assert bool(version) == ("qwen3_workload_base_configs.py" in "; ".join(row.assumed))


@pytest.mark.parametrize(
    ("gpu", "version", "plan", "schedule"),
    [
        ("B200-SXM", "26.06", {}, "combined_1f1b"),
        ("B200-SXM", "26.06", {"precision": "bf16"}, None),  # the recipe is that of FP8_MX
        ("B200-SXM", "26.04", {}, None),
        ("H100-80GB-SXM", "26.02", {"pp": "2", "vp": "12", "n_gpus": "16", "precision": "fp8"}, "combined_1f1b"),
        ("H100-80GB-SXM", "26.04", {"pp": "2", "vp": "12", "n_gpus": "16", "precision": "fp8"}, "interleaved_1f1b"),
        ("B200-SXM", "26.06", {"pp": "2", "n_gpus": "16"}, "one_f_one_b"),  # it has no form with one chunk per rank
    ],
)
def test_recipes_say_whether_exchanges_run_beside_another_microbatch(
    gpu: str, version: str, plan: dict[str, str], schedule: str | None
) -> None:
    row = row_simulation({**QWEN, **plan, "gpu": gpu, "version": version})
    assert schedule == row.fields.get("schedule")


def test_a_run_without_a_release_is_of_the_month_it_was_published_in() -> None:
    """Releases of Megatron-Bridge are named by their months."""
    row = {**QWEN, "version": "", "gpu": "B200-SXM", "source_loc": "NVIDIA-NeMo/Megatron-Bridge pull/5722@2026-08-13"}
    assert "megatron_bridge_26_06" == row_simulation(row).fields["framework"]
    assert "published in 2026-08" in "; ".join(row_simulation(row).assumed)
    assert "megatron_bridge_26_06" != row_simulation({**row, "source_loc": "docs@2026-03-01"}).fields["framework"]


def test_a_paged_stash_goes_with_fused_experts_and_a_graph_of_the_whole_step() -> None:
    row = {
        **QWEN,
        "framework": "Megatron-LM (2026)",
        "version": "",
        "quality_note": "full-iteration CUDA graphs, paged stash",
    }
    found = row_simulation(row).fields
    assert ("megatron_bridge_26_06", "full_iteration") == (found["framework"], found["cuda_graphs"])


@pytest.mark.parametrize(
    ("framework", "said", "profile"),
    [
        ("Megatron-LM (2026)", "HybridEP; forced balance", "megatron_core_hybridep"),
        ("Megatron-LM (2026)", "DeepEP; forced balance", "megatron_core"),
        ("Megatron-Bridge", "HybridEP", "megatron_bridge_hybridep"),
        ("Megatron-Bridge", "HybridEP; grouped products fused", "megatron_bridge_26_06"),
    ],
)
def test_hybridep_is_not_deepep(framework: str, said: str, profile: str) -> None:
    """Its kernels sort rows and take no time to copy them, which those of DeepEP do not and do."""
    row = {**QWEN, "framework": framework, "version": "", "gpu": "H100-80GB-SXM", "quality_note": said}
    assert profile == row_simulation(row).fields["framework"]


def test_experts_of_hugging_face_are_grouped_since_2026() -> None:
    row = {**QWEN, "framework": "TRL (Hugging Face Trainer, FSDP2)", "zero_stage": "3", "ep": "1", "dp": ""}
    for where, profile in (("pull/4022@2026-04-28", "hugging_face_fsdp_2026"), ("@2025-04-28", "hugging_face_fsdp")):
        found = row_simulation({**row, "version": "", "source_loc": where}).fields["framework"]
        assert profile == found


def test_runs_that_drop_tokens_give_experts_equal_rows() -> None:
    drops, keeps = (
        row_simulation({**QWEN, "model": name}) for name in ("Qwen3-30B-A3B [tokendrop, EP8]", "Qwen3-30B-A3B")
    )
    assert (1.0, 0.0) == (drops.workload.model.capacity_factor, keeps.workload.model.capacity_factor)
    assert "experts take equal rows and drop the rest" in drops.assumed
    told = row_simulation({**QWEN, "model": "Qwen3-30B-A3B", "quality_note": "capacity factor 1.25; mock data"})
    assert told.workload.model.capacity_factor == 1.25
