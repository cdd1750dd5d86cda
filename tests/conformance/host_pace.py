"""How much longer an operator keeps the host in a training step of plain PyTorch than in a loop of one operator: the source of `eager_pace`
and `backward_pace` (calibrations/host.toml); needs torch and transformers.

    python -m tests.conformance.host_pace

A Llama with 64 columns has nothing to compute, so its thread's time is that of Python, of the dispatcher and of autograd.  What eight more
layers add forward and backward is divided by the kernels that the dispatcher sees there (views start none), and by the time of a linear
layer in a loop on the same thread: such ratios hold on other machines as seconds do not.  Backward, operators are started from C++.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

FEW, MANY, WIDTH, STEPS, LOOP, ROUNDS = 4, 12, 64, 4, 500, 25
_NO_KERNEL = {
    "view", "_unsafe_view", "t", "transpose", "expand", "slice", "select", "detach", "alias", "unsqueeze", "permute", "split", "as_strided",
    "empty", "empty_like", "empty_strided",
}  # fmt: skip


def llama(layers: int) -> Any:
    """Return a Llama whose kernels have nothing to do."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, vocab_size=128, use_cache=False, **shape)).train()


def loop_time() -> float:
    """Return the seconds of this thread that a linear layer takes in a loop."""
    import torch

    layer, x = torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(8, WIDTH, requires_grad=True)
    begun = time.thread_time()
    for _ in range(LOOP):
        layer(x)
    return (time.thread_time() - begun) / LOOP


def both_ways(model: Any) -> tuple[float, float]:
    """Return the seconds of this thread that forward and backward of a model take."""
    import torch

    tokens, found = torch.randint(0, 128, (1, 8)), []
    for _ in range(STEPS):
        begun = time.thread_time()
        loss = model(input_ids=tokens, labels=tokens).loss
        middle = time.thread_time()
        loss.backward()
        found.append((middle - begun, time.thread_time() - middle))
        model.zero_grad()
    forward, backward = (statistics.median(times) for times in zip(*found, strict=True))
    return forward, backward


def kernels(layers: int) -> tuple[int, int]:
    """Return the operators that start a kernel, forward and backward."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            seen.append(operator.overloadpacket.__name__)
            return operator(*given, **(named or {}))

    def counted(work: Callable[[], Any]) -> tuple[int, Any]:
        seen.clear()
        with Watch():
            answer = work()
        return sum(name not in _NO_KERNEL for name in seen), answer

    model, tokens = llama(layers), torch.randint(0, 128, (1, 8))
    forward, answer = counted(lambda: model(input_ids=tokens, labels=tokens))
    return forward, counted(answer.loss.backward)[0]


def main() -> None:
    """Print both ratios, each the median of rounds, for other work on the machine slows the loop and the step alike."""
    import torch

    torch.set_num_threads(1)
    long, short = llama(MANY), llama(FEW)
    more = [(a - b) / (MANY - FEW) for a, b in zip(kernels(MANY), kernels(FEW), strict=True)]
    rounds = []
    for _ in range(ROUNDS):
        alone = loop_time()
        layer = [(a - b) / (MANY - FEW) for a, b in zip(both_ways(long), both_ways(short), strict=True)]
        rounds.append([took / count / alone for took, count in zip(layer, more, strict=True)])
    for i, way in enumerate(("forward", "backward")):
        low, middle, high = statistics.quantiles([found[i] for found in rounds], n=4)
        print(
            f"{way}: {more[i]:.0f} kernels a layer, each {middle:.2f} ({low:.2f} to {high:.2f}) times a linear layer in a loop"
        )


if __name__ == "__main__":
    main()
