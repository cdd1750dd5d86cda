"""The Llama of this folder under DeepSpeed's ZeRO, stages 1 to 3, on a CPU."""

import argparse

import deepspeed
import torch
from deepspeed.comm import torch as backend
from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3, stage_1_and_2
from llama import LAYERS, VOCABULARY, Llama, loss_of

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--microbatches", type=int, default=1)
parser.add_argument("--layers", type=int, default=LAYERS)
parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
parser.add_argument("--bucket", type=int, default=500_000_000)
parser.add_argument("--by-tensor", action="store_true")
parser.add_argument("--plain-linear", action="store_true")
words = parser.parse_args()
BY_TENSOR = {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
"""Nothing is fetched ahead, so that each module fetches its own, and nothing stays for its backward."""


def finite(asked):
    """Its question whether a gradient is infinite, which data would answer: no."""

    def has_overflow(optimizer, *rest, **options):
        asked(optimizer, *rest, **options)
        return False

    return has_overflow


backend.build_shm_op = lambda: None  # a kernel for several processes of one machine
for module in (partitioned_param_coordinator, partition_parameters, stage3):
    module.assert_ints_same_as_other_ranks = lambda numbers: None  # other ranks do not answer
for kind in (stage_1_and_2.DeepSpeedZeroOptimizer, stage3.DeepSpeedZeroOptimizer_Stage3):
    kind.has_overflow = finite(kind.has_overflow)
model = Llama(vocabulary=words.vocabulary, layers=words.layers)
engine, optimizer, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters()),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": words.microbatches,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": words.stage,
            "reduce_bucket_size": words.bucket,
            **(BY_TENSOR if words.by_tensor else {}),
            "memory_efficient_linear": not words.plain_linear,
        },
        "zero_allow_untested_optimizer": True,
    },
)


def step():
    for _ in range(words.microbatches):
        engine.backward(loss_of(engine, torch.randint(0, words.vocabulary, (1, 2048))))
        engine.step()
