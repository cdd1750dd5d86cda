"""A step of parallel.py under PyTorch's own trackers of memory, without our recorder: prints bytes by category at the fullest moment."""

import json
import sys
import types

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed import device_mesh
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim import optimizer as base
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _foreach_utils as lists

from simulator.capture.sandbox import converted, with_data

dist.init_process_group("fake", rank=0, world_size=int(sys.argv.pop(1)), store=FakeStore())
for name, member in list(vars(device_mesh.DeviceMesh).items()):
    if isinstance(member, types.FunctionType):
        setattr(device_mesh.DeviceMesh, name, with_data(member))
device_mesh.init_device_mesh = dist.init_device_mesh = with_data(device_mesh.init_device_mesh)
torch.nn.Module._apply = converted
if (
    "--data" not in sys.argv and "--tensor" not in sys.argv
):  # of lists of DTensors it counts what these try to know shapes
    for module in (lists, base):  # operators on lists, as on a GPU
        module._get_foreach_kernels_supported_devices = lambda: ["cuda", "cpu"]
        module._foreach_supported_types.append(FakeTensor)
with FakeTensorMode(allow_non_fake_inputs=True):
    import parallel

    kind = FSDPMemTracker if parallel.words.data in ("fsdp2", "hsdp") else MemTracker
    tracker = kind(parallel.model, parallel.optimizer) if kind is FSDPMemTracker else kind()
    if kind is MemTracker:
        tracker.track_external(parallel.model, parallel.optimizer)
    with tracker:
        for _ in range(2):
            parallel.step()
            tracker.reset_mod_stats()
found = {}
for device, snapshot in tracker.get_tracker_snapshot("peak").items():
    for name, size in snapshot.items():
        key = getattr(name, "value", name)
        found[f"{device} {key}"] = found.get(f"{device} {key}", 0) + size
print(json.dumps(found))
