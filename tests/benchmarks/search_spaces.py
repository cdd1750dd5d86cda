"""Run by `test_search_speed.py` in a process of its own: one space, searched, or a sample of its plans simulated; prints one line of
JSON.  The loop may run with an older tree on its path, so it uses public names alone.

python search_spaces.py search|loop MODEL CLUSTER GPUS BATCH TOKENS        the loop reads plans from standard input
python search_spaces.py wide MODEL CLUSTER GPUS BATCH TOKENS               the same, with choices of overlap and of the host
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

_SAMPLE = 150


def peak_bytes() -> int:
    """Return the most memory that this process held; `getrusage` would count that of the process which started it, too."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


FINE: dict[str, dict[str, tuple[Any, ...]]] = {
    "megatron_22b": {"plan.chunks_per_rank": (1, 2, 4, 8)},
    "gpt3_175b": {"plan.chunks_per_rank": (1, 2, 3, 4, 6, 8, 12, 24)},
    "llama3_1_405b": {
        "plan.pipeline_parallel": (1, 2, 4, 6, 7, 8, 9, 14, 16, 18, 21, 32, 42, 63),
        "plan.chunks_per_rank": (1, 2, 3, 4, 7, 8),
    },
    "deepseek_v3": {"plan.chunks_per_rank": (1, 2, 3, 4, 6, 8)},
}
"""What a planner would try of each model beside the default ranges; with these the spaces have 12,000 to 120,000 plans."""
_OF_ALL = {"plan.microbatch_size": (1, 2, 4, 8), "plan.zero_stage": (0, 1, 2, 3)}
WIDE: dict[str, tuple[Any, ...]] = {
    "plan.overlap_gradients": (None, False, True),
    "plan.overlap_parameters": (None, False, True),
    "plan.overlap_tensor_parallel": (None, True),
    "plan.optimizer_offload": (0.0, 0.5, 1.0),
    "plan.activation_offload": (None, 1, 2),
    "plan.parameter_offload": (0.0, 0.5, 1.0),
}


def searched(
    model: str, cluster: str, gpus: str, batch: str, tokens: str, more: dict[str, tuple[Any, ...]] | None = None
) -> dict[str, Any]:
    """Return CPU seconds, what was found, and a sample of the space's plans, refused ones too; `more`: further ranges."""
    from simulator.job import job_from_names
    from simulator.search.defaults import default_ranges
    from simulator.search.search import search
    from simulator.search.space import make_space
    from simulator.simulation import simulate_job

    simulate_job(job_from_names("gpt3_1_3b", "h100_x8", ["plan.pipeline_parallel=2"]))  # compiled
    sizes = [f"cluster.gpus={gpus}", f"workload.global_batch_size={batch}", f"workload.sequence_length={tokens}"]
    job = job_from_names(model, cluster, sizes)
    ranges = {field: values for field, values in default_ranges(job).items() if field != "plan.layer_split"}
    space = make_space(job, ranges | (more or (FINE[model] | _OF_ALL)), {})
    started = time.process_time()
    answer = search(space, top=1)
    seconds = time.process_time() - started
    numbers = random.Random(0).sample(range(space.size), _SAMPLE)
    values = [space.at(number).values for number in numbers]
    return {
        "seconds": seconds,
        "plans": space.size,
        "best": answer.best[0].step_time,
        "proven": answer.proven,
        "disposed": answer.disposed,
        "bytes": peak_bytes(),
        "sample": [{field.partition(".")[2]: value for field, value in one.items()} for one in values],
    }


def simulated(model: str, cluster: str, gpus: str, batch: str, tokens: str) -> dict[str, Any]:
    """Return CPU seconds for each of the plans that standard input has, refused ones too."""
    from simulator import Plan, Workload, load_cluster, load_model, simulate
    from simulator.errors import SimulatorError

    small = Workload(model=load_model("gpt3_1_3b"), sequence_length=2048, global_batch_size=64)
    simulate(small, Plan(pipeline_parallel=2), load_cluster("h100_x8", 8))  # compiled
    work = Workload(model=load_model(model), sequence_length=int(tokens), global_batch_size=int(batch))
    where, plans = load_cluster(cluster, int(gpus)), json.load(sys.stdin)
    started = time.process_time()
    for plan in plans:
        try:
            prediction = simulate(work, Plan(**plan), where)
        except SimulatorError:
            continue
        assert prediction.step_time > 0
        assert prediction.peak_memory > 0
    return {"each": (time.process_time() - started) / len(plans)}


def widely(*words: str) -> dict[str, Any]:
    """As `searched`, of the space with `WIDE`."""
    return searched(*words[:5], WIDE)


if __name__ == "__main__":
    print(json.dumps({"search": searched, "wide": widely, "loop": simulated}[sys.argv[1]](*sys.argv[2:])))
