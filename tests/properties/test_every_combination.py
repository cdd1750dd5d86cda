"""Every model family x GPU generation x way to split, pair by pair: an answer whose figures belong together.

Quick: a walk over the pairs of a few values of each choice.  Slow: over all values, and every model file on every cluster file.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from simulator.costs.tables import machine_of
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import Cluster, load_cluster
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.specs import names
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload
from tests.properties.pairwise import Case, Pairwise

SMALL = {"layers": 8, "vocabulary": 32000}
FEW = {**SMALL, "experts": 8, "experts_per_token": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt3_1_3b", SMALL),
    "grouped queries": ("llama3_8b", SMALL),
    "alibi": ("bloom_7_1b", SMALL),
    "windows": ("gemma3_27b", SMALL),
    "window everywhere": ("mistral_7b", SMALL),
    "experts": ("mixtral_8x7b", SMALL),
    "experts and windows": ("gpt_oss_20b", FEW),
    "chunks, every second with experts": ("llama4_maverick", {**FEW, "experts_per_token": 1}),
    "latent attention, token prediction": ("deepseek_v3", {**FEW, "dense_layers": 1}),
    "head norms, token prediction": ("glm4_5_air", FEW),
    "expert capacity": ("glam_64b_64e", FEW),
    "encoder": ("bert_large", SMALL),
    "vision": ("vit_l_16", {"layers": 8, "vocabulary": 1000, "sequence_length": 256}),
    "encoder-decoder": ("t5_large", {**SMALL, "layers": 4, "encoder_layers": 4}),
    "encoder-decoder with experts": (
        "switch_c_2048",
        {**FEW, "layers": 4, "encoder_layers": 4, "experts_per_token": 1},
    ),
    "states": ("mamba2_2_7b", SMALL),
    "states, attention or MLP": ("nemotron_h_8b", {**SMALL, "layers": 12}),
    "delta rule": ("qwen3_next_80b_a3b", {**FEW, "mtp_layers": 0}),
    "projected distances": ("gopher_280b", {**SMALL, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn": 8192}),
    "adapters": ("llama3_8b", {**SMALL, "lora_rank": 8, "lora_dropout": True}),
    "adapters of experts, 4 bits": ("mixtral_8x7b", {**SMALL, "lora_rank": 8, "frozen_format": "nf4"}),
    "convolutions": ("resnet50", {}),
}
GENERATIONS = (
    "p100_dgx1", "v100_dgx1", "t4_x4", "dgx_a100", "a40_x8", "g5_48xlarge", "rtx_4090_x4", "l40s_x8", "dgx_h100",
    "hgx_h800", "hgx_h20", "alps", "hgx_h200", "hgx_b200", "hgx_b300", "gb200_nvl72", "gb300_nvl72", "rtx_5090_x8",
    "frontier", "mi300x_roce", "mi325x_x8", "mi355x_x8", "tpu_v3_pod", "tpu_v4_pod", "peng_cheng", "gaudi2_x8",
)  # fmt: skip
SCHEDULES = (
    "one_f_one_b",
    "gpipe",
    "interleaved_1f1b",
    "breadth_first",
    "zb_h1",
    "zbv",
    "chimera",
    "dualpipev",
    "seq1f1b",
)
FACTORS: dict[str, tuple[Any, ...]] = {
    "family": tuple(name for name in FAMILIES if name != "convolutions"),  # they have no attention to choose
    "cluster": GENERATIONS,
    "nodes": (1, 2),
    "tensor_parallel": (1, 2, 4),
    "sequence_parallel": (False, True),
    "pipeline_parallel": (1, 2, 4),
    "context_parallel": (1, 2),
    "context_parallel_kind": (None, "ring", "all_gather", "ulysses"),
    "expert_parallel": (1, 2, 4),
    "zero_stage": (0, 1, 2, 3),
    "recompute": ("none", "selective", "full", "operators"),
    "schedule": (None, *SCHEDULES),
    "attention": ("flash2", "unfused", "flash1", "flash3"),
    "framework": ("megatron_core", "megatron_lm", "megatron_deepspeed", "pytorch_fsdp", "torchtitan", "deepspeed"),
}
QUICK: dict[str, tuple[Any, ...]] = FACTORS | {
    "cluster": ("v100_dgx1", "dgx_a100", "dgx_h100", "gb200_nvl72", "mi300x_roce", "tpu_v4_pod"),
    "framework": ("megatron_core", "torchtitan"),
    "attention": ("flash2", "unfused"),
    "zero_stage": (0, 1, 3),
    "schedule": (None, "interleaved_1f1b", "zb_h1", "dualpipev"),
    "family": (
        "gpt",
        "windows",
        "experts and windows",
        "latent attention, token prediction",
        "expert capacity",
        "encoder",
        "vision",
        "encoder-decoder with experts",
        "projected distances",
        "states, attention or MLP",
        "adapters",
        "adapters of experts, 4 bits",
    ),
}


@functools.cache
def model_of(family: str) -> Model:
    name, changes = FAMILIES[family]
    return load_model(name).model_copy(update=changes)


@functools.cache
def cluster_of(name: str, nodes: int) -> Cluster:
    cluster = load_cluster(name)
    return cluster.resized(cluster.node.gpus * nodes)


def made(case: Case) -> tuple[Workload, Plan, Cluster]:
    cluster, model = cluster_of(case["cluster"], case["nodes"]), model_of(case["family"])
    inner = case["tensor_parallel"] * case["pipeline_parallel"] * case["context_parallel"]
    if cluster.world_size % inner:
        raise PlanError("the degrees do not fit")
    schedule = case["schedule"]
    chunks = {"interleaved_1f1b": 2, "breadth_first": 2, "zbv": 2, "dualpipev": 2, "seq1f1b": 2}.get(schedule or "", 1)
    wanted = {k: v for k, v in case.items() if k not in ("family", "cluster", "nodes")}
    replicas = cluster.world_size // inner
    workload = Workload(
        model=model,
        sequence_length=256,
        global_batch_size=replicas * 8,
        precision="bf16" if "bf16" in cluster.gpu.peak_flops else "fp16",
    )
    return workload, Plan(**wanted, chunks_per_rank=chunks), cluster


def runs(cluster: str, attention: str) -> bool:
    """Whether the chips of a cluster run an attention kernel."""
    return attention == "unfused" or machine_of(load_cluster(cluster)).attention.runs(attention)


def possible(case: Case) -> bool:
    """Whether no rule refuses the case; a refusal must say what to do instead."""
    if not runs(case["cluster"], case["attention"]):
        return False
    try:
        workload, plan, cluster = made(case)
        resolve(workload, plan, cluster.world_size)
    except (PlanError, SpecError) as refusal:
        if not any(way in str(refusal).lower() for way in ("way out", "nearest", "do not fit", "choose another")):
            pytest.fail(f"no way out is said: {refusal}")
        return False
    return True


def never(pair: Case) -> bool:
    """Two choices that a rule of the product keeps apart, whatever else is chosen."""
    if {"cluster", "attention"} <= pair.keys() and not runs(pair["cluster"], pair["attention"]):
        return True
    model = model_of(pair["family"]) if "family" in pair else None
    shared = pair.get("context_parallel", 1) > 1 or pair.get("context_parallel_kind") is not None
    if model and shared and model.architecture in ("encoder_decoder", "vision"):
        return True
    if model and any(n % pair.get("tensor_parallel", 1) for n in (model.heads, model.kv_heads, model.ssm_groups)):
        return True
    if model and model.ssm_groups == 1 and pair.get("sequence_parallel"):
        return True
    if model and not model.experts and pair.get("expert_parallel", 1) > 1:
        return True
    if model and (model.architecture != "transformer" or model.mtp_layers) and pair.get("schedule") == "seq1f1b":
        return True
    if pair.get("schedule") == "chimera" and (pair.get("pipeline_parallel") == 1 or pair.get("zero_stage", 0) > 0):
        return True
    if pair.get("nodes") == 2 and "cluster" in pair and load_cluster(pair["cluster"]).network is None:
        return True
    if pair.get("context_parallel") == 1 and pair.get("context_parallel_kind") is not None:
        return True
    if pair.get("context_parallel_kind") == "ulysses" and pair.get("attention") == "unfused":
        return True
    return pair.get("tensor_parallel") == 1 and pair.get("sequence_parallel") is True


def check(p: Prediction, said: Any) -> None:
    assert math.isfinite(p.step_time), said
    assert p.step_time > 0, said
    assert p.low < p.step_time < p.high, said
    assert math.isclose(p.step_time, sum(p.breakdown.values()), rel_tol=1e-9), said
    assert all(v >= 0 for v in p.breakdown.values()), (said, p.breakdown)
    assert 0 < p.mfu <= p.hfu + 1e-12 < 1.0, (said, p.mfu, p.hfu)
    assert p.memory.by_category.shape[1] == len(CATEGORIES)
    assert (p.memory.by_category >= 0).all(), said
    peaks = p.to_dict()["peak_memory_bytes"]
    for peak in peaks:
        parts = [v for k, v in peak.items() if k in CATEGORIES]
        assert math.isclose(peak["total"], sum(parts), rel_tol=1e-9), said


def faster(cluster: Cluster, which: str) -> Cluster | None:
    """The same cluster with links of one kind twice as fast."""
    from dataclasses import replace

    def quick(link: Any) -> Any:
        return link.model_copy(update={"bandwidth": 2 * link.bandwidth, "name": f"quick {link.name}"})

    levels = tuple(
        replace(level, link=quick(level.link), bandwidth=2 * level.bandwidth)
        if (level.name == "fabric") == (which == "network")
        else level
        for level in cluster.levels
    )
    if levels == cluster.levels:
        return None
    if which == "network":
        return replace(cluster, levels=levels, network=quick(cluster.network))
    return replace(cluster, levels=levels, link=quick(cluster.link))


def walk(factors: dict[str, tuple[Any, ...]], engines: bool) -> set[str]:
    """Run every case; return the pairs that no completion made possible."""
    pairs = Pairwise(factors, possible, never=never)
    seen: dict[str, set[Any]] = {name: set() for name in factors}
    for number, case in enumerate(pairs.cases()):
        workload, plan, cluster = made(case)
        prediction = simulate(workload, plan, cluster)
        check(prediction, case)
        for which in ("node", "network"):
            quick = faster(cluster, which)
            if quick is not None:
                other = simulate(workload, plan, quick).step_time
                assert other <= prediction.step_time * (1 + 1e-9), (which, other / prediction.step_time, case)
        if engines and number % 10 == 0:
            slow = simulate(workload, plan, cluster, engine="simpy")
            assert slow.step_time == pytest.approx(prediction.step_time, rel=1e-9), case
        if number % 5 == 0:
            unfolded = simulate(workload, plan, cluster, fold=False)
            assert unfolded.step_time == pytest.approx(prediction.step_time, rel=1e-9), case
            assert unfolded.peak_memory == pytest.approx(prediction.peak_memory, rel=1e-12), case
        for name, value in case.items():
            seen[name].add(value)
    assert {name: set(values) for name, values in factors.items()} == seen
    return {pairs.said(p) for p in pairs.impossible}


def test_a_walk_over_pairs_of_the_main_choices() -> None:
    assert set() == walk(QUICK, True)


@pytest.mark.slow
def test_a_walk_over_all_pairs() -> None:
    assert set() == walk(FACTORS, True)


def test_cases_meet_every_pair() -> None:
    factors = {"a": (1, 2, 3), "b": ("x", "y"), "c": (True, False)}
    pairs = Pairwise(factors, lambda case: not (case["a"] == 1 and case["b"] == "x"))
    met = {(case["a"], case["b"]) for case in pairs.cases()}
    assert {(a, b) for a in (1, 2, 3) for b in "xy"} - {(1, "x")} == met
    assert ["a = 1 with b = 'x'"] == [pairs.said(p) for p in pairs.impossible]


def fitting(model: Model, cluster: Cluster) -> tuple[Workload, Plan, Cluster]:
    """A plan for any model on any cluster: tensor parallel inside the node, a pipeline, experts dealt out."""
    node = cluster.node.gpus
    shared = (model.heads, model.kv_heads, model.ffn, model.ssm_groups)  # of a network of layers all 1
    tensor = max(t for t in (1, 2, 4, 8) if node % t == 0 and not any(n % t for n in shared))
    alone = cluster.network is None and cluster.spec.nodes_per_rack == 1
    cluster = cluster.resized(node if alone else node * 8)
    replicas = cluster.world_size // tensor
    experts = math.gcd(model.experts, replicas) if model.experts else 1
    workload = Workload(
        model=model,
        sequence_length=model.sequence_length if model.network else min(model.sequence_length, 4096) // 8 * 8,
        global_batch_size=replicas,
        precision="bf16" if "bf16" in cluster.gpu.peak_flops else "fp16",
    )
    split = tensor > 1 and workload.sequence_length % tensor == 0 and workload.decoder_length % tensor == 0
    return (
        workload,
        Plan(
            tensor_parallel=tensor,
            sequence_parallel=split,
            expert_parallel=experts if split or tensor == 1 else 1,
            zero_stage=1 if replicas > 1 else 0,
            recompute="full",
        ),
        cluster,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", names("clusters"))
def test_every_model_answers_on_every_cluster(name: str) -> None:
    for model in names("models"):
        check(simulate(*fitting(load_model(model), load_cluster(name))), (model, name))


@pytest.mark.parametrize("name", names("models"))
def test_every_model_answers(name: str) -> None:
    clusters = [c for c in names("clusters") if c != "piz_daint_eager"]
    cluster = clusters[names("models").index(name) * 7 % len(clusters)]
    check(simulate(*fitting(load_model(name), load_cluster(cluster))), (name, cluster))
