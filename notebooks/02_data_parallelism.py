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
# # Data parallelism, and the all-reduce it lives on
#
# **Question.** One GPU trains on 8 sequences a second. How many do 64 GPUs train on - 512?
#
# Every GPU holds the whole model and takes its own part of the batch (a *replica*). After the backward pass all
# replicas must agree on one gradient: they add theirs up, an **all-reduce**. This lesson is about what that costs,
# and how it is hidden.
#
# The model is GPT-3 with 1.3 billion parameters, on DGX A100. A CPU and a few seconds are enough.

# %%
import matplotlib.pyplot as plt

import simulator
from simulator.studies.collective_figures import collective_figures, collective_table, sizes_between
from simulator.studies.notebook import slide
from simulator.units import in_unit, parse, show

model = simulator.load_model("gpt3_1_3b")


def step(gpus, **choices):
    """Return the prediction of a step in which every GPU takes 8 sequences."""
    workload = simulator.Workload(model=model, sequence_length=2048, global_batch_size=8 * gpus)
    plan = simulator.Plan(data_parallel=gpus, microbatch_size=4, framework="megatron_lm", **choices)
    return simulator.simulate(workload, plan, simulator.load_cluster("dgx_a100", gpus))


step(8)

# %% [markdown]
# ## Bytes first
#
# Megatron adds gradients in 4-byte numbers. In a **ring** of n ranks, each sends a part of S/n bytes 2(n-1) times:
# n-1 times to add up, n-1 times to hand the sum round. So a rank sends 2(n-1)/n x S bytes: never more than twice the
# gradient, however many ranks there are.
#
# **Your turn.** NVLink carries 300 GB/s out of an A100. How long does the all-reduce of this gradient take among 8?

# %%
my_guess = 0.010  # seconds: change me

gradient = 4 * model.parameters
ring = 2 * (8 - 1) / 8 * gradient / parse("300 GB/s", "B/s")
found = collective_figures("all_reduce", gradient, "dgx_a100", 8)
print(
    f"{show(gradient, 'B')}: ring {show(ring, 's')}, NCCL {show(found.time.seconds, 's')}, my guess {show(my_guess, 's')}"
)
assert 1.0 < found.time.seconds / ring < 1.6
found

# %% [markdown]
# The library comes near, but not to, what the wire could: it has to add as well as to send.
#
# ## Does it get worse with more GPUs?
#
# **Guess** before you run: 8 ranks in one machine, 64 in eight. How many times longer?

# %%
my_guess = 8.0  # times: change me

times = {
    ranks: collective_figures("all_reduce", gradient, "dgx_a100", ranks).time.seconds for ranks in (8, 16, 64, 512)
}
for ranks, seconds in times.items():
    print(f"{ranks:4d} ranks: {show(seconds, 's')}")
print(f"my guess {my_guess:g}, it is {times[64] / times[8]:.2f}")
assert times[64] < 1.5 * times[8]

# %% [markdown]
# Hardly. That factor 2(n-1)/n is already 1.75 for 8 ranks and can never exceed 2. And between machines all eight network cards work at
# once, which together are nearly as wide as NVLink.
#
# What does grow is the *start-up*: every one of the 2(n-1) sends has a latency, and for small messages there is nothing else.


# %%
def bandwidth(ranks):
    rows = collective_table("all_reduce", sizes_between(2.0**12, 2.0**33), "dgx_a100", ranks)
    _, axis = plt.subplots(figsize=(8, 3.2))
    axis.plot([row.message for row in rows], [in_unit(row.bus_bandwidth, "GB/s", "B/s") for row in rows], "o-", ms=3)
    axis.set(xscale="log", xlabel="message [B]", ylabel="bus bandwidth [GB/s]", title=f"all_reduce over {ranks} ranks")
    axis.set_ylim(0, 320)
    plt.show()


slide(bandwidth, ranks=[8, 16, 64, 512])

# %% [markdown]
# ## Hide it
#
# The gradient of the last layer is ready first, while all other layers still compute backward. So the sum can begin at once, in
# *buckets*, beside the rest of the pass. What is left to wait for is the last bucket.

# %%
rows = []
for gpus in (8, 16, 64):
    for overlap in (False, True):
        p = step(gpus, overlap_gradients=overlap)
        rows.append((gpus, overlap, p))
        print(
            f"{gpus:3d} GPUs, overlap {overlap!s:5}: step {show(p.step_time, 's'):>7}, waiting for gradients "
            f"{show(p.breakdown['dp'], 's'):>8}, {p.tokens / p.step_time:9,.0f} tokens/s"
        )
after, beside = rows[-2][2], rows[-1][2]
assert abs(after.breakdown["dp"] / times[64] - 1) < 0.2
assert beside.breakdown["dp"] < 0.3 * after.breakdown["dp"]

# %% [markdown]
# Without overlap the wait is the whole all-reduce. With it most of the wait is gone - but not for free: what communicates beside a matrix
# product slows it a little. That is the answer to the first question:

# %%
alone, many = step(1), step(64)
efficiency = (many.tokens / many.step_time) / (64 * alone.tokens / alone.step_time)
print(f"64 GPUs do the work of {64 * efficiency:.1f}")
assert 0.9 < efficiency < 1.0

# %% [markdown]
# ## Exercises
#
# 1. Give the machines one slow network card: `cluster.nics=1`, `cluster.network_link=ethernet_25`. Can overlap still hide it?
# 2. Which is better on a slow network: larger steps, or none? Double the sequences per step: how does the efficiency change?
# 3. Send gradients as 2-byte numbers (`gradient_reduce_dtype="bf16"`). What should happen to the wait without overlap?
#
# ## Solutions


# %%
def slow_network(sequences, **choices):
    """Return a step of 64 GPUs on 25 Gb/s Ethernet."""
    from simulator.hardware.cluster import ClusterChanges, load_cluster

    cluster = load_cluster("dgx_a100", 64, ClusterChanges(nics=1, network_link="ethernet_25"))
    workload = simulator.Workload(model=model, sequence_length=2048, global_batch_size=sequences * 64)
    plan = simulator.Plan(data_parallel=64, microbatch_size=4, framework="megatron_lm", **choices)
    return simulator.simulate(workload, plan, cluster)


one = slow_network(8)
print(
    f"1. waiting for gradients {show(one.breakdown['dp'], 's')} of {show(one.step_time, 's')}: more than the pass can hide"
)
assert one.breakdown["dp"] > 0.2 * one.step_time

two = slow_network(16)
rates = [p.tokens / p.step_time for p in (one, two)]
print(f"2. twice the sequences: {rates[1] / rates[0]:.2f} times the tokens per second; the sum is added once per step")
assert rates[1] > 1.2 * rates[0]

half = step(64, overlap_gradients=False, gradient_reduce_dtype="bf16")
print(f"3. {show(after.breakdown['dp'], 's')} -> {show(half.breakdown['dp'], 's')}: half the bytes, half the wait")
assert 0.4 < half.breakdown["dp"] / after.breakdown["dp"] < 0.65
