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
# # How many nines does a run of 16,384 GPUs need?
#
# **Question.** A GPU that fails once in sixteen years sounds reliable. Sixteen thousand of them train one model together,
# and when one
# stops, all stop. How much of 54 days is left for training - and what would one more nine of reliability buy?
#
# Meta counted what went wrong while Llama 3 405B was trained (arXiv 2407.21783, Table 5): 419 unexpected interruptions in 54
# days. We run those weeks again, many times over, on top of a predicted step. A CPU and half a minute are enough.

# %%
import math
from dataclasses import replace

import simulator
from simulator.goodput.checkpoints import daly_makespan, exact_interval, young_interval
from simulator.goodput.sampled import sample_runs
from simulator.goodput.study import goodput
from simulator.hardware.reliability import load_fleet
from simulator.units import in_unit, parse, show

day, hour = parse("1 d", "s"), parse("1 h", "s")
fleet = load_fleet("meta_llama3_2024")
for failure in fleet.failures[:4]:
    print(f"{failure.component:10} one fails every {in_unit(failure.mtbf, 'd', 's') / 365:5.1f} years")

# %% [markdown]
# ## First guess
#
# Faulty GPUs alone: one fails every 16 years. With 16,384 of them, how long until the first?
#
# **Your turn.** Write down hours, days or weeks before you run the next cell.

# %%
my_guess = 24.0  # hours: change me

gpu = fleet.failures[0]
alone = gpu.mtbf / fleet.gpus
print(f"16,384 GPUs: one fails every {in_unit(alone, 'h', 's'):.1f} h; my guess was {my_guess:g} h")
assert 8 < in_unit(alone, "h", "s") < 9

# %% [markdown]
# ## The whole run
#
# Nobody published how long a restart took; we take ten minutes, one minute to notice, and a file system of 2 TB/s. The
# interval between
# checkpoints is left to the simulator.

# %%
settings = [
    'reliability.fleet="meta_llama3_2024"',
    'reliability.detection="1 min"',
    'reliability.restart="10 min"',
    'checkpoint.bandwidth="2 TB/s"',
]
job = simulator.load_job("llama3_405b", settings)
found = goodput(job, span=54 * day, samples=100)
total = sum(found.interruptions.values())
print(f"{total:.0f} interruptions, goodput {found.runs.goodput.mean():.1%}")
for name, seconds in found.lost.items():
    if seconds:
        print(f"  {name:12} {in_unit(seconds, 'h', 's'):6.1f} h")

assert 400 < total < 440
assert found.runs.goodput.mean() > 0.90

# %% [markdown]
# Two thirds of the loss are restarts, and a quarter of an hour is lost per failure in all. So the longest lever is the
# restart itself; the tornado says so too.

# %%
for lever in found.levers[:6]:
    print(f"{lever.name:20} {lever.change:22} {in_unit(lever.saves, 'd', 's'):+6.2f} days")

best = found.levers[0]
assert best.name == "restart"

# %% [markdown]
# ## Nines
#
# Now make *every* component fail k times as seldom: k = 10 is one more nine. Each point is simulated with a best interval
# of its own.

# %%
model = found.described.model
delay = model.stall
for k in (0.1, 0.3, 1.0, 3.0, 10.0, 100.0):
    changed = replace(model, causes=replace(model.causes, scale=k * model.causes.scale))
    mtbf = 1.0 / changed.causes.rate
    changed = replace(changed, interval=exact_interval(delay, mtbf))
    runs, _ = sample_runs(changed, 40)
    print(
        f"failures {1 / k:6.2f} times as often: one every {in_unit(mtbf, 'h', 's'):7.2f} h, goodput {runs.goodput.mean():.1%}"
    )

# %% [markdown]
# One nine takes the loss from about 8 % to little more than 1 %. Without the nines there are - failures ten times as
# often - the run would spend half of its time coming back.
#
# ## And without a simulation?
#
# For constant rates and checkpoints for which training stands still, Daly (2006) wrote the expected time down exactly.
# The simulation must agree:

# %%
mtbf = 1.0 / model.causes.rate
work = 30 * day
down = model.restart + parse("1 min", "s")
runs, _ = sample_runs(replace(model, work=work, horizon=math.inf), 400)
expected = daly_makespan(work, model.interval, delay, down, mtbf)
error = 3 * runs.wall.std() / math.sqrt(len(runs))
print(f"simulated {in_unit(runs.wall.mean(), 'd', 's'):.3f} days, Daly {in_unit(expected, 'd', 's'):.3f}")
print(f"Young's interval {show(young_interval(delay, mtbf), 's')}, exact {show(exact_interval(delay, mtbf), 's')}, "
      f"found {show(model.interval, 's')}")  # fmt: skip
assert abs(runs.wall.mean() - expected) < error + 1e-3 * expected

# %% [markdown]
# ## Exercises
#
# 1. How many spare machines are enough when one takes a day to repair? Set `reliability.spares=8` and
#    `reliability.repair="24 h"`, then double them: when does "repair" vanish from the lost time?
# 2. A GPU at 0.8 of its clock slows all 16,384: is a slow GPU found in two hours, or in ten minutes, worth more than one more spare?
#    Add `{component="gpu", effect="slow", clock=0.8, mtbf="2000000 h", detection="2 h"}` to the failures and see.
#
# ## Solutions

# %%
for spares in (8, 16, 32):
    more = goodput(
        simulator.load_job("llama3_405b", [*settings, f"reliability.spares={spares}", 'reliability.repair="24 h"']),
        span=54 * day,
        samples=40,
        levers=False,
    )
    print(
        f"1. {spares} spares: goodput {more.runs.goodput.mean():.1%}, {in_unit(more.lost['repair'], 'h', 's'):.0f} h waiting for machines"
    )
assert more.lost["repair"] < 0.01 * 54 * day

for detection in ("2 h", "10 min"):
    slow = f'{{component="gpu", effect="slow", clock=0.8, mtbf="2000000 h", detection="{detection}"}}'
    runs = goodput(
        simulator.load_job("llama3_405b", [*settings, f"reliability.failures=[{slow}]"]),
        span=54 * day,
        samples=40,
        levers=False,
    )
    print(f"2. found after {detection}: {in_unit(runs.lost['slow'], 'h', 's'):.1f} h lost to slow GPUs")
