"""price(): kernels, host launches, collectives and messages become seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.costs.host_time import host_rows, host_times
from simulator.costs.price import price
from simulator.costs.tables import _price_table, machine_of, mesh_of, overlapped, price_table
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower, resolve
from simulator.lowering.layers.expand import layer_costs
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.program.prices import ACCOUNTS, BLOCKED, PriceClass
from simulator.program.program import COLLECTIVE, TRANSFER, Link, Program, Segment
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.profiles import profile


def program_of(name: str, world: int, batch: int, length: int, precision: str = "bf16", **plan: Any) -> Program:
    work = Workload(model=load_model(name), sequence_length=length, global_batch_size=batch, precision=precision)
    return lower(work, Plan(**plan), world)


def test_accounts_of_a_segment_sum_to_its_occupancy() -> None:
    program = program_of("gpt3_175b", 64, 64, 2048, tensor_parallel=8, pipeline_parallel=8, recompute="full")
    prices = price(program, load_cluster("selene", 64))
    for i, item in enumerate(program.items):
        if isinstance(item, Segment):
            assert prices.account[i].sum() == pytest.approx(prices.occupancy[i], rel=1e-12)
            assert prices.class_share[i].sum() == pytest.approx(prices.occupancy[i], rel=1e-12)


def test_small_work_runs_at_the_hosts_rate() -> None:
    """Block seconds = max(kernels, what the host works), here a profile's launches and Python (design 5b G)."""
    tiny = load_model("gpt2_124m").model_copy(
        update={"hidden": 64, "heads": 1, "kv_heads": 1, "ffn": 256, "vocabulary": 1000}
    )
    work = Workload(model=tiny, sequence_length=64, global_batch_size=1)
    program = lower(work, Plan(framework="pytorch_ddp"), 1)
    prices = price(program, load_cluster("h100_x8", 1))
    forward = next(i for i, item in enumerate(program.items) if isinstance(item, Segment) and item.phase == "forward")
    times = host_times(load_framework("pytorch_ddp"), "intel", 1.0)
    host = sum(float(host_rows(t, times).sum()) * n for t, n in program.items[forward].pieces)
    launches = sum(int(t.launches.sum()) * n for t, n in program.items[forward].pieces)
    assert host > 3 * launches * times.launch
    assert "host-bound" == prices.model[forward]
    assert prices.account[forward, ACCOUNTS.index("host")] > 0
    assert prices.occupancy[forward] == pytest.approx(host, rel=1e-12)
    large = program_of("gpt2_124m", 1, 64, 1024, framework="pytorch_ddp", microbatch_size=64)
    assert "kernels" == price(large, load_cluster("h100_x8", 1)).model[0]


def test_where_the_host_waits_for_every_kernel_its_time_comes_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queued, waits = (profile(tmp_path, f"wait_{us}", launch_wait=f'"{us} us"') for us in (0, 20))
    shape = ("gpt2_124m", 1, 64, 1024)
    one, two = (program_of(*shape, framework=name, microbatch_size=64) for name in (queued, waits))
    cluster = load_cluster("h100_x8", 1)
    free, blocked = price(one, cluster), price(two, cluster)
    forward = next(i for i, item in enumerate(two.items) if isinstance(item, Segment) and item.phase == "forward")
    launches = sum(int(t.launches.sum()) * n for t, n in two.items[forward].pieces)
    assert ("kernels", BLOCKED) == (free.model[forward], blocked.model[forward])
    assert blocked.occupancy[forward] - free.occupancy[forward] == pytest.approx(launches * 20e-6, rel=1e-9)


def test_a_host_that_waits_for_messages_starts_anew_after_each() -> None:
    """Megatron-LM synchronises after a blocking message; one that is posted ahead costs the host nothing."""
    cluster, shape = load_cluster("selene", 64), ("gpt3_175b", 64, 64, 2048)
    latency = {}
    for p2p in ("blocking", "latency"):
        program = program_of(
            *shape, tensor_parallel=8, pipeline_parallel=8, recompute="full", framework="megatron_lm", p2p=p2p
        )
        found = [i for i, x in enumerate(program.items) if isinstance(x, Link) and x.kind == TRANSFER]
        assert {p2p == "blocking"} == {program.items[i].blocks for i in found}  # type: ignore[union-attr]
        prices = price(program, cluster)
        latency[p2p] = prices.latency[found]
        assert prices.class_share[found].sum(axis=1) == pytest.approx(prices.occupancy[found] + prices.latency[found])
    assert latency["blocking"] - latency["latency"] == pytest.approx(load_framework("megatron_lm").message_wait)


@pytest.mark.parametrize(("recompute", "stops"), [("full", 12), ("none", 0)])
def test_a_host_that_waits_at_every_recomputed_layer_starts_anew_after_each(
    recompute: str, stops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [profile(tmp_path, f"layer_{us}", layer_wait=f'"{us} us"') for us in (0, 200)]
    shape, plan = ("gpt2_124m", 1, 64, 1024), {"microbatch_size": 64, "recompute": recompute}
    one, two = (price(program_of(*shape, framework=n, **plan), load_cluster("h100_x8", 1)) for n in names)
    longer = two.occupancy - one.occupancy
    assert sorted(longer[longer > 1e-9]) == pytest.approx([stops * 200e-6] * 2 if stops else [])


def test_a_layer_is_priced_once_for_all_plans_that_share_it() -> None:
    cluster = load_cluster("selene", 64)
    first = program_of("gpt3_175b", 64, 64, 2048, tensor_parallel=8, pipeline_parallel=8)
    second = program_of("gpt3_175b", 64, 128, 2048, tensor_parallel=8, pipeline_parallel=8)
    tables = [next(t for t, _ in p.items[0].pieces if t.name == "layer forward") for p in (first, second)]
    assert tables[0] is tables[1]
    machine = machine_of(cluster)
    assert price_table(tables[0], machine, first.axes) is price_table(tables[1], machine, second.axes)


@pytest.mark.parametrize("cluster", ["selene", "dgx_h100", "gb200_nvl72"])
@pytest.mark.parametrize(
    "axes",
    [
        (("tp", 4), ("ep", 12), ("dp", 2), ("pp", 6)),
        (("dp", 6), ("tp", 16), ("ep", 2), ("pp", 3)),
        (("tp", 12), ("dp", 3), ("pp", 8), ("ep", 2)),
        (("pp", 6), ("dp", 3), ("tp", 4), ("ep", 8)),
        (("dp", 2), ("ep", 8), ("pp", 12), ("tp", 3)),
        (("ep", 3), ("dp", 4), ("pp", 6), ("tp", 8)),
    ],
)
def test_a_layer_is_priced_by_its_own_groups_whatever_lies_around_them(
    cluster: str, axes: tuple[tuple[str, int], ...]
) -> None:
    """What other axes are called and how they follow each other does not matter, only how many ranks there are."""
    work = Workload(model=load_model("mixtral_8x7b"), sequence_length=2048, global_batch_size=64)
    resolved = resolve(work, Plan(tensor_parallel=4, sequence_parallel=True, expert_parallel=8), 64)
    machine = machine_of(load_cluster(cluster, 576))
    for cost in layer_costs(work, resolved).values():
        own, anew = mesh_of(cost.forward, axes), _price_table.__wrapped__
        assert own != axes
        one, other = (anew(cost.forward, machine, mesh) for mesh in (axes, own))
        assert one.rows.tolist() == other.rows.tolist()
        assert (one.crossings, repr(one.classes)) == (other.crossings, repr(other.classes))


def test_a_message_holds_its_streams_for_its_bytes_and_delays_by_its_latency() -> None:
    program = program_of("gpt3_175b", 16, 16, 2048, tensor_parallel=8, pipeline_parallel=2)
    cluster = load_cluster("selene", 16)
    prices = price(program, cluster)
    (i, link), *_ = [(i, x) for i, x in enumerate(program.items) if isinstance(x, Link) and x.kind == TRANSFER]
    card = cluster.levels[-1].bandwidth
    assert link.message / card < prices.occupancy[i] < 2 * link.message / card
    assert 1e-6 < prices.latency[i] < 1e-4
    assert "leave the node" in prices.placement[i]


def test_groups_inside_the_node_are_faster_than_groups_across() -> None:
    """tp next to each other stays on NVLink; the other rank order sends it over the network."""
    near = program_of("gpt3_6_7b", 16, 16, 2048, tensor_parallel=8, framework="megatron_lm")
    far = program_of(
        "gpt3_6_7b", 16, 16, 2048, tensor_parallel=8, framework="megatron_lm", rank_order=("dp", "tp", "pp")
    )
    tp = ACCOUNTS.index("tp")
    cluster = load_cluster("dgx_a100", 16)
    inside, outside = (price(p, cluster).account[0, tp] for p in (near, far))
    assert outside > 1.5 * inside


def test_a_cluster_without_network_refuses_a_group_that_leaves_the_node() -> None:
    program = program_of("gpt3_6_7b", 16, 16, 2048, tensor_parallel=8)
    with pytest.raises(PlanError, match="network"):
        price(program, replace(load_cluster("dgx_a100", 16), levels=load_cluster("h100_x8", 8).levels))


def test_every_class_has_a_spread_and_says_whether_it_was_calibrated() -> None:
    program = program_of("llama3_8b", 8, 8, 8192, zero_stage=3, framework="torchtitan")
    known, new = (price(program, load_cluster(c, 8)) for c in ("h100_x8", "ascend_910b_x8"))
    assert (known.sigma > 0).all()
    product = PriceClass("gemm", "bf16")
    assert product in known.classes
    table = dict(zip(new.classes, new.calibrated, strict=True))
    assert not table[product]
    sigmas = [dict(zip(p.classes, p.sigma, strict=True))[product] for p in (known, new)]
    assert sigmas[0] < sigmas[1]


@pytest.mark.parametrize(
    ("compute", "communication", "slow", "expected"),
    [(10.0, 4.0, 1.0, 10.0), (10.0, 4.0, 1.25, 10.8), (4.0, 10.0, 1.25, 10.0), (5.0, 5.0, 2.0, 7.5)],
)
def test_overlap_is_fluid(compute: float, communication: float, slow: float, expected: float) -> None:
    assert expected == pytest.approx(overlapped(compute, communication, slow, 1.0))


def test_all_reduces_hide_behind_weight_gradients_only_where_the_framework_overlaps() -> None:
    def exposed(framework: str) -> float:
        program = program_of("gpt3_175b", 8, 8, 2048, tensor_parallel=8, framework=framework, precision="fp16")
        prices = price(program, load_cluster("selene", 8))
        backward = next(i for i, s in enumerate(program.items) if isinstance(s, Segment) and s.phase == "backward")
        return float(prices.account[backward, ACCOUNTS.index("tp")])

    assert exposed("megatron_lm") < 0.7 * exposed("megatron_lm_2020")


def test_links_are_priced_by_the_slowest_replica() -> None:
    program = program_of("gpt3_175b", 128, 64, 2048, tensor_parallel=8, pipeline_parallel=8, framework="megatron_lm")
    prices = price(program, load_cluster("selene", 128))
    reduce_rows = np.flatnonzero(program.kind == COLLECTIVE)
    placed = {prices.placement[program.item[r]] for r in reduce_rows}
    assert any("of 64 replicas leave the node" in text for text in placed)


def test_a_cluster_names_the_calibrations_of_its_kernels() -> None:
    cluster = load_cluster("h100_x8", 1)

    def with_names(*names: str) -> Any:
        return machine_of(replace(cluster, spec=cluster.spec.model_copy(update={"calibration": names})))

    own, named = with_names(), with_names("gemm_ampere", "memory_bound_any")
    assert (own.gemm.name, own.attention.name) == ("gemm_hopper", "attention_hopper")
    assert (named.gemm.name, named.attention.name) == ("gemm_ampere", "attention_hopper")
    assert named.memory_bound.name == "memory_bound_any"
    with pytest.raises(SpecError, match="'my_figures' must begin with what it is of: gemm_, attention_"):
        with_names("my_figures")
    with pytest.raises(SpecError, match="gemm_nowhere"):
        with_names("gemm_nowhere")


def test_only_what_is_added_into_fp32_pays_for_reading_and_writing_it() -> None:
    """A narrow forward product stores 16 bits; its weight gradient, as many operations, adds into 32."""
    program = program_of("llama2_7b", 1, 1, 4096, precision="fp8", framework="megatron_core", recompute="none")
    cluster = load_cluster("h100_x8", 1)
    machine = machine_of(cluster)
    rows: dict[str, float] = {}
    for item in program.items:
        if isinstance(item, Segment):
            for table, _ in item.pieces:
                priced = price_table(table, machine, program.axes)
                rows |= dict(zip(table.label, priced.rows.tolist(), strict=True))
    added = 8 * 4096 * 22016 / cluster.gpu.memory_bandwidth
    extra = rows["mlp up weight gradient"] - rows["mlp up"]
    assert 0.3 * added < extra < added


@pytest.mark.parametrize(("cluster", "copies"), [("dgx_a100", True), ("dgx_h100", False), ("mi300x_x8", False)])
def test_transformer_engine_copies_operands_only_where_it_takes_flash_attention(cluster: str, copies: bool) -> None:
    program = program_of("gpt2_355m", 8, 16, 1024, framework="megatron_core")
    machine = machine_of(load_cluster(cluster, 8))
    found = [
        float(price_table(table, machine, program.axes).rows[j])
        for item in program.items
        if isinstance(item, Segment)
        for table, _ in item.pieces
        for j, label in enumerate(table.label)
        if label == "attention operands copied"
    ]
    assert found
    assert copies == all(found) == any(found)
