"""Rows of measured runs: each is placed by name, placed from its numbers and marked so, or refused by name."""

from __future__ import annotations

import pytest

from simulator.accuracy.attempt import attempt, predict, verdict_outcome
from simulator.importers.table.rows import CannotPlace
from simulator.importers.vocabulary.names import find_gpu, load_names
from tests.rows import ROW, placed


def rules(**changes: str) -> str:
    return "; ".join(placed(**changes).assumed)


def reason(**changes: str) -> str:
    with pytest.raises(CannotPlace) as caught:
        predict(placed(**changes))
    return caught.value.reason


@pytest.mark.parametrize(
    ("text", "memory", "expected"),
    [
        ("A100-80GB-SXM", 80, "a100_80gb_sxm"),
        ("NVIDIA A100-SXM4-40GB", 40, "a100_40gb_sxm"),
        ("nvidia a100 sxm", 40, "a100_40gb_sxm"),
        ("NVIDIA A100 PCIe 80 GB", 80, "a100_80gb_pcie"),
        ("H100 SXM5 80GB HBM3", None, "h100_80gb_sxm"),
        ("NVIDIA H100 (PCIe)", 80, "h100_80gb_pcie"),
        ("Tesla V100-SXM2-32GB", 32, "v100_32gb_sxm2"),
        ("AMD Instinct MI300X", 192, "mi300x"),
        ("RTX 4090", 24, "rtx_4090"),
        ("NVIDIA GB200 NVL72", 186, "gb200"),
        ("H100-96GB", 96, "h100_96gb_500w"),
        ("H100-64GB", 64, "h100_64gb_sxm"),
        ("H100-48GB", 48, None),
        ("TPU v7x (Ironwood)", 192, "tpu_v7"),
        ("AWS Trainium2", 96, "trainium2"),
        ("Intel Data Center GPU Max 1550 (tile)", 64, "max_1550_tile"),
        ("A100", None, "a100_80gb_sxm"),
        ("A100", 40, "a100_40gb_sxm"),
        ("A100-64GB custom", 64, "a100_64gb_sxm"),
        ("Titan V", None, "titan_v"),
        ("Titan Xp", None, None),
        ("NVIDIA TITAN RTX", 24, "titan_rtx"),
        ("Quadro RTX 6000", 24, "quadro_rtx_6000"),
        ("RTX 6000", 24, "quadro_rtx_6000"),
        ("RTX 6000 Ada", 48, "rtx_6000_ada"),
        ("RTX 8000", None, "quadro_rtx_8000"),
        ("RTX 3090 Ti", 24, "rtx_3090_ti"),
        ("GeForce RTX 4090 D", 24, "rtx_4090_d"),
        ("H20", 141, "h20_141gb_sxm"),
        ("H800 PCIe", 80, "h800_80gb_pcie"),
        ("TPU7x (Ironwood)", 192, "tpu_v7"),
        ("Trillium", 32, "tpu_v6e"),
        ("TPU v5 lite", 16, "tpu_v5e"),
        ("Ascend 910C", 128, "ascend_910c"),
        ("TPU v5p", 95, "tpu_v5p"),
        ("TPU v9", 95, None),
        ("TPU v4", 32, "tpu_v4"),
        ("Google Cloud TPUv3", 32, "tpu_v3"),
        ("Ascend 910", 32, "ascend_910"),
        ("Huawei Ascend-910B", 64, "ascend_910b"),
        ("MI250X", 128, "mi250x"),
        ("AMD MI250X (one GCD)", 64, "mi250x_gcd"),
        ("AMD Instinct MI325X OAM", 256, "mi325x"),
        ("MI355X", 288, "mi355x"),
        ("H800-SXM5-80GB", 80, "h800_80gb_sxm"),
        ("NVIDIA H20", 96, "h20_96gb_sxm"),
        ("NVIDIA GH200 120GB", 96, "gh200_96gb"),
        ("B300", 288, "b300_sxm"),
        ("GeForce RTX 3090", 24, "rtx_3090"),
        ("RTX2080Ti", 11, "rtx_2080_ti"),
        ("GeForce RTX 5090", 32, "rtx_5090"),
        ("Tesla T4", 15, "t4_16gb"),
        ("A10G", 24, "a10g_24gb"),
        ("A10", 24, "a10_24gb"),
        ("A10", 22, "a10_24gb"),
        ("A10G", 22.5, "a10g_24gb"),
        ("A10", 48, None),
        ("V100-SXM3-32GB", 32, "v100_32gb_sxm3"),
        ("Tesla V100-SXM3-32GB (DGX-2)", 32, "v100_32gb_sxm3"),
        ("H100 NVL", 94, "h100_94gb_nvl"),
        ("Intel Gaudi 3", 128, "gaudi3"),
        ("H300", 141, None),
    ],
)
def test_a_gpu_is_told_by_generation_memory_and_form(text: str, memory: float | None, expected: str | None) -> None:
    found = find_gpu(load_names(), text, memory)
    assert expected == (None if found is None else found.name)


def test_a_known_row_is_placed_on_a_cluster_of_ours() -> None:
    assert ("dgx_a100", 16) == (placed().cluster.name, placed().cluster.world_size)
    assert ("one_f_one_b", "megatron_lm") == (placed().fields["schedule"], placed().fields["framework"])
    assert ("layer_norm", "learned") == (placed().workload.model.norm, placed().workload.model.positions)


def test_an_unknown_gpu_is_made_from_the_rows_numbers_and_marked() -> None:
    row = placed(gpu="Zeta-9 SXM", gpu_peak_bf16_tflops="500", gpu_mem_gb="64", intra_link="ZetaLink")
    assert pytest.approx(500e12) == row.cluster.gpu.peak("bf16")
    assert 64e9 == row.cluster.gpu.memory
    assert "uncalibrated" in "; ".join(row.assumed)
    assert 0 < predict(row)[0].step_time


def test_an_unknown_gpu_without_numbers_is_refused_by_name() -> None:
    assert "'Zeta-9 SXM' is not known" in reason(gpu="Zeta-9 SXM", gpu_peak_bf16_tflops="", gpu_mem_gb="")


def test_an_unknown_network_is_built_at_the_rows_rate() -> None:
    row = placed(inter_gbps_per_gpu="37.5")
    fabric = row.cluster.level("fabric")
    assert fabric is not None
    assert pytest.approx(37.5e9 / 8) == fabric.bandwidth
    assert "built from the row's numbers" in "; ".join(row.assumed)


def test_a_source_has_a_profile_of_its_own_from_a_version_on() -> None:
    bloom = {"source": "BigScience BLOOM-176B prequel tuning log", "framework": "Megatron-DeepSpeed", "mbs": "1"}
    early, late = (placed(**bloom, precision="fp16", version=day) for day in ("02-17", "02-20"))
    assert ("megatron_deepspeed", "bigscience") == (early.fields["framework"], late.fields["framework"])
    assert "CUDA_LAUNCH_BLOCKING" in "; ".join(late.assumed)
    assert "bigscience_bf16" == placed(**bloom, version="02-28").fields["framework"]


def test_a_blank_vocabulary_is_what_is_known_of_the_source_or_that_of_gpt2() -> None:
    known, unknown = placed(vocab="", source="Zero Bubble Pipeline Parallelism Table 6"), placed(vocab="")
    assert (32_000, 50_304) == (known.workload.model.vocabulary, unknown.workload.model.vocabulary)
    assert "SentencePiece" in "; ".join(known.assumed)


def test_a_slower_link_of_a_known_kind_has_its_own_rate() -> None:
    assert pytest.approx(200e9) == placed(gpu="A100-80GB-SXM", intra_link="NVLink3, 400 GB/s").cluster.link.bandwidth


@pytest.mark.parametrize(
    ("gpu", "link", "bandwidth", "technology"),
    [
        ("MI355X", "xGMI", 537e9, "xgmi"),
        ("AMD Instinct MI300X", "Infinity Fabric", 448e9, "xgmi"),
        ("H800-80GB-SXM", "NVLink4 400GB/s", 200e9, "nvlink"),
        ("H100-80GB-SXM", "NVLink", 450e9, "nvlink"),
        ("H100-80GB-SXM", "NVLink9 3600 GB/s", 1800e9, "nvlink"),
        ("RTX 4090", "PCIe gen4", 32e9, "pcie"),
    ],
)
def test_links_inside_a_node_are_told_by_word_generation_and_rate(
    gpu: str, link: str, bandwidth: float, technology: str
) -> None:
    found = placed(gpu=gpu, gpu_peak_bf16_tflops="", gpu_mem_gb="", intra_link=link).cluster.link
    assert (pytest.approx(bandwidth, rel=0.05), technology) == (found.bandwidth, found.technology)


@pytest.mark.parametrize(("link", "switched"), [("NVLink4 900GB/s", False), ("NVLink4 900GB/s, NVSwitch", True)])
def test_a_link_without_a_word_on_switches_is_that_of_our_node_with_the_gpu(link: str, switched: bool) -> None:
    """Four GH200 are joined in pairs; eight H100 by switches, whatever the words."""
    blank = {"gpu_peak_bf16_tflops": "", "gpu_mem_gb": "", "intra_link": link}
    assert placed(gpu="GH200-96GB", gpus_per_node="4", **blank).cluster.link.switched == switched
    assert placed(gpu="H100-80GB-SXM", **blank).cluster.link.switched


@pytest.mark.parametrize(("name", "link", "vendor"), [("Zeta-9", "ZetaLink", "nvidia"), ("MI999X", "xGMI", "amd")])
def test_an_invented_gpu_is_like_one_of_its_maker(name: str, link: str, vendor: str) -> None:
    gpu = placed(gpu=name, gpu_peak_bf16_tflops="300", gpu_mem_gb="64", intra_link=link).cluster.gpu
    assert vendor == gpu.vendor


def test_what_is_blank_is_filled_by_a_rule_that_is_said() -> None:
    said = rules(vocab="", mbs="", recompute="unknown", zero_stage="", framework="MyMegatron-LM fork 7")
    for rule in ("vocabulary = 50304", "microbatch_size = 1", "zero_stage = 0", "taken for megatron_lm"):
        assert rule in said


def test_options_without_an_effect_are_left_out() -> None:
    row = placed(tp="1", pp="1", dp="1", n_gpus="1", zero_stage="1", seq_parallel="1", schedule="none")
    assert (0, False) == (row.fields["zero_stage"], row.fields["sequence_parallel"])
    assert predict(row)[0].fits


def test_a_row_may_say_which_overlaps_are_off() -> None:
    off = "none (TP/PP/DP overlap off)"
    assert (False, False) == tuple(
        placed(overlap=off).fields[f"overlap_{of}"] for of in ("gradients", "tensor_parallel")
    )
    assert "overlap_tensor_parallel" not in placed(overlap="none").fields
    assert "overlap_tensor_parallel" not in placed(overlap=off, tp="1", dp="8").fields


def test_a_depth_of_interleaving_that_is_not_printed_is_two() -> None:
    row = placed(schedule="1F1B-interleaved")
    assert ("interleaved_1f1b", 2) == (row.fields["schedule"], row.fields["chunks_per_rank"])
    assert "2 chunks per rank" in rules(schedule="1F1B-interleaved")


def test_a_schedule_with_a_v_has_two_chunks_where_the_table_leaves_them_out() -> None:
    row = placed(schedule="ZB-V", gbs="64", mbs="1")
    assert ("zbv", 2) == (row.fields["schedule"], row.fields["chunks_per_rank"])
    assert "schedule zbv has no form with one" in rules(schedule="ZB-V", gbs="64", mbs="1")


def test_a_source_may_mean_another_kernel_by_its_word() -> None:
    assert "flash2" == placed(attn_kernel="Flash").fields["attention"]
    assert "flash1" == placed(attn_kernel="flash", source="MosaicML llm-foundry tables").fields["attention"]


def test_context_parallel_and_narrow_rows_are_placed() -> None:
    row = placed(cp="2", dp="", precision="fp8-mx")
    assert (2, "mxfp8") == (row.fields["context_parallel"], row.workload.precision)


def test_groups_of_shards_are_placed_and_those_that_do_not_divide_are_said() -> None:
    assert 2 == placed(zero_stage="1", shard_size="2").fields["shard_size"]
    assert "groups of 3 do not divide" in rules(zero_stage="1", shard_size="3")
    assert "shard_size" not in placed(zero_stage="1", shard_size="8").fields


def test_a_mixture_of_experts_is_placed_with_its_plan() -> None:
    moe = {
        "moe_experts": "8",
        "moe_topk": "2",
        "moe_ffn_hidden": "512",
        "moe_shared_ffn": "1024",
        "moe_dense_layers": "1",
    }
    row = placed(**moe, ep="2")
    model = row.workload.model
    assert (8, 2, 512, 1024, 1) == (
        model.experts,
        model.experts_per_token,
        model.expert_ffn,
        model.shared_expert_ffn,
        model.dense_layers,
    )
    assert (2, 2, True) == tuple(
        row.fields[name] for name in ("expert_parallel", "expert_tensor_parallel", "sequence_parallel")
    )
    assert predict(row)[0].breakdown["ep"] > 0
    assert 1 == placed(**moe, ep="2", etp="1").fields["expert_tensor_parallel"]
    assert 1 == placed(**moe, ep="2", framework="Megatron-Bridge").fields["expert_tensor_parallel"]
    assert (
        3
        == placed(**{**moe, "moe_experts": "256", "moe_dense_layers": "", "hidden": "7168"}).workload.model.dense_layers
    )
    maverick = placed(**{**moe, "moe_experts": "128", "moe_dense_layers": "", "hidden": "5120"}).workload.model
    assert (0, 2) == (maverick.dense_layers, maverick.moe_every), "as our model of that width and those experts"


def test_latent_attention_has_the_widths_of_our_model_of_that_size() -> None:
    shape = {"hidden": "5120", "heads": "128", "kv_heads": "128", "head_dim": "", "attn_type": "mla"}
    assert (1536, 512, 192, 128) == tuple(
        getattr(placed(**shape).workload.model, name)
        for name in ("q_lora_rank", "kv_lora_rank", "head_dim", "v_head_dim")
    )


@pytest.mark.parametrize(
    ("changes", "why", "counts"),
    [
        ({"moe_experts": "64"}, "needs moe_topk and moe_ffn_hidden", False),
        ({"attn_type": "linear"}, "'linear'", True),
        ({"ep": "2"}, "ep = 2, but the row's model has no experts", False),
        ({"precision": "int2"}, "precision 'int2'", True),
        ({"schedule": "Wave-9000"}, "no schedule 'Wave-9000'", True),
        ({"task": "dpo"}, "task 'dpo'", False),
        ({"hidden": ""}, "no hidden", False),
        ({"n_gpus": "14"}, "does not divide", False),
        ({"dp": "3"}, "is not the 16 GPUs", False),
        ({"mbs": "two"}, "mbs must be a number", False),
        ({"gbs": "36"}, "no multiple of dp x mbs", True),
        ({"recompute": "sometimes"}, "'sometimes'", True),
        (
            {"recompute": "selective", "recompute_detail": "--recompute-modules core_attn moe_expert"},
            "module 'moe_expert', which is none of core_attn, layernorm",
            True,
        ),
    ],
)
def test_a_row_that_is_not_predicted_says_why(changes: dict[str, str], why: str, counts: bool) -> None:
    with pytest.raises(CannotPlace) as caught:
        placed(**changes)
    assert why in caught.value.reason
    assert counts == caught.value.counts


def test_what_the_simulator_refuses_is_the_reason() -> None:
    assert "tensor_parallel must divide" in reason(heads="15", kv_heads="15", head_dim="128")


def test_context_parallel_ranks_share_sharded_states() -> None:
    """Ranks of one sequence hold the same weights, so ZeRO shards over them even where data_parallel = 1."""
    alone = placed(tp="1", pp="1", dp="1", n_gpus="8", cp="8", zero_stage="1", gbs="8", seq_len="16384", gated_mlp="1")
    assert 1 == alone.fields["zero_stage"]


def test_torchtitan_cuts_its_batch_into_as_many_microbatches_as_stages() -> None:
    row = {
        "framework": "torchtitan (FSDP2)",
        "mbs": "",
        "gbs": "64",
        "pp": "4",
        "tp": "2",
        "dp": "2",
        "zero_stage": "3",
    }
    plain, looped = placed(**row), placed(**{**row, "schedule": "1F1B-interleaved"})
    assert (8, 4) == (plain.fields["microbatch_size"], looped.fields["microbatch_size"])
    early = placed(**{**row, "schedule": "1F1B-interleaved", "version": "2024-2025"})  # up to January 2025
    assert (8, 2) == (early.fields["microbatch_size"], early.fields["chunks_per_rank"])
    assert "as many microbatches as pipeline ranks" in "; ".join(early.assumed)


def test_a_v_schedule_gets_its_two_chunks_and_ends_of_their_own_where_layers_say_so() -> None:
    """46 layers on 24 ranks with two chunks each: embedding and head stand for a layer (Zero Bubble, Table 6)."""
    row = {
        "schedule": "ZB-V",
        "arch_layers": "46",
        "pp": "24",
        "tp": "1",
        "dp": "1",
        "n_gpus": "24",
        "gpus_per_node": "8",
    }
    fields = placed(**row, gbs="144").fields
    assert 2 == fields["chunks_per_rank"]
    assert (0, 1, 46) == (fields["layer_split"][0], fields["layer_split"][1], sum(fields["layer_split"]))


def test_notes_tell_uneven_pipelines() -> None:
    row = {"arch_layers": "12", "pp": "4", "tp": "1", "dp": "4"}
    both = placed(**row, quality_note="decoder-first-pipeline-num-layers=2; decoder-last-pipeline-num-layers=4")
    one = placed(**row, quality_note="decoder-first-pipeline-num-layers=2")
    assert (2, 3, 3, 4) == both.fields["layer_split"]
    assert (2, 4, 4, 2) == one.fields["layer_split"]


@pytest.mark.parametrize(
    ("note", "expected"),
    [("fp32 grad accumulation BF16 optimizer", "fp32"), ("fp16 grads", "fp16"), ("fabric not stated", None)],
)
def test_notes_say_how_gradients_are_added_up(note: str, expected: str | None) -> None:
    assert expected == placed(quality_note=note).fields.get("gradient_dtype")


def test_a_source_may_say_once_what_its_rows_recompute() -> None:
    row = placed(
        source="NVIDIA Megatron-Bridge performance summary", recompute="unknown", framework="NeMo/Megatron-Bridge"
    )
    assert "none" == row.recompute
    assert "recompute = none (NVIDIA-NeMo/Megatron-Bridge" in "; ".join(row.assumed)
    assert "full" == placed(source="NVIDIA Megatron-Bridge performance summary", recompute="full").recompute


BRIDGE, NEMO = "NeMo/Megatron-Bridge (Megatron-Core)", "NeMo (Megatron-Core)"


@pytest.mark.parametrize(
    ("framework", "gpu", "version", "expected"),
    [
        (BRIDGE, "B200-SXM", "26.04.01", "megatron_bridge"),
        (BRIDGE, "B200-SXM", "26.06", "megatron_bridge_26_06"),
        (BRIDGE, "B200-SXM", "27.01.02", "megatron_bridge_26_06"),
        (BRIDGE, "B200-SXM", "", "megatron_bridge"),
        (BRIDGE, "H100-80GB-SXM", "26.08", "megatron_bridge"),
        (NEMO, "H100-80GB-SXM", "24.07a", "nemo_2024"),
        (NEMO, "H100-80GB-SXM", "launcher-2024", "nemo_2024"),
        (NEMO, "H100-80GB-SXM", "24.11.1", "nemo_25_02"),
        (NEMO, "H100-80GB-SXM", "25.02", "nemo_25_02"),
        (NEMO, "B200-SXM", "25.02", "nemo_25_02"),
        (NEMO, "H100-80GB-SXM", "25.04.01", "nemo"),
        (NEMO, "H100-80GB-SXM", "v4.0", "nemo"),
        (NEMO, "A100-80GB-SXM", "24.07a", "nemo_25_02"),
    ],
)
def test_a_framework_changes_with_its_releases(framework: str, gpu: str, version: str, expected: str) -> None:
    blank = {"gpu_peak_bf16_tflops": "", "gpu_mem_gb": "", "intra_link": ""}
    assert expected == placed(framework=framework, version=version, gpu=gpu, **blank).fields["framework"]


def test_words_for_library_attention_leave_the_kernel_to_the_gpu() -> None:
    assert ["te", "te", "sdpa_2025"] == [
        placed(attn_kernel=w).fields["attention"] for w in ("TE/flash", "cuDNN", "SDPA flash")
    ]


def test_a_run_that_may_move_activations_to_the_host_is_not_judged_on_memory() -> None:
    source = {"source": "NVIDIA Megatron-Bridge performance summary", "recompute": "unknown"}
    large = {**ROW, **source, "mbs": "64", "gbs": "256"}
    outcome = verdict_outcome("row", "group", False, attempt(large, True))
    assert (None, False) == (outcome.predicted, outcome.counts)
    assert "moved activations to the host" in outcome.reason
    assert 0.0 == verdict_outcome("row", "group", False, attempt({**ROW, **source}, True)).predicted
    told = verdict_outcome("row", "group", False, attempt({**large, "recompute": "none"}, True))
    assert (1.0, True) == (told.predicted, told.counts)


@pytest.mark.parametrize(
    ("framework", "said", "expected"),
    [
        ("torchtitan", "", True),
        ("torchtitan 2025-06", "", True),
        ("NeMo (Megatron-Core)", "", True),
        ("torchtitan", "0", False),
        ("Megatron-LM", "", False),
        ("Megatron-LM", "1", True),
    ],
)
def test_a_blank_sequence_parallel_is_the_habit_of_the_framework(framework: str, said: str, expected: bool) -> None:
    assert placed(framework=framework, seq_parallel=said, recompute="full").fields["sequence_parallel"] is expected


def test_a_named_remat_policy_says_what_is_made_again() -> None:
    alone = {"tp": "1", "pp": "1", "dp": "16", "zero_stage": "3", "schedule": ""}
    maxtext = {"framework": "MaxText", "recompute": "full", **alone}
    kept = placed(**maxtext, recompute_detail="remat_policy=save_dot_with_context_except_mlp")
    assert (kept.recompute, kept.fields["recompute_policy"]) == ("policy", "save_dot_with_context_except_mlp")
    assert placed(**maxtext, recompute_detail="remat_policy=full").recompute == "full"
    assert placed(**maxtext, recompute_detail="remat_policy=of_our_own").recompute == "full"


def test_gpus_of_before_flash_attention_keep_their_scores() -> None:
    volta = {"gpu": "V100-SXM2-32GB", "gpu_mem_gb": "32", "gpu_peak_bf16_tflops": "125", "precision": "fp16"}
    assert placed(**volta, framework="NeMo").fields["attention"] == "unfused"
    assert "attention" not in placed(framework="NeMo").fields
    assert placed(**volta, framework="NeMo", attn_kernel="flash_attention").fields["attention"] == "flash2"


def test_no_experts_may_be_written_as_a_zero() -> None:
    assert 0 == placed(moe_experts="0", framework="Megatron-LM").workload.model.experts
