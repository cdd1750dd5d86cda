"""Orders written here run in torch.distributed.pipelining, and take the time that we say.

Four gloo processes of one thread each on this machine; every action runs a small layer and then sleeps until its time is over, so
that compute is the same everywhere and only order, messages and PyTorch's own overhead remain.  That overhead, one number per
action and one per message, is fitted on two schedules and checked on the others.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulator.schedules import SCHEDULES, Shape
from simulator.schedules.torch_comms import torch_file
from simulator.studies.schedule_figures import schedule_figures

pytest.importorskip("torch", reason="torch is not installed (pip install 'dtsim[torch]')")
pytestmark = pytest.mark.slow

RANKS, MICROBATCHES = 4, 8
SECONDS = {"F": 0.010, "I": 0.012, "W": 0.008}
CHUNKS = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "LoopedBFS": 2, "InterleavedZeroBubble": 2, "ZBVZeroBubble": 2}
FITTED = ("GPipe", "InterleavedZeroBubble")
TOLERANCE, APART = 0.08, 0.05
ATTEMPTS, LOAD_PER_CORE, LIMIT_S = 3, 1.5, 75


@dataclass(frozen=True)
class Measured:
    """What PyTorch did with one order: seconds of each step, actions per rank, its own lowering."""

    spans: list[float]
    actions: list[list[str]]
    lowered: list[str]

    @property
    def seconds(self) -> float:
        return statistics.median(self.spans)


def shape_of(name: str) -> Shape:
    return Shape(RANKS, MICROBATCHES, CHUNKS[name])


def measure(folder: Path) -> dict[str, Measured]:
    """Write all orders, run them in PyTorch, return what was seen."""
    folder.mkdir()
    orders = []
    for name in CHUNKS:
        schedule, shape = SCHEDULES.get(name), shape_of(name)
        entry: dict[str, Any] = {"name": name, "rank_of_stage": schedule.placement(shape).rank_of[0].tolist()}
        for form in ("compute_only", "compute_comms"):
            path = folder / f"{name}.{form}.csv"
            path.write_text(torch_file(schedule, shape, comms=form == "compute_comms"))
            entry[form] = str(path)
        orders.append(entry)
    task = {
        "ranks": RANKS,
        "microbatches": MICROBATCHES,
        "seconds": SECONDS,
        "warm_up": 2,
        "steps": 5,
        "orders": orders,
    }
    (folder / "task.json").write_text(json.dumps(task))
    run_ranks(folder)
    seen = [json.loads((folder / f"seen_{rank}.json").read_text()) for rank in range(RANKS)]
    return {name: summed(name, [mine[name] for mine in seen]) for name in CHUNKS}


def run_ranks(folder: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    script = Path(__file__).with_name("torch_stages.py")
    with (folder / "log").open("w") as log:
        processes = [
            subprocess.Popen([sys.executable, script, folder / "task.json", str(rank)], env=environment, stderr=log)
            for rank in range(RANKS)
        ]
        try:
            codes = [process.wait(LIMIT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert [0] * RANKS == codes, (folder / "log").read_text()[-3000:]


def summed(name: str, ranks: list[dict[str, Any]]) -> Measured:
    steps = list(zip(*(rank["steps"] for rank in ranks), strict=True))
    spans = [max(a[2] for rank in step for a in rank) - min(a[1] for rank in step for a in rank) for step in steps]
    return Measured(spans, [[action[0] for action in rank] for rank in steps[-1]], ranks[0]["lowered"])


def predicted(name: str, per_action: float, per_message: float) -> float:
    """Step time of an order: an action takes its time and the overhead; a whole backward is one action, a split one two."""
    v, split = CHUNKS[name], SCHEDULES.get(name).splits_backward
    return schedule_figures(
        name,
        RANKS,
        MICROBATCHES,
        v,
        forward=v * (SECONDS["F"] + per_action),
        input_grad=v * (SECONDS["I"] + per_action),
        weight_grad=v * (SECONDS["W"] + (per_action if split else 0.0)),
        transfer=per_message,
    ).makespan


def fit(measured: dict[str, Measured]) -> tuple[float, float]:
    """Overhead per action and per message, in steps of 0.1 ms, that meets the fitted schedules best."""
    tenths = [k * 1e-4 for k in range(21)]

    def miss(overheads: tuple[float, float]) -> float:
        return sum((predicted(name, *overheads) / measured[name].seconds - 1) ** 2 for name in FITTED)

    return min(itertools.product(tenths, tenths), key=miss)


def misses(measured: dict[str, Measured]) -> list[str]:
    """What is further off than it may be."""
    overheads = fit(measured)
    ours = {name: predicted(name, *overheads) for name in CHUNKS}
    real = {name: measured[name].seconds for name in CHUNKS}
    print(f"\noverhead per action {overheads[0] * 1e3:.1f} ms, per message {overheads[1] * 1e3:.1f} ms")
    for name in CHUNKS:
        print(f"{name:24}{'fitted' if name in FITTED else '':8}predicted {ours[name]:.4f} s, measured {real[name]:.4f} s, "
              f"error {100 * (ours[name] / real[name] - 1):+.2f} %")  # fmt: skip
    found = [f"{name}: predicted {ours[name]:.4f} s, measured {real[name]:.4f} s" for name in CHUNKS
             if abs(ours[name] / real[name] - 1) > TOLERANCE]  # fmt: skip
    for a, b in itertools.combinations(CHUNKS, 2):
        if abs(real[a] / real[b] - 1) > APART and (real[a] < real[b]) != (ours[a] < ours[b]):
            found.append(f"{a} and {b} are ranked wrong: measured {real[a]:.4f} and {real[b]:.4f} s, predicted {ours[a]:.4f} and {ours[b]:.4f} s")  # fmt: skip  # noqa: E501
    return found


def skip_if_busy() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > LOAD_PER_CORE * cores:
        pytest.skip(f"the machine is busy: load {load:.1f} on {cores} cores, the most is {LOAD_PER_CORE} per core")


def test_pytorch_runs_our_orders_in_the_time_we_predict(tmp_path: Path) -> None:
    found: list[str] = []
    for attempt in range(ATTEMPTS):
        skip_if_busy()
        measured = measure(tmp_path / str(attempt))
        for name, seen in measured.items():
            schedule, shape = SCHEDULES.get(name), shape_of(name)
            order = schedule.order(shape, schedule.placement(shape))
            assert order.to_text(torch=True).split() == [",".join(rank) for rank in seen.actions], (
                f"{name} ran in another order"
            )
            lowered = torch_file(schedule, shape, comms=True)
            assert lowered.split() == seen.lowered, f"PyTorch lowers {name} in another way"
        found = misses(measured)
        if not found:
            return
    assert [] == found
