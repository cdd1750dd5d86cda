"""Plans of two, two and a half and three dimensions: what moves in a layer, what a rank holds, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import simulator
from simulator.errors import PlanError
from simulator.lowering import lower_resolved, resolve
from simulator.lowering.layers.expand import LayerCost, layer_costs
from simulator.program.program import COLLECTIVE, OperatorTable, Segment
from simulator.program.spec import verify
from simulator.testing.block_contract import small_model
from simulator.workload.model import Model
from tests.command import Dtsim

SHARES = {"broadcast": 1.0, "reduce": 1.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0}
"""How often the part of a message that other ranks have passes a rank, of collectives by rings or pipelined trees."""
ELEMENT = 2.0
WIDE = {"hidden": 8192, "heads": 64, "kv_heads": 64, "ffn": 4 * 8192, "gated_mlp": False, "sequence_length": 1024}


def costs(plan: dict[str, Any], sequences: int, model: Model | None = None) -> dict[str, LayerCost]:
    """The layers of a model under a plan, with microbatches of so many sequences."""
    model = model or small_model(**WIDE)
    work = simulator.Workload(model=model, sequence_length=model.sequence_length, global_batch_size=sequences)
    chosen = simulator.Plan(**{"framework": "megatron_core", "microbatch_size": sequences, **plan})
    return layer_costs(work, resolve(work, chosen, plan["tensor_parallel"]))


def moved(tables: tuple[OperatorTable, ...], ranks: dict[str, int], norms: bool = False) -> float:
    """Elements that a rank sends for products, or for the sums of norms, which are in fp32 and all_reduced."""
    total = 0.0
    for table in tables:
        for i in range(len(table)):
            if table.kind[i] == COLLECTIVE and norms == ("norm" in table.label[i]):
                n = ranks[table.group[i][0]]
                total += SHARES[table.work[i]] * (n - 1) / n * float(table.message[i]) / ELEMENT
    return total


def of_layer(plan: dict[str, Any], sequences: int, ranks: dict[str, int], **how: Any) -> float:
    """What a rank sends in a layer, forward and backward."""
    layer = costs({"recompute": "none"} | plan, sequences)["layer"]
    return moved((layer.forward, layer.backward), ranks, **how)


def products(tokens: float, h: float) -> list[tuple[float, float, float]]:
    """(MK, KN, MN) of queries, keys and values; of the projection; of both of the MLP."""
    return [(tokens * k, k * n, tokens * n) for k, n in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h))]


def one(ranks: int) -> Callable[[int], float]:
    """Elements that a rank sends in a layer of Megatron's, by sequences of a microbatch."""
    return lambda b: of_layer({"tensor_parallel": ranks}, b, {"tp": ranks})


def two(q: int) -> Callable[[int], float]:
    """The same on q x q ranks."""
    return lambda b: of_layer({"tensor_parallel": q * q, "layout": "summa_2d"}, b, {"rows": q, "cols": q})


@pytest.mark.parametrize("b", [4, 16])
def test_what_a_layer_moves_in_one_and_two_dimensions(b: int) -> None:
    """Megatron-LM: two all_reduces per direction, 8 b s h (P - 1) / P; SUMMA: 3 (q - 1) (MK + KN) / q^2 for each product."""
    tokens, h = b * 1024, 8192
    assert 8 * tokens * h * 15 / 16 == pytest.approx(one(16)(b))
    assert sum(3 * 3 * (x + w) / 16 for x, w, _ in products(tokens, h)) == pytest.approx(two(4)(b))
    sums = of_layer({"tensor_parallel": 16, "layout": "summa_2d"}, b, {"rows": 4, "cols": 4}, norms=True)
    assert 4 * 2 * (3 / 4) * tokens / 4 * 2 == sums  # two norms, both ways, one fp32 number a token of an RMS norm
    assert sums < 1e-3 * two(4)(b)


def test_who_wins_when_in_two_dimensions() -> None:
    """One layer of h = 8192, s = 1024: on 16 ranks one dimension moves less up to 15 sequences, on 4 ranks at 64, too.

    What moves is a line over the sequences; microbatches of two dimensions have multiples of four.
    """
    lines = {}
    for name, of in (("one", one(16)), ("two", two(4))):
        at = of(12), of(16)
        lines[name] = lambda b, at=at: at[0] + (b - 12) * (at[1] - at[0]) / 4
        assert of(20) == pytest.approx(lines[name](20))
    assert [True] * 15 + [False] * 5 == [lines["one"](b) < lines["two"](b) for b in range(1, 21)]
    assert (1.007e9, 0.981e9) == pytest.approx((one(16)(16), two(4)(16)), rel=5e-4)
    assert (3.22e9, 3.42e9) == pytest.approx((one(4)(64), two(2)(64)), rel=2e-3)


@pytest.mark.parametrize(("q", "d"), [(2, 2), (4, 2)])
def test_what_a_layer_moves_in_two_and_a_half_dimensions(q: int, d: int) -> None:
    tokens, h, plan = 8 * 1024, 8192, {"tensor_parallel": q * q * d, "layout": "tesseract", "tensor_mesh": (q, q, d)}
    matrices = products(tokens, h)
    found = of_layer(plan, 8, {"rows": q, "cols": q, "depth": d})
    assert sum(3 * (q - 1) * (x / d + w) / q**2 for x, w, _ in matrices) == pytest.approx(found)
    summed = {axes: count for _, axes, count in costs(plan, 8)["layer"].summed}
    assert sum(w for _, w, _ in matrices) / q**2 == summed["depth",]
    assert 2 * h / q == summed["depth", "rows"]  # the scales of two RMS norms


def test_what_a_layer_moves_in_three_dimensions() -> None:
    """Each matrix once in each direction, 2 (q - 1) (MK + KN + MN) / q^3; what is recomputed is gathered and scattered once more."""
    q, plan = 2, {"tensor_parallel": 8, "layout": "cubic_3d"}
    once = sum((q - 1) * sum(sizes) / q**3 for sizes in products(8 * 1024, 8192))
    ranks = {"rows": q, "cols": q, "depth": q}
    assert 2 * once == pytest.approx(of_layer(plan, 8, ranks))
    assert 3 * once == pytest.approx(of_layer(plan | {"recompute": "full"}, 8, ranks))


def test_megatron_moves_twelve_activations_a_layer_with_full_recompute() -> None:
    """ZeRO, arXiv 1910.02054, section 8: 12 x batch x sequence x hidden, an all_reduce counted as twice its message."""
    layer = costs({"tensor_parallel": 8, "recompute": "full"}, 2)["layer"]
    sent = [
        SHARES[name] * float(message) / ELEMENT
        for table in (layer.forward, layer.backward)
        for name, message in zip(table.work, table.message, strict=True)
        if message
    ]
    assert 12 * 2 * 1024 * 8192 == sum(sent)


MESHES = [("summa_2d", 4, (2, 2), 1), ("tesseract", 8, (2, 2, 2), 2), ("cubic_3d", 8, (2, 2, 2), 1)]


@pytest.mark.parametrize(("layout", "ranks", "shape", "copies"), MESHES)
def test_a_rank_holds_its_part_of_weights_and_activations(
    layout: str, ranks: int, shape: tuple[int, ...], copies: int
) -> None:
    model = small_model(hidden=256, ffn=1024, heads=8, kv_heads=8, gated_mlp=False, vocabulary=1024)
    whole = costs({"tensor_parallel": 1, "recompute": "none"}, 8, model)
    plan = {"tensor_parallel": ranks, "layout": layout, "tensor_mesh": shape, "recompute": "none"}
    mine = costs(plan, 8, model)
    vectors = 2 * 256
    assert (whole["layer"].parameters - vectors) / (ranks / copies) + vectors / 2 == mine["layer"].parameters
    one_rank = {t.name: t.bytes for t in whole["layer"].saved}
    read = ("qkv input", "projection input", "mlp input", "mlp down input")  # kept as gathered in three dimensions
    for tensor in mine["layer"].saved:
        if tensor.name != "weights, gathered":
            gathered = 2 if layout == "cubic_3d" and tensor.name in read else 1
            assert one_rank[tensor.name] * gathered / ranks == tensor.bytes, tensor.name
    assert whole["layer"].input_bytes / ranks == mine["layer"].input_bytes
    flops = [sum(float(t.flops.sum()) for t in (c["layer"].forward, c["layer"].backward)) for c in (whole, mine)]
    assert flops[0] / ranks == flops[1]


def predicted(**plan: Any) -> Any:
    model = small_model(hidden=256, ffn=1024, heads=8, kv_heads=8, layers=4, sequence_length=512)
    work = simulator.Workload(model=model, sequence_length=512, global_batch_size=64)
    return simulator.simulate(work, simulator.Plan(**plan), simulator.load_cluster("dgx_a100", plan.pop("gpus", 16)))


@pytest.mark.parametrize(
    "beside",
    [
        {"pipeline_parallel": 2},
        {"pipeline_parallel": 2, "chunks_per_rank": 2, "recompute": "full"},
        {"zero_stage": 1},
        {"zero_stage": 3, "recompute": "selective"},
        {"pipeline_parallel": 2, "schedule": "zb_h1"},
        {"overlap_tensor_parallel": False, "attention": "unfused"},
        {"bucket_size": 100_000},
    ],
    ids=str,
)
@pytest.mark.parametrize(("layout", "ranks", "shape", "copies"), MESHES)
def test_whole_steps_run_with_pipelines_replicas_and_sharded_states_beside(
    layout: str, ranks: int, shape: tuple[int, ...], copies: int, beside: dict[str, Any]
) -> None:
    model = small_model(hidden=256, ffn=1024, heads=8, kv_heads=8, layers=4, sequence_length=512)
    work = simulator.Workload(model=model, sequence_length=512, global_batch_size=128)
    plan = simulator.Plan(tensor_parallel=ranks, layout=layout, tensor_mesh=shape, microbatch_size=8, **beside)
    resolved = resolve(work, plan, 32)
    program = lower_resolved(work, resolved)
    verify(program)
    sizes = dict(program.axes)
    assert shape == tuple(sizes[axis] for axis in ("rows", "cols", "depth")[: len(shape)])
    groups = {
        group
        for item in program.items
        if isinstance(item, Segment)
        for table, _ in item.pieces
        for kind, group in zip(table.kind, table.group, strict=True)
        if kind == COLLECTIVE
    }
    assert {("rows",), ("cols",)} <= groups
    step = simulator.simulate(work, plan, simulator.load_cluster("dgx_a100", 32))
    assert step.step_time > 0
    assert step.breakdown["tp"] > 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"layout": "summa_2d", "tensor_parallel": 8},
            r"layout 'summa_2d' needs q x q ranks, tensor_mesh = \[q, q\], but tensor_parallel = 8. Nearest: tensor_parallel = 9, ",
        ),
        (
            {"layout": "summa_2d", "tensor_parallel": 16, "tensor_mesh": (2, 8)},
            r"but tensor_parallel = 16 and tensor_mesh = \[2, 8\]. Nearest: tensor_mesh = \[4, 4\]",
        ),
        (
            {"layout": "tesseract", "tensor_parallel": 16, "tensor_mesh": (2, 2, 4)},
            r"layout 'tesseract' needs q x q x d ranks with d <= q, .* Nearest: tensor_mesh = \[4, 4, 1\]",
        ),
        (
            {"layout": "cubic_3d", "tensor_parallel": 16},
            r"layout 'cubic_3d' needs q x q x q ranks, .* Nearest: tensor_parallel = 8, tensor_mesh = \[2, 2, 2\]",
        ),
        (
            {"tensor_parallel": 4, "tensor_mesh": (2, 2)},
            r"tensor_mesh = \[2, 2\] and layout = 'megatron' has one. Way out: leave tensor_mesh out, or layout = 'summa_2d'",
        ),
        (
            {"layout": "summa_2d", "tensor_parallel": 4, "microbatch_size": 1},
            r"lays the sequences of a microbatch on 2 ranks, which must have whole ones, but 1 / 2 .* Nearest: microbatch_size = 2",
        ),
        (
            {"layout": "summa_2d", "tensor_parallel": 4, "sequence_parallel": True, "microbatch_size": 2},
            r"layout 'summa_2d' divides all: .* Way out: sequence_parallel = false",
        ),
        (
            {"layout": "summa_2d", "tensor_parallel": 4, "context_parallel": 2, "microbatch_size": 2},
            r"layout 'summa_2d' keeps whole sequences on each rank of its mesh, but context_parallel = 2",
        ),
        (
            {"layout": "summa_2d", "tensor_parallel": 9, "microbatch_size": 3},
            r"layout 'summa_2d' lays heads on the 3 ranks of mesh axis 'cols', but 8 / 3 is no whole number .* Nearest: 2 ranks",
        ),
        ({"tensor_mesh": (1, 1)}, r"tensor_mesh = .* shapes the tensor-parallel ranks, but tensor_parallel = 1"),
    ],
)
def test_what_a_mesh_cannot_have_is_refused_with_what_would_do(plan: dict[str, Any], message: str) -> None:
    work = simulator.Workload(model=small_model(), sequence_length=128, global_batch_size=72)
    with pytest.raises(PlanError, match=message):
        resolve(work, simulator.Plan(**plan), 2 * plan.get("tensor_parallel", 1))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"mtp_layers": 1}, "multi-token prediction"),
        ({"experts": 8, "experts_per_token": 2, "expert_ffn": 64}, "experts"),
    ],
)
def test_layers_that_a_mesh_does_not_lay_out_are_refused(fields: dict[str, Any], what: str) -> None:
    work = simulator.Workload(model=small_model(**fields), sequence_length=128, global_batch_size=8)
    plan = simulator.Plan(tensor_parallel=4, layout="summa_2d", microbatch_size=2)
    with pytest.raises(PlanError, match=f"lays out embedding, attention, MLP, norms and output, but no {what}"):
        resolve(work, plan, 4)


def test_a_search_ranges_over_layouts_and_meshes(dtsim: Dtsim) -> None:
    ranges = ("layout=megatron,summa_2d,tesseract", "tensor_mesh=[4,4],[2,2,2],[4,4,1]", "tp=8,16", "microbatch_size=8")
    words = [word for text in ranges for word in ("--range", text)]
    fixed = ("--fix", "cluster.gpus=16", "--fix", "workload.global_batch_size=16")
    code, out, _ = dtsim("search", "--model", "llama2_7b", "--cluster", "dgx_a100", *words, *fixed, "--json")
    found = json.loads(out)
    assert 0 == code
    assert {("summa_2d", (4, 4)), ("tesseract", (2, 2, 2)), ("tesseract", (4, 4, 1))} == {
        (each["plan"]["plan.layout"], tuple(each["plan"]["plan.tensor_mesh"])) for each in found["best"]
    }
    assert {"tensor"} == {each["validated_on"]["kind"] for each in found["best"]}


def optimus(layout: str, gpus: int, hidden: int, sequences: int) -> Any:
    """A step as Optimus' benchmark script has it: 24 layers in fp32, 512 tokens, everything recomputed (docs/surveys.md)."""
    shape = {"hidden": hidden, "heads": hidden // 64, "kv_heads": hidden // 64, "ffn": 4 * hidden, "vocabulary": 30522}
    blocks = {"gated_mlp": False, "norm": "layer_norm", "positions": "learned", "linear_bias": True, "qkv_bias": True}
    model = small_model(layers=24, tied_embeddings=True, sequence_length=512, **shape, **blocks)
    work = simulator.Workload(model=model, sequence_length=512, global_batch_size=sequences, precision="fp32")
    plan = {"tensor_parallel": gpus, "microbatch_size": sequences, "framework": "megatron_lm_2021", "recompute": "full"}
    return simulator.simulate(work, simulator.Plan(layout=layout, **plan), simulator.load_cluster("frontera_rtx", gpus))


def test_optimus_runs_larger_batches_sooner_where_there_are_many_ranks() -> None:
    """arXiv 2104.05343, abstract: on 64 GPUs 1.48 times as quick and batches 8 times as large; ours stand in docs/surveys.md."""
    room = 15.5 * 2**30
    assert optimus("summa_2d", 4, 2048, 86).peak_memory <= room < optimus("summa_2d", 4, 2048, 90).peak_memory
    one, two = optimus("megatron", 64, 8192, 16), optimus("summa_2d", 64, 8192, 400)
    assert max(one.peak_memory, two.peak_memory) <= room
    assert room < min(optimus("megatron", 64, 8192, 17).peak_memory, optimus("summa_2d", 64, 8192, 408).peak_memory)
    assert (400 / two.step_time) / (16 / one.step_time) == pytest.approx(1.95, rel=0.02)


def test_what_a_code_keeps_gathered_under_sequence_parallelism_is_no_affair_of_a_mesh() -> None:
    model = small_model(hidden=256, ffn=1024, heads=8, kv_heads=8)
    plan = {"tensor_parallel": 4, "layout": "summa_2d", "recompute": "none", "framework": "torchtitan_eager"}
    saved = {t.name: t.bytes for t in costs(plan, 8, model)["layer"].saved}
    assert 8 * 128 * 256 * ELEMENT / 4 == saved["qkv input"] == saved["mlp input"]


@pytest.mark.parametrize(("stage", "share"), [(0, 1.0), (1, 1.0), (2, 1 / 4), (3, 1 / 4)])
def test_over_the_depth_each_replica_adds_the_gradients_that_it_keeps(stage: int, share: float) -> None:
    model = small_model(hidden=256, ffn=1024, heads=8, kv_heads=8, vocabulary=1024)
    work = simulator.Workload(model=model, sequence_length=128, global_batch_size=32)
    plan = simulator.Plan(tensor_parallel=8, layout="tesseract", microbatch_size=8, zero_stage=stage)
    tables = [
        table
        for item in lower_resolved(work, resolve(work, plan, 32)).items
        if isinstance(item, Segment)
        for table, _ in item.pieces
        if "optimizer" in table.phase
    ]
    found = sum(
        float(message)
        for table in tables
        for message, group in zip(table.message, table.group, strict=True)
        if group == ("depth",)
    )
    matrices = 2 * (4 * 256 * 256 + 3 * 256 * 1024) + 2 * 1024 * 256
    assert found == pytest.approx(matrices / 4 * 4.0 * share)


def test_three_dimensions_are_tensor_parallelism_not_sharded_states() -> None:
    model = small_model(hidden=256, ffn=1024, heads=8, kv_heads=8)
    work = simulator.Workload(model=model, sequence_length=128, global_batch_size=16)
    plan = simulator.Plan(tensor_parallel=8, layout="cubic_3d", microbatch_size=8)
    assert "tensor" == simulator.simulate(work, plan, simulator.load_cluster("dgx_a100", 16)).kind_of_run


def test_the_next_panel_may_come_beside_the_product_of_this_one() -> None:
    """Of the two broadcasts of a step the larger one; where nothing runs beside products, both take their time."""
    plan = {"tensor_parallel": 4, "layout": "summa_2d"}
    beside, apart = (costs({**plan, "overlap_tensor_parallel": overlaps}, 8)["layer"] for overlaps in (True, False))
    hidden = [table.work[i] for table in (beside.forward, beside.backward) for i in (table.beside >= 0).nonzero()[0]]
    assert {"broadcast"} == set(hidden)
    assert 4 * (1 + 1 + 1) == len(hidden)  # of four products, forward and both gradients, two panels each
    assert not (apart.forward.beside >= 0).any()
    for i in (beside.forward.beside >= 0).nonzero()[0]:
        assert beside.forward.work[beside.forward.beside[i]] == "gemm"
