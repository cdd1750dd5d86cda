"""Clusters of which some name a price: they are not weighed against each other by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Dtsim


@pytest.fixture
def asked(tmp_path: Path) -> tuple[str, ...]:
    """A search over a cluster with a price and one without."""
    priced = tmp_path / "priced.toml"
    priced.write_text(
        'name = "priced"\nnode = "hgx_h100"\nnodes = 1\nprice_per_gpu_hour = "2 $/h"\n[sources]\n"*" = "a quote"\n'
    )
    clusters = f"cluster.name={priced},a100_x8"
    words = ("search", "--model", "gpt3_1_3b", "--cluster", str(priced), "--range", clusters, "--fix", "cluster.gpus=8")
    return (*words, "--range", "zero_stage=1,3")


def test_dollars_are_not_compared_with_seconds_of_gpus(dtsim: Dtsim, asked: tuple[str, ...]) -> None:
    code, out, said = dtsim(*asked, "--objective", "cost")
    assert (2, "") == (code, out)
    assert "the least cost needs a price of every cluster or of none, but a100_x8 names none" in said


def test_a_price_that_is_not_known_is_a_dash(dtsim: Dtsim, asked: tuple[str, ...]) -> None:
    code, out, _ = dtsim(*asked)
    assert 0 == code
    best = out.partition("the best\n")[2].splitlines()[:5]
    assert "price" in best[0]
    assert ["$", "-"] == sorted({"$" if "$" in line else "-" for line in best[1:5]}, reverse=False)


def test_plans_without_a_price_are_not_taken_for_free(dtsim: Dtsim, asked: tuple[str, ...]) -> None:
    """The front weighs time, memory and GPUs, where some prices are not known."""
    front = json.loads(dtsim(*asked, "--strategy", "grid", "--json")[1])["pareto"]
    for one in front:
        beaten = (other for other in front if other["step_time_s"] < one["step_time_s"])
        assert all(other["peak_memory_bytes"] > one["peak_memory_bytes"] for other in beaten)


@pytest.mark.parametrize(
    "setting",
    [
        "cluster.price_per_gpu_hour=3 $/h",
        "power.cap=200 W",
        "cluster.gpu_spread=0.2",
        "cluster.parts=[{ranks=0, clock=0.5}]",
    ],
)
def test_what_is_set_of_the_cluster_holds_on_all_that_are_ranged(dtsim: Dtsim, setting: str) -> None:
    """As the run that is printed has it."""
    words = (
        "--set",
        setting,
        "--set",
        "plan.zero_stage=1",
        "--set",
        "cluster.gpus=8",
        "--set",
        "workload.global_batch_size=8",
    )
    model = ("--model", "gpt3_1_3b", "--cluster", "h100_x8", *words)
    asked = ("--range", "cluster.name=h100_x8,a100_x8", "--range", "microbatch_size=1", "--json")
    for one in json.loads(dtsim("search", *model, *asked)[1])["best"]:
        cluster = ("--set", f"cluster.name={one['plan']['cluster.name']}", "--set", "plan.microbatch_size=1")
        ran = json.loads(dtsim("compare", *model, *cluster, "--json")[1])["rows"][0]
        assert ran["step_time_s"]["value"] == one["step_time_s"]
        assert ran["price_usd_per_step"] == pytest.approx(one["price_usd_per_step"])


def test_other_worlds_of_several_clusters_are_refused_before_the_search(
    dtsim: Dtsim, asked: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.search.search.search", lambda *a, **more: pytest.fail("it was searched"))
    code, _, said = dtsim(*asked, "--sensitivity", str(tmp_path / "t.png"))
    assert (2, True) == (code, "cluster.name is ranged" in said)


def test_electricity_is_that_of_each_cluster_that_is_ranged(dtsim: Dtsim, tmp_path: Path) -> None:
    """What a cluster's file says of it holds there alone, what the job says on all of them."""
    files = [tmp_path / f"{name}.toml" for name in ("plain", "warm")]
    for file, pue in zip(files, ("1.0", "2.0"), strict=True):
        file.write_text(
            f'name = "{file.stem}"\nnode = "hgx_h100"\nnodes = 1\n[power]\npue = {pue}\nsource = "a meter"\n[sources]\n"*" = "a quote"\n'
        )
    asked = (
        "search",
        "--model",
        "gpt3_1_3b",
        "--cluster",
        str(files[0]),
        "--range",
        f"cluster.name={files[0]},{files[1]}",
    )
    asked += (
        "--fix",
        "cluster.gpus=8",
        "--range",
        "microbatch_size=1",
        "--objective",
        "energy",
        "--strategy",
        "grid",
        "--json",
    )

    def energies(*more: str) -> list[float]:
        best = json.loads(dtsim(*asked, *more)[1])["best"]
        return [one["energy_j_per_step"] for one in sorted(best, key=lambda one: str(one["plan"]["cluster.name"]))]

    plain, warm = energies()
    assert warm == pytest.approx(2.0 * plain, rel=0.01)
    assert energies("--set", "power.pue=1.5") == pytest.approx([1.5 * plain] * 2, rel=0.01)
