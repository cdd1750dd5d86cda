"""Host time of DeepSpeed's ZeRO-3 hooks, the source of `fetch_time` in its profile; needs torch, transformers and deepspeed.

    python -m tests.conformance.hook_time [--ranks 2] [--recompute]

A Llama with 64 columns has nothing to compute, so a thread's time is that of Python and of the hooks around every module.  What eight more
layers add, less what they add without DeepSpeed, is divided by the passes of a layer's seven linear layers: forward and backward, and
once more where the forward runs again; and by the time of a linear layer in a loop on the same machine, 9.5 us on a DGX H100.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from tests.conformance.host_pace import FEW, MANY, WIDTH, llama, loop_time

LINEAR, STEPS, MICROBATCHES = 7, 4, 8


def measure(layers: int, sharded: bool, recompute: bool) -> float:
    """Return the seconds of this thread that forward and backward of a microbatch take."""
    import deepspeed
    import torch

    torch.set_num_threads(1)
    model: Any = llama(layers)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if sharded:
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        zero = {  # as transformers fills in "auto"
            "stage": 3,
            "overlap_comm": True,
            "stage3_prefetch_bucket_size": int(0.9 * WIDTH**2),
            "stage3_param_persistence_threshold": 10 * WIDTH,
        }
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": MICROBATCHES,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
        }
        update = torch.optim.AdamW(model.parameters(), lr=1e-4)
        model, *_ = deepspeed.initialize(model=model, optimizer=update, config=settings)
    tokens, found = torch.randint(0, 128, (1, 8)), []
    for number in range(STEPS * MICROBATCHES):
        begun = time.thread_time()
        loss = model(input_ids=tokens, labels=tokens).loss
        model.backward(loss) if sharded else loss.backward()
        took = time.thread_time() - begun
        if number >= 2 * MICROBATCHES and number % MICROBATCHES not in (0, MICROBATCHES - 1):
            found.append(took)
        if sharded:
            model.step()
    return statistics.median(found)


def measured(layers: int, sharded: bool, arguments: argparse.Namespace) -> float:
    """`measure` in processes of their own, one per rank; the seconds of the first."""
    count, started = arguments.ranks if sharded else 1, []
    for rank in range(count):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "DS_ACCELERATOR": "cpu"}
        command = [sys.executable, "-m", "tests.conformance.hook_time", "--measure", str(layers)]
        command += ["--sharded"] * sharded + ["--recompute"] * arguments.recompute
        started.append(
            subprocess.Popen(command, env={**os.environ, **ranks, **place}, stdout=subprocess.PIPE, text=True)
        )
    said = [process.communicate()[0] for process in started]
    return float(said[0].split()[-1])


def main() -> None:
    """Print the microseconds of a linear layer's hooks each time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--measure", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--sharded", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(measure(arguments.measure, arguments.sharded, arguments.recompute))
        return
    with_hooks, without = (
        (measured(MANY, sharded, arguments) - measured(FEW, sharded, arguments)) / (MANY - FEW)
        for sharded in (True, False)
    )
    passes = LINEAR * (3 if arguments.recompute else 2)
    each, alone = (with_hooks - without) / passes, loop_time()
    print(
        f"{each * 1e6:.0f} us for each linear layer and pass, {each / alone:.0f} times a linear layer in a loop ({alone * 1e6:.1f} us)"
    )


if __name__ == "__main__":
    main()
