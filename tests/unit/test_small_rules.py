"""Single lines that nothing else pins: caps, narrower of two, both of two; each test fails when its line is turned round."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from simulator.collectives.collnet import CollnetDirect
from simulator.collectives.pat import Pat
from simulator.collectives.wires import channels
from simulator.costs import fused_pairs
from simulator.costs.ranks import price_ranks
from simulator.engine.noise import NoisyStep, draw, step_times
from simulator.engine.sampled import SampledEngine
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import describe_group
from simulator.hardware.parts import Part
from simulator.job import job_from_names, load_job
from simulator.lowering import lower
from simulator.lowering.layers.graphs import started_by
from simulator.lowering.resolve.resolved_plan import EXPERTS, Holders
from simulator.lowering.steps.parameters import Held
from simulator.plan.plan import Plan
from simulator.program.builder import ProgramBuilder, plain_segment
from simulator.program.calls import NodeExchange
from simulator.program.prices import RESOURCE_KINDS, Prices
from simulator.program.program import EAGER, IN_LAYER_GRAPH, Link, Segment
from simulator.program.replicas import replica_mesh
from simulator.report.summary import memory_section
from simulator.report.trained import trained_by
from simulator.simulation import simulate_job
from simulator.specs import validate_spec
from simulator.workload.counts import model_graph
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.unit.test_noise import jitter, step_of

H100 = fabric_of(load_cluster("dgx_h100", 4096))


@pytest.mark.parametrize(("cards", "found"), [(1, 4), (4, 4), (5, 5), (8, 8), (9, 8), (32, 8)])
def test_channels_between_nodes_are_one_per_card_from_4_to_8(cards: int, found: int) -> None:
    place = describe_group(64, 8)
    own = place.outer_bandwidth(H100) * max(place.crossing, 1.0)
    fabric = dataclasses.replace(H100, card_bandwidth=own / cards)
    assert found == channels(place, fabric, load_cost_table())


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nodes", [2, 3, 5, 8, 13])
def test_pat_sends_as_arrays_what_it_sends_one_by_one(kind: str, nodes: int) -> None:
    """The contract compares loads of ports; this also who sends to whom, hop by hop."""
    place = describe_group(nodes, nodes)
    one_by_one = [
        Counter({(t.sources[0], t.destinations[0]): round(t.fraction * nodes) for t in phase})
        for phase in Pat().phases(kind, place)
    ]
    arrays = [
        Counter(
            {
                (int(a), int(b)): round(float(f) * nodes)
                for a, b, f in zip(p.source, p.destination, p.fraction, strict=True)
            }
        )
        for p, _ in Pat().patterns(kind, place)
    ]
    assert one_by_one == arrays


def test_collnet_is_as_wide_as_the_narrower_of_its_wires() -> None:
    place, table = describe_group(64, 8), load_cost_table()
    used = 2 * (place.ranks_per_node - 1) / place.ranks_per_node
    for scale in (0.01, 100.0):
        fabric = dataclasses.replace(
            H100,
            network_reduction=True,
            network_bandwidth=H100.network_bandwidth * scale,
            card_bandwidth=H100.card_bandwidth * scale,
        )
        cost = CollnetDirect().cost("all_reduce", place, fabric, table, "simple")
        assert cost is not None
        inside, outside = place.inner_bandwidth(fabric) / used, place.outer_bandwidth(fabric)
        assert (inside < outside) == (scale > 1)
        assert min(inside, outside) == cost.ceiling


def test_compute_beside_an_exchange_is_slowed_by_what_was_measured_or_by_the_multiprocessors_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_copies, once = (SimpleNamespace(call=(None, call)) for call in (None, NodeExchange(8, 1.0, 4096, 32)))
    monkeypatch.setattr(fused_pairs, "_chain", lambda pieces, machine, axes: [(bool(pieces[0][1]), 1.0)])
    gemm, dp = RESOURCE_KINDS.index("gemm"), RESOURCE_KINDS.index("dp")
    for one, other in ((1.3, 1.1), (1.1, 1.3)):
        slowdown = np.ones((len(RESOURCE_KINDS),) * 2)
        slowdown[gemm, dp], slowdown[dp, gemm] = one, other
        machine: Any = SimpleNamespace(slowdown=slowdown, gpu=SimpleNamespace(streaming_multiprocessors=128))
        for table, hidden in ((by_copies, 0.7), (once, 0.75)):
            pair: Any = ((table, 0),), ((table, 1),)
            assert fused_pairs.hidden_seconds(*pair, machine, ()) == pytest.approx(hidden)


@pytest.mark.parametrize(
    ("all_of_them", "experts", "ranks", "expert_ranks", "away", "named"),
    [
        (10.0, 0.0, 4, 4, 0.0, [""]),
        (10.0, 0.0, 1, 1, 0.0, []),
        (10.0, 0.0, 1, 1, 0.5, [""]),
        (10.0, 10.0, 4, 2, 0.0, [" (experts)"]),
        (10.0, 4.0, 4, 1, 0.5, [""]),
        (10.0, 4.0, 1, 2, 0.0, [" (experts)"]),
        (10.0, 4.0, 4, 2, 0.0, ["", " (experts)"]),
    ],
)
def test_weights_are_sharded_where_there_are_some_and_several_ranks_or_they_lie_elsewhere(
    all_of_them: float, experts: float, ranks: int, expert_ranks: int, away: float, named: list[str]
) -> None:
    holders = tuple(
        Holders(what, n, (axis,), shards=n, shard_axes=(axis,), copies=1, copy_axes=())
        for what, n, axis in (("", ranks, "dp"), (EXPERTS, expert_ranks, "edp"))
    )
    resolved: Any = SimpleNamespace(shard_size=ranks, holders=holders, parameter_offload=away)
    assert named == [what for what, _, _ in Held(all_of_them, experts).parts(resolved)]


def test_a_graph_of_experts_begins_with_the_norm_before_them() -> None:
    graph = model_graph(load_model("mixtral_8x7b"), "moe layer")
    starts: list[Any] = [(op.role, started_by(op, ("moe",), in_layer=True)) for op in graph.ops]
    norms = [i for i, (role, _) in enumerate(starts) if role == "norm"]
    assert {EAGER} == {how for _, how in starts[: norms[1]]}
    assert {IN_LAYER_GRAPH} == {how for _, how in starts[norms[1] : norms[1] + 4]}


def test_noise_of_messages_multiplies_their_seconds() -> None:
    step = step_of("gpt3_175b", "workload.global_batch_size=128", "plan.p2p=blocking")
    noise = jitter(messages=[2.0])
    drawn = draw(step, noise, 0, 0)
    plain, noisy = step_times(step, drawn, off=("messages",)), step_times(step, drawn)
    before, after = plain.occupancy[step.transfers], noisy.occupancy[step.transfers]
    assert before.max() > 0
    assert np.allclose(2.0 * before, after)


@pytest.mark.parametrize("ranks", [16, 32])
def test_a_table_of_many_ranks_leaves_some_out_and_says_so(ranks: int) -> None:
    settings = [f"plan.pipeline_parallel={ranks}", "plan.chunks_per_rank=1", "plan.schedule=1f1b"]
    prediction = simulate_job(load_job("gpt3_175b", settings))
    table = memory_section(prediction).table
    assert table is not None
    shown = [row[0] for row in table.rows]
    assert {len(table.headings)} == {len(row) for row in table.rows}
    assert (ranks > 16) == ("..." in shown)
    assert str(prediction.fullest) in shown
    assert {"0", str(ranks - 1)} <= set(shown)
    assert math.isclose(ranks, len(shown)) == (ranks == 16)
    text = table.text()
    assert len(text.splitlines()) == len(shown) + 1


def test_a_sequence_that_ranks_do_not_divide_is_told_by_how_many() -> None:
    work = Workload(model=load_model("llama3_8b"), sequence_length=1028, global_batch_size=8)
    plan = Plan(tensor_parallel=4, context_parallel=2, sequence_parallel=True)
    with pytest.raises(PlanError, match=r"1028 / 8 is no whole number\. Nearest: sequence_length = 1024\."):
        lower(work, plan, 8)


@pytest.mark.parametrize(("experts", "found"), [(1, False), (2, True), (8, True)])
def test_a_program_has_experts_where_ranks_share_them(experts: int, found: bool) -> None:
    build = ProgramBuilder(axes=(("ep", experts), ("pp", 1)))
    build.add_row(build.add_item(plain_segment("layer")), build.add_stream(build.add_rank()))
    assert found == trained_by(build.build()).sparse


def test_what_fsdp_gathers_at_once_is_the_larger_of_embedding_and_head() -> None:
    """Both hold the tied matrix; the embedding has positions, too."""
    words = [
        "plan.framework=torchtitan_eager",
        "plan.zero_stage=3",
        "plan.pipeline_parallel=2",
        "workload.global_batch_size=32",
    ]
    found = simulate_job(job_from_names("gpt2_124m", "h100_x8", words))
    (size,) = {
        t.bytes for one in found.program.resident for t in one.tensors if t.name == "buffers of the gathering stream"
    }
    assert size == 2.0 * (50257 + 1024) * 768


def test_copies_of_a_list_take_longer_where_the_memory_is_slower() -> None:
    work = Workload(model=load_model("gpt3_175b"), sequence_length=2048, global_batch_size=64)
    program = lower(work, Plan(zero_stage=3, framework="deepspeed_2021"), 8)
    cluster = load_cluster("dgx_a100", 8)
    slow = dataclasses.replace(cluster, parts=(validate_spec({"nodes": 0, "memory_bandwidth": 0.02}, Part, "test"),))
    lists = [r for r in range(program.size) if isinstance(i := program.items[program.item[r]], Link) and i.slices]
    priced = [price_ranks(program, one) for one in (cluster, slow)]
    usual, slower = (found.prices.occupancy[found.item_of[:, lists]].max() for found in priced)
    assert slower > 1.5 * usual


def test_the_chain_of_a_rank_alone_is_all_that_it_runs() -> None:
    build = ProgramBuilder(axes=(("dp", 2), ("pp", 1)))
    item, stream = build.add_item(plain_segment("layer")), build.add_stream(build.add_rank())
    for n in range(4):
        build.add_row(item, stream, action=0, chunk=0, microbatch=n)
    program = build.build()
    mesh, prices = replica_mesh(program), Prices.plain(np.array([1.0]), np.zeros(1))
    step = NoisyStep(
        program=program,
        mesh=mesh,
        class_of=np.zeros(mesh.count, np.int64),
        prices=prices,
        item_of=program.item[None, :].astype(np.int64),
    )
    engine = SampledEngine(step)
    times = step_times(step, draw(step, jitter(compute=0.1), 1, 0))
    span, chain = engine.makespan(times), engine.chain(times)
    assert [0, 1, 2, 3] == chain.row.tolist()
    assert span == pytest.approx(chain.seconds.sum())


def test_a_bias_gradient_sums_the_ranks_own_part_of_an_output_gradient() -> None:
    """On a mesh of two by two each rank has a quarter of every product's output, rows and columns."""
    work = Workload(model=load_model("gpt3_1_3b"), sequence_length=2048, global_batch_size=8)

    def read(**plan: Any) -> dict[str, float]:
        program = lower(work, Plan(microbatch_size=4, **plan), plan.get("tensor_parallel", 1))
        tables = {t.name: t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces}
        table = tables["layer backward"]
        return {label: size for label, size in zip(table.label, table.read, strict=True) if "bias gradient" in label}

    whole = read()
    assert len(whole) == 4
    assert read(tensor_parallel=4, layout="summa_2d") == {label: bytes_ / 4 for label, bytes_ in whole.items()}


def test_what_the_host_updates_makes_no_results_on_the_gpu() -> None:
    words = ["plan.framework=pytorch_ddp", "workload.global_batch_size=32"]

    def results(share: float) -> float:
        job = job_from_names("gpt2_124m", "h100_x8", [*words, f"plan.optimizer_offload={share}"])
        program = simulate_job(job).program
        tensors = [*program.resident[0].tensors, *(t for effect in program.effects for t in effect.tensors)]
        return max((t.bytes for t in tensors if t.name == "results of the update"), default=0.0)

    assert results(0.0) > 0
    assert results(0.5) == pytest.approx(results(0.0) / 2)
