"""DistributedDataParallel as a whole script with a loop, as it would be started by torchrun."""

import torch
import torch.distributed as dist
from llama import Llama, loss_of

dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(Llama().bfloat16())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
