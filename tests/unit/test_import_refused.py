"""Settings of other programs that were once passed over, misread or refused in riddles."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.importers.imported import Findings
from simulator.importers.jobs import import_file, load_any_job
from simulator.importers.show import job_text
from tests.command import Dtsim

DATA = Path(__file__).parents[1] / "data" / "imports"
AXOLOTL = """base_model: meta-llama/Meta-Llama-3-8B
sequence_len: 4096
micro_batch_size: 2
bf16: auto
"""


def of_text(folder: Path, name: str, text: str) -> Findings:
    (folder / name).write_text(text)
    return import_file(folder / name)


def lost(found: Findings) -> list[str]:
    return [line.text.partition(":")[0] for line in found.not_understood]


@pytest.mark.parametrize(
    ("text", "prefetch", "left"),
    [
        ("fsdp: full_shard\nfsdp_config: {backward_prefetch: no_prefetch}\n", 0, []),
        ("fsdp_config: {fsdp_sharding_strategy: FULL_SHARD, fsdp_backward_prefetch: NO_PREFETCH}\n", 0, []),
        ("fsdp_config: {fsdp_backward_prefetch: BACKWARD_PRE}\n", 1, []),
        (
            "fsdp_config: {fsdp_backward_prefetch: BACKWARD_POST}\n",
            None,
            ["fsdp_config.fsdp_backward_prefetch"],
        ),
        ("fsdp_version: 2\nfsdp_config: {backward_prefetch: no_prefetch}\n", None, []),
    ],
)
def test_what_fsdp_gathers_ahead_is_read(tmp_path: Path, text: str, prefetch: int | None, left: list[str]) -> None:
    found = of_text(tmp_path, "a.yaml", AXOLOTL + text)
    assert prefetch == found.tables["plan"].get("fsdp_prefetch")
    assert left == lost(found)


@pytest.mark.parametrize(
    ("scheduler", "warmup", "left"),
    [
        ("", None, ["optimizer.params.freeze_step"]),
        (', "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100000}}', 0.23, []),
        (
            ', "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 23000}}',
            None,
            ["optimizer.params.freeze_step"],
        ),
    ],
)
def test_dense_steps_of_one_bit_adam_are_a_share_of_the_run(
    tmp_path: Path, scheduler: str, warmup: float | None, left: list[str]
) -> None:
    optimizer = '"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 23000}}'
    text = f'{{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": 0}}, {optimizer}{scheduler}}}'
    found = of_text(tmp_path, "ds.json", text)
    assert ("one_bit", warmup) == (
        found.tables["plan"]["gradient_exchange"],
        found.tables["plan"].get("exchange_warmup"),
    )
    assert left == lost(found)


def test_without_zero_3_nothing_is_gathered_ahead(tmp_path: Path) -> None:
    text = AXOLOTL + "fsdp: shard_grad_op\nfsdp_config: {backward_prefetch: no_prefetch}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert load_any_job(str(tmp_path / "a.yaml"), (), None, "dgx_h100").plan.fsdp_prefetch is None


def test_stages_that_torchtitan_refuses_leave_its_own_default(tmp_path: Path) -> None:
    """82 layers by 4 make 21 stages, which 2 ranks cannot share: the chunks that the layers are dealt to are said all the same."""
    lines = (DATA / "torchtitan.toml").read_text().replace("layers_per_stage = 7", "layers_per_stage = 4")
    lines = lines.replace("pipeline_parallel_degree = 4", "pipeline_parallel_degree = 2")
    found = of_text(tmp_path, "t.toml", lines)
    plan = found.tables["plan"]
    assert "parallelism.pipeline_parallel_layers_per_stage" in lost(found)
    assert 2 * plan.get("chunks_per_rank", 1) == len(plan["layer_split"])


def test_a_model_that_nobody_knows_is_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(AXOLOTL.replace("meta-llama/Meta-Llama-3-8B", "nobody/knows") + "adapter: lora\nlora_r: 8\n")
    with pytest.raises(SpecError) as refused:
        load_any_job(str(path), (), None, "dgx_h100")
    (line,) = str(refused.value).splitlines()
    assert "missing keys layers, hidden, heads" in line
    assert "Way out: --model NAME, or --model config.json" in line


JOB = '[workload]\nmodel = "gpt2_124m"\n[cluster]\nname = "a100_x8"\n'


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("mine.toml", "dtsim run {path}"),
        ("mine", "mv {path} {path}.toml"),
        ("mine.job", "mv {path} {path}.toml"),
        ("my job", "mv '{path}' '{path}.toml'"),
    ],
)
@pytest.mark.parametrize("text", [JOB, "\ufeff" + JOB.replace("\n", "\r\n")])
def test_a_job_of_our_own_is_no_file_of_another_program(text: str, name: str, way: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(SpecError) as told:
        import_file(path)
    assert str(told.value) == f"{path}: is a job of dtsim. Way out: {way.format(path=path)}"


@pytest.mark.parametrize(
    "text", ["", "\x00\x01", "[cluster", "cluster = 3\n", '[other]\nmodel = "x"\n', "#!/bin/sh\necho"]
)
def test_what_is_no_job_either_is_not_called_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text(text)
    with pytest.raises(SpecError, match="is of none of the"):
        import_file(tmp_path / "mine")


def test_a_job_written_without_a_model_says_that_one_is_missing(tmp_path: Path) -> None:
    """An importer leaves out what its files do not say; what is missing is one name, not the fourteen keys of a model."""
    written = job_text(
        of_text(
            tmp_path,
            "ds_config.json",
            '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}',
        ),
        "mine",
    )
    job = tmp_path / "mine.toml"
    job.write_text(written)
    with pytest.raises(SpecError) as told:
        load_any_job(str(job), ("cluster.name=a100_x8",))
    said = str(told.value)
    assert said.startswith(f"{job}: a job names a model")
    assert said.endswith("Way out: --set workload.model=NAME (dtsim list models)")
    assert "missing key" not in said
    assert (
        load_any_job(str(job), ("cluster.name=a100_x8", "workload.model=gpt2_124m")).workload.model.name == "gpt2_124m"
    )


def test_a_job_repeats_the_flags_that_were_left_out(tmp_path: Path) -> None:
    text = (DATA / "megatron.sh").read_text()
    (tmp_path / "train.sh").write_text(text.replace("--tensor-model-parallel-size", "--tensor-model-paralel-size"))
    job = load_any_job(str(tmp_path / "train.sh"), (), None, "dgx_h100")
    (left,) = (line for line in job.assumptions if "not understood" in line)
    assert "--tensor-model-paralel-size" in left


def test_a_file_that_is_no_measurement_is_told_what_one_is(dtsim: Dtsim, tmp_path: Path) -> None:
    nsys = tmp_path / "kernels.csv"
    nsys.write_text("Time (%),Total Time (ns),Instances,Name\n45.0,123456789,300,gemm\n")
    code, _, said = dtsim("run", "gpt2_124m_1gpu", "--measured", str(nsys))
    assert (2, True, False) == (code, "a trace of PyTorch's profiler" in said, "dtsim init" in said)
