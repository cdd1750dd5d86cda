"""The Llama of this folder in stages of torch.distributed.pipelining; --schedule is the name of one of its classes.

As torchtitan asks for it since October 2025: gradients are not divided, and nobody wants the outputs."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from llama import LAYERS, TOKENS, VOCABULARY, Llama
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, schedules

parser = argparse.ArgumentParser()
parser.add_argument("--schedule", default="Schedule1F1B")
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--chunks", type=int, default=1)
parser.add_argument("--microbatches", type=int, default=8)
parser.add_argument("--v", action="store_true", help="the second chunk of a rank is the last but as many")
words = parser.parse_args()

world = dist.get_world_size()
mesh = init_device_mesh("cpu", (words.ranks, world // words.ranks), mesh_dim_names=("pp", "dp"))
rank, stages = mesh.get_local_rank("pp"), words.ranks * words.chunks


class Stage(nn.Module):
    def __init__(self, number):
        super().__init__()
        whole, share = Llama(), LAYERS // stages
        self.tok_embeddings = whole.tok_embeddings if number == 0 else None
        self.layers = whole.layers[number * share : (number + 1) * share]
        self.norm, self.output = (whole.norm, whole.output) if number == stages - 1 else (None, None)

    def forward(self, x):
        x = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.output is None else self.output(self.norm(x))


def loss_of(logits, tokens):
    return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


numbers = [rank, stages - 1 - rank] if words.v else [rank + words.ranks * chunk for chunk in range(words.chunks)]
models = [Stage(number).bfloat16() for number in numbers]
parts = [
    PipelineStage(model, number, stages, torch.device("cpu"), group=mesh["pp"].get_group())
    for number, model in zip(numbers, models, strict=True)
]
kind = getattr(schedules, words.schedule)
several = issubclass(kind, schedules.PipelineScheduleMulti)
schedule = kind(parts if several else parts[0], words.microbatches, loss_fn=loss_of, scale_grads=False)
optimizer = torch.optim.AdamW([parameter for model in models for parameter in model.parameters()])


def step():
    tokens = torch.randint(0, VOCABULARY, (words.microbatches, TOKENS))
    inputs = (tokens,) if rank == 0 else ()
    target = {"target": tokens, "losses": []} if stages - 1 in numbers else {}
    schedule.step(*inputs, **target, return_outputs=False)
    optimizer.step()
    optimizer.zero_grad()
