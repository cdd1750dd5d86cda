"""Run by `test_search_speed.py` in a process of its own: one space, searched or sampled; prints one line of JSON.

python search_spaces.py search|loop MODEL CLUSTER GPUS BATCH TOKENS
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from typing import Any

_SAMPLE = 150


def main(what: str, model: str, cluster: str, gpus: str, batch: str, tokens: str) -> dict[str, Any]:
    """Return CPU seconds and what was found."""
    from simulator.errors import SimulatorError
    from simulator.job import job_from_names
    from simulator.search.search import search
    from simulator.search.space import default_ranges, make_space
    from simulator.simulation import simulate_job

    simulate_job(job_from_names("gpt3_1_3b", "h100_x8", ["plan.pipeline_parallel=2"]))  # compiled
    sizes = [f"cluster.gpus={gpus}", f"workload.global_batch_size={batch}", f"workload.sequence_length={tokens}"]
    job = job_from_names(model, cluster, sizes)
    ranges = {field: values for field, values in default_ranges(job).items() if field != "plan.layer_split"}
    space = make_space(job, ranges, {})
    started = time.process_time()
    if what == "search":
        answer = search(space, top=1)
        seconds = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found = {"best": answer.best[0].step_time, "proven": answer.proven, "disposed": answer.disposed, "bytes": peak}
        return {"seconds": seconds, "plans": space.size} | found
    numbers = random.Random(0).sample(range(space.size), _SAMPLE)
    for number in numbers:
        try:
            simulate_job(space.job_of(space.at(number)))
        except SimulatorError:
            continue
    return {"seconds": (time.process_time() - started) * space.size / _SAMPLE, "plans": space.size}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
