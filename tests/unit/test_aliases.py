"""Names of other programs are taken for our own; a hint never leads to a field of another meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.aliases import ALIASES
from simulator.errors import SpecError
from simulator.job import ClusterChoice, WorkloadChoice, load_job
from simulator.plan.plan import Plan
from simulator.workload.model import Model

TABLES = {"plan": Plan, "workload": WorkloadChoice, "model": Model, "cluster": ClusterChoice}


def test_every_alias_stands_for_a_field_and_hides_none() -> None:
    for alias, field in ALIASES.items():
        table, _, name = field.partition(".")
        assert name in TABLES[table].model_fields
        assert alias.partition(".")[2] not in TABLES[table].model_fields


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        (["plan.tensor_model_parallel_size=4"], ["plan.tensor_parallel=4"]),
        (["tp=4", "gbs=768"], ["plan.tensor_parallel=4", "workload.global_batch_size=768"]),
        (["workload.seq_length=1024", "plan.recompute_granularity=full"], ["workload.sequence_length=1024", "plan.recompute=full"]),
        (["model.num_layers=48", "cluster.world_size=512"], ["model.layers=48", "cluster.gpus=512"]),
    ],
)  # fmt: skip
def test_settings(settings: list[str], same: list[str]) -> None:
    assert load_job("gpt3_175b", same) == load_job("gpt3_175b", settings)


def test_job_files(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        'name = "x"\n[workload]\nmodel = "gpt2"\ngbs = 8\nseq_length = 512\n[plan]\ntp = 2\nmbs = 2\n'
        '[cluster]\nname = "dgx_a100"\ngpus = 8\n'
    )
    job = load_job(path)
    assert (2, 2, 8, 512) == (
        job.plan.tensor_parallel,
        job.plan.microbatch_size,
        job.workload.global_batch_size,
        job.workload.sequence_length,
    )
    path.write_text('[workload]\nmodel = "gpt2"\n[plan]\ntp = 2\ntensor_parallel = 2\n[cluster]\nname = "dgx_a100"\n')
    with pytest.raises(SpecError, match=r"plan.tensor_parallel is given twice"):
        load_job(path)


@pytest.mark.parametrize(
    ("setting", "said", "never"),
    [
        ("plan.gradient_accumulation_steps=4", "global_batch_size / (microbatch_size x data_parallel)", "Did you mean"),
        ("plan.use_distributed_optimizer=true", "Here: zero_stage = 1.", "Did you mean"),
        ("plan.dp_replicate=2", "shard_size", "fsdp_reduce?"),
        ("plan.num_stages=2", "pipeline_parallel x chunks_per_rank", "zero_stage?"),
        ("plan.tensor_paralel=2", "Did you mean tensor_parallel?", "Known:"),
    ],
)
def test_hints(setting: str, said: str, never: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_job("gpt3_175b", [setting])
    assert said in str(refused.value)
    assert never not in str(refused.value)
    assert 3 == len(str(refused.value).partition("Nearest: ")[2].split(", "))
