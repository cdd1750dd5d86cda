"""What Megatron-LM's fused kernels are worth (Narayanan et al., arXiv 2104.04473, section 5.8), as far as operators alone tell it."""

from __future__ import annotations

import pytest

from simulator.job import load_job
from simulator.simulation import simulate_job

GPT3 = (
    "pipeline_parallel=12", "chunks_per_rank=1", "schedule=one_f_one_b", "sequence_parallel=false", "recompute=full",
)  # fmt: skip
MT_NLG = ("chunks_per_rank=1", "schedule=one_f_one_b")


def tflops(job: str, framework: str, plan: tuple[str, ...], *others: str) -> float:
    """TFLOP/s of a GPU as the paper counts them: what is recomputed is work, too."""
    settings = [f"plan.{one}" for one in (*plan, f"framework={framework}")]
    prediction = simulate_job(load_job(job, [*settings, *others]))
    return prediction.hfu * prediction.cluster.gpu.peak("fp16") / 1e12


def test_gpt3_with_fused_kernels() -> None:
    one_replica = ("cluster.gpus=96", "workload.global_batch_size=96")
    fused, plain = (
        tflops("gpt3_175b", name, GPT3, *one_replica) for name in ("megatron_lm_2021", "megatron_lm_2021_unfused")
    )
    assert fused == pytest.approx(135, rel=0.02)
    assert plain == pytest.approx(113, rel=0.10)
    assert 1.08 < fused / plain < 135 / 113


def test_they_are_worth_less_in_a_wider_model() -> None:
    fused, plain = (
        tflops("korthikanti_530b_full", name, MT_NLG) for name in ("megatron_lm_2021", "megatron_lm_2021_unfused")
    )
    assert fused == pytest.approx(148, rel=0.08)
    assert 1.04 < fused / plain < 148 / 133
