"""Norms without a kernel of their own: which models pay for them in eager PyTorch."""

from __future__ import annotations

from tests.lowered import lowered, workload


def test_fsdp_of_eager_pytorch_pays_for_rms_norms_and_not_for_layer_norms() -> None:
    def read(model: str, framework: str) -> float:
        program = lowered(workload(model, 8, 1024), 8, framework=framework)
        tables = [t for block in program.blocks for s in block.segments for t, _ in s.pieces]
        return sum(t.read[i] for t in tables for i, label in enumerate(t.label) if label.endswith("norm"))

    assert read("llama3_2_1b", "pytorch_fsdp") > 3 * read("llama3_2_1b", "llm_foundry")
    assert read("gpt2_355m", "pytorch_fsdp") == read("gpt2_355m", "llm_foundry")
