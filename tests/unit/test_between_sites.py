"""Exchange between sites: volumes, what hides, and a run on several sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.goodput.between_sites import exchange_between
from simulator.goodput.study import goodput
from simulator.hardware.sites import Sites
from simulator.job import load_job
from tests.command import Dtsim
from tests.unit.test_goodput_cli import FAILS, PLAIN

WEIGHTS, STEP = 8e9, 5.0
WIRE = {"count": 4, "bandwidth": 1e9, "latency": 0.05}


def test_volume_falls_with_the_local_steps() -> None:
    every = exchange_between(Sites(**WIRE, local_steps=1), WEIGHTS, STEP)
    seldom = exchange_between(Sites(**WIRE, local_steps=100), WEIGHTS, STEP)
    assert 2 * 3 / 4 * WEIGHTS * 4 == every.bytes_per_step == pytest.approx(100 * seldom.bytes_per_step)
    assert every.exposed == pytest.approx(100 * seldom.exposed)
    assert every.exposed == pytest.approx(48.0 + 6 * 0.05)


def test_every_step_in_the_gradients_width_is_a_ring_over_the_sites() -> None:
    half = exchange_between(Sites(**WIRE, bytes_per_weight=2), WEIGHTS, STEP)
    assert 24.0 + 0.3 == pytest.approx(half.fragment)


def test_fragments_hide_beside_training() -> None:
    """Streaming: a fragment of 6 s and its latency hides in two steps of 5 s, not in one."""
    plain = exchange_between(Sites(**WIRE, local_steps=100), WEIGHTS, STEP)
    parts = {"local_steps": 100, "fragments": 8}
    apart = exchange_between(Sites(**WIRE, **parts), WEIGHTS, STEP)
    one = exchange_between(Sites(**WIRE, **parts, overlap_steps=1), WEIGHTS, STEP)
    two = exchange_between(Sites(**WIRE, **parts, overlap_steps=2), WEIGHTS, STEP)
    assert apart.bytes_per_step == plain.bytes_per_step
    assert apart.exposed > plain.exposed > one.exposed > two.exposed == 0.0
    assert 8 * (6.0 + 0.3 - 5.0) / 100 == pytest.approx(one.exposed)


def test_the_way_out_is_never_faster_than_itself() -> None:
    narrow = Sites(count=2, bandwidth=1e8, local_steps=10, fragments=10, overlap_steps=10)
    assert 320.0 / 10 == pytest.approx(exchange_between(narrow, WEIGHTS, STEP).step)


def test_a_run_on_four_sites(tmp_path: Path, dtsim: Dtsim) -> None:
    """Four times the tokens per step, GPUs and failures; steps longer by the exchange."""
    path = tmp_path / "job.toml"
    path.write_text(PLAIN + FAILS)
    sites = ["sites.count=4", 'sites.bandwidth="100 Gb/s"', "sites.local_steps=50"]
    one = goodput(load_job(path), tokens=4e11, samples=100, levers=False)
    four = goodput(load_job(path, sites), tokens=4e11, samples=100, levers=False)
    exchange = four.described.exchange
    assert exchange is not None
    assert one.described.step + exchange.exposed == pytest.approx(four.described.step)
    hours = four.gpu_hours / one.gpu_hours
    assert 1.0 < hours < 1.3 * four.described.step / one.described.step
    rate = [sum(run.interruptions.values()) / run.runs.wall.mean() for run in (one, four)]
    assert 4.0 == pytest.approx(rate[1] / rate[0], rel=0.05)
    assert four.energy == pytest.approx(one.energy * hours, rel=0.1)
    _, out, _ = dtsim("goodput", str(path), *[f"--set={s}" for s in sites], "--no-levers", "--samples", "5", "--json")
    assert 4 == json.loads(out)["sites"]["count"]


def test_elastic_is_for_one_site(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(PLAIN + FAILS)
    more = ["reliability.spares=0", 'reliability.repair="1 h"', "reliability.elastic=1"]
    with pytest.raises(SpecError, match="one site"):
        goodput(load_job(path, [*more, "sites.count=2", 'sites.bandwidth="1 Gb/s"']), span=86400.0)


@pytest.mark.parametrize("wrong", [{"fragments": 9, "local_steps": 8}, {"overlap_steps": 9, "local_steps": 8}])
def test_more_than_fits_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="local_steps = 8"):
        Sites(**WIRE, **wrong)
