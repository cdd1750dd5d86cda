"""A mixture of experts on many ranks: where experts lie, what is exchanged, who adds their gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.collectives import collective_seconds
from simulator.costs.expert_exchange import once_per_node, places_reached
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import place_group
from simulator.lowering import lower, resolve
from simulator.lowering.steps.assign import assign_layers
from simulator.plan.plan import Plan
from simulator.program.calls import AWAITED, EXCHANGED, Call, NodeExchange, Traffic
from simulator.program.program import COLLECTIVE, Link, OperatorTable, Program, Segment
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.lowered import lowered

PLAIN: dict[str, Any] = {"framework": "pytorch_ddp", "attention": "unfused"}  # pads no vocabulary, repeats no product


def workload(name: str = "mixtral_8x7b", batch: int = 16, length: int = 1024) -> Workload:
    return Workload(model=load_model(name), sequence_length=length, global_batch_size=batch)


def table(program: Program, name: str) -> OperatorTable:
    return next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == name)


def collectives(found: OperatorTable) -> list[tuple[str, tuple[str, ...], float]]:
    rows = np.flatnonzero(found.kind == COLLECTIVE)
    return [(found.work[i], found.group[i], float(found.message[i])) for i in rows]


def flops(program: Program) -> float:
    """FLOP of all real ranks in one step."""
    each = np.array(
        [0.0 if isinstance(i, Link) else sum(n * float(t.flops.sum()) for t, n in i.pieces) for i in program.items]
    )
    products = np.array([not isinstance(i, Link) and i.phase != "optimizer" for i in program.items])
    return float((np.where(products, each, 0.0)[program.item] * program.rank_weight[program.rank]).sum())


EVERYWHERE: list[dict[str, Any]] = [
    {},
    {"expert_parallel": 4},
    {"expert_parallel": 8},
    {"tensor_parallel": 2},
    {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2},
    {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 1},
    {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 1, "expert_parallel": 8},
    {"context_parallel": 4, "expert_parallel": 2},
    {"context_parallel": 2, "expert_parallel": 8},
    {"pipeline_parallel": 2, "expert_parallel": 2, "schedule": "zb_h1"},
]


@pytest.mark.parametrize("plan", EVERYWHERE, ids=str)
def test_all_ranks_together_do_the_models_work(plan: dict[str, Any]) -> None:
    work = workload()
    program = lowered(work, 8, **plan, **PLAIN)
    routed_twice = plan == {"tensor_parallel": 2}  # without sequence parallelism both ranks have all tokens
    router = 6.0 * work.tokens * 32 * 4096 * 8
    assert work.model_flops + routed_twice * router == pytest.approx(flops(program), rel=1e-9)


def test_a_latent_models_work_is_counted_whole() -> None:
    work = workload("deepseek_v2_lite", batch=8)
    assert work.model_flops == pytest.approx(flops(lowered(work, 8, expert_parallel=8, **PLAIN)), rel=1e-9)


@pytest.mark.parametrize("plan", [p for p in EVERYWHERE if "tensor_parallel" not in p], ids=str)
def test_sharded_states_of_all_ranks_add_up_to_the_model(plan: dict[str, Any]) -> None:
    """Two moments in fp32; the weights of autocast are fp32 themselves and whole."""
    work = workload()
    program = lowered(work, 8, **plan, zero_stage=1, **PLAIN)
    states = [sum(t.bytes for t in e.tensors if t.category == "optimizer_states") for e in program.resident]
    assert 8 * work.model.parameters == pytest.approx((np.array(states) * program.rank_weight).sum(), rel=1e-9)


@pytest.mark.parametrize(
    ("plan", "axes", "expert", "copies"),
    [
        ({"tensor_parallel": 2, "expert_parallel": 2}, "tp 2 ep 2 dp 2 pp 1", {"ep"}, {"dp"}),
        ({"tensor_parallel": 2, "expert_parallel": 4}, "tp 2 ep 4 dp 1 pp 1", {"ep"}, {"dp"}),
        ({"tensor_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 1}, "tp 2 ep 2 dp 2 pp 1", {"ep", "tp"}, {"dp"}),
        ({"tensor_parallel": 4, "expert_parallel": 2, "expert_tensor_parallel": 1}, "ep 2 tp 2 dp 2 pp 1", {"ep"}, {"tp", "dp"}),
        ({"tensor_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 1}, "tp 2 ep 1 dp 4 pp 1", {"ep", "tp"}, {"dp"}),
    ],
)  # fmt: skip
def test_experts_lie_on_consecutive_ranks(plan: dict[str, Any], axes: str, expert: set[str], copies: set[str]) -> None:
    resolved = resolve(workload(), Plan(**plan, sequence_parallel=True), 8)
    assert axes == " ".join(f"{name} {size}" for name, size in resolved.axes)
    assert (expert, copies) == (set(resolved.groups.expert), set(resolved.groups.expert_replicas))


def test_every_copy_of_a_token_goes_out_and_comes_back() -> None:
    """Before them the counts of rows of 8 experts on 4 ranks (int64); with them the router's weights (fp32), both ways."""
    layer = table(lowered(workload(), 8, expert_parallel=4), "moe layer forward")
    rows, weights = ("all_to_all", ("ep",), 1024 * 2 * 4096 * 2.0), ("all_to_all", ("ep",), 1024 * 2 * 4.0)
    assert [("all_gather", ("ep",), 8.0 * 8 * 4), rows, weights, rows] == collectives(layer)
    backward = table(lowered(workload(), 8, expert_parallel=4), "moe layer backward")
    assert [rows, rows, weights] == collectives(backward)  # to the experts, and back with the gradients of the weights
    outputs = table(lowered(workload(), 8, expert_parallel=4, framework="torchtitan"), "moe layer forward")
    assert [rows, rows] == collectives(outputs)[1:]


def test_ranks_that_split_experts_gather_rows_and_add_results() -> None:
    plan = {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2}
    layer = collectives(table(lowered(workload(), 8, **plan), "moe layer forward"))
    names = [(name, group) for name, group, _ in layer]
    exchange = ("all_to_all", ("ep",))
    out = names.index(exchange)
    assert [exchange, exchange, ("all_gather", ("tp",)), ("reduce_scatter", ("tp",)), exchange] == names[out:]
    whole = collectives(table(lowered(workload(), 8, **plan, expert_tensor_parallel=1), "moe layer forward"))
    assert [("all_to_all", ("ep", "tp"))] * 3 == [(n, g) for n, g, _ in whole if n == "all_to_all"]
    assert len(layer) == len(whole) + 2


def test_the_hottest_rank_has_more_rows_to_run_and_to_move() -> None:
    even, hot = (
        table(lowered(workload(), 8, expert_parallel=4, expert_imbalance=x), "moe layer forward") for x in (1.0, 1.5)
    )
    up = even.label.index("expert up")
    assert (2, 1024, 2 * 14336, 4096) == tuple(even.shape[up])
    assert (2, 1536, 2 * 14336, 4096) == tuple(hot.shape[up])
    moved = [[size for name, _, size in collectives(t) if name == "all_to_all"] for t in (even, hot)]
    assert [1.5 * size for size in moved[0]] == moved[1]


def test_gradients_of_experts_are_added_over_their_own_copies() -> None:
    model = load_model("mixtral_8x7b")
    program = lowered(workload(), 8, expert_parallel=4, overlap_gradients=False, **PLAIN)
    found = {i.group: i.message for i in program.items if isinstance(i, Link) and "gradients of rank" in i.name}
    experts = 32 * 8 * model.expert_parameters
    element = 4 if found[("dp",)] == experts / 4 * 4 else 2
    assert {("ep", "dp"): (model.parameters - experts) * element, ("dp",): experts / 4 * element} == found
    alone = lowered(workload(), 8, expert_parallel=8, overlap_gradients=False, **PLAIN)
    assert [("ep", "dp")] == [i.group for i in alone.items if isinstance(i, Link) and "gradients of rank" in i.name]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("plan", [{"expert_parallel": 4}, {"expert_parallel": 8}])
def test_every_sharding_of_experts_is_a_sound_program(stage: int, plan: dict[str, Any]) -> None:
    framework = {"framework": "torchtitan"} if stage == 3 else {}
    program = lowered(workload(), 8, zero_stage=stage, **plan, **framework)
    groups = {i.group for i in program.items if isinstance(i, Link) and i.account == "dp" and "gradients of" in i.name}
    assert {("ep", "dp")} | ({("dp",)} if plan["expert_parallel"] < 8 else set()) == groups


def test_fsdp_gathers_experts_over_fewer_ranks() -> None:
    program = lowered(workload(), 8, zero_stage=3, framework="torchtitan", expert_parallel=4)
    messages = {i.name: i.message for i in program.items if isinstance(i, Link) and i.collective == "all_gather"}
    model = load_model("mixtral_8x7b")
    assert 2 * model.expert_parameters * 2 == messages["all_gather weights of moe layer (experts)"]
    rest = model.moe_layer_parameters - 8 * model.expert_parameters
    assert 2 * rest == messages["all_gather weights of moe layer"]
    gathered = {t.name for e in program.effects for t in e.tensors if t.category == "gathered"}
    assert {"gathered weights of moe layer", "gathered weights of moe layer (experts)"} < gathered


def test_chunks_know_which_of_their_layers_have_experts() -> None:
    chunks = assign_layers(6, 3, None, ("layer", "layer", "layer", "moe layer", "layer", "moe layer"))
    assert [("embedding", "layer", "layer"), ("layer", "moe layer"), ("layer", "moe layer", "head")] == [
        c.kinds for c in chunks
    ]


def test_experts_over_more_ranks_take_less_memory_and_expose_their_exchange() -> None:
    work, cluster = workload(length=2048), load_cluster("dgx_h100", 16)
    alone, shared = (simulate(work, Plan(zero_stage=1, expert_parallel=e), cluster) for e in (1, 8))
    assert 0 == alone.breakdown["ep"] < shared.breakdown["ep"] < 0.3 * shared.step_time
    assert alone.peak_memory > 2 * shared.peak_memory
    assert alone.model_flops == shared.model_flops
    slower = simulate(work, Plan(zero_stage=1, expert_parallel=8), load_cluster("dgx_a100", 16)).breakdown["ep"]
    assert slower > shared.breakdown["ep"]


def test_a_token_sent_once_per_node_spares_the_network() -> None:
    """Inside one node copies for one rank are saved; between nodes most of them are."""
    message, copies = 1e9, 8
    for gpus, ranks, nodes in ((8, 8, 1), (64, 64, 8)):
        fabric = fabric_of(load_cluster("dgx_h100", gpus))
        place = place_group((("ep", ranks),), ("ep",), fabric)
        plain = collective_seconds("all_to_all", message, place, fabric).seconds
        spared = once_per_node(message, NodeExchange(copies, 1.0), place, fabric).seconds
        share = places_reached(nodes if nodes > 1 else ranks, copies) / copies
        assert share * plain == pytest.approx(spared, rel=0.15 if nodes == 1 else 0.35)
    alone = place_group((("dp", 8), ("ep", 2)), ("ep",), fabric)
    assert 0 < once_per_node(message, NodeExchange(1, 1.0), alone, fabric).seconds


@pytest.mark.parametrize(
    ("ranks", "narrow", "wide", "back"),
    [(16, 68.48, 71.71, 62.95), (32, 55.35, 57.69, 57.46), (64, 46.52, 49.97, 49.77)],
)
def test_an_exchange_over_nodes_takes_as_long_as_hybridep_on_h100(
    ranks: int, narrow: float, wide: float, back: float
) -> None:
    """GB/s of HybridEP's kernels with 16 multiprocessors, of the bytes that reach a node, its own included; 4,096 tokens of 7,168
    values, 8 experts of each.  Source: deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md."""
    fabric = fabric_of(load_cluster("dgx_h100", ranks))
    place = place_group((("ep", ranks),), ("ep",), fabric)
    for element, rate in ((1, narrow), (2, wide), (2, back)):
        size = 4096.0 * 7168 * element
        seconds = size * places_reached(ranks // 8, 8) / (rate * 1e9)
        assert seconds == pytest.approx(once_per_node(8 * size, NodeExchange(8, 1.0), place, fabric).seconds, rel=0.14)


def test_an_exchange_over_nodes_takes_as_long_as_deepep_on_h800() -> None:
    """Dispatch in 8 bits over 8 nodes, of which a token may use 4: 51 GB/s.  Source: deepseek-ai/DeepEP, docs/legacy.md."""
    fabric = fabric_of(load_cluster("hgx_h800", 64))
    place = place_group((("ep", 64),), ("ep",), fabric)
    size = 4096.0 * 7168
    measured = size * places_reached(8, 8, 0.5) / 51e9
    assert measured == pytest.approx(once_per_node(8 * size, NodeExchange(8, 0.5), place, fabric).seconds, rel=0.05)


def test_the_gain_of_sending_once_per_node_is_the_measured_one() -> None:
    """Qwen3-30B-A3B on 16 H100, experts over both nodes: 41.25 s by all_to_all, 24.71 s by HybridEP.

    Source: NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-expert-parallel-overlap/SKILL.md.
    """
    work = Workload(model=load_model("qwen3_30b_a3b"), sequence_length=4096, global_batch_size=1024)
    cluster = load_cluster("dgx_h100", 16)
    plain, spared = (
        simulate(work, Plan(zero_stage=1, expert_parallel=16, framework=name), cluster).step_time
        for name in ("megatron_bridge", "megatron_bridge_hybridep")
    )
    assert 41.25 / 24.71 == pytest.approx(plain / spared, rel=0.1)


def test_fused_experts_and_an_exchange_that_permutes_have_fewer_kernels() -> None:
    work = workload("gpt_oss_120b", 64, 4096)
    narrow = Workload(model=work.model, sequence_length=4096, global_batch_size=64, precision="mxfp8")
    plain, fused = (
        table(lowered(narrow, 64, expert_parallel=16, framework=f), "moe layer backward")
        for f in ("megatron_bridge", "megatron_bridge_26_06")
    )
    gone = set(plain.label) - set(fused.label)
    assert {
        "permute",
        "unpermute",
        "expert rows padded",
        "expert padding removed",
        "expert clamp",
        "expert swiglu",
        "expert weighted biases",
        "expert up output gradient cast to mxfp8",
        "dispatch weights all_to_all",  # HybridEP carries them with the tokens
    } == gone
    products = [[s.tolist() for s, w in zip(t.shape, t.work, strict=True) if w == "gemm"] for t in (plain, fused)]
    assert products[0] == products[1]
    sorts = [[c.access for c, o in zip(t.call, t.label, strict=True) if o.startswith("sort")] for t in (plain, fused)]
    assert [["gather"] * 2, ["exchange"] * 2] == sorts
    alone = table(lowered(work, 64, framework="megatron_bridge_26_06"), "moe layer forward")
    assert "permute" in alone.label


def test_rows_that_are_repeated_and_then_sorted_take_two_more_passes_of_all_copies_each_way() -> None:
    """MaxText's moe.py: jnp.repeat and a gather, a gather and a sum; 2 T k h bytes of a pass, T tokens and k = 2 choices."""
    rows = 2.0 * 1024 * 2 * 4096

    def moved(framework: str, way: str) -> dict[str, float]:
        t = table(lowered(workload(), 8, framework=framework, recompute="none"), f"moe layer {way}")
        return {label: t.read[i] + t.written[i] for i, label in enumerate(t.label) if label in ("permute", "unpermute")}

    tokens = moved("jax_xla", "forward")["permute"] - 3 * rows
    assert tokens == pytest.approx(rows / 2)
    for way in ("forward", "backward"):
        apart, joined = (moved(framework, way) for framework in ("jax_xla", "megatron_core"))
        assert dict.fromkeys(joined, 2 * rows) == {name: apart[name] - joined[name] for name in joined}


def test_an_exchange_that_sorts_does_so_beside_the_compute_of_another_microbatch() -> None:
    """What HybridEP does in a dispatch is on the stream of exchanges, so a fused pair hides it; Megatron-Core's own sort is not."""
    work, cluster = workload("qwen3_30b_a3b", 32, 4096), load_cluster("hgx_b200", 8)

    def sorts(framework: str) -> set[Call]:
        plan = {"expert_parallel": 8, "expert_exchange": "once_per_node", "zero_stage": 1, "framework": framework}
        pieces = [t for i in lowered(work, 8, **plan).items if isinstance(i, Segment) for t, _ in i.pieces]
        return {t.call[i] for t in pieces for i, label in enumerate(t.label) if label.startswith("sort")}

    assert sorts("megatron_bridge") == {Traffic("gather")}
    assert sorts("megatron_bridge_hybridep") == {EXCHANGED}
    plan = {"expert_parallel": 8, "zero_stage": 1, "framework": "megatron_bridge_hybridep"}
    plain, beside = (simulate(work, Plan(**plan, schedule=s), cluster) for s in ("one_f_one_b", "combined_1f1b"))
    assert beside.breakdown["ep"] < 0.5 * plain.breakdown["ep"]


def test_rows_of_experts_in_8_bits_are_padded_where_the_exchange_does_not() -> None:
    """Megatron-Core, TEGroupedMLP: 2 T k h bytes read and written before both products and behind them, each way."""
    model = load_model("mixtral_8x7b")
    narrow, wide = (
        Workload(model=model, sequence_length=4096, global_batch_size=64, precision=p) for p in ("fp8_block", "bf16")
    )
    rows = ("expert rows padded", "expert padding removed")

    def bytes_of(work: Workload, framework: str, way: str) -> list[float]:
        t = table(lowered(work, 8, expert_parallel=8, framework=framework), f"moe layer {way}")
        return [t.read[i] + t.written[i] for i, label in enumerate(t.label) if label in rows]

    for way in ("forward", "backward"):
        assert bytes_of(narrow, "megatron_core", way) == [2 * 2 * 4096 * 2 * 4096.0] * 2
        assert bytes_of(wide, "megatron_core", way) == []
        assert bytes_of(narrow, "megatron_bridge_hybridep", way) == []
        assert bytes_of(narrow, "torchtitan", way) == []


def test_each_expert_s_operand_is_quantised_by_kernels_of_its_own() -> None:
    """Transformer Engine, multi_tensor_quantize_impl: one kernel for all where scales are known before."""
    model = load_model("mixtral_8x7b")
    for precision, each in (("fp8_current", 2), ("mxfp8", 1), ("fp8", 0)):
        work = Workload(model=model, sequence_length=4096, global_batch_size=64, precision=precision)
        for degree in (1, 4):
            program = lowered(work, 8, expert_parallel=degree, framework="megatron_core")
            t = table(program, "moe layer forward")
            label = f"expert up cast to {precision}"
            assert max(1, each * 8 // degree) == t.launches[t.label.index(label)]


def test_biases_of_experts_are_added_where_the_routers_weights_are_inside() -> None:
    work = workload("gpt_oss_120b", 64, 4096)
    inside = table(lowered(work, 64, expert_parallel=64, framework="megatron_core"), "moe layer forward")
    i = inside.label.index("expert weighted biases")
    assert 4 * 4096 * 2880 * (2 + 12 + 2 + 12) == inside.read[i] + inside.written[i]
    outside = table(lowered(work, 64, expert_parallel=64, framework="torchtitan"), "moe layer forward")
    assert "expert weighted biases" not in outside.label
    fewer = table(lowered(work, 64, expert_parallel=8, framework="megatron_core"), "moe layer forward")
    assert (
        2 * (128 // 8 - 128 // 64) == fewer.launches[fewer.label.index("expert weighted biases")] - inside.launches[i]
    )  # Python goes from expert to expert
    without = table(
        lowered(workload("mixtral_8x7b"), 8, expert_parallel=8, framework="megatron_core"), "moe layer forward"
    )
    assert "expert weighted biases" not in without.label


def test_weights_of_plain_activations_have_kernels_of_their_own() -> None:
    """Fused kernels apply the router's weights behind gates only; else a product in fp32 and a cast follow (Megatron-Core)."""
    gated = workload("mixtral_8x7b").model
    plain = Workload(model=gated.model_copy(update={"gated_mlp": False}), sequence_length=1024, global_batch_size=16)
    labels = {}
    for name, work, framework in (
        ("plain", plain, "megatron_core"),
        ("gated", workload(), "megatron_core"),
        ("outputs", plain, "torchtitan"),
    ):
        found = table(lowered(work, 8, expert_parallel=8, framework=framework), "moe layer forward")
        labels[name] = found.label
        if name == "plain":
            i = found.label.index("expert weighted activation")
            assert 2 * 1024 * 14336 * 2 * (2 + 4) == found.read[i] + found.written[i]
            assert found.label.index("expert gelu") < i < found.label.index("expert down")
    assert "expert weighted activation" not in labels["gated"] + labels["outputs"]


def test_the_host_waits_for_counts_unless_experts_have_a_capacity() -> None:
    """The counts of rows are gathered by the ranks that share experts and read by the host."""
    dropless = workload()
    fixed = Workload(
        model=dropless.model.model_copy(update={"capacity_factor": 1.0}), sequence_length=1024, global_batch_size=16
    )
    waits = [
        table(lowered(work, 8, expert_parallel=e), "moe layer forward").call.count(AWAITED)
        for work, e in ((dropless, 8), (dropless, 1), (fixed, 8))
    ]
    assert [1, 1, 0] == waits
    assert "token counts all_gather" not in table(lowered(dropless, 8), "moe layer forward").label


def test_the_smallest_capacity_leaves_a_row() -> None:
    model = workload().model.model_copy(update={"capacity_factor": 3.7e-7})
    assert lowered(Workload(model=model, sequence_length=1024, global_batch_size=16), 8).size


def test_clamps_of_a_gate_are_kernels_and_the_host_waits_behind_them() -> None:
    """GPT-OSS in Megatron-Core: clamps and joining in plain operations, then a number made on the GPU from the host."""
    clamped = workload("gpt_oss_120b", 64, 4096)
    smooth = Workload(
        model=clamped.model.model_copy(update={"clamped_gate": False}), sequence_length=4096, global_batch_size=64
    )
    found, without = (
        table(lowered(w, 64, expert_parallel=64, framework="megatron_core"), "moe layer forward")
        for w in (clamped, smooth)
    )
    assert ["expert clamp", "expert gate offset"] == [x for x in found.label if x not in without.label]
    i = found.label.index("expert clamp")
    assert 4 * 4096 * 2880 * 8 * 2 == found.read[i] + found.written[i]
    assert [2, 1] == [t.call.count(AWAITED) for t in (found, without)]
    backward = table(lowered(clamped, 64, expert_parallel=64, framework="megatron_core"), "moe layer backward")
    assert ("expert clamp" in backward.label, AWAITED in backward.call) == (True, False)
    compiled = table(lowered(clamped, 64, expert_parallel=64, framework="torchtitan"), "moe layer forward")
    assert "expert clamp" not in compiled.label
    for precision, kernels in (
        ("mxfp8", set()),
        ("bf16", {"expert clamp", "expert gate offset"}),
    ):  # TE fuses for MXFP8 alone
        work = replace(clamped, precision=precision)
        fused = table(lowered(work, 64, expert_parallel=64, framework="megatron_bridge_26_06"), "moe layer forward")
        assert kernels == {"expert clamp", "expert gate offset"} & set(fused.label)


def test_work_that_differs_is_refused_where_a_capacity_makes_it_equal() -> None:
    model = workload().model.model_copy(update={"capacity_factor": 1.25})
    work = Workload(model=model, sequence_length=1024, global_batch_size=16)
    with pytest.raises(PlanError, match=r"expert_imbalance .* fills or drops up to a capacity of 1\.25"):
        lower(work, Plan(expert_imbalance=1.5, expert_parallel=8), 8)
