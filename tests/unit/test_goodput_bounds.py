"""A run in which more would happen than can be simulated is refused at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from simulator.errors import SpecError
from simulator.goodput.study import goodput
from simulator.job import load_job

BEGIN = """
[workload]
model = "gpt2_124m"
[plan]
microbatch_size = 8
[cluster]
name = "a100_x8"
gpus = 2
"""


@pytest.mark.parametrize(
    "failures",
    [
        'failures = [{component = "gpu", mtbf = "40 us"}]',
        'failures = [{component = "gpu", mtbf = "1 s", effect = "slow", clock = 0.5}]',
        'failures = [{component = "gpu", mtbf = "10 s"}]\nspares = 1\nrepair = "30 d"',
        'maintenance = {every = "1 us", length = "0 s"}',
    ],
    ids=["failures", "slow parts", "machines taken away", "windows"],
)
@pytest.mark.parametrize("interval", ["auto", "10 min"])
def test_too_much_in_one_run(failures: str, interval: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f'{BEGIN}[checkpoint]\ninterval = "{interval}"\nwrite = "60 s"\n[reliability]\n{failures}\n')
    job = load_job(path)
    begun = time.process_time()
    with pytest.raises(SpecError, match=r"(?s)at most about 2,000,000 .*Way out: a shorter run"):
        goodput(job, samples=5)
    assert time.process_time() - begun < 20
