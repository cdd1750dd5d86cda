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
# # Capacity planning: what shall we buy, and how shall we run it?
#
# **Question.** We want to train a model of 70 billion parameters on 1.4 trillion tokens. How many GPUs, which, with
# what plan, how many days, what price - and how sure are we?
#
# This lesson goes the way of a planner: a quick count, the best plan, the alternatives, the weeks with everything
# that breaks, and what all of it costs.

# %%
import matplotlib.pyplot as plt

import simulator
from simulator.goodput.study import goodput
from simulator.search.search import search
from simulator.search.space import make_space, read_ranges
from simulator.studies.comparison import compare
from simulator.studies.notebook import slide
from simulator.studies.training_cost import training_cost
from simulator.studies.variants import variants
from simulator.units import in_unit, parse

model = simulator.load_model("llama3_70b")
tokens = parse("1.4 T", "tokens")
price = "2.5 $/h"  # of one GPU: yours will differ

# %% [markdown]
# ## The back of an envelope
#
# 6 FLOP per parameter and token; an H100 does 989 TFLOP/s in bf16 at its peak.
#
# **Your turn.** How many days on 512 H100? Guess which part of the peak is reached.

# %%
my_mfu = 0.5  # part of the peak: change me

flops = 6 * model.parameters * tokens
ideal = flops / (512 * parse("989 TFLOP/s", "FLOP/s"))
print(f"{in_unit(ideal, 'd', 's'):.0f} days at the peak, {in_unit(ideal / my_mfu, 'd', 's'):.0f} at my {my_mfu:.0%}")

# %% [markdown]
# ## A plan, not any plan
#
# What is reached depends on the plan. A first one, as somebody might write it down:

# %%
fixed = ["cluster.gpus=512", "workload.global_batch_size=1024", "workload.sequence_length=4096", "plan.framework=megatron_core",
         f"cluster.price_per_gpu_hour={price}"]  # fmt: skip
first = [
    "plan.tensor_parallel=8",
    "plan.pipeline_parallel=8",
    "plan.microbatch_size=1",
    "plan.sequence_parallel=true",
    "plan.zero_stage=1",
]
job = simulator.job_from_names("llama3_70b", "dgx_h100", [*fixed, *first])
hand_made = simulator.simulate_job(job)
hand_made

# %% [markdown]
# Now let the search try what else there is. **Guess:** how much better is the best plan of 72?

# %%
my_guess = 0.05  # part of the time: change me

ranges = read_ranges(["tp=1,2,4,8", "pp=1,2,4", "mbs=1,2", "recompute=none,selective,full"])
found = search(make_space(job, ranges, {}), fit_probability=0.9)
winner = found.best[0]
gain = 1 - winner.step_time / hand_made.step_time
print(f"my guess {my_guess:.0%}, it is {gain:.0%}; proven best of {found.space.size}: {found.proven}")
assert gain > 0
found.to_frame().head(5)[["plan.tensor_parallel", "plan.pipeline_parallel", "plan.microbatch_size", "plan.recompute", "step_time_s",
                          "peak_memory_bytes", "fit_probability", "chosen"]]  # fmt: skip

# %% [markdown]
# "chosen" is the simplest plan of those within the band of the best, which nobody can tell apart; here we go on with the best itself.
#
# What each choice costs beside the best, with everything else chosen anew for it:

# %%
choices = found.to_frame("choices")
assert (choices.over_best.dropna() >= 0).all()
choices[["field", "value", "over_best", "is_bound", "refused", "too_large"]].round(3)

# %% [markdown]
# ## What if we bought something else?
#
# The same plan with other GPUs, other networks. (A real choice would search again for each.)

# %%
chosen = [
    f"{field}={str(value).lower() if isinstance(value, bool) else value}"
    for field, value in winner.point.values.items()
]
settings = ["plan.sequence_parallel=true", "plan.zero_stage=1", *chosen]
settings = [s for s in settings if s != "plan.sequence_parallel=true" or "plan.tensor_parallel=1" not in chosen]
work = [s for s in fixed if not s.startswith("cluster.price")]
offers = [
    ("H100, eight 400 Gb/s cards", "dgx_h100", [], 2.5),
    ("H100, two cards", "dgx_h100", ["cluster.nics=2"], 2.3),
    ("H200", "hgx_h200", [], 3.0),
    ("B200", "hgx_b200", [], 4.5),
    ("A100 80 GB", "dgx_a100", [], 1.3),
]
rows = {}
for name, cluster, changes, dollars in offers:
    asked = [*work, *settings, *changes, f"cluster.price_per_gpu_hour={dollars} $/h"]
    one = compare(None, variants([], [], asked), model="llama3_70b", cluster=cluster).rows[0]
    if one.prediction is not None:
        rows[name] = {
            "days": in_unit(tokens / (one.prediction.tokens / one.prediction.step_time), "d", "s"),
            "million $": in_unit(one.price_per_million_tokens * tokens / 10**6, "M", "tokens"),
            "fits": one.verdict,
            "MWh": in_unit(one.power.energy_per_token * tokens, "MWh", "J"),
        }
import pandas as pd

offered = pd.DataFrame(rows).T
assert offered.days["B200"] < offered.days["H100, eight 400 Gb/s cards"] < offered.days["A100 80 GB"]
offered

# %% [markdown]
# The quickest is not the cheapest, and the prices here are made up: put in your offers. The band of each step is
# about +-10 %: offers nearer than that are equal.
#
# ## How many?
#
# Twice the GPUs, half the days - until the batch is too small for so many. The global batch stays, for the recipe asks for it.

# %%
from simulator.studies.scaling import scaling
from simulator.studies.variants import VariantLoader

base = tuple(s for s in [*work, *settings] if not s.startswith("cluster.gpus"))
curve = scaling(VariantLoader(None, "llama3_70b", "dgx_h100"), [base], [128, 256, 512, 1024], "strong").to_frame()
curve["days"] = tokens / curve.tokens_per_second / parse("1 d", "s")
_, axis = plt.subplots(figsize=(8, 3))
axis.plot(curve.gpus, curve.days, "o-", label="predicted")
axis.plot(curve.gpus, curve.days[0] * curve.gpus[0] / curve.gpus, "k:", label="twice the GPUs, half the days")
axis.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="days")
axis.set_xticks(curve.gpus.tolist(), [str(n) for n in curve.gpus])
axis.set_yticks([10, 20, 50, 100], ["10", "20", "50", "100"])
axis.minorticks_off()
axis.legend(frameon=False)
plt.show()
assert curve.efficiency.is_monotonic_decreasing
curve[["gpus", "step_time_s", "days", "efficiency", "fits"]].round(3)

# %% [markdown]
# ## The weeks
#
# A run of months meets failures. How long they take to be noticed and repaired, and how often state is saved, decides
# how much of the time is useful.

# %%
best = found.space.job_of(winner.point)
site = ['reliability.fleet="meta_llama3_2024"', 'reliability.detection="2 min"', 'checkpoint.bandwidth="200 GB/s"']


def weeks(restart):
    """Return 100 simulated runs, with so many minutes until training goes on after a failure."""
    settings = [*fixed, *first, *chosen, *site, f'reliability.restart="{restart} min"']
    return goodput(simulator.job_from_names("llama3_70b", "dgx_h100", settings), tokens, None, 100, 0, False)


run = weeks(10)
days = run.to_frame().wall_s / parse("1 d", "s")
print(f"{days.mean():.1f} days (one of ten takes more than {days.quantile(0.9):.1f}), goodput {run.runs.goodput.mean():.1%}, "
      f"{run.price / 10**6:.2f} million $")  # fmt: skip
assert days.mean() > in_unit(tokens / winner.tokens_per_second, "d", "s")


def spread(restart):
    again = weeks(restart)
    mean = in_unit(float(again.runs.wall.mean()), "d", "s")
    print(f"{restart} minutes to restart: {mean:.2f} days, goodput {again.runs.goodput.mean():.2%}")


slide(spread, restart=[10, 5, 30, 60])

# %% [markdown]
# ## The answer
#
# 512 H100, the plan above, so many days and dollars, with a band from the step and a spread from the failures. Every
# number opens: `found`, `run` and the predictions are all there to be asked.
#
# ## Exercises
#
# 1. What does a step cost that the plan first written down takes longer? Use `training_cost`.
# 2. With a network of two cards per machine, which choice of the search changes? Search again with `cluster.nics=2`.
# 3. How many dollars is it worth to halve the restart time?
#
# ## Solutions

# %%
costs = [training_cost(p, tokens, 2.5) for p in (hand_made, simulator.simulate_job(best))]
print(f"1. {costs[0].price / 10**6:.2f} against {costs[1].price / 10**6:.2f} million $")
assert costs[1].price < costs[0].price

narrow = simulator.job_from_names("llama3_70b", "dgx_h100", [*fixed, *first, "cluster.nics=2"])
other = search(make_space(narrow, ranges, {}), fit_probability=0.9)
print("2.", other.best[0].point.settings, f"{other.best[0].step_time / winner.step_time:.2f} times the step")
assert other.best[0].step_time >= winner.step_time

halved = weeks(5)
print(f"3. {run.price - halved.price:,.0f} $")
assert halved.price < run.price
