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
# # What does FSDP really send?
#
# **Question.** A Llama-like model trains under PyTorch's `fully_shard` on eight GPUs. Which messages does a step send, how many bytes,
# in which order - and who waits for them?
#
# We need no GPU to see it. `dtsim capture` runs the training script on a CPU, on tensors without data, as rank 0 of a pretended world, and
# writes down what it asks for. (It *executes* the script; nothing else of dtsim does.)
#
# Where PyTorch is not installed (`pip install 'dtsim[torch]'`) the cells below say so and leave it at our own lowering of the same plan.

# %%
import importlib.util
from pathlib import Path

from simulator.capture.answer import collectives_of, peak_of, saved_of
from simulator.capture.child import capture
from simulator.capture.program import captured_program
from simulator.hardware.cluster import load_cluster
from simulator.job import job_from_data
from simulator.lowering import lower
from simulator.program.program import Link
from simulator.simulation import simulate_program
from simulator.units import show

script = Path("tests/conformance/scripts/fsdp2.py")
script = script if script.exists() else Path("../..") / script
recorded = capture(f"{script}:step", world=8) if importlib.util.find_spec("torch") else None
print(f"{len(recorded.events)} operators" if recorded else "PyTorch is not installed: nothing is recorded")

# %% [markdown]
# ## The messages
#
# Every layer is gathered before its forward, once more before its backward, and its gradients are reduced and scattered after it. The
# unit that is in no layer (embedding, last norm, head) stays gathered from its forward to its backward, so it is gathered once.

# %%
for message in collectives_of(recorded) if recorded else ():
    print(
        f"{message['phase']:9} {message['count']:3} x {message['kind']:15} {show(message['message_bytes'], 'B'):>9} {message['dtype']}"
    )

# %% [markdown]
# Gathers go in bf16, reductions in fp32: that is what `MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)` asks for.
# All in all a step sends the parameters twice in two bytes and the gradients once in four: eight bytes a parameter, less a gather
# of the ends.

# %%
if recorded:
    sent = sum(event.message for event in recorded.events if event.communicates)
    print(f"{show(sent, 'B')} in all; {sent / (8 * recorded.parameters):.2f} bytes per parameter of the whole model")

# %% [markdown]
# ## Who waits for whom
#
# FSDP2 puts gathers and reductions on streams of their own. The recording has the streams and the waits, so the program can be run:

# %%
if recorded:
    program = captured_program(recorded, "pytorch_ddp")
    prediction = simulate_program(program, load_cluster("dgx_h100", 8))
    print(
        f"{show(prediction.step_time, 's')} on eight H100; nothing hides {show(prediction.breakdown['dp'], 's')} of the messages"
    )

# %% [markdown]
# ## What stands in memory
#
# Storages are followed from birth to death: what the forward makes and the backward still needs are the activations.

# %%
if recorded:
    for category, size in peak_of(recorded).items():
        print(f"{category:17} {show(size, 'B')}")
    print("saved by each layer:", show(saved_of(recorded)["layers.*"] / 4, "B"))

# %% [markdown]
# ## The same plan, lowered by us
#
# A plan of the same model must send the same bytes; `tests/conformance` holds it to that, for this and other ways to split a model.

# %%
job = job_from_data(
    {
        "model": {
            "name": "small", "family": "llama", "hidden": 1024, "ffn": 2816, "layers": 4, "heads": 16, "kv_heads": 4,
            "vocabulary": 32000, "sequence_length": 2048, "gated_mlp": True, "norm": "rms_norm", "positions": "none",
            "tied_embeddings": False, "linear_bias": False, "qkv_bias": False,
        },
        "workload": {"sequence_length": 2048, "global_batch_size": 8},
        "plan": {"framework": "torchtitan_eager", "zero_stage": 3, "recompute": "none"},
        "cluster": {"name": "dgx_h100", "gpus": 8},
    },
    "this notebook",
    (),
)  # fmt: skip
ours = lower(job.workload, job.plan, 8)
links = [ours.items[i] for i in ours.item if isinstance(ours.items[i], Link) and "norm" not in ours.items[i].name]
print(show(sum(link.message for link in links), "B"), "in all")
if recorded:
    assert abs(sum(link.message for link in links) / sent - 1) < 1e-9
