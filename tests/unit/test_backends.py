"""The library that a framework's collectives go through belongs to the framework; its wires are those of the cluster at hand."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from simulator.collectives import KINDS, collective_seconds
from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.fabric import Backend, fabric_of
from simulator.hardware.group_placement import describe_group
from simulator.plan.framework import Framework, load_framework
from simulator.plan.plan import Plan
from simulator.report.prediction import Prediction
from simulator.simulation import simulate
from simulator.workload.model import load_model
from simulator.workload.workload import Workload
from tests.command import Dtsim


def predicted(framework: str, cluster: str, gpus: int = 16) -> Prediction:
    work = Workload(model=load_model("bert_48"), sequence_length=128, global_batch_size=256, precision="fp32")
    plan = Plan(pipeline_parallel=4, microbatch_size=4, framework=framework)
    return simulate(work, plan, load_cluster(cluster, gpus))


def seconds(cluster: str, backend: Backend, kind: str = "all_reduce", message: float = 1e9, ranks: int = 4) -> float:
    fabric = fabric_of(load_cluster(cluster, 4 * load_cluster(cluster).node.gpus), backend)
    return collective_seconds(kind, message, describe_group(ranks, ranks, 1, None, fabric), fabric).seconds


def profiles(prediction: Prediction) -> set[str]:
    return {model.split("(")[-1].rstrip(")") for model in prediction.prices.model if "(" in model}


def test_a_profile_takes_its_library_along_to_any_cluster() -> None:
    assert profiles(predicted("pipedream_gloo", "piz_daint")) == {"nccl_piz_daint_gloo"}
    assert profiles(predicted("pipedream_gloo", "v100_dgx1")) == {"nccl_any_gloo"}
    assert profiles(predicted("pipedream_gloo", "dgx_h100")) == {"nccl_any_gloo"}


def test_a_cluster_forces_no_library_on_a_profile() -> None:
    assert not {name for name in profiles(predicted("megatron_lm", "piz_daint")) if "gloo" in name}
    assert not {name for name in profiles(predicted("megatron_lm", "piz_daint_eager")) if "gloo" in name}


def test_through_host_memory_a_step_is_slower_where_the_wires_are_quick() -> None:
    nccl, gloo = predicted("nvidia_bert", "v100_dgx1"), predicted("pipedream_gloo", "v100_dgx1")
    assert gloo.breakdown["dp"] + gloo.breakdown["pp"] > 5 * (nccl.breakdown["dp"] + nccl.breakdown["pp"])


def test_a_thread_of_the_host_is_the_bottleneck_of_quick_networks_and_the_wire_of_slow_ones() -> None:
    assert seconds("dgx_h100", "gloo") == pytest.approx(seconds("v100_dgx1", "gloo"), rel=0.05)
    assert seconds("dgx_h100", "gloo") > 4 * seconds("dgx_h100", "nccl")
    assert seconds("rtx_3090_x8", "gloo") > 1.3 * seconds("dgx_h100", "gloo"), "10 Gb/s are less than a thread moves"


def test_on_piz_daint_the_general_numbers_are_the_fitted_ones() -> None:
    fitted, general = fabric_of(load_cluster("piz_daint", 32), "gloo"), fabric_of(load_cluster("dgx_a100", 256), "gloo")
    for kind, ranks in (("all_reduce", 8), ("all_reduce", 32), ("send_recv", 2)):
        times = [collective_seconds(kind, 4e8, describe_group(ranks, ranks, 1, None, f), f) for f in (fitted, general)]
        assert times[0].seconds == pytest.approx(times[1].seconds, rel=0.1)
        assert times[1].sigma > times[0].sigma, "other hosts were not measured"


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_every_collective(kind: str) -> None:
    assert 0 < seconds("v100_dgx1", "gloo", kind, ranks=2) < 60
    fabric = fabric_of(load_cluster("v100_dgx1", 8), "gloo")
    assert 0 < collective_seconds(kind, 1e9, describe_group(2, 1, 1, None, fabric), fabric).seconds < 60


def test_the_verb_asks_for_it(dtsim: Dtsim) -> None:
    ask = ["collective", "all_reduce", "--cluster", "piz_daint", "--ranks", "8", "--size", "400MB"]
    assert "nccl_piz_daint_gloo" in dtsim(*ask, "--backend", "gloo")[1]
    code, out, _ = dtsim(*ask)
    assert (0, False) == (code, "gloo" in out)
    for wrong in (["--backend", "mpi"], ["--backend", "gloo", "--algorithm", "nvls", "--nodes", "8"]):
        code, _, err = dtsim(*ask, *wrong)
        assert 2 == code
        assert ("mpi" in err) or ("nvls" in err)


def test_another_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hardware_specs" / "frameworks"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(
        'name = "mine"\nextends = "nvidia_bert"\nbackend = "mpi"\n[sources]\n"*" = "a test"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert get_args(Framework.model_fields["backend"].annotation) == get_args(Backend)
    with pytest.raises(SpecError, match=r"(?s)backend.*'nccl', 'gloo'"):
        load_framework("mine")
