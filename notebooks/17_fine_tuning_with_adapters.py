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
# # Fine-tuning with adapters: what is saved, and what is not?
#
# **Question.** Training all 70 billion weights of Llama 3 takes some 1.2 TB of weights, gradients and states. LoRA (Hu et al.,
# arXiv 2106.09685) freezes them and trains a pair of thin matrices beside each: y = W x + B A x, with A of r rows and B of r
# columns. How many GPUs are left to buy, and how much time?

# %%
import matplotlib.pyplot as plt
import pandas as pd

import simulator
from simulator.units import GIB, show


def tuned(name, rank=16, **fields):
    """Return a model with adapters of this rank; 0 = all weights are trained."""
    model = simulator.load_model(name)
    return model.model_validate(model.model_dump() | ({"lora_rank": rank} if rank else {}) | fields)


def step(model, gpus=8, batch=16, framework="megatron_core", cluster="dgx_h100", **plan):
    """Return a step of sequences of 4,096 tokens."""
    work = simulator.Workload(model=model, sequence_length=4096, global_batch_size=batch)
    choices = {"microbatch_size": 1, "framework": framework} | plan
    return simulator.simulate(work, simulator.Plan(**choices), simulator.load_cluster(cluster, gpus))


# %% [markdown]
# ## Count first
#
# **Your turn.** Llama 3 8B has 8.03 billion weights. With r = 16 beside every matrix of its layers, how many are trained?

# %%
my_guess = 500e6  # weights: change me

small = tuned("llama3_8b")
print(f"trained: {small.trained_parameters:,} of {small.parameters:,}; my guess {my_guess:,.0f}")
one_layer = 16 * ((4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 14336))
assert small.trained_parameters == 32 * one_layer == 41_943_040

# %% [markdown]
# ## Memory: three of four parts go
#
# A frozen weight has no gradient, no fp32 copy and no moments. It still stands there, in two bytes. What a layer keeps from its
# forward to its backward pass stays as well: adapters need the same inputs as the weights did.
#
# **Guess:** which of the bars below shrinks to nothing, which stays?

# %%
parts = ["weights_bytes", "gradients_bytes", "optimizer_states_bytes", "activations_bytes", "logits_bytes"]
runs = {
    "all weights": step(tuned("llama3_8b", 0), zero_stage=0),
    "LoRA": step(small, zero_stage=0),
    "QLoRA": step(tuned("llama3_8b", frozen_format="nf4"), zero_stage=0),
}
_, axis = plt.subplots(figsize=(7.5, 2.2), layout="constrained")
left = [0.0] * len(runs)
for part in parts:
    values = [float(p.to_frame("memory").iloc[0][part]) / GIB for p in runs.values()]
    axis.barh(list(runs), values, left=left, label=part.removesuffix("_bytes"))
    left = [a + b for a, b in zip(left, values, strict=True)]
axis.axvline(runs["LoRA"].capacity / GIB, color="#b00020", ls="--")
axis.set(xlabel="GiB on every GPU; dashed: what there is")
axis.invert_yaxis()
axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
plt.show()

assert not runs["all weights"].fits
assert runs["LoRA"].fits
low = runs["LoRA"].to_frame("memory").iloc[0]
assert low.optimizer_states_bytes + low.gradients_bytes < GIB
assert abs(low.activations_bytes / runs["all weights"].to_frame("memory").iloc[0].activations_bytes - 1) < 0.02

# %% [markdown]
# ## Time: a third, not all
#
# A product with a weight is three in training: the output, the gradient of its input, the gradient of the weight. Freezing saves
# the third. The adapters add thin products and a sum over every output, which cost bytes rather than FLOP.
#
# **Guess:** how much faster is a step of LoRA than one of all weights, both sharded by ZeRO-3 over 8 GPUs?

# %%
full = step(tuned("llama3_8b", 0), zero_stage=3)
rows = []
for name, model in {
    "all weights": tuned("llama3_8b", 0),
    "LoRA, every matrix": small,
    "LoRA, queries and values": tuned("llama3_8b", lora_modules=("query", "value")),
    "QLoRA, every matrix": tuned("llama3_8b", frozen_format="nf4"),
}.items():
    p = step(model, zero_stage=3)
    rows.append(
        {"trains": name, "step": show(p.step_time, "s"), "of all weights": f"{p.step_time / full.step_time:.2f}",
         "GiB": round(p.peak_memory / GIB, 1), "weights": f"{model.trained_parameters:,}"}
    )  # fmt: skip
print(pd.DataFrame(rows).to_string(index=False))
some = step(tuned("llama3_8b", lora_modules=("query", "value")), zero_stage=3)
assert 0.6 < some.step_time / full.step_time < 1.0
assert some.step_time < step(small, zero_stage=3).step_time

# %% [markdown]
# Why not two thirds? Attention costs what it did, and every adapted output is read and written twice more.
#
# ## What goes over the wires
#
# Replicas add the gradients of what is trained alone: of 8 billion weights half a percent. A slow network between machines, which
# rules out all weights, does not matter any more - unless the frozen weights themselves are sharded, and gathered for every
# layer.

# %%
slow = {}
trained = (("all weights, ZeRO-1", tuned("llama3_8b", 0), 1), ("LoRA, replicas", small, 0), ("LoRA, ZeRO-3", small, 3))
for name, model, stage in trained:
    p = step(model, gpus=32, batch=64, zero_stage=stage)
    slow[name] = p
    print(f"{name:20s} step {show(p.step_time, 's'):>8s}, waiting for other GPUs {show(p.breakdown['dp'], 's')}")
assert slow["LoRA, replicas"].breakdown["dp"] < slow["all weights, ZeRO-1"].breakdown["dp"]

# %% [markdown]
# ## Exercises
#
# 1. Does Llama 3 70B fit one machine of 8 H100 with QLoRA and full recompute, without sharding anything?
# 2. Four bits save memory. Do they save time? Compare LoRA and QLoRA of 8B, and say what is added.
# 3. Dropout of adapters' inputs (`lora_dropout=True`): what does it cost in memory, and why so much?
#
# ## Solutions

# %%
large = step(tuned("llama3_70b", frozen_format="nf4"), batch=8, zero_stage=0, recompute="full")
print(
    f"1. {large.peak_memory / GIB:.0f} of {large.capacity / GIB:.0f} GiB: {'it fits' if large.fits else 'it does not fit'}"
)
assert large.fits

quick, narrow = runs["LoRA"], runs["QLoRA"]
print(
    f"2. {show(quick.step_time, 's')} -> {show(narrow.step_time, 's')}: each frozen matrix is widened to 16 bits before each product"
)
assert narrow.step_time > quick.step_time

dropped = step(tuned("llama3_8b", lora_dropout=True), zero_stage=0)
print(
    f"3. {quick.peak_memory / GIB:.1f} -> {dropped.peak_memory / GIB:.1f} GiB: each adapter keeps an input of its own, and its mask"
)
assert dropped.peak_memory > quick.peak_memory
