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
# # Four ways to split a layer: tensor, sequence, context, expert parallelism
#
# **Question.** A pipeline puts different layers on different GPUs. What if one *layer* is too large, or one sequence
# too long, or a model has more experts than a GPU holds?
#
# Then a layer itself is split. There are four things to cut: the matrices (**tensor**), what lies between them (**sequence**), the tokens
# (**context**) and the experts (**expert**). Each needs another exchange in every layer, so where the GPUs lie decides.

# %%
from simulator.studies.comparison import compare
from simulator.studies.notebook import slide
from simulator.studies.variants import variants
from simulator.units import GIB, in_unit, parse, show


def rows(model, cluster, *settings):
    """Compare the settings of which several values are given: a frame with the columns that matter here."""
    common = ["plan.framework=megatron_core", "plan.microbatch_size=1"]
    comparison = compare(None, variants([], [], [*settings, *common]), model=model, cluster=cluster)
    frame = comparison.to_frame()
    wanted = ["step_time_s", "tokens_per_second", "exposed_communication_s", "peak_memory_bytes", "fits"]
    frame = frame.set_index("name")[[name for name in wanted if name in frame]]
    parts = comparison.to_frame("breakdown").set_index("name")
    frame["peak [GiB]"] = (frame.pop("peak_memory_bytes") / GIB).round(1)
    for account in ("tp_s", "cp_s", "ep_s"):
        frame[account] = parts[account].round(3)
    return frame.round(3)


# %% [markdown]
# ## Tensor parallelism: cut the matrices
#
# Two GPUs hold half of the columns of the first matrix of an MLP, and half of the rows of the second. Each computes
# half; the sums of both are added, an all-reduce of the activations: twice per layer forward, twice backward.
#
# **Your turn.** Llama 3 8B on 16 GPUs in two machines. How much slower does each doubling make it, 1, 2, 4, 8?

# %%
my_guess = [1.0, 1.1, 1.3, 1.6]  # times the step without: change me

dense = rows("llama3_8b", "dgx_h100", "plan.tensor_parallel=1,2,4,8", "cluster.gpus=16", "workload.global_batch_size=16",
             "workload.sequence_length=4096", "plan.zero_stage=1")  # fmt: skip
times = dense.step_time_s / dense.step_time_s.iloc[0]
print("my guess", my_guess, "simulated", times.round(2).tolist())
assert times.is_monotonic_increasing
assert dense["peak [GiB]"].is_monotonic_decreasing
dense

# %% [markdown]
# It is not free even inside a machine: the exchange stands in the way (nothing can go on without the sum), and smaller products run less
# well. So it is used for what it saves: memory, by nearly its degree.
#
# **Guess:** tensor parallelism over *two* machines, 16 in place of 8?

# %%
my_guess = 1.5  # times: change me

far = rows("gpt3_175b", "dgx_h100", "plan.tensor_parallel=8,16", "cluster.gpus=128", "plan.pipeline_parallel=8",
           "workload.global_batch_size=64", "workload.sequence_length=2048")  # fmt: skip
near, wide = far.tp_s.iloc[0], far.tp_s.iloc[-1]
print(far[["step_time_s", "tp_s"]])
print(f"waiting for tensor parallelism: {near:.2f} -> {wide:.2f} s; my guess {my_guess:g} times")
assert wide > 2.5 * near

# %% [markdown]
# NVLink carries 450 GB/s out of a GPU, a network card 50. That is why *tensor parallelism stays inside a machine* - and why machines with
# 72 GPUs on one NVLink were built.
#
# ## Sequence parallelism: cut what lies between
#
# Norms, dropout and residuals work on every token alone, yet all tensor-parallel GPUs did them twice over and kept
# the same activations. Cut the tokens there (Korthikanti et al., arXiv 2205.05198): the all-reduce becomes an
# all-gather before and a reduce-scatter behind, the same bytes, and the kept activations shrink.

# %%
both = rows("llama3_70b", "dgx_h100", "plan.sequence_parallel=false,true", "plan.tensor_parallel=8", "cluster.gpus=8",
            "workload.global_batch_size=8", "workload.sequence_length=8192")  # fmt: skip
assert both["peak [GiB]"].iloc[1] < both["peak [GiB]"].iloc[0]
assert both.step_time_s.iloc[1] < both.step_time_s.iloc[0]
both

# %% [markdown]
# Better in both. There is hardly a reason to leave it out.
#
# ## Context parallelism: cut the tokens
#
# A sequence of 131,072 tokens has activations that no GPU holds, however the weights are split. So split the
# *tokens*: every GPU has some of them through all layers. Only attention needs the others' keys and values, which go
# round in a ring beside the computation.
#
# **Guess:** what does halving the tokens per GPU cost in time?

# %%
my_guess = 1.3  # times: change me

long = rows("llama3_8b", "dgx_h100", "plan.context_parallel=1,2,4,8", "plan.tensor_parallel=8", "cluster.gpus=64",
            "workload.global_batch_size=8", "workload.sequence_length=131072", "plan.zero_stage=1",
            "plan.sequence_parallel=true")  # fmt: skip
print(f"my guess {my_guess:g}, it is {long.step_time_s.iloc[1] / long.step_time_s.iloc[0]:.3f}")
assert not long.fits.iloc[0]
assert long.fits.iloc[1]
assert long.step_time_s.iloc[1] < 1.05 * long.step_time_s.iloc[0]
long

# %% [markdown]
# Almost nothing: attention over so many tokens takes so long that the ring hides behind it. With short sequences it would not.
#
# ## Expert parallelism: cut the experts
#
# A mixture of experts has many MLPs and sends each token to a few of them. Deal the experts out over GPUs that
# otherwise are replicas: tokens travel to their experts and back, two all_to_all per layer.

# %%
sparse = rows("mixtral_8x7b", "dgx_h100", "plan.expert_parallel=1,2,4,8", "cluster.gpus=16", "workload.global_batch_size=64",
              "workload.sequence_length=4096", "plan.zero_stage=1")  # fmt: skip
assert sparse["peak [GiB]"].is_monotonic_decreasing
assert sparse.ep_s.is_monotonic_increasing
sparse

# %% [markdown]
# The exchange costs time, and yet the step gets *shorter*: fewer experts per GPU see more tokens each, so their
# products are larger, and each GPU updates fewer weights. It still does not fit in 80 GB; tensor or pipeline
# parallelism must help.
#
# ## Turn it yourself


# %%
def plan(tensor, expert, pipeline):
    settings = [
        f"plan.tensor_parallel={tensor}",
        f"plan.expert_parallel={expert}",
        f"plan.pipeline_parallel={pipeline}",
    ]
    fixed = ["cluster.gpus=64", "workload.global_batch_size=256", "workload.sequence_length=4096", "plan.zero_stage=1"]
    comparison = compare(None, variants([], [], [*settings, *fixed, "plan.framework=megatron_core"]), model="mixtral_8x7b",
                         cluster="dgx_h100")  # fmt: skip
    row = comparison.rows[0]
    if row.prediction is None:
        print("cannot be:", row.reason)
        return
    p = row.prediction
    print(
        f"{show(p.step_time, 's')} per step, {p.tokens / p.step_time:,.0f} tokens/s, {p.peak_memory / GIB:.0f} GiB, {row.verdict}"
    )


slide(plan, tensor=[1, 2, 4, 8], expert=[8, 1, 2, 4], pipeline=[4, 1, 2, 8])

# %% [markdown]
# ## Exercises
#
# 1. How many bytes does one all-reduce of tensor parallelism move for one sequence of 4,096 tokens of Llama 3 8B
#    (hidden 4,096, bf16)? How long is that on NVLink with 8 GPUs, and 128 times (four per layer, 32 layers)?
# 2. `context_parallel_kind="ulysses"` exchanges heads against tokens by all_to_all. Which of the two is quicker for 8,192 tokens?
# 3. Find a plan of 64 GPUs for Mixtral 8x7B that fits, with the slider; then ask `dtsim search`.
#
# ## Solutions

# %%
message = 4096 * 4096 * 2
one = 2 * 7 / 8 * message / parse("450 GB/s", "B/s")
print(f"1. {in_unit(message, 'MiB', 'B'):.0f} MiB, {show(one, 's')}; 128 of them {show(128 * one, 's')}")
assert 0.005 < 128 * one < 0.03

kinds = rows("llama3_8b", "dgx_h100", "plan.context_parallel_kind=ring,ulysses", "plan.context_parallel=8", "cluster.gpus=8",
             "workload.global_batch_size=1", "workload.sequence_length=8192", "plan.zero_stage=0")  # fmt: skip
print("2.", kinds.step_time_s.to_dict())
assert len(kinds.dropna()) == 2

found = compare(None, variants([], [], ["plan.expert_parallel=8", "plan.pipeline_parallel=1,2,4", "plan.tensor_parallel=1,2",
                                        "cluster.gpus=64", "workload.global_batch_size=256", "workload.sequence_length=4096",
                                        "plan.zero_stage=1", "plan.framework=megatron_core"]),
                model="mixtral_8x7b", cluster="dgx_h100").sorted_by("tokens/s").fitting()  # fmt: skip
print("3.", [row.name for row in found.rows][:2])
assert found.rows
