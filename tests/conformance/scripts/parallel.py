"""The Llama of this folder under PyTorch's own ways to split it; `--data`, `--tensor`, `--sequence`, `--context`, `--recompute` choose."""

import argparse
import contextlib
import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from llama import LAYERS, TOKENS, VOCABULARY, Block, Llama, loss_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

parser = argparse.ArgumentParser()
parser.add_argument("--data", choices=("none", "ddp", "fsdp1", "fsdp2", "hsdp"), default="none")
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--sequence", action="store_true")
parser.add_argument("--context", type=int, default=1)
parser.add_argument("--copies", type=int, default=1)
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--half", action="store_true")
parser.add_argument("--ends-apart", action="store_true")
parser.add_argument("--whole-logits", action="store_true")
parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
parser.add_argument("--layers", type=int, default=LAYERS)
words = parser.parse_args()

world = dist.get_world_size()
data = world // words.tensor // words.context
shards = data // words.copies
mesh = init_device_mesh(
    "cpu",
    (words.copies, shards, words.context, words.tensor),
    mesh_dim_names=("dp_replicate", "dp_shard", "cp", "tp"),
)
if words.context > 1:
    mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
model = Llama(vocabulary=words.vocabulary, layers=words.layers)
if words.half:
    model = model.bfloat16()


def split_tensors():
    """As torchtitan does it: heads and widths over tp, with --sequence norms and residuals over the sequence."""
    shard, tp = (Shard(1) if words.sequence else Replicate()), mesh["tp"]
    parallelize_module(
        model,
        tp,
        {
            "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=shard),
            "output": ColwiseParallel(
                input_layouts=shard,
                output_layouts=Replicate() if words.whole_logits else Shard(-1),
                use_local_output=words.whole_logits,
            ),
            **({"norm": SequenceParallel()} if words.sequence else {}),
        },
    )
    for block in model.layers:
        attention, mlp = block.attention, block.feed_forward
        norms = {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()} if words.sequence else {}
        parallelize_module(
            block,
            tp,
            {
                **norms,
                "attention": PrepareModuleInput(input_layouts=(shard,), desired_input_layouts=(Replicate(),)),
                "attention.wq": ColwiseParallel(),
                "attention.wk": ColwiseParallel(),
                "attention.wv": ColwiseParallel(),
                "attention.wo": RowwiseParallel(output_layouts=shard),
                "feed_forward": PrepareModuleInput(input_layouts=(shard,), desired_input_layouts=(Replicate(),)),
                "feed_forward.w1": ColwiseParallel(),
                "feed_forward.w2": RowwiseParallel(output_layouts=shard),
                "feed_forward.w3": ColwiseParallel(),
            },
        )
        attention.heads //= words.tensor
        mlp.width = None


def shard_states():
    """fully_shard as torchtitan applied it in 2024 (what is in no layer is one unit), and since then (--ends-apart)."""
    global model
    if words.data == "ddp":
        model = nn.parallel.DistributedDataParallel(model, process_group=mesh["dp_shard"].get_group())
    elif words.data == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
        model = FullyShardedDataParallel(
            model, auto_wrap_policy=policy, mixed_precision=half, device_id=torch.device("cpu"), use_orig_params=True
        )
    elif words.data in ("fsdp2", "hsdp"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        options = {
            "mesh": mesh["dp_replicate", "dp_shard"]
            if words.data == "hsdp"
            else mesh["dp_shard_cp" if words.context > 1 else "dp_shard"],
            "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        }
        if words.ends_apart:
            fully_shard(model.tok_embeddings, **options)
        for block in model.layers:
            fully_shard(block, **options)
        if words.ends_apart:
            fully_shard([model.norm, model.output], **options, reshard_after_forward=False)
        fully_shard(model, **options)


def recompute():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for number, block in model.layers.named_children():
        model.layers.register_module(number, checkpoint_wrapper(block, preserve_rng_state=False))


if words.tensor > 1:
    split_tensors()
if words.recompute:
    recompute()
shard_states()
mixed = words.tensor > 1 and not words.sequence  # plain norms beside split tensors: no operators on lists of both
optimizer = torch.optim.AdamW(model.parameters(), foreach=False if mixed else None)


def scaled_dot_product_attention(query, key, value, is_causal=False):
    """What PyTorch's function of this name calls on a GPU: context parallelism knows no kernel of a CPU."""
    return torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]


def shared_sequences(tokens):
    """Each rank keeps its two pieces of every sequence, and attention goes round them."""
    F.scaled_dot_product_attention = scaled_dot_product_attention
    return context_parallel(mesh["cp"], buffers=[tokens], buffer_seq_dims=[1], no_restore_buffers={tokens})


def step():
    whole = words.tensor == 1 or words.whole_logits
    tokens = torch.randint(0, words.vocabulary, (1, TOKENS))
    with contextlib.ExitStack() as around:
        if words.context > 1:
            around.enter_context(shared_sequences(tokens))
        if not whole:
            around.enter_context(loss_parallel())
        loss_of(model, tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
