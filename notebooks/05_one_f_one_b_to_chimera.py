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
# # Why 1F1B, when Chimera, and what interleaving buys
#
# A model is cut into four stages, one per GPU. A microbatch goes down the stages (forward) and up again (backward).
# Who computes what, and when? More than thirty answers have names. This lesson takes three ideas behind them, one at
# a time: **when** to run a backward, **how many** models to hold, **how fine** to cut; then what the **wires** say of
# all that.
#
# Times are abstract: one forward of one microbatch takes 1. Everything runs on a CPU in seconds. Write down a guess
# wherever you are asked: being wrong is how this gets interesting.

# %%
import simulator
from simulator.report.abstract_plot import plot_abstract
from simulator.report.timeline import render_timeline
from simulator.schedules.base import Shape
from simulator.simulation import simulate
from simulator.studies.latency_sweep import latency_sweep
from simulator.studies.notebook import picture, slide
from simulator.studies.schedule_figures import schedule_figures
from simulator.studies.schedule_table import schedule_table


def show(name, ranks=4, microbatches=8, chunks=1, **times):
    """Print the timeline of a schedule and its two prices: idle time and memory."""
    found = schedule_figures(name, ranks, microbatches, chunks, **times)
    print(render_timeline(found.program, found.trace))
    print(
        f"{found.schedule}: makespan {found.makespan:g}, idle {found.bubble_fraction:.0%}, "
        f"activations at most {found.peak_activations.max():g} microbatches\n"
    )
    return found


# %% [markdown]
# ## 1. When to run a backward
#
# Digits are forwards, letters backwards (a belongs to 0), dots are idle. GPipe runs all forwards, then all backwards. 1F1B
# runs a backward as soon as it can.
#
# **Guess before you run:** which of the two is quicker, and by how much?

# %%
my_guess = "1f1b by 20 %"  # change me

gpipe, plain = show("gpipe"), show("1f1b")
print("my guess:", my_guess)

# %% [markdown]
# They take *exactly* as long. The corners, p - 1 forwards on one side and p - 1 backwards on the other, are idle in both.
# 1F1B wins on the other price: an activation is kept until its backward, and GPipe keeps all m of them, 1F1B at most p.

# %%
assert gpipe.makespan == plain.makespan
assert plain.bubble_fraction == 3 / 11  # (p - 1) / (m + p - 1)
assert (8, 4) == (gpipe.peak_activations.max(), plain.peak_activations.max())

# %% [markdown]
# That is why 1F1B matters: with memory independent of m you can afford many microbatches, and *they* shrink the bubble.

# %%
for m in (4, 8, 32, 128):
    found = schedule_figures("1f1b", 4, m)
    print(f"m = {m:3d}: idle {found.bubble_fraction:5.1%}, activations {found.peak_activations.max():g}")
assert schedule_figures("1f1b", 4, 128).bubble_fraction < 0.03

# %% [markdown]
# ## 2. When Chimera
#
# Many microbatches are not always to be had: the batch is limited, and every replica takes its part. With m = p = 4 a 1F1B
# pipeline idles 43 % of its time. Chimera puts a *second copy* of the model on the same ranks, in opposite direction; the
# forwards of one fill the gaps of the other.
#
# **Guess:** a backward takes twice a forward here. 1F1B needs 21. What does Chimera need?

# %%
my_guess = 18  # change me

few = show("1f1b", microbatches=4)
both_ways = show("chimera", microbatches=4)
print(f"my guess {my_guess}, Chimera {both_ways.makespan:g}; copies of the weights: {both_ways.weight_copies.max()}")
assert (21, 16) == (few.makespan, both_ways.makespan)
assert 2 == both_ways.weight_copies.max()

# %% [markdown]
# Two prices: twice the weights, and their gradients must be added up between the two ranks that hold a stage.
#
# What if there *are* more microbatches? Chimera then runs units of p microbatches one after the other, and a gap stays
# between units. On 8 ranks:

# %%
ranks = 8
for units in (1, 2, 3, 4):
    one = schedule_figures("1f1b", ranks, units * ranks).makespan
    two = schedule_figures("chimera", ranks, units * ranks).makespan
    print(f"m = {units} x p: 1F1B {one:4g}, Chimera {two:4g}  -> {'Chimera' if two < one else '1F1B'}")
    assert (two < one) == (units < (2 * ranks - 1) / (ranks - 2))

# %% [markdown]
# Chimera is for steps with **few microbatches**: below m / p = (2p - 1) / (p - 2), when messages are free.
#
# That is also what was measured. The paper trained BERT-48 on 32 nodes of Piz Daint: 150.0 sequences per second with 1F1B
# (which the paper calls DAPPLE) at its best, 173.3 with Chimera. The numbers of that machine are on file:


# %%
def sequences_per_second(schedule, cluster, microbatch_size):
    workload = simulator.Workload(
        model=simulator.load_model("bert_48"), sequence_length=128, global_batch_size=512, precision="fp32"
    )
    eager = True if schedule == "chimera" else None
    plan = simulator.Plan(
        pipeline_parallel=4, data_parallel=8, microbatch_size=microbatch_size, schedule=schedule, recompute="none",
        overlap_gradients=eager, framework="pipedream_gloo",
    )  # fmt: skip
    return 512 / simulate(workload, plan, simulator.load_cluster(cluster, 32)).step_time


dapple = sequences_per_second("one_f_one_b", "piz_daint", 4)
chimera = sequences_per_second("chimera", "piz_daint_eager", 8)
print(f"1F1B    predicted {dapple:.0f}, measured 150.0\nChimera predicted {chimera:.0f}, measured 173.3")
assert abs(dapple / 150.0 - 1) < 0.1
assert abs(chimera / 173.3 - 1) < 0.1

# %% [markdown]
# ## 3. Interleaving: more, smaller stages
#
# There is a third way: cut the model finer. Rank 0 holds layers 1-2 *and* 9-10, rank 1 layers 3-4 and 11-12, and so on: two *chunks* per
# rank, v = 2. A microbatch passes every rank twice, but each stop is half as long, so the first work arrives at the last rank in half the
# time.
#
# **Guess:** what becomes of the bubble with two chunks, with four?

# %%
my_guess = "half, a quarter"  # change me

chunked = {
    v: show("interleaved_1f1b", chunks=v) if v == 2 else schedule_figures("interleaved_1f1b", 4, 8, v) for v in (2, 4)
}
print("my guess:", my_guess)
for v, found in chunked.items():
    print(f"v = {v}: idle / busy {found.bubble_overhead:.4f} (1F1B {plain.bubble_overhead:.4f}), messages {found.messages:g}, "
          f"activations {found.peak_activations.max():g}")  # fmt: skip
    assert found.bubble_overhead == plain.bubble_overhead / v
    assert found.peak_activations.max() > plain.peak_activations.max()

# %% [markdown]
# Exactly: (p - 1) / (v m). Its price are v times as many messages, and activations of more microbatches.
#
# %% [markdown]
# ## 4. What the wires say
#
# So far messages were free. Let a hop between ranks take time, and let the schedules race again, 8 ranks, 32 microbatches.
#
# **Guess:** interleaved 1F1B (four chunks per rank) begins with the smallest bubble. What becomes of it when a hop
# takes half a forward?

# %%
names = ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "eager_one_f_one_b"]
sweep = latency_sweep(names, Shape(8, 32, 4), [0.0, 0.1, 0.2, 0.5, 1.0, 2.0])
print("hop          " + "".join(f"{latency:8g}" for latency in sweep.latencies))
for name, row in zip(sweep.names, sweep.bubble, strict=True):
    print(f"{name:20s}" + "".join(f"{share:8.1%}" for share in row))
for turn in sweep.turns:
    print(f"above {turn.latency:.3f}: {turn.after} passes {turn.before}")

of = dict(zip(sweep.names, sweep.bubble, strict=True))
assert of["interleaved_1f1b"][0] < of["gpipe"][0]
assert of["interleaved_1f1b"][3] > of["gpipe"][3]

# %% [markdown]
# Four chunks mean four times as many messages, each on the way that everybody waits for. GPipe, whose messages all travel
# while other microbatches compute, hardly notices. The league table of a paper holds for the wires of that paper.
#
# ## All of them at once


# %%
def side_by_side(microbatches):
    table = schedule_table(["gpipe", "1f1b", "interleaved_1f1b", "chimera", "hanayo"], Shape(4, microbatches, 2))
    picture(plot_abstract, [(one.schedule, one.program, one.trace) for one in table.figures], width=900)


slide(side_by_side, microbatches=[4, 8, 16])
schedule_table(["gpipe", "1f1b", "interleaved_1f1b", "chimera", "hanayo"], Shape(4, 8, 2))

# %% [markdown]
# ## Exercises
#
# 1. `show("chimera", ranks=8, microbatches=16)` leaves gaps between the units; `chimera_doubling` closes them. At what price?
# 2. Find a hop latency at which eager 1F1B beats ZB-H1 (8 ranks, 32 microbatches).
# 3. With how many microbatches does interleaving with v = 4 idle as little as plain 1F1B with 64, on 8 ranks?
#
# ## Solutions

# %%
gaps, closed = (schedule_figures(name, 8, 16) for name in ("chimera", "chimera_doubling"))
print(f"1. makespan {gaps.makespan:g} -> {closed.makespan:g}, activations {gaps.peak_activations.max():g} -> "
      f"{closed.peak_activations.max():g}")  # fmt: skip
assert closed.makespan < gaps.makespan
assert closed.peak_activations.max() > gaps.peak_activations.max()

race = latency_sweep(["eager_one_f_one_b", "zb_h1"], Shape(8, 32), [0.0, 1.0, 2.0, 4.0])
print("2.", [f"above {turn.latency:.3f} {turn.after} is quicker" for turn in race.turns])
assert race.turns[0].after == "eager_one_f_one_b"

m = next(m for m in range(8, 65, 8) if schedule_figures("interleaved_1f1b", 8, m, 4).bubble_overhead <= 7 / 64)
print(f"3. {m}: a quarter of 64")
assert m == 16
