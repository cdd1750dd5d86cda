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
# # Calibrating on your own nccl-tests logs
#
# **Question.** Your cluster is not in any table. You have logs of nccl-tests. What do they tell a simulator - and how little is enough?
#
# Eight GPUs each hold a gradient and want the sum. How long does that take - for 8 bytes, for 8 GiB, and between? We
# start with the two numbers of every textbook, see where they fail, look at what the library really does, and fit
# that to a log.
#
# The measurements are logs that people published; a few of them lie beside this lesson, under `data`.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from simulator.calibration.collectives.fit.platforms import fit_nccl, platform_of, predict
from simulator.calibration.collectives.judge.machine import Machine
from simulator.calibration.collectives.read.tidy_logs import load_index
from simulator.calibration.collectives.tool import collect_logs, fit_profiles
from simulator.collectives import bus_factor, candidates
from simulator.hardware.cluster import load_cluster
from simulator.hardware.coefficients import pooled_profile
from simulator.hardware.fabric import fabric_of
from simulator.hardware.group_placement import describe_group
from simulator.studies.collective_figures import collective_table, sizes_between
from simulator.units import GIB, in_unit, show

data = next(
    folder for folder in (Path("data"), Path("notebooks/data")) if (folder / "nccl_logs" / "index.csv").exists()
)
logs = {log.name: log for log in load_index(data / "nccl_logs" / "index.csv")}
h100 = logs["h100_1x8_dgxc_all_reduce"]
a100 = logs["a100-40g_1x8_superbench_all_reduce"]
for log in logs.values():
    print(f"{log.name:44s} {log.kind:11s} {log.place.ranks:3d} ranks on {log.place.nodes} node(s)")

# %% [markdown]
# ## A ring, by hand
#
# In a ring of n ranks each rank sends 2(n-1) times a part of S/n bytes: n-1 times to add up, n-1 times to hand out. If a
# send costs a fixed time alpha and then beta per byte,
#
# $$t = 2(n-1)\,\alpha + 2\,\frac{n-1}{n}\,S\,\beta .$$
#
# **Your turn.** An H100 sends 450 GB/s over NVLink. How long does 1 GiB take over 8 GPUs? Write your guess down.

# %%
my_guess = 0.005  # seconds: change me

# %%
n = 8
link = fabric_of(load_cluster("dgx_h100", n)).intra_bandwidth
ideal = 2 * (n - 1) / n * GIB / link
gib = h100.message == GIB
measured = float(np.median(h100.seconds[gib]))
print(f"ring without latency {show(ideal, 's')}, measured {show(measured, 's')}, my guess {show(my_guess, 's')}")
assert 0.5 < ideal / measured < 1.2

# %% [markdown]
# Surprise: the clock says *less* than an ideal ring needs. Nothing is wrong with the clock: keep it in mind.
#
# ## Two numbers for all sizes?
#
# Let us give alpha-beta its best chance: fit both to the log itself, relative errors counted equally at all sizes.


# %%
def fit_alpha_beta(log):
    """Return alpha [s] and beta [s/B] with least relative error, by a scan over the ratio of the two."""
    best = None
    for knee in np.geomspace(log.message.min(), log.message.max(), 400):  # bytes at which both cost the same
        shape = 1 + log.message / knee
        scale = np.exp(np.median(np.log(log.seconds / shape)))
        error = np.mean(np.abs(np.log(scale * shape / log.seconds)))
        if best is None or error < best[0]:
            best = (error, scale, scale / knee)
    return best


for log in (h100, a100):
    _, alpha, beta = fit_alpha_beta(log)
    middle = (log.message >= 2**16) & (log.message <= 2**26)
    far = np.abs((alpha + beta * log.message) / log.seconds - 1)
    print(
        f"{log.name:40s} alpha {show(alpha, 's')}, 1/beta {show(1 / beta, 'B/s')}: median error {np.median(far):.0%}, "
        f"between 64 KiB and 64 MiB {np.median(far[middle]):.0%}, worst {far.max():.0%}"
    )
    assert np.median(far[middle]) > 0.08

# %% [markdown]
# Even the best line is wrong where training lives: gradient buckets and activations are of 64 KiB to 64 MiB. A look at the
# log says why: the curve has corners.

# %%
fig, axis = plt.subplots(figsize=(8, 4))
for log, colour in ((h100, "tab:blue"), (a100, "tab:orange")):
    factor = in_unit(bus_factor(log.kind, log.place.ranks), "GB/s", "B/s")
    axis.plot(log.message, factor * log.message / log.seconds, "o", ms=3, color=colour, label=log.name)
    _, alpha, beta = fit_alpha_beta(log)
    axis.plot(log.message, factor * log.message / (alpha + beta * log.message), "-", lw=1, color=colour)
axis.set(
    xscale="log",
    yscale="log",
    xlabel="message [B]",
    ylabel="bus bandwidth [GB/s]",
    title="points: logs; lines: alpha-beta",
)
axis.legend(fontsize=7)
plt.show()

# %% [markdown]
# ## What NCCL does
#
# For every call NCCL computes the time of several *algorithms* (ring, tree, NVLS, ...) in several *protocols* (LL: a flag in
# every 8 bytes, quick but half the bandwidth; LL128: a flag in 128 bytes; Simple: a fence behind each chunk), and takes the
# quickest. Each is one line with its own alpha and beta: the corners are where the winner changes.

# %%
place, fabric = describe_group(8), fabric_of(load_cluster("dgx_h100", 8))
offered = candidates("all_reduce", place, fabric)
for one in sorted(offered, key=lambda one: one.latency):
    print(
        f"{one.algorithm:10s} {one.protocol:7s} latency {show(one.latency, 's'):>8s}  bandwidth {show(one.bandwidth, 'B/s')}"
    )

table = collective_table("all_reduce", sizes_between(2.0**10, 2.0**32), "dgx_h100", 8)
winners = [f"{row.time.algorithm}, {row.time.protocol}" for row in table]
for winner in dict.fromkeys(winners):
    sizes = [row.message for row, name in zip(table, winners, strict=True) if name == winner]
    print(f"{winner:14s} from {show(min(sizes), 'B')} to {show(max(sizes), 'B')}")
assert "nvls, simple" == winners[-1]
assert len(set(winners)) >= 2

# %% [markdown]
# **NVLS** solves the riddle of the first cell. The NVSwitch itself adds and copies, so a GPU sends each byte (n+1)/n times
# and not 2(n-1)/n times. nccl-tests still multiplies by the ring's factor: the *bus bandwidth* it prints can exceed the link.

# %%
print(table[-1].why)
assert table[-1].bus_bandwidth > link

# %% [markdown]
# ## Constants from NCCL, multipliers from logs
#
# The constants of these lines stand in NCCL's source. They are honest but round numbers; a log corrects them by a
# multiplier each, held back towards 1 so that a pair that never wins cannot run wild. How good is each step between 64 KiB and 64 MiB?

# %%
for log in (h100, a100):
    pooled = pooled_profile("node")
    own = fit_nccl([log], "nccl_mine", pooled.pairs, platform_of(log))
    ways = {
        "alpha-beta, fitted": fit_alpha_beta(log)[1] + fit_alpha_beta(log)[2] * log.message,
        "NCCL's tables": predict(log, {}),
        "fitted to this log": predict(log, own.pairs, own.single_process_launch, own.network_latency),
    }
    middle = (log.message >= 2**16) & (log.message <= 2**26)
    errors = {name: float(np.median(np.abs(seconds / log.seconds - 1)[middle])) for name, seconds in ways.items()}
    print(log.name, {name: f"{error:.1%}" for name, error in errors.items()})
    assert errors["fitted to this log"] < 0.09
    assert errors["fitted to this log"] < errors["alpha-beta, fitted"] / 2

# %% [markdown]
# ## Beyond one node
#
# Between nodes the network card is the narrow place. All GPUs of a node send over all its cards, so a message of S bytes must
# leave the node once per direction - and eight GPUs share that work. Guess the time of 1 GiB over two DGX H100 first: NVLink
# carries 450 GB/s, a card 50 GB/s. Nine times longer?

# %%
one, two, many = (collective_table("all_reduce", [GIB], "dgx_h100", ranks)[0] for ranks in (8, 16, 128))
for figures in (one, two, many):
    print(
        f"{figures.place.ranks:4d} ranks: {show(figures.time.seconds, 's')}, {figures.time.algorithm}, {figures.time.protocol}"
    )
print(two.why)
assert two.time.seconds < 1.5 * one.time.seconds

# %% [markdown]
# Hardly longer: eight cards carry 400 GB/s together. But a group of *one* rank per node, as data parallelism has it beside
# tensor parallelism, shares its node's cards with seven other groups. Then the nine is real.

# %%
alone = describe_group(2, 2, concurrent=8)
best = min(candidates("all_reduce", alone, fabric_of(load_cluster("dgx_h100", 16))), key=lambda c: c.seconds(GIB))
print(f"2 ranks on 2 nodes, 8 groups at once: {show(best.seconds(GIB), 's')} with {best.algorithm}, {best.protocol}")
assert best.seconds(GIB) > 4 * two.time.seconds

# %% [markdown]
# ## Your own cluster
#
# `dtsim calibrate nccl my.log --output nccl_mine.toml` does what follows: it reads the log as it lies there, names what is
# wrong with it, fits, and writes a profile that a cluster can name. The log below was reduced from a published one.

# %%
collected = collect_logs(
    [data / "nccl_raw" / "reduce_with_root.txt", data / "nccl_raw" / "two_ranks_one_gpu.txt"], Machine()
)
print("used    ", [log.name for log in collected.logs])
print("left out", collected.refused)
profile = fit_profiles(collected, "nccl_mine")[0]
print(
    "profile ", profile.name, f"p50 {profile.everything.residual_p50:.1%}", f"p95 {profile.everything.residual_p95:.1%}"
)
assert 1 == len(collected.logs)
assert "share one GPU" in collected.refused[0]

# %% [markdown]
# ## What one log is worth

# %%
from simulator.studies.notebook import slide


def fitted(name):
    log = logs[name]
    own = fit_nccl([log], "nccl_mine", pooled_profile("node").pairs, platform_of(log))
    after = predict(log, own.pairs, own.single_process_launch, own.network_latency)
    factor = in_unit(bus_factor(log.kind, log.place.ranks), "GB/s", "B/s")
    _, axis = plt.subplots(figsize=(8, 3.4))
    axis.plot(log.message, factor * log.message / log.seconds, "o", ms=4, label="measured")
    axis.plot(log.message, factor * log.message / predict(log, {}), "--", label="NCCL's constants")
    axis.plot(log.message, factor * log.message / after, "-", label="fitted to this log")
    axis.set(xscale="log", yscale="log", xlabel="message [B]", ylabel="bus bandwidth [GB/s]", title=name)
    axis.legend(frameon=False)
    plt.show()


slide(fitted, name=[log.name for log in logs.values() if log.place.nodes == 1 and log.kind == "all_reduce"])

# %% [markdown]
# ## Exercises
#
# 1. Take `b200_1x8_vultr_alltoall` from `logs`. Does alpha-beta do better or worse there than for all_reduce? Why?
# 2. At which message does a tree lose to a ring on 16 nodes of `dgx_a100`? Ask `collective_table(..., algorithm="tree")`.
# 3. `describe_group(2, 2, concurrent=8)` above: how does the time go with `concurrent`? When do the cards stop to matter?
#
# ## Solutions

# %%
error, alpha, beta = fit_alpha_beta(logs["b200_1x8_vultr_alltoall"])
print(
    f"1. alpha {show(alpha, 's')}, 1/beta {show(1 / beta, 'B/s')}, median error {error:.1%}: one algorithm, so fewer corners"
)
assert error < 0.5

sizes = sizes_between(2.0**12, 2.0**30)
tree, ring = (
    collective_table("all_reduce", sizes, "dgx_a100", 128, algorithm=name, protocol="simple")
    for name in ("tree", "ring")
)
turn = next(t.message for t, r in zip(tree, ring, strict=True) if r.time.seconds < t.time.seconds)
print(
    f"2. at {show(turn, 'B')}: the ring has 2 x 127 start-ups, the tree a few, but the ring sends fewer bytes over the cards"
)
assert 2**12 < turn

fabric = fabric_of(load_cluster("dgx_h100", 16))
for concurrent in (1, 2, 4, 8):
    place = describe_group(2, 2, concurrent=concurrent)
    best = min(candidates("all_reduce", place, fabric), key=lambda c: c.seconds(GIB))
    print(f"3. {concurrent} groups at once: {show(best.seconds(GIB), 's')}")
print("   not at all: a rank has a card of its own there; the others' were never its to use")
