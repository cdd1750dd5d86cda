"""One rank of a PyTorch pipeline whose stages sleep: loads orders from files, checks PyTorch's own lowering, runs and times them.

    python torch_stages.py TASK.json RANK      writes what it saw to TASK.json's folder, as seen_RANK.json

Times are of the clock that all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH = 64


class SleepingStage(PipelineStage):
    """A small layer whose actions take at least a given time; `seen` collects (action, start, end)."""

    seconds: dict[str, float]
    seen: list[tuple[str, float, float]]

    def _timed(self, kind: str, microbatch: int, call: Any, *given: Any, **more: Any) -> Any:
        start = time.monotonic()
        out = call(*given, **more)
        left = start + self.seconds[kind] - time.monotonic()
        if left > 0:
            time.sleep(left)
        self.seen.append((f"{self.stage_index}{kind}{microbatch}", start, time.monotonic()))
        return out

    def forward_one_chunk(self, microbatch: int, *given: Any, **more: Any) -> Any:
        return self._timed("F", microbatch, super().forward_one_chunk, microbatch, *given, **more)

    def backward_one_chunk(self, microbatch: int, *given: Any, full_backward: bool = True, **more: Any) -> Any:
        call = super().backward_one_chunk
        kind = "B" if full_backward else "I"
        return self._timed(kind, microbatch, call, microbatch, *given, full_backward=full_backward, **more)

    def backward_weight_one_chunk(self, microbatch: int, *given: Any, **more: Any) -> Any:
        return self._timed("W", microbatch, super().backward_weight_one_chunk, microbatch, *given, **more)


def run_file(task: dict[str, Any], entry: dict[str, Any], rank: int) -> dict[str, Any]:
    """Run one order for some steps; return the actions of every step, and how PyTorch lowers it itself."""
    home, m = entry["rank_of_stage"], task["microbatches"]
    mine = [stage for stage, its in enumerate(home) if its == rank]
    seconds = task["seconds"] | {"B": task["seconds"]["I"] + task["seconds"]["W"]}
    stages = []
    for stage in mine:
        made = SleepingStage(torch.nn.Linear(WIDTH, WIDTH), stage, len(home), torch.device("cpu"))
        made.seconds, made.seen = seconds, []
        stages.append(made)

    def runtime(path: str, form: str) -> Any:
        loaded = _PipelineScheduleRuntime(stages, m, loss_fn=torch.nn.functional.mse_loss, scale_grads=False)
        loaded._load_csv(path, format=form)
        return loaded

    lowered = runtime(entry["compute_only"], "compute_only").pipeline_order_with_comms
    schedule = runtime(entry["compute_comms"], "compute_comms")
    batch, target = torch.randn(m, WIDTH), torch.randn(m, WIDTH)
    steps = []
    for _ in range(task["warm_up"] + task["steps"]):
        for made in stages:
            made.seen.clear()
            made.submod.zero_grad()
        dist.barrier()
        given = (batch,) if 0 in mine else ()
        more = {"target": target, "losses": []} if len(home) - 1 in mine else {}
        schedule.step(*given, **more)
        steps.append(sorted((entry for made in stages for entry in made.seen), key=lambda entry: entry[1]))
    return {"lowered": [",".join(map(str, lowered[r])) for r in sorted(lowered)], "steps": steps[task["warm_up"] :]}


def main(task_path: str, rank: int) -> None:
    """Run all orders of a task as one rank."""
    torch.set_num_threads(1)
    folder = Path(task_path).parent
    task = json.loads(Path(task_path).read_text())
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=task["ranks"])
    seen = {entry["name"]: run_file(task, entry, rank) for entry in task["orders"]}
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
