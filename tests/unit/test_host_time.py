"""The host's thread: what it costs to start operators from Python, and what a GPU waits where the host waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.costs.fused_pairs import handed_over
from simulator.costs.host_time import HostTimes, host_rows, host_times, interval, table_time
from simulator.costs.tables import machine_of
from simulator.errors import PlanError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.host import load_host_coefficients
from simulator.lowering import lower
from simulator.plan.framework import load_framework
from simulator.plan.plan import Plan
from simulator.program.calls import AWAITED, STREAM
from simulator.program.program import COLLECTIVE, IN_STEP_GRAPH, FusedSegment, OperatorTable, Program, Segment
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload

TIMES = HostTimes(launch=1e-6, operator=10e-6, module=100e-6)


def program_of(name: str, world: int = 8, precision: str = "bf16", **plan: Any) -> Program:
    work = Workload(model=load_model(name), sequence_length=1024, global_batch_size=16, precision=precision)
    return lower(work, Plan(**plan), world)


def table(program: Program, name: str) -> OperatorTable:
    return next(t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces if t.name == name)


def test_kernels_start_when_launched_and_when_the_one_before_has_ended() -> None:
    """The closed form against a walk through the queue."""
    random = np.random.default_rng(7)
    for size in (1, 2, 5, 40):
        host, device = random.exponential(1.0, size), random.exponential(1.0, size)
        launched, ended = 0.0, 0.0
        for h, d in zip(host, device, strict=True):
            launched += h
            ended = max(launched, ended) + d
        assert interval(host, device) == pytest.approx(ended, rel=1e-12)
    assert interval(np.zeros(0), np.zeros(0)) == 0.0


def test_the_price_of_a_row_is_its_launches_and_its_python() -> None:
    layer = table(program_of("gpt3_1_3b", framework="megatron_core"), "layer backward")
    rows = dict(zip(layer.label, host_rows(layer, TIMES).tolist(), strict=True))
    launches = dict(zip(layer.label, layer.launches.tolist(), strict=True))
    assert 101e-6 == pytest.approx(rows["qkv input gradient"])  # a linear layer is one module
    assert 21e-6 == pytest.approx(rows["qkv weight gradient"])  # its place in the graph of gradients, and a hook
    own = host_rows(layer, replace(TIMES, weight=50e-6))[layer.label.index("qkv weight gradient")]
    assert 71e-6 == pytest.approx(own)  # and what the library's own code adds
    assert launches["attention norm"] * 11e-6 == pytest.approx(rows["attention norm"])  # plain operators


def test_every_peer_of_an_all_to_all_is_two_messages_of_the_library() -> None:
    """NCCL has no all_to_all: the host hands it a send and a receive for every rank; DeepEP's kernel is started once."""
    plan = {"framework": "megatron_core", "expert_parallel": 8}
    times, axes = HostTimes(launch=1e-6, module=100e-6, message=3e-6), (("ep", 8),)

    def exchange(**more: Any) -> float:
        layer = table(program_of("mixtral_8x7b", **plan, **more), "moe layer forward")
        return float(host_rows(layer, times, axes)[layer.label.index("dispatch all_to_all")])

    assert 101e-6 + 2 * 8 * 3e-6 == pytest.approx(exchange())
    assert 101e-6 == pytest.approx(exchange(expert_exchange="once_per_node"))


def test_messages_of_the_library_take_as_long_as_its_other_code_in_a_step() -> None:
    call, pace = load_cost_table().point_to_point_call, load_host_coefficients().training_pace
    assert call / pace == pytest.approx(host_times(load_framework("megatron_core"), "intel", 1.0).message)
    assert 0.0 == host_times(load_framework("maxtext"), "intel", 1.0).message  # what is compiled starts them itself


def test_what_dtensor_dispatches_is_what_tensor_parallelism_splits() -> None:
    """Linear layers, norms and their collectives; attention and what is between get plain tensors."""
    plan = {"framework": "torchtitan_2026_eager", "tensor_parallel": 4, "sequence_parallel": True}
    layer = table(program_of("llama3_8b", **plan), "layer backward")
    plain = dict(zip(layer.label, host_rows(layer, TIMES).tolist(), strict=True))
    split = dict(zip(layer.label, host_rows(layer, replace(TIMES, split=1.0)).tolist(), strict=True))
    slower = {label: round(split[label] - plain[label]) for label in split if split[label] > plain[label]}
    assert 1 == slower["qkv input gradient"]
    assert 2 == slower["qkv weight gradient"]
    assert {"attention", "activation"}.isdisjoint(slower)
    assert 2 == slower["attention norm"]  # two kernels
    collectives = [label for label, kind in zip(layer.label, layer.kind.tolist(), strict=True) if kind == COLLECTIVE]
    assert collectives
    assert set(collectives) <= set(slower)


def test_dtensor_costs_the_host_where_tensor_parallelism_is_eager() -> None:
    for name, slower in (("torchtitan_eager", True), ("torchtitan", False), ("megatron_core", False)):
        alone, split = (host_times(load_framework(name), "intel", 1.0, splits) for splits in (False, True))
        assert 0.0 == alone.split
        assert slower == (split.split > 5 * split.module)
        assert alone == replace(split, split=0.0)


def test_what_quantises_an_operand_is_one_call_whatever_kernels_it_starts() -> None:
    work = Workload(
        model=load_model("mixtral_8x7b"), sequence_length=1024, global_batch_size=16, precision="fp8_current"
    )
    layer = table(lower(work, Plan(framework="megatron_core", expert_parallel=4), 8), "moe layer forward")
    i = layer.label.index("expert up cast to fp8_current")
    assert layer.launches[i] == 4
    assert 4 * 1e-6 + 10e-6 == pytest.approx(host_rows(layer, TIMES)[i])


def test_a_quantising_layer_keeps_the_host_twice_as_long() -> None:
    work = Workload(model=load_model("gpt3_1_3b"), sequence_length=1024, global_batch_size=16, precision="fp8")
    narrow = table(lower(work, Plan(framework="megatron_core"), 8), "layer forward")
    wide = table(program_of("gpt3_1_3b", framework="megatron_core"), "layer forward")
    of = [host_rows(t, TIMES)[t.label.index("qkv")] for t in (wide, narrow)]
    assert 100e-6 == pytest.approx(of[1] - of[0])


def test_pieces_of_a_product_are_one_call_of_the_host() -> None:
    """Transformer Engine cuts a product in pieces in its library: each piece is a launch and a message, no linear layer of its own."""
    plan: dict[str, Any] = {"tensor_parallel": 8, "sequence_parallel": True, "framework": "megatron_core"}
    whole, cut = (
        table(program_of("gpt3_1_3b", **plan, tensor_parallel_splits=splits), "layer forward") for splits in (None, 4)
    )
    pieces = [i for i, label in enumerate(cut.label) if label.startswith("qkv piece")]
    assert [cut.launches[i] for i in pieces if cut.work[i] == "gemm"] == [8, 0, 0, 0]
    assert float(host_rows(cut, TIMES)[pieces].sum()) == pytest.approx(TIMES.module + 8 * TIMES.launch)
    assert float(host_rows(cut, TIMES).sum()) < float(host_rows(whole, TIMES).sum())


def test_hooks_fetch_the_weights_of_every_linear_layer() -> None:
    """DeepSpeed's ZeRO-3: once each forward, made again and backward; a smaller stage has no such hooks."""
    profile = "hugging_face_deepspeed"
    times = HostTimes(fetch=1.0)

    def fetched(name: str, model: str = "llama3_8b", **plan: Any) -> float:
        return float(host_rows(table(program_of(model, framework=profile, **plan), name), times).sum())

    assert 7 == fetched("layer forward", zero_stage=3) == fetched("layer backward", zero_stage=3, recompute="none")
    assert 14 == fetched("layer backward", zero_stage=3, recompute="full")
    assert 1 == fetched("head forward", zero_stage=3)
    assert 0 == fetched("layer forward", zero_stage=2)
    experts = fetched("moe layer forward", "mixtral_8x7b", zero_stage=3)
    assert 4 + 1 + 3 * 8 == experts  # attention, the router, and three products of each expert


def test_hooks_run_on_one_rank_too() -> None:
    """DeepSpeed's ZeRO-3 on one GPU sends nothing, and fetches as ever; where there are no hooks the stage has no effect and is refused."""
    work = Workload(model=load_model("llama3_8b"), sequence_length=256, global_batch_size=1)
    cluster = load_cluster("dgx_h100", 1)
    whole, hooked = (
        simulate(work, Plan(framework="hugging_face_deepspeed", zero_stage=stage), cluster) for stage in (0, 3)
    )
    fetches = load_framework("hugging_face_deepspeed").fetch_time * 2 * (7 * work.model.layers + 1)
    assert hooked.breakdown["host"] - whole.breakdown["host"] == pytest.approx(fetches, rel=0.1)
    assert hooked.breakdown["dp"] == 0.0
    with pytest.raises(PlanError, match="data_parallel = 1"):
        simulate(work, Plan(framework="hugging_face_fsdp", zero_stage=3), cluster)


def test_hooks_of_a_layer_take_what_they_were_timed_to_take_beside_gpus() -> None:
    """Six encoder layers on 1 and 8 A100 (MiniTrainBench), 46.0 and 50.8 ms more under ZeRO-3 than under DDP; such a layer keeps the host
    0.83 times as long as a Llama's, of seven linear layers (tests.conformance.hook_time)."""
    encoder = 0.83 * 2 * 7 * load_framework("hugging_face_deepspeed").fetch_time
    assert 46.0e-3 / 6 < encoder < 50.8e-3 / 6


def test_weights_of_experts_in_a_loop_are_put_together_from_every_ranks_part() -> None:
    """A view for each of three weights of 8 experts and each rank; backward once more, for the gradients."""

    def views(way: str, world: int) -> float:
        program = program_of("mixtral_8x7b", world, framework="hugging_face_deepspeed", zero_stage=3, recompute="none")
        return float(host_rows(table(program, f"moe layer {way}"), HostTimes(slice=1.0)).sum())

    assert (3 * 8 * 8, 3 * 8 * 16) == (views("forward", 8), views("forward", 16))
    assert 2 * views("forward", 8) == views("backward", 8)


def test_the_gpu_waits_where_the_host_waits_for_counts() -> None:
    """Rows behind the wait cannot be started while the GPU still computes what stands before it."""
    found = table(program_of("mixtral_8x7b", expert_parallel=8), "moe layer forward")
    cluster = load_cluster("dgx_h100", 8)
    machine, axes = machine_of(cluster), program_of("mixtral_8x7b", expert_parallel=8).axes
    waits = table_time(found, machine, axes, TIMES)
    assert waits.joint > max(waits.host, waits.device)
    assert waits.joint < waits.host + waits.device
    free = table_time(
        replace(found, call=tuple(STREAM if x == AWAITED else x for x in found.call)), machine, axes, TIMES
    )
    assert 0.0 == free.joint
    assert free.host == pytest.approx(waits.host)
    graphed = replace(found, captured=np.full(len(found), IN_STEP_GRAPH, np.int8))
    assert (0.0, 0.0) == (
        table_time(graphed, machine, axes, TIMES).joint,
        table_time(graphed, machine, axes, TIMES).host,
    )


def test_a_slower_host_and_a_training_step_take_longer() -> None:
    framework, numbers = load_framework("megatron_core"), load_host_coefficients()
    x86, arm = (host_times(framework, kind, 1.0) for kind in ("intel", "arm"))
    assert framework.launch_time == x86.launch == pytest.approx(arm.launch * numbers.arm_pace)
    assert framework.module_time / numbers.training_pace == pytest.approx(x86.module)
    assert x86.module / arm.module == pytest.approx(numbers.arm_pace)
    assert host_times(framework, "amd", 0.5).operator == pytest.approx(2 * x86.operator)


def test_small_layers_wait_for_the_host_and_large_ones_do_not() -> None:
    """Tensor parallelism over 8 GPUs at one sequence leaves too little for each kernel; a large batch hides the same host."""
    cluster = load_cluster("dgx_h100", 8)
    work = Workload(model=load_model("gpt3_1_3b"), sequence_length=2048, global_batch_size=64)
    small, large = (
        simulate(work, Plan(tensor_parallel=8, framework="megatron_core", microbatch_size=m), cluster) for m in (1, 16)
    )
    assert small.breakdown["host"] > 0.2 * small.step_time
    assert large.breakdown["host"] < 0.05 * large.step_time


def test_eager_mixtures_with_many_small_experts_wait_for_the_host() -> None:
    """Qwen3-30B-A3B in fp8, one sequence per microbatch: eager runs are far slower than the kernels' time; graphs spare most.

    Megatron-Bridge, skills/nemo-mbridge-perf-cuda-graphs/card.yaml: graphs take a fifth to a quarter off the step on B200.
    """
    cluster = load_cluster("hgx_b200", 8)
    work = Workload(model=load_model("qwen3_30b_a3b"), sequence_length=4096, global_batch_size=128, precision="mxfp8")
    plan: dict[str, Any] = {"expert_parallel": 8, "zero_stage": 1, "framework": "megatron_bridge"}
    eager, graphed = (
        simulate(work, Plan(**plan, cuda_graphs=g), cluster) for g in ("none", ("attn", "moe_router", "moe_preprocess"))
    )
    assert 0.1 < 1 - graphed.step_time / eager.step_time < 0.6
    assert graphed.breakdown["host"] < eager.breakdown["host"]


def test_a_plain_router_starts_as_many_kernels_as_megatron_core_does_without_fusion() -> None:
    """Recorded with PyTorch: 26 operations forward beside the router's product and 14 backward beside its two (megatron-core 0.16.1)."""

    def kernels(framework: str) -> list[int]:
        program = program_of("mixtral_8x7b", framework=framework, expert_parallel=8)
        tables = [t for item in program.items if isinstance(item, Segment) for t, _ in item.pieces]
        return sorted({int(t.launches[i]) for t in tables for i in range(len(t)) if t.label[i] == "choice of experts"})

    assert kernels("megatron_core") == [14, 26]
    assert kernels("megatron_bridge") == [8, 12]


def test_the_host_starts_the_parts_of_a_fused_pair_one_by_one() -> None:
    """Attention, dispatch, experts, combine and what is behind them, forward and backward; in a graph of the whole step nothing."""

    def parts(framework: str, **more: Any) -> set[int]:
        plan = {"framework": framework, "expert_parallel": 8, "schedule": "combined_1f1b", **more}
        program, layers = program_of("mixtral_8x7b", **plan), load_model("mixtral_8x7b").layers
        machine = machine_of(load_cluster("hgx_b200"))
        pairs = [item for item in program.items if isinstance(item, FusedSegment)]
        return {handed_over(i.first.pieces, i.second.pieces, machine, program.axes) // layers for i in pairs}

    assert parts("megatron_bridge") == {10}
    assert parts("megatron_bridge_26_06", precision="mxfp8", cuda_graphs="full_iteration") == {0}
