"""Orders written here run in torch.distributed.pipelining, and take the time that we say.

Gloo processes of one thread each; every action runs a small layer and then sleeps until its time is over, so that compute is the
same everywhere and only order, messages and PyTorch's own overhead remain.  That overhead, one number per action and one per
message, is fitted on some schedules and checked on the others: on a table of measured steps, and (slow) on steps run here.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulator.schedules import SCHEDULES, PipelineOrder, Shape
from simulator.schedules.torch_comms import torch_file
from simulator.studies.schedule_figures import schedule_figures

TABLE = Path(__file__).parents[1] / "data" / "torch_measured_steps.csv"
RANKS, MICROBATCHES = 4, 8
SECONDS = {"F": 0.012, "I": 0.015, "W": 0.010}
CHUNKS = {"GPipe": 1, "1F1B": 1} | dict.fromkeys(
    ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"), 2
)
FITTED = ("GPipe", "InterleavedZeroBubble")
TOLERANCE, TABLE_TOLERANCE, APART = 0.08, 0.05, 0.05
ATTEMPTS, LOAD_PER_CORE, LIMIT_S = 3, 1.5, 60


@dataclass(frozen=True)
class Measured:
    """What PyTorch did with one order: seconds of each step, actions per rank, its own lowering."""

    spans: list[float]
    actions: list[list[str]]
    lowered: list[str]

    @property
    def seconds(self) -> float:
        """The quickest step: whatever else runs on the machine only makes steps longer."""
        return min(self.spans)


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


def each_action(order: PipelineOrder) -> list[str]:
    """One line per rank; PyTorch runs a fused pair as its forward and then its backward."""
    return [re.sub(r"\((\w+);(\w+)\)OVERLAP_F_B", r"\1,\2", line) for line in order.to_text(torch=True).split()]


@functools.cache
def predicted(name: str, shape: Shape, seconds: tuple[float, ...], per_action: float, per_message: float) -> float:
    """Step time of an order: an action takes its time and the overhead; a whole backward is one action, a split one two.

    Args:
        seconds: of a forward, an input-gradient and a weight-gradient action.
    """
    v, split = shape.chunks_per_rank, SCHEDULES.get(name).splits_backward
    forward, input_grad, weight_grad = seconds
    return schedule_figures(
        name,
        shape.ranks,
        shape.microbatches,
        v,
        forward=v * (forward + per_action),
        input_grad=v * (input_grad + per_action),
        weight_grad=v * (weight_grad + (per_action if split else 0.0)),
        transfer=per_message,
    ).makespan


Row = tuple[str, Shape, tuple[float, ...], float]
"""Schedule, shape, seconds of its actions, measured seconds of a step."""


def fit(rows: list[Row]) -> tuple[float, float]:
    """Overhead per action and per message, in steps of 0.2 ms, than which no neighbour meets these rows better."""
    steps = [k * 2e-4 for k in range(10)]

    @functools.cache
    def miss(action: int, message: int) -> float:
        return sum((predicted(*row[:3], steps[action], steps[message]) / row[3] - 1) ** 2 for row in rows)

    best, before = (4, 4), None
    while best != before:
        before = best
        near = itertools.product(*(range(max(0, k - 1), min(len(steps), k + 2)) for k in best))
        best = min(near, key=lambda place: miss(*place))
    return steps[best[0]], steps[best[1]]


def misses(rows: list[Row], overheads: tuple[float, float], tolerance: float) -> list[str]:
    """What is further off than it may be, and which pairs further apart than 5 % are ranked wrong."""
    ours = [predicted(*row[:3], *overheads) for row in rows]
    print(f"\noverhead per action {overheads[0] * 1e3:.1f} ms, per message {overheads[1] * 1e3:.1f} ms")
    found = []
    for (name, shape, _, real), mine in zip(rows, ours, strict=True):
        line = f"{name} ({shape}): predicted {mine:.4f} s, measured {real:.4f} s, {100 * (mine / real - 1):+.2f} %"
        print(line)
        found += [line] if abs(mine / real - 1) > tolerance else []
    for a, b in itertools.combinations(range(len(rows)), 2):
        x, y = rows[a], rows[b]
        if x[1].ranks == y[1].ranks and abs(x[3] / y[3] - 1) > APART and (x[3] < y[3]) != (ours[a] < ours[b]):
            found.append(
                f"{x[0]} and {y[0]} are ranked wrong: measured {x[3]:.4f}, {y[3]:.4f}; predicted {ours[a]:.4f}, {ours[b]:.4f}"
            )
    return found


def skip_if_busy() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > LOAD_PER_CORE * cores:
        pytest.skip(f"the machine is busy: load {load:.1f} on {cores} cores, the most is {LOAD_PER_CORE} per core")


def table() -> list[Row]:
    lines = [line.split(",") for line in TABLE.read_text().splitlines() if not line.startswith("#")][1:]
    return [
        (name, Shape(int(p), int(m), int(v)), (float(f) / 1e3, float(i) / 1e3, float(w) / 1e3), float(step) / 1e3)
        for name, p, m, v, f, i, w, step in lines
    ]


@pytest.mark.parametrize("half", [0, 1])
def test_steps_that_pytorch_has_run_are_predicted_from_the_other_half_of_them(half: int) -> None:
    rows = table()
    assert [] == misses(rows[half::2], fit(rows[1 - half :: 2]), TABLE_TOLERANCE)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: pip install 'dtsim[torch]'"
)
def test_pytorch_runs_our_orders_in_the_time_we_predict(tmp_path: Path) -> None:
    found: list[str] = []
    for attempt in range(ATTEMPTS):
        skip_if_busy()
        measured = measure(tmp_path / str(attempt))
        for name, seen in measured.items():
            schedule, shape = SCHEDULES.get(name), shape_of(name)
            order = schedule.order(shape, schedule.placement(shape))
            assert each_action(order) == [",".join(rank) for rank in seen.actions], f"{name} ran otherwise"
            lowered = torch_file(schedule, shape, comms=True)
            assert lowered.split() == seen.lowered, f"PyTorch lowers {name} otherwise"
        rows = [(name, shape_of(name), tuple(SECONDS.values()), seen.seconds) for name, seen in measured.items()]
        overheads = fit([row for row in rows if row[0] in FITTED])
        found = misses(rows, overheads, TOLERANCE)
        if not found:
            return
    assert [] == found
