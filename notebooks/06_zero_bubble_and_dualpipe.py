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
# # Zero bubble and DualPipe: filling the gaps
#
# **Question.** A pipeline idles because a rank waits for its neighbours. Could it do something useful meanwhile -
# something nobody waits for?
#
# Times are abstract: a forward of one microbatch takes 1, a backward 2. Digits are forwards, letters backwards; of a
# backward that is split the input half is a small letter, the weight half a capital.

# %%
import simulator
from simulator.report.abstract_plot import plot_abstract
from simulator.report.timeline import render_timeline
from simulator.schedules.base import Shape
from simulator.simulation import simulate
from simulator.studies.automatic_schedule import automatic_schedule
from simulator.studies.notebook import picture, slide
from simulator.studies.schedule_figures import schedule_figures


def show(name, ranks=4, microbatches=8, chunks=1, **times):
    """Print the timeline of a schedule and its two prices: idle time and memory."""
    found = schedule_figures(name, ranks, microbatches, chunks, **times)
    print(render_timeline(found.program, found.trace))
    print(
        f"{found.schedule}: makespan {found.makespan:g}, idle {found.bubble_fraction:.0%}, "
        f"activations at most {found.peak_activations.max():g} microbatches\n"
    )
    return found


plain = show("1f1b")

# %% [markdown]
# ## 1. What zero bubble costs
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
# ## 2. Both ways at once
#
# DualPipe (DeepSeek-V3) joins three ideas: Chimera's two directions, the split backward, and *pairs*: the forward of
# one microbatch runs beside the backward of another, so that the messages of one hide behind the products of the
# other. In abstract time messages are free, so only the first two ideas show here.
#
# **Guess:** 8 ranks, 24 microbatches: is its bubble smaller than that of ZB-H1? What else does it hold?

# %%
my_guess = "much smaller"  # change me

dual, h1, v = schedule_figures("dualpipe", 8, 24), schedule_figures("zb_h1", 8, 24), schedule_figures("zbv", 8, 24, 2)
print("my guess:", my_guess)
for found in (h1, dual, v):
    print(f"{found.schedule:9s} idle {found.bubble_fraction:5.1%}, activations {found.peak_activations.max():g}, copies of the weights "
          f"{found.weight_copies.max()}")  # fmt: skip
assert dual.bubble_fraction < h1.bubble_fraction
assert (2, 1) == (dual.weight_copies.max(), v.weight_copies.max())
assert v.bubble_fraction < dual.bubble_fraction

# %% [markdown]
# A little smaller, for a second copy of the weights. ZB-V, which turns round at the last rank (rank 0 holds the first
# *and* the last chunk), idles less with one copy. So why DualPipe? Because of what does not show here: all_to_all of
# experts, which its pairs hide.


# %%
def race(microbatches):
    runs = [schedule_figures(name, 4, microbatches, c) for name, c in (("zb_h1", 1), ("zbv", 2), ("dualpipe", 1))]
    picture(
        plot_abstract, [(f"{r.schedule}, {r.bubble_fraction:.0%} idle", r.program, r.trace) for r in runs], width=900
    )


slide(race, microbatches=[8, 12, 16, 24])

# %% [markdown]
# ## 3. When nobody waits
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
# ## 4. A real job
#
# GPT-3 175B on 64 A100, as in notebook 01, with other schedules. Memory and time together decide:

# %%
from simulator.report.schedule_plot import plot_schedules
from simulator.studies.comparison import compare
from simulator.studies.variants import variants

asked = variants(
    ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zbv", "chimera"], [], ["workload.global_batch_size=32"]
)
comparison = compare("korthikanti_175b_selective", asked)
rows = {row.settings[0].rpartition("=")[2]: row for row in comparison.rows}
assert not rows["gpipe"].prediction.fits
assert rows["zbv"].prediction.step_time < rows["1f1b"].prediction.step_time
assert 2 == rows["chimera"].pipeline.weight_copies

picture(plot_schedules, comparison.predicted)
comparison

# %% [markdown]
# Splitting the backward is not free here either: look at `exposed_communication_s`. The tensor-parallel exchange of a backward hides
# under its weight gradient, and after the split there is less to hide under.
#
# ## Exercises
#
# 1. F : I : W is never 1 : 1 : 1. Run `show("zb_h1", input_grad=1.5, weight_grad=0.5)`. Where does the bubble come back?
# 2. Give `automatic_schedule` uneven stages, `forward=[1, 1, 1, 1.5]` and so on. Which rank holds most activations now?
# 3. Give PipeDream the sharded weights of ZeRO, `simulator.Plan(..., zero_stage=3)`. Why is it refused?
#
# ## Solutions

# %%
skewed = show("zb_h1", input_grad=1.5, weight_grad=0.5)
print(f"1. {skewed.bubble_fraction:.1%}: the way back through the ranks is longer, and there is less to fill it with")
assert skewed.bubble_fraction > first.bubble_fraction

uneven = [1.0, 1.0, 1.0, 1.5]
mine = automatic_schedule(Shape(4, 8), forward=uneven, input_grad=uneven, weight_grad=uneven, memory_limit=5)
print(f"2. makespan {mine.makespan:g} (never below {mine.lower_bound:g}), activations {mine.peak_activations}")
assert mine.peak_activations.max() <= 5

from simulator.errors import PlanError

try:
    simulate(
        workload,
        simulator.Plan(pipeline_parallel=4, data_parallel=4, schedule="pipedream", zero_stage=3),
        simulator.load_cluster("dgx_a100", 16),
    )
    raise AssertionError("it was refused before")
except PlanError as refusal:
    print("3.", refusal)
