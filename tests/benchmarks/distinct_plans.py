"""Distinct plans of one job, block by block as a line on standard input asks, all of them once and then all once more: the work of
`test_distinct_plan_speed.py`.  It runs in a process of its own, also with an older tree on its path, so it uses public names alone.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from simulator import Plan, Workload, load_cluster, load_model, simulate

__all__ = ["SPACES", "Space"]


class Space(NamedTuple):
    """A job and choices of its plan, of which every combination is a plan; blocks are those of one combination of `outer`."""

    title: str
    model: str
    tokens: int
    batch: int
    cluster: str
    gpus: int
    outer: dict[str, tuple[Any, ...]]
    inner: dict[str, tuple[Any, ...]]
    least_split: int = 1
    """GPUs per copy of the model, at least."""

    def blocks(self) -> list[dict[str, Any]]:
        """Return the combinations of `outer`."""
        found = [dict(zip(self.outer, values, strict=True)) for values in itertools.product(*self.outer.values())]
        return [b for b in found if b["tensor_parallel"] * b["pipeline_parallel"] >= self.least_split]

    def plans(self, block: dict[str, Any]) -> Iterator[Plan]:
        """Yield the plans of a block."""
        for values in itertools.product(*self.inner.values()):
            choices = {**block, **dict(zip(self.inner, values, strict=True))}
            yield Plan(**choices, sequence_parallel=choices["tensor_parallel"] > 1)


SPACES = {
    space.model: space
    for space in (
        Space(
            "Llama-3 70B on 512 H100",
            "llama3_70b", 8192, 512, "dgx_h100", 512,
            {"tensor_parallel": (1, 2, 4, 8), "pipeline_parallel": (1, 2, 4, 8, 16)},
            {"microbatch_size": (1, 2, 4), "recompute": ("none", "selective", "full"), "zero_stage": (0, 1, 3)},
            least_split=8,
        ),
        Space(
            "GPT-3 175B on 1,024 A100",
            "gpt3_175b", 2048, 1536, "selene", 1024,
            {"tensor_parallel": (2, 4, 8), "pipeline_parallel": (4, 8, 16), "chunks_per_rank": (1, 2)},
            {"microbatch_size": (1, 2), "recompute": ("none", "selective", "full"), "zero_stage": (0, 1)},
        ),
        Space(
            "DeepSeek-V3 on 2,048 H800",
            "deepseek_v3", 4096, 15360, "hgx_h800", 2048,
            {"tensor_parallel": (1, 2), "pipeline_parallel": (4, 8, 16), "expert_parallel": (16, 32, 64)},
            {"microbatch_size": (1, 2), "recompute": ("none", "full"), "zero_stage": (0, 1)},
        ),
    )
}  # fmt: skip


def main(space: Space) -> None:
    """Answer each line with the CPU seconds, and the step times and peaks of memory, of the next block, as JSON; the first with those
    of a warm-up."""
    small = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=64)
    nodes = load_cluster("dgx_h100", 16)
    work = Workload(model=load_model(space.model), sequence_length=space.tokens, global_batch_size=space.batch)
    cluster, left = load_cluster(space.cluster, space.gpus), itertools.chain(space.blocks(), space.blocks())
    warm = [Plan(tensor_parallel=2, pipeline_parallel=2, zero_stage=zero, sequence_parallel=True) for zero in (0, 1, 3)]
    for number, _ in enumerate(sys.stdin):
        plans = list(space.plans(next(left))) if number else warm
        start = time.process_time()
        found = []
        for plan in plans:
            prediction = simulate(work, plan, cluster) if number else simulate(small, plan, nodes)
            found.append((prediction.step_time, prediction.peak_memory))
        print(json.dumps([time.process_time() - start, found]), flush=True)


if __name__ == "__main__":
    main(SPACES[sys.argv[1]])
