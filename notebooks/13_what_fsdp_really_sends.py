# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What does FSDP really send?
#
# **Question.** A small model trains under PyTorch's `fully_shard` on eight GPUs. Which messages does a step send, how many bytes, in
# which order - and who waits for them?
#
# We need no GPU to see it. `dtsim capture` runs a training script on a CPU, on tensors without data, as rank 0 of a pretended world, and
# writes down what it asks for. (It *executes* the script; nothing else of dtsim does.) Where PyTorch is not installed
# (`pip install 'dtsim[torch]'`) the cells below say so and leave it at our own lowering of a plan.

# %%
import importlib.util
import tempfile
from pathlib import Path

import simulator
from simulator.capture.answer import collectives_of, peak_of
from simulator.capture.child import capture
from simulator.capture.program import captured_program
from simulator.program.program import Link
from simulator.simulation import simulate_program
from simulator.units import show

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(1024, 4096, bias=False), nn.Linear(4096, 1024, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

mesh = init_device_mesh("cpu", (dist.get_world_size(),))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = nn.Sequential(*[Block() for _ in range(6)])
for block in model:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters())

def step():
    model(torch.randn(4096, 1024)).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BLOCK = 2 * 1024 * 4096  # weights of a block
there = importlib.util.find_spec("torch") is not None
print("recording" if there else "PyTorch is not installed: nothing is recorded")


def record(text=SCRIPT, world=8):
    """Return what a step of a script does on rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.py")
        path.write_text(text)
        return capture(f"{path}:step", world)


def sent(recorded, kind):
    """Return the bytes of all messages of a kind."""
    return sum(event.message for event in recorded.events if event.work == kind)


# %% [markdown]
# ## The messages
#
# **Your turn.** Six blocks of 8.4 million weights each, gathered in bf16, gradients reduced in fp32. How often is a block gathered in a
# step, and how many bytes does the step send for each weight?

# %%
my_gathers, my_bytes = 1, 6  # change me

if there:
    recorded = record()
    for message in collectives_of(recorded):
        size = show(message["message_bytes"], "B")
        print(f"{message['phase']:9} {message['count']} x {message['kind']:15} {size:>9} {message['dtype']}")
    gathers = sum(event.work == "all_gather" for event in recorded.events) / 6
    each = (sent(recorded, "all_gather") + sent(recorded, "reduce_scatter")) / (6 * BLOCK)
    print(f"gathered {gathers:g} times (my guess {my_gathers}), {each:g} bytes per weight (my guess {my_bytes})")
    assert gathers == 2
    assert each == 2 + 2 + 4

# %% [markdown]
# Once before its forward and, as it was dropped in between, once more before its backward: 2 + 2 bytes, and 4 for the gradient.
#
# ## Who waits for whom
#
# Gathers and reductions are on streams of their own. The recording has the streams and the waits, so the program can be run on any cluster:

# %%
if there:
    program = captured_program(recorded, "pytorch_ddp")
    for name in ("dgx_h100", "dgx_a100"):
        prediction = simulate_program(program, simulator.load_cluster(name, 8))
        print(
            f"{name}: {show(prediction.step_time, 's')}, of it waiting for messages {show(prediction.breakdown['dp'], 's')}"
        )
        assert prediction.breakdown["dp"] < prediction.step_time
    for category, size in peak_of(recorded).items():
        print(f"{category:17} {show(size, 'B')}")

# %% [markdown]
# ## The same plan, lowered by us
#
# A plan needs no script. What it lowers to must send the same: two gathers in bf16 and one reduction in fp32 for each layer.

# %%
model = simulator.load_model("gpt2")


def lowered(**choices):
    """Return our program of GPT-2 under ZeRO-3 on eight GPUs."""
    workload = simulator.Workload(model=model, sequence_length=1024, global_batch_size=8)
    plan = simulator.Plan(data_parallel=8, zero_stage=3, framework="torchtitan_eager", recompute="none", **choices)
    return simulator.lower(workload, plan, 8)


def links(program, kind):
    """Return the messages of a kind that are about layers, in order."""
    items = [program.items[item] for item in program.item]
    return [item for item in items if isinstance(item, Link) and item.collective == kind and "layer" in item.name]


ours = lowered()
gathered, reduced = links(ours, "all_gather"), links(ours, "reduce_scatter")
print(f"{len(gathered)} gathers and {len(reduced)} reductions of {model.layers} layers")
assert len(gathered) == 2 * model.layers
assert len(reduced) == model.layers
assert reduced[0].message == 2 * gathered[0].message

# %% [markdown]
# ## Exercises
#
# 1. Keep gathered weights until the backward (`reshard_after_forward=False`). How many gathers are left, in our lowering and in the script?
# 2. What does a world of 64 change in what rank 0 sends: the number of messages, or their size?
#
# ## Solutions

# %%
kept = links(lowered(reshard_after_forward=False), "all_gather")
print(f"1. {len(kept)} gathers instead of {len(gathered)}")
assert len(kept) == model.layers
if there:
    stays = record(SCRIPT.replace("fully_shard(block, mesh", "fully_shard(block, reshard_after_forward=False, mesh"))
    assert sum(event.work == "all_gather" for event in stays.events) == 6

    wide = record(world=64)
    assert sent(wide, "all_gather") == sent(recorded, "all_gather")
    print("2. neither: a message is what all ranks have together; each sends an eighth of what it sent before")
