"""Distinct plans of one job, each predicted once, block by block as a line on standard input asks: the work of
`test_distinct_plan_speed.py`.  It runs in a process of its own, also with an older tree on its path, so it uses public names alone.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator

from simulator import Plan, Workload, load_cluster, load_model, simulate

__all__ = ["BLOCK", "PLANS"]

GPUS, BATCH = 512, 512
BLOCK = 27
"""Plans of a block: those of one pair of degrees."""
PLANS = 14 * BLOCK
"""Llama-3 70B on 512 H100 with 8 GPUs or more per copy of the model, and microbatches, recompute and ZeRO stages for each."""


def plans() -> Iterator[Plan]:
    """Yield the plans, block after block."""
    for tensor, pipeline in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16)):
        if tensor * pipeline < 8:
            continue
        for microbatch, recompute, zero in itertools.product((1, 2, 4), ("none", "selective", "full"), (0, 1, 3)):
            yield Plan(
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                microbatch_size=microbatch,
                recompute=recompute,
                zero_stage=zero,
                sequence_parallel=tensor > 1,
            )


def main() -> None:
    """Answer each line with the CPU seconds and step times of the next block, as JSON; the first with those of a warm-up."""
    small = Workload(model=load_model("llama3_8b"), sequence_length=4096, global_batch_size=64)
    nodes = load_cluster("dgx_h100", 16)
    work = Workload(model=load_model("llama3_70b"), sequence_length=8192, global_batch_size=BATCH)
    cluster, left = load_cluster("dgx_h100", GPUS), plans()
    for number, _ in enumerate(sys.stdin):
        start, steps = time.process_time(), []
        if number:
            steps = [simulate(work, plan, cluster).step_time for plan in itertools.islice(left, BLOCK)]
        else:
            for zero in (0, 1, 3):
                warm = Plan(tensor_parallel=2, pipeline_parallel=2, zero_stage=zero, sequence_parallel=True)
                simulate(small, warm, nodes)
        print(json.dumps([time.process_time() - start, steps]), flush=True)


if __name__ == "__main__":
    main()
