"""Norms without a kernel of their own: which models pay for them in eager PyTorch."""

from __future__ import annotations

from simulator.lowering.layers.expand import layer_costs
from simulator.lowering.resolve.resolved_plan import resolve
from simulator.plan.plan import Plan
from simulator.workload.model import load_model
from tests.lowered import lowered, workload


def test_fsdp_of_eager_pytorch_pays_for_rms_norms_and_not_for_layer_norms() -> None:
    def read(model: str, framework: str) -> float:
        program = lowered(workload(model, 8, 1024), 8, framework=framework)
        tables = [t for block in program.blocks for s in block.segments for t, _ in s.pieces]
        return sum(t.read[i] for t in tables for i, label in enumerate(t.label) if label.endswith("norm"))

    assert read("llama3_2_1b", "pytorch_fsdp") > 3 * read("llama3_2_1b", "llm_foundry")
    assert read("gpt2_355m", "pytorch_fsdp") == read("gpt2_355m", "llm_foundry")


def kept(recompute: str) -> dict[str, float]:
    """Bytes per number of the hidden states that a layer of the eager profile keeps, as for a microbatch of one sequence."""
    work = workload("llama3_2_1b", 8, 1024)
    plan = Plan(data_parallel=8, zero_stage=3, framework="torchtitan_eager", recompute=recompute, attention="sdpa_2025")
    layer = layer_costs(work, resolve(work, plan, 8))["layer"]
    return {t.name: t.bytes / (1024 * work.model.hidden) for t in layer.saved}


def test_a_norm_in_plain_operations_keeps_its_fp32_copy_and_its_result_but_not_its_input() -> None:
    saved = kept("none")
    assert (6.0, 6.0) == (saved["attention norm in fp32"], saved["mlp norm in fp32"])
    assert set() == {"attention norm input", "mlp norm input"} & set(saved)


def test_a_layer_that_runs_again_operator_by_operator_keeps_its_input_and_the_values_before_they_are_repeated() -> None:
    saved, model = kept("operators"), load_model("llama3_2_1b")
    assert 2.0 == saved["attention norm input"]
    assert 2.0 * model.kv_heads / model.heads == saved["values, not repeated"]
    assert "mlp norm input" not in saved
