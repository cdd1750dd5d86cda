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
# # 1D, 2D, 2.5D, 3D: who wins when
#
# **Question.** Megatron cuts every matrix along one dimension. Optimus cuts it along two, Tesseract keeps several copies of that, and a
# third paper cuts along three. Each shows that it is the best. When is it?
#
# Two things change: what moves between GPUs, and what each GPU holds. Lesson 14 derived the collectives; here whole steps are predicted.

# %%
import matplotlib.pyplot as plt
import numpy as np

import simulator
from simulator.errors import LayoutError, PlanError
from simulator.program.program import COLLECTIVE, Segment
from simulator.studies.notebook import slide
from simulator.units import GIB, show

MODEL = simulator.load_model("gpt3_175b").model_copy(
    update={"name": "wide", "hidden": 8192, "heads": 64, "kv_heads": 64, "ffn": 4 * 8192, "layers": 4}
)
LAYOUTS = {
    "1D": lambda n: {"layout": "megatron"},
    "2D": lambda n: {"layout": "summa_2d"},
    "2.5D": lambda n: {"layout": "tesseract"},
    "3D": lambda n: {"layout": "cubic_3d"},
}


def step(name, ranks, sequences, length=1024, **more):
    """Return (workload, plan) of one microbatch on so many tensor-parallel ranks."""
    workload = simulator.Workload(model=MODEL, sequence_length=length, global_batch_size=sequences, precision="fp16")
    choices = {
        "tensor_parallel": ranks,
        "microbatch_size": sequences,
        "recompute": "none",
        "framework": "megatron_core",
    }
    return workload, simulator.Plan(**choices | LAYOUTS[name](ranks) | more)


# %% [markdown]
# ## What moves
#
# A product Y[M, N] = X[M, K] A[K, N] on P ranks:
#
# | | a rank sends, forward and backward | it holds of X, A, Y |
# |---|---|---|
# | 1D | an all-reduce of an *activation* per direction: 2 (P-1)/P of it, however many ranks | all of X or Y, 1/P of A |
# | 2D, q x q | panels of activations and of *weights*: 3 (q-1) (MK + KN) / q² | 1/q² of each |
# | 2.5D, q x q x d | the same with MK/d, and the weights' gradients once a step | 1/(q² d) of X and Y, 1/q² of A |
# | 3D, q x q x q | each matrix once in each direction: 2 (q-1) (MK + KN + MN) / q³ | 1/q³ of each |
#
# So 1D never sends weights, and the others send them whatever the batch is. The larger the microbatch, the better for them.
#
# **Guess.** A layer with h = 8192 and sequences of 1,024 tokens, on 16 ranks: from how many sequences on does 2D send less than 1D?
# And on 4?

# %%
my_guess = {16: 4, 4: 4}  # ranks -> sequences: change me

SENT = {"broadcast": 1, "reduce": 1, "all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}


def sent(name, ranks, sequences):
    """Return the elements that a rank sends in a layer: of the collectives that the program of the step has."""
    workload, plan = step(name, ranks, sequences)
    program = simulator.lower(workload, plan, ranks)
    sizes, total = dict(program.axes), 0.0
    layers = {id(table): table for item in program.items if isinstance(item, Segment) for table, _ in item.pieces}
    for table in layers.values():
        for i in np.flatnonzero(table.kind == COLLECTIVE):
            n = np.prod([sizes[axis] for axis in table.group[i]])
            if table.name.startswith("layer ") and "norm" not in table.label[i]:
                total += SENT[table.work[i]] * (n - 1) / n * table.message[i] / 2
    return total


def line(name, ranks):
    """Return elements sent as a function of sequences: what moves is a line, of which two points suffice."""
    few, many = ranks, 2 * ranks
    low, high = sent(name, ranks, few), sent(name, ranks, many)
    return lambda b: low + (b - few) * (high - low) / (many - few)


one, two = line("1D", 16), line("2D", 16)
print("16 ranks:", *(f"{b}: {one(b):.3g} v {two(b):.3g}" for b in (8, 15, 16, 32)), sep="   ")
assert one(15) < two(15)
assert two(16) < one(16)
one, two = line("1D", 4), line("2D", 4)
print(" 4 ranks:", *(f"{b}: {one(b):.3g} v {two(b):.3g}" for b in (16, 64, 128)), sep="   ")
assert one(64) < two(64)
print("my guess", my_guess)

# %% [markdown]
# On 16 ranks from 16 sequences on; on 4 ranks not even at 64. All four on 64 ranks:


# %%
def drawn(ranks):
    sequences = np.array([2**i for i in range(2, 11)])
    _, axis = plt.subplots(figsize=(8, 3.4))
    for name in LAYOUTS:
        try:
            axis.plot(sequences, [line(name, ranks)(b) for b in sequences], "o-", ms=3, label=name)
        except PlanError as refused:
            print(name, "is not there:", refused)
    axis.set(xscale="log", yscale="log", xlabel="sequences of a microbatch", ylabel="elements sent by a rank, a layer")
    axis.set_title(f"{ranks} ranks")
    axis.legend(frameon=False)
    plt.show()


slide(drawn, ranks=[64, 16, 4])

# %% [markdown]
# 1D is a line through the origin: it sends activations alone. The others begin at the weights and rise more slowly, by 1/√P or faster.
#
# ## What it holds
#
# **Guess.** 64 sequences on 64 ranks: how many times as much of *activations* does a 1D rank hold as a 2D rank?

# %%
my_guess = 8  # times: change me

CLUSTER = simulator.load_cluster("dgx_a100", 64)
found = {name: simulator.simulate(*step(name, 64, 64), CLUSTER) for name in LAYOUTS}
held = {}
for name, prediction in found.items():
    live = prediction.memory.live(0)
    held[name] = sum(tensor.bytes for tensor in live if tensor.category == "activations")
    weights = sum(tensor.bytes for tensor in live if tensor.category == "weights")
    print(f"{name:4} activations {held[name] / GIB:6.2f} GiB   weights {weights / GIB:5.2f} GiB")
print(f"1D holds {held['1D'] / held['2D']:.1f} times as much; my guess {my_guess}")
assert held["1D"] > 3 * held["2D"]

# %% [markdown]
# What lies between the products (inputs of norms and of products, residuals) is whole on every rank of Megatron; that is why its authors
# added sequence parallelism, which divides just that, for nothing. It belongs into the comparison:

# %%
shared = simulator.simulate(*step("1D", 64, 64, sequence_parallel=True), CLUSTER)
live = sum(tensor.bytes for tensor in shared.memory.live(0) if tensor.category == "activations")
print(f"1D with sequence parallelism: {live / GIB:.2f} GiB")
assert live < 0.5 * held["1D"]

# %% [markdown]
# ## What it takes
#
# Elements are not seconds. Eight GPUs of a DGX share NVLink, eight nodes InfiniBand: twelve times slower per GPU. 1D talks to all 64 ranks
# at once, a mesh only along rows and columns, and one of these can lie inside a node.
#
# **Guess.** Who is quickest on 64 A100 in 8 nodes with 16 sequences, and who with 256?

# %%
my_guess = {16: "1D", 256: "1D"}  # change me


def seconds(name, sequences, ranks=64, **more):
    try:
        return simulator.simulate(
            *step(name, ranks, sequences, **more), simulator.load_cluster("dgx_a100", ranks)
        ).step_time
    except (PlanError, LayoutError):
        return float("nan")


table = {}
for sequences in (16, 64, 256):
    table[sequences] = {name: seconds(name, sequences) for name in LAYOUTS}
    table[sequences]["1D + sequences"] = seconds("1D", sequences, sequence_parallel=True)
    row = "   ".join(f"{name} {show(time, 's')}" for name, time in table[sequences].items())
    print(f"{sequences:4} sequences: {row}")
best = {sequences: min((t, name) for name, t in times.items() if t == t)[1] for sequences, times in table.items()}
print(best, "my guess", my_guess)
assert "1D" not in best[256]

# %% [markdown]
# Inside one node it is another story, for there every rank has NVLink to every other:

# %%
inside = {name: seconds(name, 16, ranks=4) for name in ("1D", "2D")}
print({name: show(time, "s") for name, time in inside.items()})
assert inside["1D"] < inside["2D"]

# %% [markdown]
# So: **inside a node one dimension, across nodes with large microbatches more**. Today's plans have Megatron's eight ranks in a node, and
# pipelines and replicas between nodes; with those nobody needs 64 ranks for a layer. Papers on 2D and 3D compare with 1D over many nodes.
# The fair question is for the best plan of each kind, and a search answers it:

# %%
ranges = "--range layout=megatron,summa_2d,tesseract --range tp=1,4,8,16"
print(f"dtsim search --model gpt3_13b --cluster dgx_a100 --fix cluster.gpus=64 {ranges}")

# %% [markdown]
# ## Exercises
#
# 1. From the formulas: at which number of tokens M does 2D send as much as 1D for a square product (K = N = h) on P = q² ranks? Check it
#    with q = 4 (a forward and two backward products; 1D pays two all-reduces for *two* products).
# 2. 12 ranks in 2D: what does the simulator say?
# 3. How many sequences does 3D on 64 ranks need at least, and why?
#
# ## Solutions

# %%
q = 4
ours = lambda m, h: 3 * (q - 1) * (m * h + h * h) / q**2  # noqa: E731
theirs = lambda m, h: 2 * (q * q - 1) / (q * q) * m * h  # noqa: E731
m = 8192 * 3 * (q - 1) / (2 * (q * q - 1) - 3 * (q - 1))
print(f"1. M = 3 (q-1) h / (2 (q² - 1) - 3 (q-1)) = {m:.0f} tokens for h = 8192")
assert abs(ours(m, 8192) / theirs(m, 8192) - 1) < 1e-12

try:
    sent("2D", 12, 12)
except (PlanError, LayoutError) as refused:
    print("2.", refused)

for sequences in (4, 8, 16):
    try:
        sent("3D", 64, sequences)
        print("3.", sequences, "sequences do")
        break
    except (PlanError, LayoutError) as refused:
        print("3.", sequences, "do not:", refused)
