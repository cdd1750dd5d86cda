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
# # The pipeline bubble
#
# **Question.** A model is too large for one GPU, so four GPUs hold a quarter of its layers each. A batch goes through all four, one after
# the other. How busy are they?
#
# One batch as a whole: each works a quarter of the time. Cut into m *microbatches*, the second can enter the first GPU while the first is
# in the second. What is left of the waiting is the **bubble**. This lesson is about its size.

# %%
import matplotlib.pyplot as plt

import simulator
from simulator.report.abstract_plot import plot_abstract
from simulator.studies.notebook import picture, slide
from simulator.studies.schedule_figures import schedule_figures


def show(ranks, microbatches, name="gpipe"):
    """Draw a schedule: bars are forwards (blue) and backwards (orange) of the microbatch whose number they bear."""
    found = schedule_figures(name, ranks, microbatches)
    title = f"{name}: {found.bubble_fraction:.0%} idle"
    picture(plot_abstract, [(title, found.program, found.trace)], width=900)
    return found


# %% [markdown]
# ## Guess
#
# Four ranks, one microbatch: three quarters of the time are idle. A backward takes twice as long as a forward.
#
# **Your turn.** What part is idle with four microbatches?

# %%
my_guess = 0.25  # part of the time: change me

four = show(4, 4)
print(f"my guess {my_guess:.0%}, it is {four.bubble_fraction:.1%}")
assert four.bubble_fraction == 3 / 7

# %% [markdown]
# ## The formula
#
# Look at one rank. It works m times (forward + backward). It waits p - 1 forwards for the first work to arrive, or
# for the last backwards to come back: always p - 1 of each in all. So
#
# $$\frac{\text{idle}}{\text{busy}} = \frac{p-1}{m}, \qquad \frac{\text{idle}}{\text{all}} = \frac{p-1}{m+p-1}.$$
#
# Nobody typed it into the simulator. It runs every action and counts.

# %%
for p in (2, 4, 8):
    for m in (1, 2, 4, 16, 64):
        found = schedule_figures("gpipe" if m > 1 else "1f1b", p, m)
        assert abs(found.bubble_fraction - (p - 1) / (m + p - 1)) < 1e-12
print("the same for all of them")

# %% [markdown]
# Two conventions are about, and they are mixed up often: idle over *busy* is (p - 1) / m and can exceed 1; idle over *all* cannot.


# %%
def curve(ranks):
    m = [2**i for i in range(9)]
    figures = [schedule_figures("1f1b", ranks, count) for count in m]
    _, axis = plt.subplots(figsize=(8, 3.2))
    axis.plot(m, [100 * f.bubble_fraction for f in figures], "o-", label="idle / all")
    axis.plot(m, [100 * f.bubble_overhead for f in figures], "s--", label="idle / busy")
    axis.set(xscale="log", xlabel="microbatches", ylabel="per cent", title=f"{ranks} ranks")
    axis.set_ylim(bottom=0)
    axis.set_xticks(m, [str(count) for count in m])
    axis.legend(frameon=False)
    plt.show()


slide(curve, ranks=[4, 2, 8, 16, 32])

# %% [markdown]
# ## In a real step
#
# GPT-3 175B on 64 A100: eight ranks in the pipeline, 64 microbatches, one chunk per rank. The formula says 7/64 =
# 10.9 % of the busy time.
#
# **Guess:** is the real bubble smaller, equal, larger?

# %%
plain = ["plan.chunks_per_rank=1", "plan.schedule=one_f_one_b"]
real = simulator.simulate_job(simulator.load_job("korthikanti_175b_selective", plain))
print(f"formula {7 / 64:.1%}, simulated {real.bubble_overhead:.1%}")
assert 7 / 64 < real.bubble_overhead < 2 * 7 / 64
real.to_frame("breakdown")[["rank", "forward_s", "backward_s", "pp_s", "bubble_s"]].round(2)

# %% [markdown]
# Larger. Stages are not equally long: the last rank computes the logits too, so all others wait for it in every round; and messages take
# time. A formula knows neither.
#
# ## Exercises
#
# 1. One rank of four takes 1.5 times as long for everything. Give it with `forward=[1, 1.5, 1, 1]` and so on. How large is the bubble of
#    64 microbatches? Why does it not go to zero with more?
# 2. How many microbatches does a pipeline of 16 need to idle less than 5 % of all time? First by the formula.
# 3. Twice the microbatches of half the size: same batch. What does the formula promise, and what does the real step say?
#
# ## Solutions

# %%
uneven = [1.0, 1.5, 1.0, 1.0]
slow = schedule_figures("1f1b", 4, 64, forward=uneven, input_grad=uneven, weight_grad=uneven)
print(
    f"1. {slow.bubble_fraction:.1%}: everybody works at the pace of the slowest; the others idle a third of the time, for ever"
)
assert 0.25 < slow.bubble_fraction < 0.30

m = next(m for m in range(1, 1000) if 15 / (m + 15) < 0.05)
print(f"2. {m}")
assert m == 286
assert schedule_figures("1f1b", 16, m).bubble_fraction < 0.05

both = [
    simulator.simulate_job(simulator.load_job("korthikanti_175b_selective", [*plain, f"plan.microbatch_size={size}"]))
    for size in (2, 1)
]
print(f"3. bubble {both[0].bubble_fraction:.1%} -> {both[1].bubble_fraction:.1%}, "
      f"step {both[0].step_time:.1f} -> {both[1].step_time:.1f} s: "
      "smaller products and more messages take part of the gain back")  # fmt: skip
assert both[1].bubble_fraction < both[0].bubble_fraction
