"""Host time of DeepSpeed's ZeRO-3 hooks without a GPU; needs torch, transformers and deepspeed.

    python -m tests.conformance.hook_time [--ranks 2] [--recompute] [--encoder]

A Llama with 64 columns has nothing to compute, so a thread's time is that of Python and of the hooks around every module.  What eight more
layers add, less what they add without DeepSpeed, is divided by the passes of a layer's seven linear layers: forward and backward, and
once more where the forward runs again; and by the time of a linear layer in a loop on the same machine, 9.5 us on a DGX H100.  Streams,
events and what an allocator notes of them come on top where weights are on a GPU.  `--encoder` has PyTorch's own encoder layers,
whose hooks were timed on GPUs: how many times as long a Llama's layer keeps the thread makes those times `fetch_time`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.conformance.host_pace import FEW, MANY, WIDTH, llama, loop_time

LINEAR, ENCODER_LINEAR, STEPS, MICROBATCHES = 7, 4, 4, 8


def encoder(layers: int) -> Any:
    """Return a model of PyTorch's own layers, norm first, that is called as `llama`'s is."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(128, WIDTH)
            made = [
                torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(layers)
            ]
            self.blocks, self.head = torch.nn.ModuleList(made), torch.nn.Linear(WIDTH, 128, bias=False)

        def forward(self, input_ids: Any, labels: Any) -> Any:
            mask = torch.ones(2 * input_ids.shape[1:], dtype=torch.bool).triu(1)
            x = self.table(input_ids)
            for block in self.blocks:
                x = block(x, src_mask=mask, is_causal=True)
            loss = torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
            return argparse.Namespace(loss=loss)

    return Encoder().train()


def measure(layers: int, sharded: bool, recompute: bool, of: Callable[[int], Any]) -> float:
    """Return the seconds of this thread that forward and backward of a microbatch take; `of`: makes the model."""
    import deepspeed
    import torch

    torch.set_num_threads(1)
    model: Any = of(layers)
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
        command += ["--encoder"] * arguments.encoder
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
    parser.add_argument("--encoder", action="store_true")
    parser.add_argument("--measure", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--sharded", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.encoder and arguments.recompute:
        parser.error("--encoder runs nothing again; leave --recompute out")
    if arguments.measure:
        of = encoder if arguments.encoder else llama
        print(measure(arguments.measure, arguments.sharded, arguments.recompute, of))
        return
    with_hooks, without = (
        (measured(MANY, sharded, arguments) - measured(FEW, sharded, arguments)) / (MANY - FEW)
        for sharded in (True, False)
    )
    passes = (ENCODER_LINEAR if arguments.encoder else LINEAR) * (3 if arguments.recompute else 2)
    each, alone = (with_hooks - without) / passes, loop_time()
    print(f"{(with_hooks - without) * 1e3:.1f} ms a layer")
    print(
        f"{each * 1e6:.0f} us for each linear layer and pass, {each / alone:.0f} times a linear layer in a loop ({alone * 1e6:.1f} us)"
    )


if __name__ == "__main__":
    main()
