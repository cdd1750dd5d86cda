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
# # From one product to Megatron: layouts by hand and by propagation
#
# **Question.** Data parallelism, tensor parallelism, ZeRO-3, 2D and 3D products: how many ideas are these?
#
# One. Tensors have *named dimensions*, GPUs stand in a *mesh*, and a **layout** says which dimension lies on which axis of it. Which
# collectives that needs is not a choice any more: it follows. Here you derive them for one product, then for two, then for a transformer.

# %%
from dataclasses import replace

import matplotlib.pyplot as plt

import simulator
from simulator.partition.derive import derive
from simulator.partition.infer import infer
from simulator.partition.layout import Layout, rule
from simulator.partition.placements import lay_out
from simulator.partition.sbp import to_sbp
from simulator.studies.layout_figures import model_blocks
from simulator.studies.layout_picture import draw_layout
from simulator.studies.layout_question import answer_layout, read_layout
from simulator.studies.notebook import picture, slide
from simulator.testing.mesh_interpreter import differences
from simulator.units import show
from simulator.workload.graph import Dim, Kernel, LayerGraph, Product, Tensor

ROWS, IN, WIDE = Dim("batch", 64), Dim("io", 32), Dim("wide", 128)


def one_product():
    """Return y[batch, wide] = x[batch, io] w[io, wide] as a graph."""
    x, y = Tensor("x", (ROWS, IN), 2.0), Tensor("y", (ROWS, WIDE), 2.0)
    w = Tensor("w", (IN, WIDE), 2.0, "weight")
    product = Product(label="product", inputs=(x,), weights=(w,), outputs=(y,))
    return LayerGraph(kind="product", inputs=(x,), ops=(product,), outputs=(y,), weights=(w,))


# %% [markdown]
# ## One product, four ranks
#
# Along an axis of four ranks we can divide the rows of x (`batch`), the columns of w (`wide`), or the dimension that is summed over (`io`).
#
# **Your turn.** Which of the three needs a collective *forward*, and which ones *backward*?

# %%
my_guess = {"batch": ("", ""), "io": ("", ""), "wide": ("", "")}  # (forward, backward): change me

mesh = (("cols", 4),)
found = {}
for name in ("batch", "io", "wide"):
    (op,) = derive(one_product(), Layout(name, mesh, (rule("cols", name),)))
    lies = [f"{o.tensor.name} {to_sbp(o.tensor, o.used, mesh)[0]}" for o in op.operands]
    found[name] = {way: [c.kind for c in op.collectives if c.direction == way] for way in ("forward", "backward")}
    print(f"divide {name:6}: {', '.join(lies):22}  {found[name]}, my guess {my_guess[name]}")
assert found["batch"] == {"forward": [], "backward": ["all_reduce"]}
assert found["io"] == {"forward": ["all_reduce"], "backward": []}
assert found["wide"] == {"forward": [], "backward": ["all_reduce"]}

# %% [markdown]
# S(i) is divided by its i-th dimension, B whole on every rank, P a term of a sum. One rule makes all of it: **what is summed over
# and divided leaves terms, and terms must be added up**. The gradients are products, too: dx = dy wᵀ sums over `wide`, dw = xᵀ dy
# over `batch`. So every way to divide pays exactly once, in one of three places.
#
# ## Two products
#
# Between the two stands a GeLU, which is not linear: it needs finished sums, not terms. This is the network with which Mesh-TensorFlow
# explains itself (Shazeer et al., section 5): y = gelu(x w) v.


# %%
def two_products(batch=64, io=32, wide=128):
    """Return y[batch, io] = gelu(x w) v as a graph."""
    b, i, w_ = Dim("batch", batch), Dim("io", io), Dim("wide", wide)
    x, h, a, y = (Tensor(n, d, 2.0) for n, d in (("x", (b, i)), ("h", (b, w_)), ("gelu of h", (b, w_)), ("y", (b, i))))
    w, v = Tensor("w", (i, w_), 2.0, "weight"), Tensor("v", (w_, i), 2.0, "weight")
    ops = (
        Product(label="first", inputs=(x,), weights=(w,), outputs=(h,)),
        Kernel(label="gelu", inputs=(h,), outputs=(a,), moves=()),
        Product(label="second", inputs=(a,), weights=(v,), outputs=(y,)),
    )
    return LayerGraph(kind="two products", inputs=(x,), ops=ops, outputs=(y,), weights=(w, v))


def sent(graph, layout):
    """Return the bytes that one rank sends, forward and backward."""
    return sum(c.sent for op in derive(graph, layout) for c in op.collectives)


for name, divided in {"columns then rows": ("wide",), "rows then columns": ("io",)}.items():
    ops = derive(two_products(), Layout(name, mesh, (rule("cols", *divided),)))
    print(name)
    for op in ops:
        for c in op.collectives:
            print(f"   {op.op.label:7} {c.direction:9} {c.kind:11} of {c.tensor:14} {show(c.bytes, 'B')}")

# %% [markdown]
# Columns then rows is **Megatron**: the first product leaves h in parts, GeLU works on parts, the second product sums over what is divided.
# One all-reduce forward (of y), one backward (of the gradient of x). Rows then columns adds h up, four times as wide, before the GeLU.
#
# ## Three layouts of the same network
#
# On n ranks: `batch` on all (data parallelism), `wide` on all (Megatron), or a mesh of rows and columns with one on each.
#
# **Guess.** For 16 ranks, width 4096 x 16384 and 2048 rows: which sends least?

# %%
my_guess = "data"  # data, model or both: change me


def three(batch, io=4096, wide=16384, ranks=(4, 4)):
    """Return what a rank sends under each of them."""
    graph, n = two_products(batch, io, wide), ranks[0] * ranks[1]
    square = (("rows", ranks[0]), ("cols", ranks[1]))
    return {
        "data": sent(graph, Layout("data", (("all", n),), (rule("all", "batch"),))),
        "model": sent(graph, Layout("model", (("all", n),), (rule("all", "wide"),))),
        "both": sent(graph, Layout("both", square, (rule("rows", "batch"), rule("cols", "wide")))),
    }


here = three(2048)
print({name: show(size, "B") for name, size in here.items()}, "my guess", my_guess)
r, c = 4, 4
assert here["data"] == 2 * 15 / 16 * 2 * 4096 * 16384 * 2
assert here["model"] == 2 * 2 * 15 / 16 * 2048 * 4096 * 2
assert abs(here["both"] / (2 * 3 / 4 * (2 * 4096 * 16384 / c) * 2 + 2 * 2 * 3 / 4 * (2048 / r) * 4096 * 2) - 1) < 1e-12


def crossing(wide):
    batches = [2**i for i in range(8, 18)]
    values = [three(batch, wide=wide) for batch in batches]
    _, axis = plt.subplots(figsize=(8, 3.2))
    for name in ("data", "model", "both"):
        axis.plot(batches, [value[name] / 2**20 for value in values], "o-", ms=3, label=name)
    axis.set(
        xscale="log", yscale="log", xlabel="rows of the batch", ylabel="sent by a rank [MiB]", title=f"wide = {wide}"
    )
    axis.legend(frameon=False)
    plt.show()


slide(crossing, wide=[16384, 4096, 65536])

# %% [markdown]
# Data parallelism sends weights, model parallelism activations; a mesh sends less of each than either alone would, and wins in between.
#
# ## A whole transformer, by hand
#
# The same four words for GPT-3 13B on 8 x 8 GPUs. Colours say who: a hue per row of the mesh, a lightness per column.

# %%
maps = ["batch=rows", "heads=cols", "ffn=cols", "vocab=cols"]
by_hand = answer_layout("gpt3_13b", read_layout(None, "rows=8,cols=8", maps), cluster="dgx_a100")
picture(draw_layout, by_hand)

totals = by_hand.totals()
print(
    f"a rank sends {show(totals['sent_forward_bytes'], 'B')} forward, {show(totals['sent_backward_bytes'], 'B')} backward"
)
layer = next(block for block in by_hand.blocks if block.kind == "layer")
along_cols = [c for op in layer.ops for c in op.derived.collectives if c.axes == ("cols",)]
assert [c.direction for c in along_cols].count("forward") == 2 == [c.direction for c in along_cols].count("backward")

# %% [markdown]
# Two all-reduces per layer and direction along `cols`: exactly Megatron's. Along `rows` the gradients of weights: data parallelism. Nobody
# said "tensor parallelism".
#
# ## By propagation
#
# Nobody wants to write down where forty tensors lie. GSPMD's idea: annotate a few, and let the rest follow from who reads and writes whom.
#
# **Guess.** Of the 43 tensors of an embedding, a layer and a head: how many must you annotate?

# %%
my_guess = 20  # change me

blocks = model_blocks(simulator.load_model("gpt3_13b"), 8, 2048, 51200)
graphs = [block.graph for block in blocks]
few = {
    "embedding token ids": {"rows": "batch"},
    "token table": {"cols": "vocabulary"},
    "head weight": {"cols": "vocabulary"},
    "qkv weight of q": {"cols": "heads"},
    "mlp up weight": {"cols": "ffn"},
}
found = infer(graphs, (("rows", 8), ("cols", 8)), few)
followed = [name for name, on in found.found.items() if on]
print(f"{len(few)} annotations, {len(followed)} tensors followed; my guess {my_guess}")
assert 43 == len({**found.given, **found.found})
print("whole, because nobody asked for more:", ", ".join(found.open))
same = [derive(b.graph, found.graphs[b.kind]) for b in blocks]
assert [[op.collectives for op in ops] for ops in same] == [
    [op.derived.collectives for op in block.ops] for block in by_hand.blocks
]

# %% [markdown]
# Five, and every collective is the one you had by hand. What if annotations disagree? The tensor with more divided dimensions wins, and the
# conflict is told:

# %%
odd = infer(graphs, (("rows", 8), ("cols", 8)), {**few, "down input": {"cols": "batch"}})
for conflict in odd.conflicts[:4]:
    print(conflict)
assert odd.conflicts
assert not found.conflicts

# %% [markdown]
# ## Is it right?
#
# A derivation can be tested like any program: run it. A small interpreter executes it on real numbers on all simulated ranks, forward and
# backward, and compares with one rank. Then we break it.

# %%
graph, layout = (
    two_products(8, 8, 8),
    Layout("both", (("rows", 2), ("cols", 4)), (rule("rows", "batch"), rule("cols", "wide"))),
)
ops = derive(graph, layout)
print("as derived, different:", differences(graph, lay_out(graph, layout), ops))
assert differences(graph, lay_out(graph, layout), ops) == []

last = ops[-1]
forgot = tuple(replace(o, forward=()) if o.role == "output" else o for o in last.operands)
wrong = differences(graph, lay_out(graph, layout), (*ops[:-1], replace(last, operands=forgot)))
print("without the all_reduce, different:", wrong)
assert wrong

# %% [markdown]
# ## Exercises
#
# 1. ZeRO-3 is a layout, too: `batch` of activations and `hidden` of weights on the same axis. Which three collectives does a product get?
# 2. Sequence parallelism is one more rule: `sequence` on the axis of Megatron, behind its own. What becomes of the all-reduces, and
#    does a rank send more?
# 3. Which single annotation, beside `batch`, makes an MLP Megatron's?
#
# ## Solutions

# %%
from simulator.partition.layout import ACTIVATIONS, MATRICES

layer_graph = next(block.graph for block in blocks if block.kind == "layer")
rules = (rule("data", "batch", kinds=(ACTIVATIONS,)), rule("data", "hidden", kinds=(MATRICES,)))
up = next(op for op in derive(layer_graph, Layout("zero 3", (("data", 8),), rules)) if op.op.label == "mlp up")
print("1.", [(c.direction, c.kind) for c in up.collectives][:3])
assert [c.kind for c in up.collectives][:3] == ["all_gather", "all_gather", "reduce_scatter"]

megatron = Layout("megatron", (("cols", 8),), (rule("cols", "heads", "ffn"),))
tokens = Layout("tokens", (("cols", 8),), (*megatron.rules, rule("cols", "sequence")))


def large(layout, **choices):
    """Return the collectives of a layer that are not of small vectors."""
    return [c for op in derive(layer_graph, layout, **choices) for c in op.collectives if c.bytes > 1e6]


kept = [sum(c.sent for c in large(each, gathers_again=False)) for each in (megatron, tokens)]
kinds = sorted({c.kind for c in large(tokens)})
print(f"2. {kinds}; {show(kept[0], 'B')} become {show(kept[1], 'B')}")
assert kept[0] == kept[1]

alone = infer(
    [layer_graph], (("rows", 8), ("cols", 8)), {"hidden states": {"rows": "batch"}, "mlp up weight": {"cols": "ffn"}}
)
mlp = [op for op in derive(layer_graph, alone.graphs["layer"]) if op.op.label.startswith("mlp ")]
print("3. ffn of 'mlp up weight':", alone.found["mlp down weight"])
assert [c.kind for op in mlp for c in op.collectives if c.axes == ("cols",)] == ["all_reduce", "all_reduce"]
