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


class Loaded:
    """One order, loaded by PyTorch as one rank sees it; `lowered` is what PyTorch makes of its compute actions."""

    def __init__(self, task: dict[str, Any], entry: dict[str, Any], rank: int) -> None:
        home, m = entry["rank_of_stage"], task["microbatches"]
        seconds = task["seconds"] | {"B": task["seconds"]["I"] + task["seconds"]["W"]}
        mine = [stage for stage, its in enumerate(home) if its == rank]
        self.stages = []
        for stage in mine:
            made = SleepingStage(torch.nn.Linear(WIDTH, WIDTH), stage, len(home), torch.device("cpu"))
            made.seconds, made.seen = seconds, []
            self.stages.append(made)

        def runtime(form: str) -> Any:
            loaded = _PipelineScheduleRuntime(self.stages, m, loss_fn=torch.nn.functional.mse_loss, scale_grads=False)
            loaded._load_csv(entry[form], format=form)
            return loaded

        lowered = runtime("compute_only").pipeline_order_with_comms
        self.lowered = [",".join(map(str, lowered[r])) for r in sorted(lowered)]
        self.schedule = runtime("compute_comms")
        self.given = (torch.randn(m, WIDTH),) if 0 in mine else ()
        self.target = torch.randn(m, WIDTH) if len(home) - 1 in mine else None

    def step(self) -> list[tuple[str, float, float]]:
        """Run one step; return its actions."""
        for made in self.stages:
            made.seen.clear()
            made.submod.zero_grad()
        more = {} if self.target is None else {"target": self.target, "losses": []}
        dist.barrier()
        self.schedule.step(*self.given, **more)
        return sorted((action for made in self.stages for action in made.seen), key=lambda action: action[1])


def main(task_path: str, rank: int) -> None:
    """Run all orders of a task as one rank, in turn, so that a disturbance of the machine meets all of them."""
    torch.set_num_threads(1)
    folder = Path(task_path).parent
    task = json.loads(Path(task_path).read_text())
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=task["ranks"])
    loaded = {entry["name"]: Loaded(task, entry, rank) for entry in task["orders"]}
    steps = [{name: order.step() for name, order in loaded.items()} for _ in range(task["warm_up"] + task["steps"])]
    seen = {
        name: {"lowered": order.lowered, "steps": [step[name] for step in steps[task["warm_up"] :]]}
        for name, order in loaded.items()
    }
    (folder / f"seen_{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
