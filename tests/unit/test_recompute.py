"""Which layers and modules run again, what they cost and what they need not keep."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import PlanError, UnknownNameError
from simulator.hardware.cluster import load_cluster
from simulator.lowering import lower, resolve
from simulator.lowering.layers.expand import layer_costs
from simulator.plan.plan import Plan
from simulator.program.program import CATEGORIES, Program, Segment
from simulator.program.spec import verify
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.testing.block_contract import small_model
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.profiles import profile

LLAMA = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=8)
MOE = Workload(model=load_model("deepseek_v2_lite"), sequence_length=4096, global_batch_size=8)


def lowered(workload: Workload = LLAMA, **plan: Any) -> Program:
    program = lower(workload, Plan(**plan), 8)
    verify(program)
    return program


def predicted(workload: Workload = LLAMA, **plan: Any) -> Prediction:
    return simulate(workload, Plan(**plan), load_cluster("dgx_h100", 8))


def again(program: Program) -> float:
    """Floating-point operations run a second time in one microbatch."""
    total = 0.0
    for item in program.items:
        if isinstance(item, Segment) and item.phase == "backward":
            for table, count in item.pieces:
                total += count * sum(f for f, p in zip(table.flops, table.phase, strict=True) if p == "recompute")
    return total


def kept(program: Program) -> float:
    """Bytes of activations of one microbatch on the first rank."""
    return float(program.effect_bytes[program.start_effect[0]][CATEGORIES.index("activations")])


def labels(program: Program, layer: str = "layer") -> list[str]:
    return next(
        [label for label, phase in zip(t.label, t.phase, strict=True) if phase == "recompute"]
        for i in program.items
        if isinstance(i, Segment)
        for t, _ in i.pieces
        if t.name == f"{layer} backward"
    )


def test_a_part_of_the_layers_costs_and_saves_its_part() -> None:
    one_bucket = {"overlap_gradients": False}
    none, full = (lowered(recompute=kind, **one_bucket) for kind in ("none", "full"))
    for method, n, part in (("block", 8, 8 / 32), ("block", 32, 1.0), ("every", 4, 8 / 32), ("every", 2, 0.5)):
        some = lowered(recompute="full", recompute_method=method, recompute_layers=n, **one_bucket)
        assert again(some) == pytest.approx(part * again(full), rel=1e-9)
        assert kept(none) - kept(some) == pytest.approx(part * (kept(none) - kept(full)), rel=1e-9)


def test_groups_of_layers_keep_one_input_and_hold_all_of_the_group_while_it_runs_again() -> None:
    plain = lowered(recompute="full", overlap_gradients=False)
    four = lowered(recompute="full", recompute_method="uniform", recompute_layers=4, overlap_gradients=False)
    assert again(plain) == again(four)
    tokens = 4096 * 4096 * 2
    assert kept(plain) - kept(four) == pytest.approx(24 * tokens)
    groups: list[dict[str, Any]] = [{}, *({"recompute_method": "uniform", "recompute_layers": n} for n in (2, 4))]
    plans = [Plan(recompute="full", **group) for group in groups]
    marks = [sum(t.bytes for t in layer_costs(LLAMA, resolve(LLAMA, plan, 8))["layer"].backward_mark) for plan in plans]
    assert 1.5 < marks[1] / marks[0] < 2.5 < marks[2] / marks[0] < 4.5
    small, large = (predicted(recompute="full", recompute_method="uniform", recompute_layers=n) for n in (2, 16))
    assert small.peak_memory < large.peak_memory
    assert small.step_time == pytest.approx(large.step_time, rel=1e-6)


def test_the_best_number_of_layers_from_one_input_is_the_theorems() -> None:
    """Chen et al., arXiv 1604.06174: memory c A_in + (L / c) A_int is least for c = sqrt(L A_int / A_in); time is one more forward."""

    def standing(layers: int, group: int) -> tuple[float, float]:
        model = load_model("gpt2_355m").model_copy(update={"layers": layers, "vocabulary": 512})
        work = Workload(model=model, sequence_length=1024, global_batch_size=8)
        groups = {"recompute_method": "uniform", "recompute_layers": group} if group > 1 else {}
        plan = Plan(recompute="full", microbatch_size=8, framework="megatron_core", **groups)
        found = simulate(work, plan, load_cluster("a100_x8", 1))
        kept = [CATEGORIES.index(name) for name in ("activations", "workspace", "logits")]
        return float(found.memory.by_category[0, kept].sum()), found.breakdown["recompute"] / found.breakdown["forward"]

    depths, least = (24, 48, 96, 192, 384), []
    one_input = 8 * 1024 * 1024 * 2.0
    for layers in depths:
        found = {group: standing(layers, group) for group in range(1, 13)}
        best = min(found, key=lambda group: found[group][0])
        inside = (found[12][0] - found[6][0] + one_input * (layers / 6 - layers / 12)) / 6
        assert abs(best - math.sqrt(layers * one_input / inside)) < 0.7
        assert all(0.98 < share < 1.001 for _, share in found.values())
        always = found[1][0] - layers * one_input - inside  # what stands whatever the groups
        least.append(found[best][0] - always)
    assert 0.5 == pytest.approx(np.polyfit(np.log(depths), np.log(least), 1)[0], abs=0.05)


def test_tensor_ranks_keep_a_part_of_a_checkpoint_each_where_the_code_divides_it() -> None:
    plan = {"framework": "gpt_neox", "recompute": "full", "overlap_gradients": False}
    one, two, four = (kept(lowered(**plan, tensor_parallel=ranks)) for ranks in (1, 2, 4))
    layers = 32 * 4096 * 4096 * 2
    assert [layers / 2, layers / 4] == pytest.approx([one - two, two - four])


def test_a_block_counts_layers_of_every_chunk() -> None:
    plan = {"pipeline_parallel": 4, "recompute": "full", "overlap_gradients": False}
    program = lowered(**plan, recompute_method="block", recompute_layers=2)
    held = [
        program.effect_bytes[program.start_effect[(program.rank == r) & (program.action == 0)][0]][3] for r in (1, 2)
    ]
    assert held[0] == held[1]
    whole = lowered(**plan)
    assert again(program) == pytest.approx(again(whole) * 2 / 8, rel=1e-9)


MODULES = [
    (LLAMA, "core_attn", "layer", ["attention operands copied", "attention"]),
    (LLAMA, "layernorm", "layer", ["attention norm", "mlp norm"]),
    (LLAMA, "mlp", "layer", ["mlp up", "swiglu", "mlp down"]),
    (MOE, "mla_up_proj", "moe layer", ["key value latent norm", "key value up", "rotary"]),
    (MOE, "moe_act", "moe layer", ["expert swiglu"]),
    (MOE, "shared_experts", "moe layer", ["shared expert up", "shared expert swiglu", "shared expert down"]),
]


@pytest.mark.parametrize(("workload", "module", "layer", "expected"), MODULES)
def test_a_module_runs_again_and_keeps_less(workload: Workload, module: str, layer: str, expected: list[str]) -> None:
    none = lowered(workload, recompute="none", overlap_gradients=False)  # buckets would cut layers in parts
    some = lowered(workload, recompute="selective", recompute_modules=(module,), overlap_gradients=False)
    assert expected == labels(some, layer)
    assert kept(some) < kept(none) if module != "core_attn" else kept(some) <= kept(none)


def test_all_experts_run_again_with_their_exchanges() -> None:
    program = lowered(MOE, recompute="selective", recompute_modules=("moe",), expert_parallel=8)
    names = labels(program, "moe layer")
    assert ("router", "shared expert sum") == (names[0], names[-1])
    assert {"dispatch all_to_all", "combine all_to_all"} <= set(names)
    one, two = (predicted(MOE, recompute="selective", recompute_modules=m) for m in (("moe",), ("moe_act",)))
    assert one.step_time > two.step_time
    assert one.peak_memory < two.peak_memory


def test_modules_add_up() -> None:
    def saved(*modules: str) -> float:
        return kept(lowered(recompute="none")) - kept(lowered(recompute="selective", recompute_modules=modules))

    assert saved("layernorm", "core_attn") == pytest.approx(saved("layernorm") + saved("core_attn"))
    assert saved("layernorm", "mlp") == pytest.approx(saved("layernorm") + saved("mlp"))


@pytest.mark.parametrize(
    ("plan", "values", "way"),
    [
        ({"recompute": "none", "recompute_layers": 2, "recompute_method": "block"}, "'none'", "recompute = 'full'"),
        ({"recompute": "full", "recompute_layers": 2}, "recompute_method = None", "both or neither"),
        (
            {"recompute": "selective", "recompute_layers": 2, "recompute_method": "uniform"},
            "'selective'",
            "'block'",
        ),
        (
            {"recompute": "full", "recompute_layers": 1, "recompute_method": "every"},
            "= 1",
            "leave recompute_method out",
        ),
        ({"recompute": "full", "recompute_layers": 33, "recompute_method": "block"}, "has 32", "recompute_layers = 32"),
        ({"recompute": "full", "recompute_modules": ("mlp",)}, "'full'", "'selective'"),
        ({"recompute": "selective", "recompute_modules": ("moe",)}, "'moe' is none", "leave moe out"),
        ({"recompute": "selective", "recompute_modules": ("mla_up_proj",)}, "llama3_8b", "leave mla_up_proj out"),
        ({"recompute": "selective", "recompute_modules": ("shared_experts",)}, "llama3_8b", "leave shared_experts out"),
    ],
)
def test_refused_where_it_cannot_act(plan: dict[str, Any], values: str, way: str) -> None:
    with pytest.raises(PlanError) as caught:
        lowered(**plan)
    assert values in str(caught.value)
    assert way in str(caught.value)


POLICIES = {
    "save_qkv_proj": (
        ["attention norm", "attention", "projection", "attention residual", "mlp norm", "mlp up", "swiglu"],
        3,
    ),
    "save_qkv_out_proj": (["attention norm", "attention", "attention residual", "mlp norm", "mlp up", "swiglu"], 4),
    "save_dot_with_context_except_mlp": (["attention norm", "attention residual", "mlp norm", "mlp up", "swiglu"], 5),
    "minimal": (["attention norm", "attention", "attention residual", "mlp norm", "swiglu"], 6),
    "minimal_flash": (["attention norm", "attention residual", "mlp norm", "swiglu"], 7),
}
"""Policy -> what runs again of a layer of Llama 3 8B, and how many values of those it names are kept: queries, keys and values are
three tensors, and with an attention kernel's output go its statistics."""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_makes_again_what_the_backward_pass_reads_and_no_more(policy: str) -> None:
    program = lowered(recompute_policy=policy, framework="maxtext", zero_stage=3)
    assert POLICIES[policy][0] == list(dict.fromkeys(labels(program)))


def test_what_a_policy_keeps_is_its_values_and_the_layers_input() -> None:
    tokens, layers = 4096.0, 32
    qkv, hidden, wide = tokens * 6144 * 2, tokens * 4096 * 2, tokens * 28672 * 2
    statistics = 4.0 * tokens * 32
    sizes = {
        "save_qkv_proj": hidden + qkv,
        "minimal": hidden + qkv + hidden + wide + hidden,
        "minimal_with_context": hidden + qkv + hidden + wide + hidden + hidden + statistics,
    }
    base = kept(lowered(recompute="full", overlap_gradients=False)) - layers * hidden  # what is outside the layers
    for policy, size in sizes.items():
        assert layers * size + base == pytest.approx(kept(lowered(recompute_policy=policy, overlap_gradients=False)))


def test_a_compiler_drops_the_last_product_of_a_forward_that_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = (profile(tmp_path, "whole", "maxtext", recompute_extent='"layer"'), "maxtext")
    whole, pruned = (lowered(recompute="full", zero_stage=3, framework=name) for name in names)
    assert {"mlp down", "mlp residual"} == set(labels(whole)) - set(labels(pruned))
    assert kept(whole) == kept(pruned)
    with_norm = Workload(model=load_model("gemma2_9b"), sequence_length=4096, global_batch_size=8)
    program = lowered(with_norm, recompute="full", zero_stage=3, framework="maxtext")
    again = {
        label
        for i in program.items
        if isinstance(i, Segment)
        for t, _ in i.pieces
        for label, phase in zip(t.label, t.phase, strict=True)
        if phase == "recompute"
    }
    assert "mlp down" in again  # a norm behind it reads it


def test_policies_have_the_names_of_both_codes_and_stand_in_place_of_recompute() -> None:
    one, other = (lowered(recompute_policy=name) for name in ("minimal_with_context", "save_dot_except_logits"))
    assert again(one) == again(other)
    with pytest.raises(PlanError, match="leave recompute out"):
        lowered(recompute="full", recompute_policy="minimal")
    with pytest.raises(UnknownNameError, match="save_qkv_proj"):
        lowered(recompute_policy="save_qkv_prj")


def test_layers_of_a_loop_copy_what_they_keep_and_what_they_carry() -> None:
    def copies(framework: str) -> dict[str, float]:
        program = lowered(recompute_policy="save_qkv_proj", zero_stage=3, framework=framework)
        tables = {t.name: t for i in program.items if isinstance(i, Segment) for t, _ in i.pieces}
        return {
            label: moved
            for t in tables.values()
            for label, moved in zip(t.label, t.written, strict=True)
            if label.endswith(("stack", "turn"))
        }

    token = 4096 * 2.0
    stacked = {f"{name} to its stack": width * token for name, width in KEPT_WIDTHS.items()}
    assert {} == copies("maxtext_unrolled")
    assert stacked == copies("maxtext")
    weights = 2.0 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096)
    turns = {"gathered weights to the next turn": weights, "gradients to the next turn": weights}
    assert {**stacked, **turns} == copies("paxml")


KEPT_WIDTHS = {"layer input": 4096, "queries": 4096, "keys": 1024, "values": 1024}


@pytest.mark.parametrize(("split", "parts"), [(1, 4), (4, 1)])
def test_kept_products_of_experts_are_their_rows(split: int, parts: int) -> None:
    """Each rank keeps the rows that it has: of all experts together, and of a width that it may share."""
    model = small_model(experts=8, experts_per_token=2, expert_ffn=64)
    work = Workload(model=model, sequence_length=128, global_batch_size=8)
    sharing = {"tensor_parallel": 4, "sequence_parallel": True, "expert_tensor_parallel": split}
    plan = Plan(**sharing, framework="megatron_core", recompute_policy="save_dot_only")  # type: ignore[arg-type]
    kept = {t.name: t.bytes for t in layer_costs(work, resolve(work, plan, 8))["moe layer"].saved}

    rows = 128 * 2 * 2.0
    assert rows * 2 * 64 / 4 == kept["expert up output"]
    assert rows * model.hidden / parts == kept["expert down output"]


def test_a_checkpoint_that_stops_early_leaves_out_what_comes_after_the_last_tensor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last product only reads what is kept, so it does not run again, nor do its collective and the sum behind it."""
    monkeypatch.chdir(tmp_path)
    name = profile(tmp_path, "whole", "torchtitan_eager", recompute_extent='"layer"')
    plan = {"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 3}
    whole, early = (lowered(**plan, recompute="full", framework=f) for f in (name, "torchtitan_eager"))
    assert {"mlp down", "mlp down parts of sequences", "mlp down reduce_scatter", "mlp residual"} == set(
        labels(whole)
    ) - set(labels(early))
    assert kept(whole) == kept(early)
    whole, early = (lowered(**plan, recompute="operators", framework=f) for f in (name, "torchtitan_eager"))
    assert {"mlp residual"} == set(labels(whole)) - set(labels(early))


def test_an_operator_that_keeps_what_it_made_runs_again_to_the_end_of_a_layer() -> None:
    """A norm at the end of a layer keeps what it made of the last product."""
    with_norm = Workload(model=load_model("gemma2_9b"), sequence_length=4096, global_batch_size=8)
    assert "mlp down" in labels(lowered(with_norm, recompute="full", zero_stage=3, framework="torchtitan_eager"))


def test_operator_by_operator_grouped_products_of_experts_run_again_whole_and_exchanges_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchtitan's list of what is kept names plain products and exchanges; grouped products and what sorts rows are not on it."""
    monkeypatch.chdir(tmp_path)
    whole = profile(tmp_path, "whole", "torchtitan_eager", recompute_extent='"layer"')
    loop = profile(tmp_path, "loop", "torchtitan_eager", expert_loop='"modules"')
    found = set(
        labels(lowered(MOE, recompute="operators", expert_parallel=8, zero_stage=3, framework=whole), "moe layer")
    )
    assert {"permute", "expert up", "expert down", "sort by expert", "sort back", "unpermute"} <= found
    assert not {"dispatch", "combine"} & found

    plans = (Plan(framework=name, recompute="operators", zero_stage=3) for name in (whole, loop))
    grouped, looped = ({t.name for t in layer_costs(MOE, resolve(MOE, plan, 8))["moe layer"].saved} for plan in plans)
    assert "expert gate output" not in grouped
    assert "expert input" not in grouped  # nothing came: rows are put in order again
    dealt = resolve(MOE, Plan(framework=whole, recompute="operators", zero_stage=3, expert_parallel=8), 8)
    assert "expert input" in {t.name for t in layer_costs(MOE, dealt)["moe layer"].saved}
    assert "expert gate output" in looped

    whole = profile(tmp_path, "wide", "torchtitan_eager", weighs_rows_in_fp32="true")
    plans = (
        Plan(framework=whole, recompute=kind, zero_stage=3, expert_parallel=ranks)  # type: ignore[arg-type]
        for kind, ranks in (("none", 8), ("operators", 8), ("operators", 1))
    )
    none, some, alone = (
        {t.name: t.bytes for t in layer_costs(MOE, resolve(MOE, plan, 8))["moe layer"].saved} for plan in plans
    )
    assert not {"expert output", "expert output in fp32"} & set(alone)
    assert "expert output" not in none
    assert "expert output in fp32" not in some
    assert none["expert output in fp32"] == 2 * some["expert output"]
