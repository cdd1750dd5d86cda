"""States on the drives of a node: what moves, beside what, what stands where, and ZeRO-Infinity's own figures."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster, load_node
from simulator.hardware.host import host_of
from simulator.lowering import lower, resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.plan.plan import Plan
from simulator.program.program import Link, Program
from simulator.program.spec import verify
from simulator.program.text import parse_text, render_text
from simulator.report.prediction import Prediction
from simulator.report.summary import memory_section
from simulator.report.tiers import traffic_of
from simulator.simulation import simulate
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload

SMALL = Workload(model=load_model("gpt2_355m"), sequence_length=1024, global_batch_size=32, precision="fp16")
BOTH = {"optimizer_offload": "nvme", "parameter_offload": "nvme"}


def predicted(gpus: int = 16, workload: Workload = SMALL, **plan: Any) -> Prediction:
    chosen = Plan(**{"zero_stage": 3, "framework": "deepspeed", **plan})
    verify(lower(workload, chosen, gpus))
    return simulate(workload, chosen, load_cluster("v100_dgx2", gpus))


def moved(program: Program, what: str, name: str = "") -> float:
    """Bytes that a GPU copies in a step."""
    links = (program.items[number] for number in program.item.tolist())
    return sum(one.message for one in links if isinstance(one, Link) and one.collective == what and name in one.name)


@pytest.mark.parametrize("field", ["optimizer_offload", "parameter_offload"])
def test_host_is_all_in_host_memory(field: str) -> None:
    whole, word = (predicted(**{field: value}).program for value in (1.0, "host"))
    assert render_text(whole) == render_text(word)


def test_an_update_reads_and_writes_sixteen_bytes_a_weight_with_wide_gradients() -> None:
    """arXiv 2104.07857, section 4.1: optimizer states and gradients are read and written once, 2 x 16 bytes a weight."""
    mine = SMALL.model.parameters / 16
    p = predicted(**BOTH)
    gradient = 2
    assert moved(p.program, "from_nvme", "states") == pytest.approx((12 + gradient) * mine, rel=0.01)
    assert moved(p.program, "to_nvme") == pytest.approx((12 + gradient + 2) * mine, rel=0.01)  # and new weights
    wide = predicted(optimizer_offload="nvme", gradient_dtype="fp32", framework="megatron_core").program
    assert moved(wide, "from_nvme") == pytest.approx(16 * mine, rel=0.01)
    assert moved(wide, "to_nvme") == pytest.approx(16 * mine, rel=0.01)


def test_weights_are_read_as_often_as_they_are_gathered() -> None:
    p = predicted(parameter_offload="nvme")
    assert moved(p.program, "from_nvme", "shard") == pytest.approx(moved(p.program, "to_device", "shard"))
    assert moved(p.program, "to_nvme", "updated shards") == pytest.approx(moved(p.program, "to_host", "updated shards"))
    on_host = predicted(parameter_offload="host", optimizer_offload="nvme").program
    assert moved(on_host, "from_nvme", "shard") == 0.0


def test_weights_on_drives_that_the_cpu_updates_go_back_there() -> None:
    mine = SMALL.model.parameters / 16
    program = predicted(parameter_offload="nvme", optimizer_offload="host").program
    assert moved(program, "to_nvme") == pytest.approx(2 * mine, rel=0.01)
    assert moved(program, "to_device", "updated") == pytest.approx(0.0, abs=0.01 * mine)


def test_reads_updates_and_writes_go_on_at_once_in_three_buffers() -> None:
    p = predicted(optimizer_offload="nvme", framework="deepspeed")
    program, trace = p.program, p.trace
    of = {what: [] for what in ("from_nvme", "host_update", "to_nvme")}  # type: dict[str, list[int]]
    for row, number in enumerate(program.item.tolist()):
        link = program.items[number]
        if isinstance(link, Link) and link.collective in of and "gradients" != link.name.removeprefix("to_nvme "):
            of[link.collective].append(row)
    reads, updates, writes = of.values()
    assert 24 == len(reads) == len(updates) == len(writes)
    start, end = trace.start, trace.end
    for k in range(3, 24):
        assert start[reads[k]] >= end[writes[k - 3]]
    whole = sum(end[r] - start[r] for rows in (reads, updates, writes) for r in rows)
    assert end[writes[-1]] - start[reads[0]] < 0.75 * whole
    assert all(start[u] >= end[r] and start[w] >= end[u] for r, u, w in zip(reads, updates, writes, strict=True))


def test_drives_are_shared_by_the_gpus_of_a_node() -> None:
    """Figure 2b: 3.0 GB/s from host memory and 1.6 GB/s from drives for each of 16 GPUs at once, 12 GB/s for one alone (section 6.1)."""
    host, alone = host_of(load_cluster("v100_dgx2", 16)), host_of(load_cluster("v100_dgx2", 1))
    assert host.nvme_read / 1e9 == pytest.approx(1.6, rel=0.03)
    assert host.copy_bandwidth / 1e9 == pytest.approx(3.0, rel=0.2)
    assert alone.copy_bandwidth / 1e9 == pytest.approx(12.0, rel=0.2)
    assert host.nvme_write * 16 == load_node("dgx2").nvme_write


def test_what_stands_where() -> None:
    p, mine = predicted(**BOTH), SMALL.model.parameters / 16
    host, drives = p.tiers
    assert drives.held == pytest.approx(16 * (12 + 2 + 2) * mine, rel=0.01)
    assert host.held < 0.25 * drives.held
    assert drives.capacity == pytest.approx(28e12)
    assert p.to_dict()["nvme_bytes"] == drives.held
    assert any("on NVMe" in line for line in memory_section(p).below)
    assert parse_text(render_text(p.program)).nvme_resident == p.program.nvme_resident
    assert predicted().tiers[1].held == 0.0


def test_the_message_says_which_tier_is_full() -> None:
    huge = Workload(model=gpt(200, 65536, 512), sequence_length=1024, global_batch_size=16, precision="fp16")
    p = predicted(16, huge, recompute="full", activation_offload=200, **BOTH)
    assert not p.fits
    assert p.tiers[1].over > 0
    low = Workload(model=gpt(128, 25600, 256), sequence_length=1024, global_batch_size=16, precision="fp16")
    full = predicted(16, low, tensor_parallel=4, recompute="full", optimizer_offload="host", parameter_offload="host")
    assert full.tiers[0].over > 0
    if full.peak_memory <= full.capacity:
        assert "ON THE HOST" in memory_section(full).title


def test_a_node_without_drives_is_named_with_a_way_out() -> None:
    with pytest.raises(SpecError, match="nvme_read"):
        simulate(SMALL, Plan(zero_stage=3, optimizer_offload="nvme"), load_cluster("dgx_h100", 8))


@pytest.mark.parametrize(
    ("plan", "values", "way"),
    [
        ({"zero_stage": 2, "optimizer_offload": "nvme"}, "zero_stage = 2", "optimizer_offload = 'host'"),
        ({"zero_stage": 1, "parameter_offload": "nvme"}, "zero_stage = 1", "zero_stage = 3"),
        (
            {"zero_stage": 3, "optimizer_offload": "nvme", "optimizer_offload_overlap": True},
            "optimizer_offload_overlap = true",
            "leave optimizer_offload_overlap out",
        ),
    ],
)
def test_refused_where_it_cannot_act(plan: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        lower(SMALL, Plan(**plan), 8)
    assert values in str(caught.value)
    assert way in str(caught.value)


def gpt(layers: int, hidden: int, heads: int) -> Model:
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": hidden // heads}
    return load_model("gpt3_175b").model_copy(
        update={**shape, "ffn": 4 * hidden, "name": "gpt", "sequence_length": 1024}
    )


FIGURE_2A = [  # layers, hidden, heads -> TiB of states, TiB of checkpoints of 32 sequences, GiB of the largest operator, GiB of a layer
    ((80, 10240, 128), (1.83, 0.05, 1.56, 1.63)),
    ((128, 25600, 256), (18.31, 0.20, 9.77, 3.56)),
    ((315, 163840, 1024), (1845.7, 3.08, 400.0, 18.0)),
]
"""arXiv 2104.07857, figure 2a; the figure prints 1.95 GiB where its formula, 16 h^2, gives 1.56."""


@pytest.mark.parametrize(("shape", "figures"), FIGURE_2A)
def test_memory_that_a_model_of_trillions_needs(shape: tuple[int, int, int], figures: tuple[float, ...]) -> None:
    """240 L h^2, 2 b s h L, 16 h^2 and b s (16 h + 2 a s) bytes; sequences of 1024, four a GPU."""
    layers, hidden, heads = shape
    states, checkpoints, operator, activations = figures
    model = gpt(*shape)
    assert states == pytest.approx(20 * model.parameters / 2**40, rel=0.02)

    def layer(sequences: int, **plan: Any) -> LayerCost:
        workload = Workload(model=model, sequence_length=1024, global_batch_size=sequences, precision="fp16")
        chosen = Plan(recompute="full", microbatch_size=sequences, framework="megatron_lm_2021", **plan)
        return layer_costs(workload, resolve(workload, chosen, 1))["layer"]

    assert checkpoints == pytest.approx(layers * layer(32).input_bytes / 2**40, abs=0.005)
    assert operator == pytest.approx(
        4 * max(layer(1).tensors) / 2**30, rel=0.01
    )  # weights and gradients, two bytes each
    assert activations == pytest.approx(4 * 1024 * (16 * hidden + 2 * heads * 1024) / 2**30, rel=0.01)
    kept = sum(t.bytes for t in layer(4).backward_mark if t.category == "activations")
    assert (
        1.8 < kept / 2**30 / activations < 2.6
    )  # the formula leaves dropout's masks and outputs, and softmax' output, out


def test_operations_per_byte_are_those_of_the_paper() -> None:
    """Equations 9 to 11: s b for weights and gradients, s b / 4 for optimizer states, 24 h for inputs of layers."""
    model, ranks = gpt(8, 32768, 256).model_copy(update={"vocabulary": 512}), 16
    workload = Workload(model=model, sequence_length=1024, global_batch_size=4 * ranks, precision="fp16")
    plan = {"recompute": "full", "microbatch_size": 4, "framework": "deepspeed_2021", "activation_offload": 8}
    p = predicted(16, workload, **plan, **BOTH)
    program, flops = p.program, hardware(p)
    shards = moved(program, "to_device", "shard") + moved(program, "to_host", "gradients")
    assert flops / ranks / shards == pytest.approx(1024 * 4, rel=0.15)  # what runs again and at once backward stays
    states = moved(program, "from_nvme", "states") + moved(program, "to_nvme")
    sixteen = 32 / (2 * (12 + 2) + 2)  # gradients of two bytes, and weights that are written beside
    assert flops / ranks / states == pytest.approx(1024 * 4 / 4 * sixteen, rel=0.1)
    inputs = moved(program, "to_host", "activations") + moved(program, "to_device", "activations")
    assert flops / inputs == pytest.approx(24 * 32768, rel=0.1)


def hardware(p: Prediction) -> float:
    """FLOP of a GPU's products in a step, those that run again among them."""
    return p.hardware_flops / p.world_size


def test_what_moves_is_told_with_the_efficiency_that_it_would_leave() -> None:
    p = predicted(**BOTH, recompute="full")
    kernels = sum(p.breakdown[name] for name in ("forward", "backward", "recompute"))
    found = {one.what: one for one in traffic_of(p.program, p.prices, hardware(p), kernels)}
    assert list(found) == ["to_host", "to_device", "host_update", "from_nvme", "to_nvme"]
    for what, one in found.items():
        assert moved(p.program, what) == pytest.approx(one.bytes)
        rate, peak = one.bytes / one.seconds, hardware(p) / kernels
        assert one.efficiency == pytest.approx(one.intensity * rate / (one.intensity * rate + peak))
    assert traffic_of((plain := predicted()).program, plain.prices, hardware(plain), 1.0) == ()


PUBLISHED = [  # layers, hidden, heads, GPUs, sequences a GPU, tensor parallel, tier -> TFLOP/s
    ((128, 25600, 256), 64, 5, 4, "nvme", 44.0),
    ((205, 90112, 1024), 512, 1.25, 8, "nvme", 34.0),
    ((200, 65536, 512), 512, 2, 4, "nvme", 43.0),
    ((128, 25600, 256), 512, 5, 4, "host", 49.0),
]
"""arXiv 2104.07857, sections 8.2 and 8.3 with table 1; the last DeepSpeed's own ZeRO-3 Offload (blog of 8 March 2021)."""


@pytest.mark.parametrize(("shape", "gpus", "sequences", "tensor", "tier", "published"), PUBLISHED)
def test_throughput_of_trillions(
    shape: tuple[int, int, int], gpus: int, sequences: float, tensor: int, tier: str, published: float
) -> None:
    batch = int(sequences * gpus)
    workload = Workload(model=gpt(*shape), sequence_length=1024, global_batch_size=batch, precision="fp16")
    plan = {
        "tensor_parallel": tensor,
        "recompute": "full",
        "partition_activations": True,
        "activation_offload": shape[0],
    }
    states = {"optimizer_offload": tier, "parameter_offload": tier, "framework": "deepspeed_2021"}
    p = predicted(gpus, workload, **plan, **states, microbatch_size=int(sequences * tensor))
    assert p.model_flops_per_gpu / 1e12 == pytest.approx(published, rel=0.2)
    assert not any(one.over for one in p.tiers)
    assert p.fits == (shape[1] < 60_000)  # a layer of the larger ones is gathered whole here, not product by product
