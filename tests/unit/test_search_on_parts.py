"""A search on a cluster whose parts differ: bounds where they are slower than the rest, none where one is quicker."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.job import job_from_names
from simulator.search.answer import Answer
from simulator.search.candidate import Looked, look
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from tests.package_sources import ROOT

RANGES = ["tp=1,2,8", "pp=1,2,4", "zero_stage=0,1,3", "recompute=none,full"]


def figures(answer: Answer) -> list[tuple[int, float]]:
    return [(one.point.number, one.step_time) for one in answer.best[:10]]


def too_high(looked: Looked) -> bool:
    """Whether a bound is above what simulate() says."""
    result = looked.simulated()
    if isinstance(result, str):
        return False
    return looked.bound > result.step_time or looked.full * result.capacity > result.peak_memory


@pytest.mark.parametrize(
    ("parts", "known"),
    [
        ('{nodes=1, clock=0.8, host=0.7}, {ranks="5-9", memory_bandwidth=0.6, network=0.5, link=0.7}', True),
        ('{nodes=0, node="capped"}', True),
        ('{nodes=0, gpu_power="450 W"}', True),
        ("{nodes=1, clock=1.2}", False),
        ('{nodes=1, gpu="h200_141gb_sxm"}', False),
        ('{nodes=1, node="hgx_h200"}', False),
    ],
)
def test_bounds_hold_where_parts_are_slower(
    parts: str, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose GPUs may draw less is slower; of a quicker one, or another kind, nothing is known."""
    text = (ROOT / "hardware_specs/nodes/hgx_h100.toml").read_text().replace('aliases = ["dgx_h100"]', "")
    (tmp_path / "hardware_specs" / "nodes").mkdir(parents=True)
    file = tmp_path / "hardware_specs" / "nodes" / "capped.toml"
    file.write_text(text.replace('name = "hgx_h100"', 'name = "capped"\ngpu_power = "450 W"'))
    monkeypatch.chdir(tmp_path)
    settings = ["workload.global_batch_size=64", "cluster.gpus=16", f"cluster.parts=[{parts}]"]
    space = make_space(job_from_names("llama2_13b", "dgx_h100", settings), read_ranges(RANGES), {})
    looks = [look(space, point, "step_time") for point in space.points()]
    assert not [one.point.settings for one in looks if too_high(one)]
    assert known == any(one.bound > 0 for one in looks)
    exact = search(space)
    assert figures(exact) == figures(search(space, "grid"))
    assert known == (exact.disposed["bounded"] > 0)
