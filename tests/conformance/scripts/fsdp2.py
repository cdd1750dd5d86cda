"""fully_shard as torchtitan applied it in 2024: a unit per layer, one for the rest."""

import torch
import torch.distributed as dist
from llama import Llama, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = Llama()
for layer in model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad()
