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
# # Memory: what fills a GPU
#
# **Question.** "CUDA out of memory" - by what? A model of 7 billion parameters takes 14 GB in bf16, and the card has 80.
#
# Four things stand in the memory of a GPU that trains: **weights**, **gradients**, **optimizer states** - these are
# there all the time - and **activations**, which come and go. This lesson takes them one at a time, then turns the
# knobs.

# %%
import matplotlib.pyplot as plt
import numpy as np

import simulator
from simulator.program.program import CATEGORIES
from simulator.report.memory import memory_timeline
from simulator.studies.notebook import slide
from simulator.units import GIB, show

model = simulator.load_model("llama2_7b")


def step(sequences=1, length=4096, **choices):
    """Return a step on one H100, `sequences` of so many tokens at once."""
    workload = simulator.Workload(model=model, sequence_length=length, global_batch_size=sequences)
    plan = simulator.Plan(microbatch_size=sequences, **{"framework": "megatron_core", **choices})
    return simulator.simulate(workload, plan, simulator.load_cluster("h100_x8", 1))


# %% [markdown]
# ## The fixed part
#
# **Your turn.** bf16 weights (2 bytes), fp32 gradients (4), fp32 master weights and two moments of Adam (12). How
# many GiB for 6.7 billion?

# %%
my_guess = 60.0  # GiB: change me

one = step()
kept = one.to_frame("memory").iloc[0]
fixed = kept.weights_bytes + kept.gradients_bytes + kept.optimizer_states_bytes
print(f"18 bytes x {model.parameters / 10**9:.2f} billion = {18 * model.parameters / GIB:.0f} GiB, simulated {fixed / GIB:.0f}, "
      f"my guess {my_guess:g}; the card has {one.capacity / GIB:.0f}")  # fmt: skip
assert abs(fixed / (18 * model.parameters) - 1) < 0.01
assert not one.fits
(kept.drop(["rank"]) / GIB).round(1)

# %% [markdown]
# One card is not enough for full training of "a 14 GB model". That is what ZeRO, tensor and pipeline parallelism are
# for (lessons 03, 04, 07).
#
# ## The part that comes and goes
#
# Forward, every layer leaves what its backward will need; backward, it is used and freed. In a pipeline one sees it
# come and go, for a rank takes several microbatches forward before the first comes back. GPT-3 175B on eight ranks,
# 16 microbatches, 1F1B:


# %%
def mountain(rank, recompute, schedule):
    settings = [
        f"plan.recompute={recompute}",
        f"plan.schedule={schedule}",
        "plan.chunks_per_rank=1",
        "workload.global_batch_size=16",
    ]
    p = simulator.simulate_job(simulator.load_job("korthikanti_175b_selective", settings))
    times, levels = memory_timeline(p.program, p.trace, rank)
    times, levels = np.append(times, p.trace.makespan), np.vstack([levels, levels[-1:]])
    _, axis = plt.subplots(figsize=(9, 3.2))
    used = [i for i in range(len(CATEGORIES)) if levels[:, i].any()]
    axis.stackplot(times, *[levels[:, i] / GIB for i in used], labels=[CATEGORIES[i] for i in used], step="post")
    axis.axhline(p.capacity / GIB, color="#b00020", ls="--")
    peak = levels.sum(axis=1).max()
    axis.set(
        xlabel="time [s]",
        ylabel="GiB",
        title=f"rank {rank}, recompute {recompute}, {schedule}: {show(peak, 'B')} at the peak",
    )
    axis.set_xlim(0, p.trace.makespan)
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    plt.show()


slide(mountain, rank=[0, 3, 7], recompute=["selective", "none", "full"], schedule=["1f1b", "gpipe"])

# %% [markdown]
# ## How high is the mountain?
#
# Korthikanti et al. count for one layer of a GPT in 16 bits, with s tokens, b sequences, h hidden and a heads, unfused attention:
#
# $$s\,b\,h\,\left(34 + 5\,\frac{a\,s}{h}\right) \text{ bytes}$$
#
# **Guess:** for GPT-3 175B (h = 12288, a = 96) and 2,048 tokens: which of the two terms is larger?

# %%
my_guess = "34"  # change me

gpt3 = simulator.load_model("gpt3_175b")
h, a, s = gpt3.hidden, gpt3.heads, 2048
print(f"34 against {5 * a * s / h:.0f}; my guess: {my_guess}")
formula = s * h * (34 + 5 * a * s / h)
assert 5 * a * s / h == 80


def layer_activations(recompute):
    """Return activations that one layer keeps, by the difference of two models."""
    found = []
    for layers in (1, 2):
        settings = [f"model.layers={layers}", "plan.tensor_parallel=1", "plan.pipeline_parallel=1", "plan.sequence_parallel=false",
                    "plan.chunks_per_rank=1", "plan.schedule=1f1b", f"plan.recompute={recompute}", "workload.global_batch_size=1",
                    "cluster.gpus=1", "plan.attention=unfused"]  # fmt: skip
        p = simulator.simulate_job(simulator.load_job("korthikanti_175b_selective", settings))
        found.append(sum(t.count * t.bytes for t in p.memory.live(0) if t.category == "activations"))
    return found[1] - found[0]


none, selective = layer_activations("none"), layer_activations("selective")
print(
    f"formula {show(formula, 'B')}, simulated {show(none, 'B')}; selective: {show(s * h * 34.0, 'B')} and {show(selective, 'B')}"
)
assert abs(none / formula - 1) < 0.05
assert abs(selective / (34 * s * h) - 1) < 0.05

# %% [markdown]
# More than two thirds are the scores of attention, and they are the cheapest to compute again: **selective** recompute drops just these.
# Fused attention (Flash) never stores them. **Full** recompute keeps only each layer's input and pays a whole forward pass.
#
# ## The knobs

# %%
import pandas as pd

rows = {}
for name, choices in {
    "as it is": {},
    "two sequences at once": {"sequences": 2},
    "twice the tokens": {"length": 8192},
    "full recompute": {"recompute": "full"},
    "ZeRO-3 of 8": None,
}.items():
    if choices is None:
        workload = simulator.Workload(model=model, sequence_length=4096, global_batch_size=8)
        plan = simulator.Plan(data_parallel=8, zero_stage=3, microbatch_size=1, framework="torchtitan")
        p = simulator.simulate(workload, plan, simulator.load_cluster("h100_x8", 8))
    else:
        p = step(**choices)
    frame = p.to_frame("memory").iloc[0]
    rows[name] = {
        "fixed [GiB]": (frame.weights_bytes + frame.gradients_bytes + frame.optimizer_states_bytes) / GIB,
        "activations [GiB]": frame.activations_bytes / GIB,
        "logits [GiB]": frame.logits_bytes / GIB,
        "peak [GiB]": frame.peak_memory_bytes / GIB,
        "tokens/s per GPU": p.tokens_per_second_per_gpu,
        "fits": p.fits,
    }
table = pd.DataFrame(rows).T
assert table["activations [GiB]"]["twice the tokens"] > 1.8 * table["activations [GiB]"]["as it is"]
assert table["tokens/s per GPU"]["full recompute"] < table["tokens/s per GPU"]["as it is"]
table

# %% [markdown]
# Savings do not add up, for the peak moves: take activations away, and the instant at which the logits stand becomes the fullest.
#
# ## What the allocator adds
#
# The peak is not the sum of tensors alone: communication buffers, workspaces of libraries, the CUDA context and
# fragmentation take their share, and the simulator's peaks carry a band. Decide with it, not with the last byte.

# %%
low, high = one.memory_band(0)
print(f"{show(one.peak_memory, 'B')}, 80 % band {show(low, 'B')} to {show(high, 'B')}")
assert low < one.peak_memory < high
assert np.isclose(one.to_frame("memory").iloc[0][[f"{name}_bytes" for name in CATEGORIES]].sum(), one.peak_memory)

# %% [markdown]
# ## Exercises
#
# 1. How many tokens at once does one H100 take with full recompute and 8-bit Adam (`optimizer="adam_8bit"`)? Try 4,096 and 32,768.
# 2. In a pipeline with 1F1B, which rank is the fullest, and by how many microbatches' activations does it exceed the last?
# 3. Which tensor is the largest at the peak of `llama_7b_4x4090`?
#
# ## Solutions

# %%
for length in (4096, 32768):
    workload = simulator.Workload(model=model, sequence_length=length, global_batch_size=1, optimizer="adam_8bit")
    p = simulator.simulate(
        workload, simulator.Plan(recompute="full", framework="megatron_core"), simulator.load_cluster("h100_x8", 1)
    )
    print(f"1. {length:6d} tokens: {show(p.peak_memory, 'B')}, fits: {p.fits}")

pipeline = simulator.simulate_job(
    simulator.load_job("korthikanti_175b_selective", ["plan.chunks_per_rank=1", "plan.schedule=1f1b"])
)
activations = pipeline.to_frame("memory").activations_bytes
print(
    f"2. rank {activations.idxmax()}: {activations.iloc[0] / activations.iloc[-1]:.1f} times the last rank's: 8 microbatches against 1"
)
assert 0 == activations.idxmax()

small = simulator.simulate_job(simulator.load_job("llama_7b_4x4090"))
largest = max(small.memory.live(small.fullest), key=lambda tensor: tensor.bytes)
print(f"3. {largest.name}, {show(largest.bytes, 'B')}")
assert not small.fits
