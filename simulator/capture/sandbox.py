"""The world that a script sees while it is recorded: as many ranks as it was told of, tensors without data, no GPU.

Only the child process of `worker` uses it.  What is replaced in torch stays replaced: the process ends with the recording.
"""

from __future__ import annotations

import functools
import itertools
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from simulator.capture.attention import fuse_attention
from simulator.capture.data_parallel import DataParallel
from simulator.capture.letters import Letters
from simulator.capture.libraries import Libraries
from simulator.capture.precision import mix_precision
from simulator.capture.record import Capture, Group
from simulator.capture.recorder import Recorder, place_in_script
from simulator.capture.storages import category_of
from simulator.capture.streams import Streams

__all__ = ["Sandbox"]

_WRAPPERS = ("module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
"""Parts of a module's name that a wrapper puts in: DistributedDataParallel, FSDP, checkpoint_wrapper, torch.compile."""
_COMPILED = "what torch.compile would fuse runs as in eager code, one kernel for each operator (torch.compile is first called at {})"

_TOLD = "other ranks are taken to tell all ranks the objects that this one tells (first at {})"


class Sandbox:
    """A pretended world around a recorder.

    Args:
        world, rank: what the script is told.
        on_step: called when an optimizer has updated after a backward.
        letters: how ranks that are recorded side by side pass objects.
    """

    def __init__(self, world: int, rank: int, on_step: Callable[[], None], letters: Letters) -> None:
        import torch

        self.torch = torch
        self.streams = Streams()
        self.recorder = Recorder(self.streams)
        self.libraries = Libraries(self.recorder.assume, world)
        self.names: dict[int, str] = {}
        self.parameters: dict[int, int] = {}
        self._hooked: set[int] = set()
        self._on_step = on_step
        self.saw_backward = False
        self.compiled = self.told = ""
        _environment(world, rank)
        self._process_group(world, rank)
        self._pipelines(letters)
        self._devices()
        fuse_attention()
        mix_precision(self.recorder.wait_of_host)
        self._samplers()
        self._compilers()
        self._optimizers()
        self._modules()

    def begin(self) -> None:
        """Begin to record: a step starts here."""
        self.data_parallel.rebuild()
        self.recorder.restart()

    def finished(self, script: str) -> Capture:
        """Return what was recorded."""
        import torch.distributed as dist

        recorder = self.recorder
        events = tuple(recorder.events)
        groups = sorted(recorder.groups.items(), key=lambda item: item[1][0])
        return Capture(
            script=script,
            world=dist.get_world_size(),
            rank=dist.get_rank(),
            versions={"torch": str(self.torch.__version__)},
            groups=tuple(Group(name=name, ranks=ranks) for ranks, (_, name) in groups),
            events=events,
            storages=recorder.storages.finished(lambda life: category_of(life, events)),
            tokens=recorder.tokens[max(recorder.tokens)] if recorder.tokens else 0,
            parameters=sum(self.parameters.values()),
            notes=(
                *recorder.assumed,
                *(text.format(place) for text, place in ((_COMPILED, self.compiled), (_TOLD, self.told)) if place),
            ),
            unknown=dict(recorder.unknown),
        )

    # ---- ranks ----

    def _process_group(self, world: int, rank: int) -> None:
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())

        def already(*arguments: Any, **options: Any) -> None:
            """The world is there: its backend, store and size were given on the command line."""

        dist.init_process_group = already
        dist.distributed_c10d.init_process_group = already
        dist.destroy_process_group = already
        self.data_parallel = DataParallel(self.recorder)
        self._objects(dist)
        self._meshes(dist)
        self._layouts()
        self._shards()

    def _objects(self, dist: Any) -> None:
        """What all ranks of a group tell each other in objects of Python is taken to be what this one tells: they run the same script."""

        def gathered(objects: list[Any], mine: Any, *rest: Any, **options: Any) -> None:
            objects[:] = [mine] * len(objects)
            self.told = self.told or place_in_script()

        def collected(mine: Any, objects: list[Any] | None = None, *rest: Any, **options: Any) -> None:
            gathered(objects or [], mine)

        def kept(objects: list[Any], *rest: Any, **options: Any) -> None:
            """The one whose objects count tells what this rank has in its list already."""

        for module in (dist, dist.distributed_c10d):
            module.all_gather_object, module.gather_object, module.broadcast_object_list = gathered, collected, kept

    def _meshes(self, dist: Any) -> None:
        """A mesh computes with small tensors of rank numbers, which must have data."""
        from torch.distributed import device_mesh

        mesh = device_mesh.DeviceMesh
        for name, member in list(vars(mesh).items()):
            if isinstance(member, types.FunctionType):
                setattr(mesh, name, with_data(member))
        device_mesh.init_device_mesh = dist.init_device_mesh = with_data(device_mesh.init_device_mesh)

    def _pipelines(self, letters: Letters) -> None:
        """Stages tell each other shapes by objects; that they have to, they agree on by numbers, which have no data here."""
        import torch.distributed as dist
        from torch.distributed.pipelining import schedules

        letters.replace(dist)
        base = schedules._PipelineSchedule
        if hasattr(base, "_warmup_p2p"):

            def told(schedule: Any, stages: Any, *rest: Any) -> None:
                for stage in stages:
                    stage._inference_mode = schedules.InferenceMode.DYNAMIC

            base._warmup_p2p = told

    def _layouts(self) -> None:
        """DTensor tries operators on tensors without data to know the shapes of what they make: that runs nowhere."""
        from torch.distributed.tensor import _sharding_prop

        _sharding_prop.ShardingPropagator._fake_mode_lock = self.recorder.unseen

    def _shards(self) -> None:
        from torch.distributed.fsdp._fully_shard import _fsdp_param

        _fsdp_param._chunk_with_empty = Chunks

    # ---- device ----

    def _devices(self) -> None:
        cpu, streams = self.torch.cpu, self.streams
        cpu.Stream, cpu.Event = streams.Stream, streams.Event
        cpu.current_stream, cpu.stream = streams.current_stream, streams.stream
        cpu.default_stream = streams.current_stream
        self.torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # memory of the host, which has none here
        self.torch.save = lambda *arguments, **options: None  # a checkpoint of no numbers
        self.torch.Tensor.data_ptr = addressed(self.torch.Tensor.data_ptr)
        resize = self.torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            self.recorder.storages.resized(storage, int(size))
            return result

        self.torch.UntypedStorage.resize_ = resized

    def _samplers(self) -> None:
        """In which order data comes is drawn on the host, in tensors that have data: nothing of it is the device's."""
        from torch.utils import data

        for kind in (data.RandomSampler, data.SubsetRandomSampler, data.DistributedSampler):
            kind.__iter__ = drawn(kind.__iter__)

    # ---- compiler ----

    def _compilers(self) -> None:
        """What is compiled runs one operator after the other here: that it was asked for, and where first, is noted."""
        compiler = self.torch.compile

        @functools.wraps(compiler)
        def noted(*arguments: Any, **options: Any) -> Any:
            self.compiled = self.compiled or place_in_script()
            return compiler(*arguments, **options)

        self.torch.compile = noted

    # ---- optimizer ----

    def _optimizers(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensor
        from torch.optim import optimizer as base
        from torch.utils import _foreach_utils as lists

        for module in (lists, base):
            for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
                if hasattr(module, name):
                    setattr(module, name, lambda: ["cuda", "cpu"])  # as on a GPU
        for module in (lists, base):
            module._foreach_supported_types.append(FakeTensor)
        base.register_optimizer_step_pre_hook(self._before_update)
        base.register_optimizer_step_post_hook(self._after_update)

    def _before_update(self, optimizer: Any, arguments: Any, options: Any) -> None:
        self.recorder.in_optimizer = True
        self._name_states(optimizer)

    def _after_update(self, optimizer: Any, arguments: Any, options: Any) -> None:
        self._name_states(optimizer)
        self.recorder.in_optimizer = False
        if self.recorder.after_backward or self.saw_backward:
            self.saw_backward = False
            self._on_step()

    def _name_states(self, optimizer: Any) -> None:
        storages = self.recorder.storages
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._parameter_name(parameter)
                for tensor in local(parameter):
                    storages.name(tensor, "weights", name)
                for tensor in local(parameter.grad):
                    storages.name(tensor, "gradients", f"gradient of {name}")
                for key, value in optimizer.state.get(parameter, {}).items():
                    for tensor in local(value):
                        if key == "step" and not (group.get("capturable") or group.get("fused")):
                            storages.put_on_host(tensor)
                        else:
                            storages.name(tensor, "optimizer_states", f"{key} of {name}")

    # ---- modules ----

    def _modules(self) -> None:
        from torch.nn.modules import module as modules

        modules.Module._apply = converted
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._leave, always_call=True)

    def _enter(self, module: Any, arguments: Any) -> None:
        recorder = self.recorder
        if not recorder.module_stack:
            self._root(module)
        recorder.module_stack.append(self.names.get(id(module), type(module).__name__))
        for parameter in module._parameters.values():
            wanted = parameter is not None and parameter.requires_grad and parameter.is_leaf
            if wanted and id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                parameter.register_post_accumulate_grad_hook(self._accumulated)

    def _leave(self, module: Any, arguments: Any, result: Any) -> None:
        if self.recorder.module_stack:
            self.recorder.module_stack.pop()

    def _root(self, module: Any) -> None:
        recorder = self.recorder
        if recorder.phase == "recompute":
            return
        if id(module) not in self.names:
            for name, inner in module.named_modules():
                self.names.setdefault(id(inner), plain_name(name))
        recorder.after_backward = False
        for name, parameter in module.named_parameters():
            name = plain_name(name)
            for tensor in local(parameter):
                recorder.storages.name(tensor, "weights", name)
                self.parameters.setdefault(id(parameter), tensor.numel())
        for name, buffer in module.named_buffers():
            for tensor in local(buffer):
                recorder.storages.name(tensor, "weights", plain_name(name))

    def _accumulated(self, parameter: Any) -> None:
        self.data_parallel.came(parameter)
        for tensor in local(parameter.grad):
            self.recorder.storages.name(tensor, "gradients", "gradient")

    def _parameter_name(self, parameter: Any) -> str:
        for tensor in local(parameter):
            return self.recorder.storages.name_of(tensor) or "parameter"
        return "parameter"


def with_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes with real tensors, unseen by the recorder."""
    from torch.utils._python_dispatch import _disable_current_modes

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments, **options)

    return run


def addressed(pointer: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return how to tell where a tensor lies, also one that lies nowhere: by addresses some codes (accelerate) know weights again."""
    from torch._subclasses.fake_tensor import FakeTensor

    @functools.wraps(pointer)
    def address(tensor: Any) -> int:
        if isinstance(tensor, FakeTensor):
            return id(tensor.untyped_storage()) + int(tensor.storage_offset()) * int(tensor.element_size())
        return pointer(tensor)

    return address


def drawn(places: Callable[[Any], Iterator[int]]) -> Callable[[Any], Iterator[int]]:
    """Return an iteration over a sampler that draws places with real tensors, unseen by the recorder, some at a time."""

    def run(sampler: Any) -> Iterator[int]:
        left = with_data(lambda: iter(places(sampler)))()
        some = with_data(lambda: list(itertools.islice(left, 1024)))
        while chunk := some():
            yield from chunk

    return run


def converted(module: Any, function: Callable[[Any], Any], recurse: bool = True) -> Any:
    """Stand in for Module._apply (`model.bfloat16()`, `model.to(...)`): PyTorch swaps tensors without data, which others still know.

    A parameter stays the one that it is and gets other data, as tensors with data do.  One that is in parts (a DTensor) becomes another
    one; where several modules share it, they share the other one too.
    """
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if recurse:
        for child in module.children():
            child._apply(function)
    for name, old in module._parameters.items():
        if old is None:
            continue
        new = getattr(old, "_became", None)
        if new is None:
            with torch.no_grad():
                made = function(old)
                gradient = None if old.grad is None else function(old.grad)
            if made is old:
                continue
            if made.device == old.device and not is_traceable_wrapper_subclass(made):
                old.grad = None
                old.data, old.grad = made, gradient
                continue
            new = torch.nn.Parameter(made, old.requires_grad)
            new.grad, old._became = gradient, new
        module._parameters[name] = new
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


class Chunks:
    """The chunks of a tensor, each made when it is asked for: of a thousand, FSDP2 asks for two.

    Args:
        tensor: what is cut.
        count: into how many; those behind its end are empty.
        dim: along which dimension.
    """

    def __init__(self, tensor: Any, count: int, dim: int) -> None:
        self.tensor, self.count, self.dim = tensor, count, dim
        self.size = -(-tensor.size(dim) // count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> Any:
        start = place * self.size
        left = self.tensor.size(self.dim) - start
        if left <= 0:
            return self.tensor.new_empty(0)
        return self.tensor.narrow(self.dim, start, min(self.size, left))


def local(value: Any) -> list[Any]:
    """Return the tensors that a rank holds of a tensor: those inside a wrapper, itself where it is plain, none of None."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not isinstance(value, torch.Tensor):
        return []
    if not is_traceable_wrapper_subclass(value):
        return [value]
    names, _ = value.__tensor_flatten__()
    return [tensor for name in names for tensor in local(getattr(value, name))]


def plain_name(name: str) -> str:
    """Return a module's name without what wrappers put in.

    >>> plain_name("module._fsdp_wrapped_module.layers.0._checkpoint_wrapped_module.norm")
    'layers.0.norm'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _environment(world: int, rank: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        GROUP_RANK="0",
        MASTER_ADDR="localhost",
        MASTER_PORT="29500",
        TOKENIZERS_PARALLELISM="false",
    )
