"""A path that a file of one's own names is looked for in the working directory, then beside that file."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.hardware.cluster import load_cluster
from simulator.job import load_job
from tests.command import Dtsim
from tests.package_sources import ROOT


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a job, a model, a cluster, its node and its GPU."""
    node = (ROOT / "hardware_specs/nodes/hgx_h100.toml").read_text()
    gpu = (ROOT / "hardware_specs/gpus/h100_80gb_sxm.toml").read_text()
    (tmp_path / "my_gpu.toml").write_text(gpu.replace('memory = "80 GiB"', 'memory = "70 GiB"'))
    (tmp_path / "my_node.toml").write_text(node.replace('gpu = "h100_80gb_sxm"', 'gpu = "my_gpu.toml"'))
    (tmp_path / "my_model.toml").write_text((ROOT / "workloads/models/gpt3_1_3b.toml").read_text())
    (tmp_path / "my_site.toml").write_text(
        'name = "my_site"\nnode = "my_node.toml"\nnodes = 2\n[sources]\n"*" = "a quote"\n'
    )
    (tmp_path / "job.toml").write_text(
        '[workload]\nmodel = "my_model.toml"\n[cluster]\nname = "my_site.toml"\ngpus = 8\n[plan]\nframework = "megatron_core"\n'
    )
    return tmp_path


def test_a_cluster_finds_its_node_beside_it_and_that_its_gpu(site: Path) -> None:
    cluster = load_cluster(site / "my_site.toml")

    assert (16, 70 * 2.0**30) == (cluster.world_size, cluster.gpu.memory)


def test_a_job_finds_its_model_and_cluster_beside_it_from_anywhere(site: Path, dtsim: Dtsim) -> None:
    job = load_job(site / "job.toml")

    assert ("my_site", "gpt3_1_3b", 8) == (job.cluster.name, job.workload.model.name, job.cluster.world_size)
    assert 0 == dtsim("run", str(site / "job.toml"))[0]


def test_a_file_of_the_working_directory_comes_first(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = (ROOT / "hardware_specs/nodes/dgx_a100_80.toml").read_text()
    (elsewhere / "my_node.toml").write_text(text)
    monkeypatch.chdir(elsewhere)

    assert "a100_80gb_sxm" == load_cluster(site / "my_site.toml").gpu.name


def test_what_is_in_neither_is_refused_by_the_path_that_stands_in_the_file(site: Path, dtsim: Dtsim) -> None:
    (site / "my_node.toml").unlink()
    code, _, said = dtsim("run", str(site / "job.toml"))

    assert (2, True) == (code, "my_node.toml: no such file" in said)
