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
# # ZeRO and FSDP: why keep eight copies of the same thing?
#
# **Question.** Llama 3 8B has 8 billion parameters: 16 GB in bf16. A GPU has 80 GB. So it fits eight times over - does it?
#
# Data parallelism keeps a whole copy of everything on every GPU. ZeRO (Rajbhandari et al., arXiv 1910.02054) asks
# which of these copies is needed when. This lesson takes the copies away one kind at a time and looks at memory and
# time.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import simulator
from simulator.studies.notebook import slide
from simulator.units import GIB, show

model = simulator.load_model("llama3_8b")


def step(stage, gpus=8, framework="megatron_core", **choices):
    """Return a step of one sequence of 4,096 tokens per GPU."""
    workload = simulator.Workload(model=model, sequence_length=4096, global_batch_size=gpus)
    cluster = simulator.load_cluster("dgx_h100", gpus)
    plan = simulator.Plan(data_parallel=gpus, zero_stage=stage, microbatch_size=1, framework=framework, **choices)
    return simulator.simulate(workload, plan, cluster)


# %% [markdown]
# ## Count first
#
# Mixed-precision Adam keeps, for each parameter: the weight (2 bytes), its gradient (4 bytes in Megatron), and in fp32 the master
# weight, the mean and the variance (12 bytes).
#
# **Your turn.** How many GiB is that for 8 billion parameters - before a single activation?

# %%
my_guess = 30.0  # GiB: change me

states = (2 + 4 + 12) * model.parameters
whole = step(0)
held = whole.to_frame("memory").iloc[0]
print(
    f"counted {states / GIB:.0f} GiB, my guess {my_guess:g}; simulated {whole.peak_memory / GIB:.0f} GiB with activations"
)
assert not whole.fits
assert abs((held.weights_bytes + held.gradients_bytes + held.optimizer_states_bytes) / states - 1) < 0.01

# %% [markdown]
# ## Three stages
#
# | stage | what is kept once, over all replicas | bytes per parameter on n GPUs (Megatron) |
# |---|---|---|
# | 0 | nothing | 2 + 4 + 12 |
# | 1 | optimizer states | 2 + 4 + 12/n |
# | 2 | and gradients | 2 + 4/n + 12/n |
# | 3 (FSDP) | and weights | (2 + 4 + 12)/n |
#
# **Guess:** at which stage does it fit in 80 GB with 8 GPUs? And what does each stage cost in *time*?

# %%
my_guess = 3  # stage: change me

predictions = {
    "0": step(0),
    "1": step(1),
    "2": step(2),
    "3 (FSDP2)": step(3, framework="torchtitan"),
}
parts = ["weights_bytes", "gradients_bytes", "optimizer_states_bytes", "activations_bytes", "gathered_bytes"]
table = pd.DataFrame(
    {name: p.to_frame("memory").iloc[0][[*parts, "peak_memory_bytes"]] for name, p in predictions.items()}
).T
table = (table.astype(float) / GIB).round(1).rename(columns=lambda name: name.replace("_bytes", " [GiB]"))
table["step [s]"] = [round(p.step_time, 3) for p in predictions.values()]
table["fits"] = [p.fits for p in predictions.values()]
print("my guess:", my_guess)
assert [False, True] == [predictions["0"].fits, predictions["2"].fits]
table

# %% [markdown]
# Stages 1 and 2 save more than they cost: the gradients are *reduce-scattered* (each GPU gets the sum of its part),
# each GPU updates its part, and the new weights are *all-gathered*: together exactly the bytes of the all-reduce. And
# the update itself runs on an eighth of the parameters.


# %%
def bars(gpus):
    _, axis = plt.subplots(figsize=(8, 2.8))
    left = [0.0] * 4
    for part in parts:
        values = []
        for stage in range(4):
            frame = step(stage, gpus, "torchtitan" if stage == 3 else "megatron_core").to_frame("memory")
            values.append(float(frame.iloc[0][part]) / GIB)
        axis.barh(["0", "1", "2", "3"], values, left=left, label=part.removesuffix("_bytes"))
        left = [a + b for a, b in zip(left, values, strict=True)]
    axis.axvline(predictions["0"].capacity / GIB, color="#b00020", ls="--")
    axis.set(xlabel="GiB on every GPU; dashed: what there is", ylabel="ZeRO stage", title=f"{gpus} GPUs")
    axis.invert_yaxis()
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    plt.show()


slide(bars, gpus=[8, 16, 64, 256])

# %% [markdown]
# ## What stage 3 pays
#
# A GPU that holds an eighth of the weights must fetch the rest of a layer before it can compute it, forward *and* backward: 1.5 times the
# bytes of the all-reduce. FSDP fetches the next layer while this one computes, so what matters is which takes longer.
#
# **Guess:** each GPU computes one sequence of 4,096 tokens. Is the fetching hidden on NVLink? On 64 GPUs over the network?

# %%
for gpus in (8, 64):
    p = step(3, gpus, "torchtitan")
    print(
        f"{gpus:3d} GPUs: step {show(p.step_time, 's')}, of it waiting for weights and gradients {show(p.breakdown['dp'], 's')}"
    )
near, far = step(3, 8, "torchtitan"), step(3, 64, "torchtitan")
assert near.breakdown["dp"] < 0.15 * near.step_time

# %% [markdown]
# The fetch of a layer takes as long whatever is computed with it: more tokens per GPU hide it better.
#
# ## Exercises
#
# 1. Hybrid sharding (`shard_size=8`): shard inside a machine, replicate between machines. What do memory and waiting become on 64 GPUs?
# 2. Keep gathered weights from the forward to the backward pass: `reshard_after_forward=False`. Which price, which gain?
# 3. How many GPUs does ZeRO-3 need so that weights, gradients and states of Llama 3 70B take less than 20 GiB each?
#
# ## Solutions

# %%
hybrid = step(3, 64, "torchtitan", shard_size=8)
print(f"1. {far.peak_memory / GIB:.1f} -> {hybrid.peak_memory / GIB:.1f} GiB; waiting {show(far.breakdown['dp'], 's')} -> "
      f"{show(hybrid.breakdown['dp'], 's')}")  # fmt: skip
assert hybrid.peak_memory > far.peak_memory

kept = step(3, 8, "torchtitan", reshard_after_forward=False)
print(
    f"2. {near.peak_memory / GIB:.1f} -> {kept.peak_memory / GIB:.1f} GiB; step {show(near.step_time, 's')} -> {show(kept.step_time, 's')}"
)
assert kept.peak_memory > near.peak_memory

large = simulator.load_model("llama3_70b")
gpus = next(n for n in (8, 16, 32, 64, 128) if 16 * large.parameters / n < 20 * GIB)
print(f"3. 16 bytes per parameter (bf16 weights and gradients, 12 of Adam) over {gpus} GPUs: "
      f"{16 * large.parameters / gpus / GIB:.1f} GiB")  # fmt: skip
assert gpus == 64
