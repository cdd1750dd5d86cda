"""A proven optimum beside a plain loop of simulate() over the same space.  Prints; never judged by time.

    DTSIM_BASE=../base python -m pytest -m benchmark -s tests/benchmarks/test_search_speed.py

Each runs in a process of its own, in CPU seconds on one core.  The loop is sampled: 150 plans of the space, refused ones too, times
their number; with this tree, and with that of the checkout which DTSIM_BASE names.
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


def ran(tree: Path, *words: str, given: str = "") -> dict[str, Any]:
    script = Path(__file__).with_name("search_spaces.py")
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    out = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=tree,
        env=environment,
        check=True,
        capture_output=True,
        input=given,
        text=True,
    )
    found: dict[str, Any] = json.loads(out.stdout)
    return found


@pytest.mark.benchmark
def test_millions_of_plans(capsys: pytest.CaptureFixture[str]) -> None:
    """22B on 64 A100 with choices of overlap, and of what goes to the host."""
    found = ran(HERE, "wide", *SPACES["22B on 64 A100"])
    assert found["proven"]
    assert sum(found["disposed"].values()) == found["plans"] > 2_000_000
    with capsys.disabled():
        print(
            f"\n{found['plans']:,} plans, proven in {found['seconds']:.0f} CPU-s ({found['plans'] / found['seconds']:,.0f}/s, "
            f"{found['bytes'] / 2**20:.0f} MiB, {found['disposed']})"
        )


@pytest.mark.benchmark
@pytest.mark.parametrize("name", SPACES)
def test_search_beside_a_loop(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ran(HERE, "search", *SPACES[name])
    assert found["proven"]
    base = os.environ.get("DTSIM_BASE")
    trees = {"this tree": HERE, **({"the base": Path(base).resolve()} if base else {})}
    plans, seconds = found["plans"], found["seconds"]
    lines = [
        f"{name}: {plans:,} plans, proven in {seconds:.1f} CPU-s ({plans / seconds:,.0f}/s, {found['bytes'] / 2**20:.0f} MiB, "
        f"{found['disposed']})"
    ]
    for what, tree in trees.items():
        loop = plans * ran(tree, "loop", *SPACES[name], given=json.dumps(found["sample"]))["each"]
        lines.append(f"a loop of {what} (sampled): {loop:.0f} CPU-s, {loop / seconds:.0f} times")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
