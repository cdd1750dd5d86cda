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
# # Why 1F1B, when Chimera, and what zero bubble costs
#
# A model is cut into four stages, one per GPU. A microbatch goes down the stages (forward) and up again (backward). Who
# computes what, and when? More than thirty answers have names. This notebook takes the five ideas behind them, one at a
# time: **when** to run a backward, **how many** models to hold, **splitting** the backward, what the **wires** say, and what
# happens when **nobody waits**.
#
# Times are abstract: one forward of one microbatch takes 1. Everything runs on a CPU in seconds. Write down a guess
# wherever you are asked: being wrong is how this gets interesting.

# %%
import tempfile
from pathlib import Path

import simulator
from simulator.report.timeline import render_timeline
from simulator.schedules.base import Shape
from simulator.simulation import simulate
from simulator.studies.automatic_schedule import automatic_schedule
from simulator.studies.latency_sweep import latency_sweep
from simulator.studies.schedule_figures import schedule_figures


def show(name, ranks=4, microbatches=8, **times):
    """Print the timeline of a schedule and its two prices: idle time and memory."""
    found = schedule_figures(name, ranks, microbatches, **times)
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
# ## 3. What zero bubble costs
#
# A backward computes two things: the gradient of its **input** (I), which the stage above waits for, and the gradient of its
# **weights** (W), which nobody waits for until the step ends. Split them, send I on at once, and put W into the gaps.
#
# **Guess:** how much of 1F1B's bubble goes away *without any extra memory*?

# %%
my_guess = "half"  # change me

first = show("zb_h1")
freed = (plain.makespan - first.makespan) / (plain.makespan - 24)  # 24 = busy time of a rank
print(f"my guess: {my_guess}; gone: {freed:.0%}")
assert first.peak_activations.max() == plain.peak_activations.max()
assert abs(freed - 2 / 3) < 1e-9

# %% [markdown]
# Two thirds. For the rest, the forwards at the start must run further ahead, and that is paid in memory: 2p - 1 microbatches
# in place of p.

# %%
second = show("zb_h2")
assert 7 == second.peak_activations.max()
assert 0 == second.longest_idle_in_span

# %% [markdown]
# Each rank is busy from its first action to its last; ranks only start one after the other. (The next step can begin in
# that slope, *if* the optimizer does not wait for all ranks, as a global gradient norm does.)
#
# ### The exchange rate of memory
#
# These schedules are points on a curve. An automatic search finds the others: give it the times and a limit.
#
# **Guess:** 8 ranks, 24 microbatches. Where is the knee?

# %%
shape, curve = Shape(8, 24), {}
for limit in (1, 2, 3, 4, 6, 8, 10, 12, 15, 24):
    found = automatic_schedule(shape, memory_limit=limit)
    curve[limit] = found.makespan
    print(f"limit {limit:2d}: makespan {found.makespan:5g} {'#' * round(40 * found.bubble_fraction)}")
assert list(curve.values()) == sorted(curve.values(), reverse=True)
assert curve[8] <= schedule_figures("zb_h1", 8, 24).makespan
assert curve[4] < schedule_figures("1f1b", 8, 24).makespan * 1.5

# %% [markdown]
# Below p = 8 every microbatch of memory is worth a lot; above, nothing is left to win while messages are free.
#
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
# ## 5. When nobody waits
#
# All of these bubbles have one cause: at the end of a step every rank waits until all have the new weights. PipeDream never
# waits. A rank changes its weights right after a backward and goes on with the next microbatch, of whatever step.
#
# **Guess:** what does rank 0 of four have to keep for that, besides its activations?

# %%
my_guess = "nothing"  # change me

never = schedule_figures("pipedream", 4, 8)
grouped = schedule_figures("pipedream_2bw", 4, 8)
print("my guess:", my_guess)
print(f"one step in the steady state: {never.makespan:g}, idle {never.bubble_fraction:.0%} (1F1B: {plain.makespan:g})")
print("copies of the weights, PipeDream:", never.weight_copies, " 2BW:", grouped.weight_copies)
assert (24, 0) == (never.makespan, never.bubble_fraction)
assert [4, 3, 2, 1] == never.weight_copies.tolist()
assert [2, 2, 2, 2] == grouped.weight_copies.tolist()

# %% [markdown]
# Old weights. A backward must use the weights of its forward, and rank 0 has four microbatches under way. PipeDream-2BW
# changes weights once per step only, and two versions do.
#
# The other price does not show in abstract time: replicas add their gradients before *every* update.

# %%
workload = simulator.Workload(model=simulator.load_model("gpt3_1_3b"), sequence_length=2048, global_batch_size=32)
for name in ("one_f_one_b", "pipedream", "pipedream_2bw"):
    plan = simulator.Plan(pipeline_parallel=4, data_parallel=4, schedule=name)
    step = simulate(workload, plan, simulator.load_cluster("dgx_a100", 16))
    spent = {key: f"{1e3 * step.breakdown[key]:.0f} ms" for key in ("bubble", "dp", "optimizer")}
    print(f"{name:14s} {1e3 * step.step_time:5.0f} ms, fullest rank {step.peak_memory / 2**30:.1f} GiB", spent)
    if name == "one_f_one_b":
        flushed = step
    elif name == "pipedream":
        assert step.breakdown["dp"] > 4 * flushed.breakdown["dp"]
    else:
        assert step.step_time < flushed.step_time
        assert step.peak_memory > flushed.peak_memory

# %% [markdown]
# What the model *learns* from weights that are a step old is a question no simulator answers. It is why most large models are
# trained with a flush.
#
# ## 6. A real job
#
# GPT-3 175B on 64 A100, as in notebook 01, with other schedules. Memory and time together decide:

# %%
from IPython.display import Image, display  # noqa: E402

from simulator.report.schedule_plot import plot_schedules  # noqa: E402
from simulator.studies.comparison import compare  # noqa: E402
from simulator.studies.variants import variants  # noqa: E402

asked = variants(
    ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zbv", "chimera"], [], ["workload.global_batch_size=32"]
)
comparison = compare("korthikanti_175b_selective", asked)
for section in comparison.sections():
    print(section.title)
    if section.table:
        print(section.table.text(2))
rows = {row.settings[0].rpartition("=")[2]: row for row in comparison.rows}
assert not rows["gpipe"].prediction.fits
assert rows["zbv"].prediction.step_time < rows["1f1b"].prediction.step_time
assert 2 == rows["chimera"].pipeline.weight_copies

with tempfile.TemporaryDirectory() as folder:
    path = plot_schedules(comparison.predicted, Path(folder) / "schedules.png")
    display(Image(path.read_bytes(), width=1000))

# %% [markdown]
# Splitting the backward is not free here either: look at `exposed comm`. The tensor-parallel exchange of a backward hides
# under its weight gradient, and after the split there is less to hide under.
#
# ## Exercises
#
# 1. F : I : W is never 1 : 1 : 1. Run `show("zb_h1", input_grad=1.5, weight_grad=0.5)`. Where does the bubble come back?
# 2. Give `automatic_schedule` uneven stages, `forward=[1, 1, 1, 1.5]` and so on. Which rank holds most activations now?
# 3. `show("chimera", ranks=8, microbatches=16)` leaves gaps between the units; `chimera_doubling` closes them. At what price?
# 4. Give PipeDream the sharded states of ZeRO: `simulator.Plan(..., zero_stage=1)`. Why is `zero_stage=3` refused?
# 5. Find a hop latency at which eager 1F1B beats ZB-H1. What would the wires of your own cluster say?

# %%
mine = automatic_schedule(  # change me
    Shape(4, 8), forward=[1, 1, 1, 1.5], input_grad=[1, 1, 1, 1.5], weight_grad=[1, 1, 1, 1.5], memory_limit=5
)
print(f"makespan {mine.makespan:g} (never below {mine.lower_bound:g}), activations {mine.peak_activations}")
assert mine.peak_activations.max() <= 5
