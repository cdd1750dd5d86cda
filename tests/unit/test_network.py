"""Networks of layers: sizes from the image, convolutions as products, what passes by, what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.costs.gemm import gemm_seconds
from simulator.costs.tables import machine_of, price_table
from simulator.errors import PlanError, SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.compute_coefficients import load_gemm_coefficients
from simulator.hardware.gpu import load_gpu
from simulator.importers.cost_graphs import read_cost_graph
from simulator.importers.cost_graphs.network import model_text
from simulator.lowering import begin, lower
from simulator.lowering.layers.expand import layer_costs
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.plan.plan import Plan
from simulator.program.calls import Convolved, Product, Timed, read_call, write_call
from simulator.program.program import TRANSFER, Link
from simulator.program.text import parse_text, render_text
from simulator.simulation import simulate
from simulator.specs import validate_spec
from simulator.workload.model import Model, load_model
from simulator.workload.workload import Workload
from tests.unit.pipedream_sums import PIPEDREAM_SUMS

TORCHVISION = {
    "resnet50": (25_557_032, 4.089),
    "resnet101": (44_549_160, 7.801),
    "resnet152": (60_192_808, 11.514),
    "vgg16": (138_357_544, 15.47),
    "vgg19": (143_667_240, 19.632),
    "alexnet": (61_100_840, 0.714),
    "densenet121": (7_978_856, 2.834),
    "inception_v3": (27_161_264 - 3_326_696, 5.713),
}
"""Parameters and multiplications of an image [10^9]: `num_params` and `_ops` of the weights in torchvision 0.29 (resnet.py, vgg.py, ...);
Inception-v3 without its auxiliary classifier (128 x (768 + 2 x 1) + 768 x (128 x 25 + 2) + 1000 x 769 parameters)."""


def test_cells_found_by_a_search_have_the_weights_that_their_authors_print() -> None:
    """AmoebaNet-D(18, 256), whose table has 81.5, 319.0 and 542.7 million for 208, 416 and 544: nearly c0 + c1 D + c2 D^2."""
    sizes, counts = (208.0, 416.0, 544.0), (81.5e6, 319.0e6, 542.7e6)
    expected = np.polyval(np.polyfit(sizes, counts, 2), 256.0)
    assert load_model("amoebanet_d_18_256").parameters == pytest.approx(expected, rel=2e-3)


def conv(channels: int, window: Any = 3, **more: Any) -> dict[str, Any]:
    return {"op": "convolution", "channels": channels, "window": window, **more}


def network(*layers: list[dict[str, Any]], image: tuple[int, int, int] = (3, 32, 32)) -> Model:
    named = [{"name": f"part{i}", "steps": steps} for i, steps in enumerate(layers)]
    said = {"name": "tried", "family": "tried", "architecture": "network", "network": {"image": image, "layers": named}}
    return validate_spec(said, Model, "here")


CLASSES: list[dict[str, Any]] = [{"op": "global_average"}, {"op": "dense", "channels": 10}]


@pytest.mark.parametrize("name", TORCHVISION)
def test_parameters_and_products_are_those_of_torchvision(name: str) -> None:
    model, (parameters, products) = load_model(name), TORCHVISION[name]
    assert parameters == model.parameters
    assert products == pytest.approx(model.products / 1e9, abs=6e-4)


def test_layers_that_are_alike_are_one_kind_and_others_have_numbers() -> None:
    assert load_model("resnet50").layer_kinds[:4] == (
        "conv2_1 layer",
        "conv2_x layer",
        "conv2_x layer",
        "conv3_1 layer",
    )
    dense = load_model("densenet121").layer_kinds
    assert dense[:3] == ("dense1 layer", "dense1_2 layer", "dense1_3 layer"), "each is given more channels"
    assert len(dense) == len(set(dense)) == 58 + 3


def test_windows_have_the_rows_that_torch_gives_them() -> None:
    shapes = [layer.steps[-1].made for layer in load_model("inception_v3").network.placed]  # type: ignore[union-attr]
    assert [tuple(shapes[i]) for i in (0, 1, 2, 6, -4)] == [
        (32, 149, 149), (64, 73, 73), (192, 35, 35), (768, 17, 17), (1280, 8, 8),
    ]  # fmt: skip


def test_a_convolution_reads_its_input_once_and_writes_no_windows() -> None:
    gpu = load_gpu("v100_32gb_sxm2")
    numbers = load_gemm_coefficients(gpu)
    shape = [(1, 256 * 112 * 112, 16, 9 * 16)]
    plain, windows = (
        gemm_seconds(shape, ["TN"], ["fp16"], [False], gpu, numbers, shared=shared)[0] for shared in (1.0, 9.0)
    )
    assert windows < 0.95 * plain, "bound by memory no more"
    assert read_call(write_call(Convolved("NN", 9.0, 2.25)), "call") == Convolved("NN", 9.0, 2.25)


def test_the_gradients_of_a_convolution_are_as_many_products_and_of_data_there_is_none() -> None:
    work = Workload(model=load_model("resnet50"), sequence_length=1, global_batch_size=8, precision="fp16")
    costs = layer_costs(work, resolve(work, Plan(microbatch_size=8, framework="pytorch_ddp"), 1))
    forward, backward = (
        {kind: getattr(cost, way).flops.sum() for kind, cost in costs.items()} for way in ("forward", "backward")
    )
    for kind in forward.keys() - {"embedding"}:
        assert backward[kind] == pytest.approx(2 * forward[kind])
    assert backward["embedding"] == forward["embedding"], "only its weights have a gradient"
    total = forward["embedding"] + forward["head"] + sum(forward[kind] for kind in work.model.layer_kinds)
    assert total == pytest.approx(2 * 8 * work.model.products)


def test_the_input_gradient_of_a_strided_window_has_rows_of_the_input() -> None:
    model = network([conv(8)], [conv(16, stride=2)], CLASSES)
    work = Workload(model=model, sequence_length=1, global_batch_size=4, precision="fp16")
    table = layer_costs(work, resolve(work, Plan(microbatch_size=4), 1))["part1 layer"].backward
    row = next(i for i, call in enumerate(table.call) if isinstance(call, Product) and call.order == "NN")
    assert tuple(table.shape[row]) == (1, 4 * 32 * 32, 8, 36)
    assert table.call[row] == Convolved("NN", 9.0, 1.0)
    written = table.written[row]
    assert written == 2 * 4 * 32 * 32 * 8


def test_groups_are_products_side_by_side() -> None:
    model = network([conv(8)], [conv(16, groups=4)], CLASSES)
    assert model.kind_parameters("part1 layer") == 16 * 9 * 2
    work = Workload(model=model, sequence_length=1, global_batch_size=2, precision="fp16")
    table = layer_costs(work, resolve(work, Plan(microbatch_size=2), 1))["part1 layer"].forward
    assert tuple(table.shape[0]) == (4, 2 * 32 * 32, 4, 18)


def test_what_is_kept_is_kept_once() -> None:
    """Of convolution, norm and ReLU: the input, the convolution's output and the ReLU's; the last is the next layer's to keep."""
    both = ["batch_norm", "relu"]
    model = network([conv(8, then=both)], [conv(8, then=both), conv(8, then=both)], CLASSES)
    work = Workload(model=model, sequence_length=1, global_batch_size=1, precision="fp16")
    saved = layer_costs(work, resolve(work, Plan(), 1))["part1 layer"].saved
    assert sum(t.bytes for t in saved if t.category == "activations") == 4 * 2 * 8 * 32 * 32


def pipeline(model: Model, ranks: int = 4, **plan: Any) -> tuple[Workload, Plan]:
    work = Workload(
        model=model, sequence_length=model.sequence_length, global_batch_size=16, precision="fp16", optimizer="sgd"
    )
    return work, Plan(pipeline_parallel=ranks, microbatch_size=4, **plan)


@pytest.mark.parametrize("more", [{}, {"schedule": "interleaved_1f1b", "chunks_per_rank": 2}])
def test_messages_are_as_large_as_what_crosses_each_boundary(more: dict[str, Any]) -> None:
    work, plan = pipeline(load_model("resnet50"), **more)
    program = lower(work, plan)
    state = begin(work, resolve(work, plan, 4))
    crossing = [state.costs[chunk.kinds[0]].input_bytes for chunk in state.chunks[1:]]
    sent = [program.items[i] for i in program.item[program.microbatch == 0]]
    found = Counter(item.message for item in sent if isinstance(item, Link) and item.kind == TRANSFER)
    assert found == Counter(2 * crossing), "activations, and their gradients"
    assert len(found) > 1
    assert render_text(parse_text(render_text(program))) == render_text(program)


def test_what_a_later_layer_reads_passes_by_those_in_between() -> None:
    model = network(
        [conv(8)],
        [conv(8, name="skip", then=["relu"]), {"op": "max_pool", "window": 2, "stride": 2, "padding": 0}],
        [conv(16)],
        [{"op": "upsample", "times": 2, "name": "up"}, {"op": "concat", "reads": ["up", "skip"]}, conv(8)],
        [conv(10, window=1)],
    )
    assert model.sequence_length == 32 * 32, "every position has a class"
    work, _ = pipeline(model)
    costs = layer_costs(work, resolve(work, Plan(microbatch_size=4), 1))
    skip, pooled = 4 * 2 * 8 * 32 * 32, 4 * 2 * 8 * 16 * 16
    assert [costs[f"part{i} layer"].input_bytes for i in (1, 2, 3)] == [skip, skip + pooled, skip + 2 * pooled]
    assert work.tokens == 16
    assert simulate(*pipeline(model, 2), load_cluster("v100_dgx1", 2)).step_time > 0


def test_nobody_has_measured_convolutions() -> None:
    work = Workload(
        model=load_model("vgg16"), sequence_length=1, global_batch_size=32, precision="fp16", optimizer="sgd"
    )
    p = simulate(work, Plan(microbatch_size=32, framework="pytorch_ddp"), load_cluster("a100_x8", 1))
    known = p.to_dict()["provenance"]["calibration"]
    assert ("convolution:fp16" in known["uncalibrated"], "gemm:fp16" in known["calibrated"]) == (True, True)


def test_forks_add_gradients_and_sums_hand_them_on() -> None:
    model = network([conv(8)], [conv(8, name="main"), {"op": "add", "reads": ["main", "input"]}], CLASSES)
    work = Workload(model=model, sequence_length=1, global_batch_size=1, precision="fp16")
    cost = layer_costs(work, resolve(work, Plan(), 1))["part1 layer"]
    moved = dict(zip(cost.backward.label, cost.backward.read + cost.backward.written, strict=True))
    assert moved["gradients of hidden states"] == 3 * 2 * 8 * 32 * 32
    assert moved["add 2"] == 0
    machine = machine_of(load_cluster("a100_x8", 1), "nccl")
    assert np.isfinite(price_table(cost.backward, machine, ()).rows).all()


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (([conv(8)], [conv(8, reads=["nobody"])], CLASSES), "reads 'nobody', which nothing before it makes"),
        (([conv(8)], [conv(8, window=40, padding=0)], CLASSES), "does not fit into 32 x 32 positions"),
        (([conv(8)], [conv(9, groups=4)], CLASSES), "4 groups divide neither or one of 8 and 9 channels"),
        (
            ([conv(8)], [conv(8, name="a"), conv(9, name="b"), {"op": "add", "reads": ["a", "b"]}], CLASSES),
            "do not fit",
        ),
        (([conv(8)], [{"op": "add"}], CLASSES), "expected two or more in reads"),
        (([conv(8)], [conv(8, name="a"), conv(8, name="a")], CLASSES), "give it another name"),
        (([conv(8)], [conv(8)], [conv(8)]), "the last step of a network makes the classes"),
        (([conv(8)], CLASSES), "at least one in between"),
        (([conv(8)], [conv(8, window=0)], CLASSES), "expected at least 1"),
        (([conv(8)], [{"op": "relu", "window": 3}], CLASSES), "unknown key"),
        (([conv(8)], [{"op": "lstm"}], CLASSES), "does not match any of the expected tags"),
    ],
)
def test_what_does_not_fit_is_refused(layers: tuple[list[dict[str, Any]], ...], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        network(*layers)


def test_sizes_of_transformers_follow_from_the_layers() -> None:
    said = load_model("resnet50").model_dump()
    assert Model.model_validate(said) == load_model("resnet50")
    with pytest.raises(ValueError, match="hidden follows from the layers"):
        Model.model_validate(said | {"hidden": 7})
    with pytest.raises(SpecError, match='architecture "network" needs network'):
        validate_spec(load_model("gpt2").model_dump() | {"architecture": "network"}, Model, "here", from_file=False)


@pytest.mark.parametrize(
    ("plan", "work", "said"),
    [
        ({"tensor_parallel": 2}, {}, "tensor_parallel divides the heads"),
        ({"context_parallel": 2}, {}, "context_parallel divides the heads"),
        ({"attention": "flash2"}, {}, "attention is a kernel of layers of tokens"),
        ({"recompute": "selective"}, {}, "selective recompute makes parts"),
        ({"cuda_graphs": ("attn",)}, {}, "parts of layers are those of transformers"),
        ({"schedule": "terapipe", "chunks_per_rank": 2, "pipeline_parallel": 2}, {}, "is a network of layers"),
        ({}, {"sequence_length": 2}, "sequence_length = 2 and model 'resnet50'"),
        ({}, {"precision": "fp8"}, "convolutions run in 16 or 32 bits"),
        ({}, {"document_length": 1}, "packed documents"),
    ],
)
def test_what_a_network_does_not_have_is_refused(plan: dict[str, Any], work: dict[str, Any], said: str) -> None:
    workload = Workload(**{"model": load_model("resnet50"), "sequence_length": 1, "global_batch_size": 16, **work})
    with pytest.raises(PlanError, match=said):
        lower(workload, Plan(**plan))


@pytest.mark.parametrize(
    "plan",
    [
        {"zero_stage": 3},
        {"zero_stage": 1, "recompute": "full"},
        {"recompute": "operators"},
        {"pipeline_parallel": 2, "schedule": "zb_h1", "microbatch_size": 2},
        {"optimizer_offload": 1.0, "zero_stage": 2},
        {"activation_offload": 2},
    ],
)
@pytest.mark.parametrize("name", ["resnet50", "densenet121"])
def test_plans_take_networks_as_they_take_transformers(name: str, plan: dict[str, Any]) -> None:
    work = Workload(model=load_model(name), sequence_length=1, global_batch_size=16, precision="fp16", optimizer="sgd")
    p = simulate(work, Plan(**plan), load_cluster("v100_dgx1", 4))
    assert p.step_time > 0
    assert p.memory.by_category.sum() > 0


def measured(name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"op": "measured", "name": name, "forward": seconds, "backward": 2 * seconds, "makes": 4096.0, **more}


def of_times() -> Model:
    """A diamond: two branches between a first and a last node."""
    steps = [measured("a", 1e-3), measured("b", 2e-3, parameters=1000), measured("c", 3e-3, reads=["a"])]
    steps.append(measured("d", 4e-3, reads=["b", "c"]))
    layers = [{"name": f"layer_{step['name']}", "steps": [step]} for step in steps]
    said = {
        "name": "timed",
        "family": "timed",
        "architecture": "network",
        "network": {"image": [8, 1, 1], "layers": layers},
    }
    return validate_spec(said, Model, "here", from_file=False)


def test_what_was_measured_takes_as_long() -> None:
    work = Workload(model=of_times(), sequence_length=1, global_batch_size=8, precision="fp32", optimizer="sgd")
    for cluster in ("v100_dgx1", "dgx_h100"):
        p = simulate(work, Plan(microbatch_size=8, framework="pytorch_ddp"), load_cluster(cluster, 1))
        assert (p.breakdown["forward"], p.breakdown["backward"]) == pytest.approx((8 * 10e-3, 8 * 20e-3))
        assert p.to_dict()["provenance"]["calibration"]["calibrated"].count("measured") == 1
    assert read_call(write_call(Timed(1.5e-3)), "call") == Timed(1.5e-3)
    text = render_text(lower(work, Plan(microbatch_size=8)))
    assert render_text(parse_text(text)) == text


def test_an_output_that_passes_by_crosses_a_boundary_once() -> None:
    """Of a diamond a, b, c, d in a row: in front of b there is a, in front of c and d there are two."""
    work = Workload(model=of_times(), sequence_length=1, global_batch_size=2, precision="fp32")
    costs = layer_costs(work, resolve(work, Plan(microbatch_size=2, framework="pytorch_ddp"), 1))
    assert [costs[kind].input_bytes for kind in ("layer_b layer", "layer_c layer", "head")] == [
        8192,
        2 * 8192,
        2 * 8192,
    ]


def test_whole_backwards_that_were_measured_are_not_halved() -> None:
    work = Workload(model=of_times(), sequence_length=1, global_batch_size=8, precision="fp32")
    with pytest.raises(PlanError, match="a backward in two halves needs the time of each"):
        lower(work, Plan(pipeline_parallel=2, schedule="zb_h1"))


@pytest.mark.parametrize(("name", "forward", "backward", "parameters"), PIPEDREAM_SUMS)
def test_pipedreams_profiles_are_models(
    name: str, forward: float, backward: float, parameters: float, tmp_path: Path
) -> None:
    """Sums of the authors' code over their own files, in ms and MB."""
    file = tmp_path / "model.toml"
    file.write_text(model_text(read_cost_graph(name), "model", 64, "msr-fiddle/pipedream"))
    model = load_model(str(file))
    work = Workload(model=model, sequence_length=1, global_batch_size=64, precision="fp32", optimizer="sgd")
    p = simulate(work, Plan(microbatch_size=64, framework="pytorch_ddp"), load_cluster("v100_dgx1", 1))
    assert p.breakdown["forward"] * 1e3 == pytest.approx(forward, abs=0.05)
    assert p.breakdown["backward"] * 1e3 == pytest.approx(backward, abs=0.05)
    assert 4e-6 * model.parameters == pytest.approx(parameters, abs=0.05)


def test_the_same_profile_is_an_order_of_stages(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text(model_text(read_cost_graph("vgg16"), "model", 64, "msr-fiddle/pipedream"))
    model = load_model(str(file))
    work = Workload(model=model, sequence_length=1, global_batch_size=256, precision="fp32", optimizer="sgd")
    plan = Plan(pipeline_parallel=4, microbatch_size=64, schedule="pipedream", framework="pytorch_ddp")
    p = simulate(work, plan, load_cluster("v100_dgx1", 4))
    slowest = max(p.breakdown["forward"], p.breakdown["backward"])
    assert p.step_time > slowest
    assert p.model_flops == 0


def test_weights_of_a_layer_that_took_no_time_are_reduced_with_the_others() -> None:
    """A profile of a framework has nodes whose kernels were too short to be seen, or ran elsewhere."""
    layers = [measured("a", 1e-3), measured("b", 0.0, parameters=10_000_000), measured("c", 1e-3)]
    said = {
        "name": "timed",
        "family": "timed",
        "architecture": "network",
        "network": {"image": [8, 1, 1], "layers": [{"name": f"layer_{s['name']}", "steps": [s]} for s in layers]},
    }
    model = validate_spec(said, Model, "here", from_file=False)
    work = Workload(model=model, sequence_length=1, global_batch_size=8, precision="fp32", optimizer="sgd")
    program = lower(work, Plan(microbatch_size=4, framework="pytorch_ddp"), 2)
    sums = [item.message for item in program.items if isinstance(item, Link) and "gradients of" in item.name]
    assert sum(sums) == 4 * 10_000_000
