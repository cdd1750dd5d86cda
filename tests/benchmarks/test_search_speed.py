"""A proven optimum beside a plain loop of simulate() over the same space.  Prints; never judged by time.

    DTSIM_BASE=../base python -m pytest -m benchmark -s tests/benchmarks/test_search_speed.py

Each runs in a process of its own, in CPU seconds on one core.  The loop is sampled: 150 plans of the space, refused ones too, times
their number; the same tree's, or that of the checkout which DTSIM_BASE names (it must have `simulator.search`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parents[2]
SPACES = {
    "22B on 64 A100": ("megatron_22b", "dgx_a100", "64", "256", "2048"),
    "175B on 1,024 A100": ("gpt3_175b", "selene", "1024", "1536", "2048"),
    "Llama 3 405B on 16,384 H100": ("llama3_1_405b", "dgx_h100", "16384", "2048", "8192"),
    "DeepSeek-V3 on 2,048 H800": ("deepseek_v3", "hgx_h800", "2048", "15360", "4096"),
}


def ran(tree: Path, *words: str) -> dict[str, Any]:
    script = Path(__file__).with_name("search_spaces.py")
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    out = subprocess.run(
        [sys.executable, str(script), *words], cwd=tree, env=environment, check=True, capture_output=True
    )
    found: dict[str, Any] = json.loads(out.stdout)
    return found


@pytest.mark.benchmark
@pytest.mark.parametrize("name", SPACES)
def test_search_beside_a_loop(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, loop = (
        ran(HERE, "search", *SPACES[name]),
        ran(Path(os.environ.get("DTSIM_BASE", HERE)), "loop", *SPACES[name]),
    )
    assert found["proven"]
    assert found["plans"] == loop["plans"]
    ratio = loop["seconds"] / found["seconds"]
    with capsys.disabled():
        print(
            f"\n{name}: {found['plans']:,} plans, proven in {found['seconds']:.1f} CPU-s ({found['plans'] / found['seconds']:,.0f}/s, "
            f"{found['bytes'] / 2**20:.0f} MiB, {found['disposed']}); a loop (sampled) {loop['seconds']:.0f} CPU-s: {ratio:.0f} times"
        )
