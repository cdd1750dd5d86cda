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
# # Choosing a plan: 70 billion parameters on 512 GPUs
#
# **Question.** The model is there, the GPUs are there. Which of some thousand ways to split the one over the other - and
# how do we know that it is the best, that it fits, and that it would still be the choice if the network were slower?
#
# Searching is not trying everything: most plans can be disposed of without simulating them.

# %%
import matplotlib.pyplot as plt

import simulator
from simulator.search.candidate import look
from simulator.search.fit import fewest_gpus
from simulator.search.quick import quick_search
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from simulator.studies.sensitivity import sensitivity

settings = [
    "cluster.gpus=512",
    "workload.global_batch_size=1024",
    "workload.sequence_length=4096",
    "plan.sequence_parallel=true",
]
job = simulator.job_from_names("llama3_70b", "dgx_h100", settings)

# %% [markdown]
# ## The space
#
# A space is fields and their values; a plan is a combination. What is not ranged is as in the job, and the replicas are
# what the degrees leave of the GPUs. **Guess:** how many of these plans can be at all?

# %%
ranges = read_ranges(
    ["tp=1,2,4,8", "pp=1,2,4,8", "chunks_per_rank=1,2", "mbs=1,2", "zero_stage=1,3", "recompute=none,full"]
)
space = make_space(job, ranges, {})
looked = [look(space, point, "step_time") for point in space.points()]
allowed = [one for one in looked if one.job is not None]
my_allowed = 200  # plans that the rules allow: change me
print(f"{space.size} plans; my guess {my_allowed}, it is {len(allowed)} that the rules allow; one that they do not:")
print(next(one.refusal for one in looked if one.job is None))

# %% [markdown]
# ## Two bounds
#
# For each plan two numbers come without simulating it, from the very tensors and prices that a step is made of: bytes that its
# fullest rank holds at least, and seconds that its step takes at least. **Neither is ever above the truth** - that
# is what makes the answer a proof. Here they are beside the truth for every twelfth plan:

# %%
some = [(one, one.simulated()) for one in allowed[::12]]
figure, axes = plt.subplots(1, 2, figsize=(10, 4))
for axis, name, bounds, truths in (
    (axes[0], "seconds of a step", [b.bound for b, _ in some], [c.step_time for _, c in some]),
    (axes[1], "part of a GPU's memory", [b.full for b, _ in some], [c.peak_memory / c.capacity for _, c in some]),
):
    axis.loglog(truths, bounds, "o")
    axis.plot([min(truths), max(truths)], [min(truths), max(truths)], "-", color="grey")
    axis.set(xlabel=f"{name}: simulated", ylabel="bound")
    assert all(bound <= truth for bound, truth in zip(bounds, truths, strict=True))
plt.show()

# %% [markdown]
# ## The best, proven
#
# Plans are simulated in the order of their bounds, until the next bound is above the best. **Guess:** how many had to be?

# %%
my_simulated = 50  # change me

found = search(space, top=5)
print(
    f"my guess {my_simulated}, it is {len(found.candidates)}:",
    found.disposed,
    "proven" if found.proven else "not proven",
)
assert found.proven
assert len(found.candidates) < len(allowed) / 3
found.to_frame().head(5)[["plan.tensor_parallel", "plan.pipeline_parallel", "plan.microbatch_size", "plan.zero_stage", "plan.recompute",
                          "step_time_s", "peak_memory_bytes", "fit_probability", "tie", "chosen"]]  # fmt: skip

# %% [markdown]
# Some of them are **ties**: their steps differ by less than the band of a prediction, so nobody could tell which is quicker.
# Among ties the simplest is chosen. And why did the others lose? Where `is_bound` stands, plans of that choice are known by their bound
# alone: it costs at least `over_best`, and no more than `most_over_best`, the best of it that was simulated.

# %%
choices = found.to_frame("choices")
choices[["field", "value", "over_best", "is_bound", "most_over_best", "refused", "too_large"]].round(3)

# %% [markdown]
# ## In a hurry
#
# `dtsim init` and `dtsim explain` have a second, not a minute: they go downhill from a spread sample. No proof, but not far off:

# %%
quick = quick_search(job)
print(
    f"quick: {quick.best[0].step_time:.2f} s after {len(quick.candidates)} simulations, proven best: {found.best[0].step_time:.2f} s"
)
assert quick.best[0].step_time < 1.1 * found.best[0].step_time

# %% [markdown]
# ## Does the choice hold?
#
# The network is slower than the data sheet says, the batch changes, memory is short. In each such world: the best plan there, and
# what it costs to have kept ours (the *regret*).

# %%
holds = sensitivity(space, found.chosen)
assert all(world.regret is None or world.regret >= 0 for world in holds.worlds)
holds.to_frame()[["name", "step_time_s", "over_best"]].round(3)

# %% [markdown]
# ## And with fewer GPUs?

# %%
least = fewest_gpus(job, {**ranges, "cluster.gpus": (8, 16, 32, 64)}, {})
print(f"{least.answer} GPUs are enough: {' '.join(least.plan.settings)}, {least.plan.step_time:.0f} s per step")
assert least.answer is not None

# %% [markdown]
# ## Remember
#
# - A bound that is never too high turns "the best I tried" into "the best there is".
# - What does not fit is known from the tensors; what is too slow from the kernels, the messages and the reductions of its busiest rank.
# - Plans within the band of the best are ties: take the simplest, or the one that changes least.
# - Ask for the regret before you argue about the last per cent.
#
# On the command line: `dtsim search`, `dtsim fit`, `dtsim advise`, `dtsim sweep`.
#
# ## Exercises
#
# 1. How much slower is the best plan without pipeline parallelism? (`choices` has it.)
# 2. A plan must fit with a probability of 0.9. Is another one the best if 0.5 is enough?
# 3. What is the best plan on 64 of these GPUs, and how much longer is its step than an eighth of the GPUs explains?

# %% [markdown]
# ## Solutions

# %%
alone = choices[(choices.field == "plan.pipeline_parallel") & (choices.value == "1")].iloc[0]
print(f"1. {'at least ' if alone.is_bound else ''}{alone.over_best:.1%}")
assert alone.over_best >= 0

daring = search(space, top=1, fit_probability=0.5)
print(f"2. {daring.best[0].step_time / found.best[0].step_time - 1:+.1%}")
assert daring.best[0].step_time <= found.best[0].step_time

small = search(make_space(job, ranges, {"cluster.gpus": (64,)}), top=1)
ratio = small.best[0].step_time / found.best[0].step_time
print(f"3. {' '.join(small.best[0].settings)}: {ratio:.2f} times the step, on an eighth of the GPUs")
assert ratio > 5
