"""The recorder: a dispatch mode of PyTorch that writes down every operator of a step; only the child process runs it.

operator --dispatch--> Recorder.operator() --> Event       storages by `storages.py`, streams by `streams.py`
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

from simulator.capture.facts import Facts
from simulator.capture.messages import BARRIERS, MADE, MESSAGES, SENT, WAITS, message_of
from simulator.capture.operators import WHOLE, Work, describe
from simulator.capture.record import Event
from simulator.capture.storages import Storages
from simulator.capture.streams import Streams
from simulator.program.calls import write_call

__all__ = ["Recorder", "dispatch_mode", "place_in_script"]

_NO_KERNEL = {
    "aten.detach", "aten._unsafe_view", "aten.alias", "aten.lift_fresh", "aten._reshape_alias", "aten.set_", "aten.resize_",
    "aten.record_stream", "aten.is_same_size", "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty",
    "aten.new_empty_strided", "prim.device", "aten.sym_size", "aten.is_contiguous", "aten._has_compatible_shallow_copy_type",
    "aten.detach_", "aten.requires_grad_", "aten.as_strided_", "aten.squeeze_", "aten.unsqueeze_", "aten.t_", "aten.transpose_",
    "aten.resolve_conj", "aten.resolve_neg", "aten.set_data", "aten.is_pinned", "aten._to_cpu", "profiler._record_function_enter_new",
    "profiler._record_function_exit",
}  # fmt: skip
"""Operators that start no kernel, beside views."""
_UNPACKS = {"fsdp.split_with_sizes_copy", "aten.split_with_sizes_copy"}
"""Operators that copy what was gathered into the tensors that it is of."""
_FILLS = {"aten.full": 0.0, "aten.zeros": 0.0, "aten.ones": 1.0}
"""Operators that make a tensor of one number, and which unless they are told."""
_HOST_READS = {"aten._local_scalar_dense", "aten.item", "aten.equal", "aten.is_nonzero"}
_ONE = 1.0
"""What a number read from the device is taken to be."""


class Unseen:
    """While it is entered, operators are run and not recorded."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


class Recorder:
    """Writes down what a step does.

    Args:
        streams: those of the rank.

    Attributes:
        events: of the step, in order.
        groups: name and ranks of the process groups, in the order of their first message.
        unknown: kernels of no known kind, with how often each ran.
        assumed: what was assumed, in words, in order.
    """

    def __init__(self, streams: Streams) -> None:
        import torch

        self.torch = torch
        self.streams, self.storages = streams, Storages()
        self.events: list[Event] = []
        self.groups: dict[tuple[int, ...], tuple[int, str]] = {}
        self.unknown: Counter[str] = Counter()
        self.assumed: dict[str, None] = {}
        self.tokens: Counter[int] = Counter()
        self.module_stack: list[str] = []
        self.after_backward = False
        self.in_optimizer = False
        self.unseen = Unseen()
        self._sequence: list[tuple[int, str]] = []
        self._stream_of: dict[tuple[int, str, int], int] = {}
        self._formats = {
            torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
            **{getattr(torch, name): "fp8" for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")},
        }  # fmt: skip

    def restart(self) -> None:
        """Forget what was recorded: a step begins here."""
        self.events.clear()
        self.streams.restart()
        self.storages.restart()
        self.unknown.clear()
        self.tokens.clear()
        self.assumed.clear()
        self.after_backward = False

    # ---- where we are ----

    @property
    def phase(self) -> str:
        """The phase that an operator belongs to now."""
        if self.torch._C._current_graph_task_id() != -1:
            return "recompute" if self.torch.is_grad_enabled() or self.module_stack else "backward"
        if self.in_optimizer or (self.after_backward and not self.module_stack):
            return "optimizer"
        return "forward"

    def path(self, phase: str) -> str:
        """The module that an operator belongs to now; of a backward that of its forward."""
        if self.module_stack:
            return self.module_stack[-1]
        if phase in ("backward", "recompute"):
            return self._forward_path()
        return ""

    def _forward_path(self) -> str:
        import bisect

        node = self.torch._C._current_autograd_node()
        if node is None or not self._sequence:
            return self.events[-1].path if self.events else ""
        number = node._sequence_nr()
        if number > self._sequence[-1][0]:  # no operator of a forward: a hook, or a gradient that is added up
            return self.events[-1].path if self.events else ""
        return self._sequence[bisect.bisect_left(self._sequence, (number, ""))][1]

    # ---- operators ----

    def operator(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operator on fake tensors and write it down."""
        name = f"{function.namespace}.{function._schema.name.partition('::')[2]}"
        if name in _HOST_READS:
            return self._host_read(name, function, arguments, options)
        joined = _joined(name)
        result = joined(*arguments) if joined else self._run(name, function, arguments, options)
        if name in WAITS:
            self._wait(arguments)
        if name in BARRIERS or name in WAITS:
            return result
        outputs = list(self._tensors(result))
        if any(t.device.type == "cuda" for t in outputs):
            raise RuntimeError("a tensor on cuda")
        phase = self.phase
        self.after_backward |= phase == "backward"
        if phase in ("forward", "recompute") and self.torch.is_grad_enabled():
            self._number(self.path(phase))
        if name in MESSAGES:
            self._message(name, function, arguments, options, outputs, phase)
        elif self._starts_kernel(name, function, arguments, outputs):
            self._kernel(name, function, arguments, options, outputs, phase)
        else:
            self.storages.meet(outputs, len(self.events))
        return result

    def _run(self, name: str, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operator; PyTorch's rule of grouped products for tensors without data refuses formats that its kernels take."""
        if name != "aten._grouped_mm" or arguments[0].dtype == self.torch.bfloat16:
            return function(*arguments, **options)
        half = (one.to(self.torch.bfloat16) for one in arguments[:2])
        return function(*half, *arguments[2:], **options).to(arguments[0].dtype)

    def _number(self, path: str) -> None:
        """Note which module the autograd nodes made so far belong to."""
        number = self.torch.autograd._get_sequence_nr() - 1
        if number >= 0 and (not self._sequence or number > self._sequence[-1][0]):
            self._sequence.append((number, path))

    def _starts_kernel(self, name: str, function: Any, arguments: tuple[Any, ...], outputs: list[Any]) -> bool:
        if name in _NO_KERNEL or function.is_view:
            return False
        tensors = [*self._tensors(arguments), *outputs]
        if any(t.device.type == "meta" for t in outputs):  # asked for shapes alone
            return False
        if any(self.storages.on_host(t) for t in tensors) and all(t.numel() <= 1 for t in tensors):
            return False
        return any(t.numel() for t in tensors)

    def _kernel(
        self,
        name: str,
        function: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        outputs: list[Any],
        phase: str,
    ) -> None:
        named, found, written = self._named(function, arguments, options)
        touched = [t for tensors in found.values() for t in tensors]
        mutated = {id(t) for t in written}
        fresh = [self.facts(t) for t in outputs if id(t) not in mutated and self.storages.is_new(t)]
        read = [t for key, tensors in found.items() if key != "out" for t in tensors]
        first = {id(t): number for number, t in reversed(list(enumerate(read)))}
        again = [self.facts(t) for number, t in enumerate(read) if first[id(t)] != number]
        if name == "aten.embedding" and phase == "forward":
            self.tokens[int(named["weight"].shape[0])] += self._count(named["indices"])
        number = len(self.events)
        for work in describe(name, named, fresh, [self.facts(t) for t in written], again):
            self.unknown.update([] if work.known else [name])
            number = self._add(
                name,
                phase,
                work.work,
                self.streams.current,
                touched,
                shape=work.shape,
                call=write_call(work.call),
                dtype=self._multiplied_in(name, work),
                flops=work.flops,
                read=work.read,
                written=work.written,
                launches=work.launches,
            )
        self.storages.meet(outputs, number)
        self.storages.write([*outputs, *written], number)
        if name in _FILLS:
            self.storages.fill(outputs, float(named.get("fill_value", _FILLS[name])))
        if name in _UNPACKS:
            self.storages.unpacked(touched, written)

    def _multiplied_in(self, name: str, work: Work) -> str:
        """The format of a kernel: products of fp32 numbers in tf32 where the script lets a GPU do so (torch.backends), as PyTorch by
        itself lets convolutions."""
        if work.work != "gemm" or work.dtype != "fp32":
            return work.dtype
        backends = self.torch.backends
        leave = backends.cudnn if name.startswith("aten.convolution") else backends.cuda.matmul
        newer = getattr(leave, "conv", leave)
        allowed = newer.fp32_precision == "tf32" if hasattr(newer, "fp32_precision") else leave.allow_tf32
        if allowed:
            self.assume("products in fp32 run in tf32 where torch.backends lets them (convolutions by default)")
        return "tf32" if allowed else "fp32"

    def _add(self, name: str, phase: str, work: str, stream: int, touched: list[Any], **more: Any) -> int:
        """Write an event down behind what wrote the tensors that it touches; returns its number.

        Args:
            more: other fields of `Event`.
        """
        number = len(self.events)
        after = self.streams.add(number, stream, self.storages.writers(touched))
        path = self.path(phase)
        self.events.append(Event(name=name, path=path, phase=phase, work=work, stream=stream, after=after, **more))
        self.storages.clock = len(self.events)
        return number

    @staticmethod
    def _count(indices: Facts) -> int:
        out = 1
        for size in indices.shape:
            out *= size
        return out

    # ---- messages ----

    def _message(
        self,
        name: str,
        function: Any,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        outputs: list[Any],
        phase: str,
    ) -> None:
        named, found, written = self._named(function, arguments, options)
        touched = [t for tensors in found.values() for t in tensors]
        group, ranks = self._group(function, arguments, options)
        message, dtype = message_of(name, named, [self.facts(t) for t in outputs], len(ranks))
        what = MESSAGES[name]
        if len(ranks) == 1:
            self.storages.meet(outputs, len(self.events))
            return
        beside = name.startswith("_c10d") or bool(named.get("async_op", what in ("send", "recv")))
        issued = self.streams.current
        peer = int(named.get("dst", named.get("src", -1))) if what in ("send", "recv") else -1
        stream = self._beside((group, what if peer >= 0 else "", peer)) if beside else issued
        if beside:
            self.streams.wait(stream, self.streams.last[issued])
        other = ranks[peer] if 0 <= peer < len(ranks) else -1
        number = self._add(
            name, phase, what, stream, touched, dtype=dtype, group=group, message=message, waits=not beside, peer=other
        )
        self.storages.meet(outputs, number)
        sent = [t for name in SENT if name in found for t in found[name]]
        made = [t for name in MADE if name in found for t in found[name]]
        self.storages.write([*outputs, *written, *(made or sent)], number)
        self.storages.communicated(sent, made or outputs, what, phase)

    def _beside(self, who: tuple[int, str, int]) -> int:
        """The stream of a communicator: of a group; of what goes to another rank, and of what comes from it."""
        if who not in self._stream_of:
            self._stream_of[who] = self.streams.add_beside()
        return self._stream_of[who]

    def _group(self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, tuple[int, ...]]:
        from torch.distributed import distributed_c10d as c10d

        places = [a.name for a in function._schema.arguments]
        values = dict(zip(places, arguments, strict=False)) | options
        given = values.get("process_group", values.get("group_name"))
        if isinstance(given, str):
            group: Any = c10d._resolve_process_group(given)
        else:
            group = c10d._resolve_process_group(c10d.ProcessGroup.unbox(given).group_name)
        ranks = tuple(c10d.get_process_group_ranks(group))
        description = getattr(group, "group_desc", "") or ""
        if ranks not in self.groups:
            self.groups[ranks] = (len(self.groups), description if description != "undefined" else "")
        return self.groups[ranks][0], ranks

    def _wait(self, arguments: tuple[Any, ...]) -> None:
        """A functional collective is waited for: the stream in use waits for its event; no kernel."""
        for event in self.storages.writers(list(self._tensors(arguments))):
            self.streams.wait(self.streams.current, event)

    # ---- the host ----

    def _host_read(self, name: str, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A number that the host reads: it waits for the device, and is told 1 (False for a truth value)."""
        tensor = next(self._tensors(arguments))
        known = getattr(tensor, "constant", None)
        if known is not None:
            return function(known, *arguments[1:], **options)
        filled = self.storages.value_of(tensor)
        if not self.storages.on_host(tensor):
            self.wait_of_host(tensor)
            if filled is None:
                self.assume(
                    f"a number read from the device is taken as 1, a truth value as False, at {place_in_script()}"
                )
        if name != "aten._local_scalar_dense" and name != "aten.item":
            return False
        if tensor.dtype == self.torch.bool:
            return bool(filled)
        value = _ONE if filled is None else filled
        return value if tensor.dtype.is_floating_point else int(value)

    def wait_of_host(self, tensor: Any) -> None:
        """Note that the host waits until a tensor is there."""
        size, dtype = float(tensor.element_size() * tensor.numel()), self.facts(tensor).dtype
        where = self.phase, "memory_bound", self.streams.current
        self._add("host reads", *where, [tensor], call="stream+end", dtype=dtype, read=size, written=size)

    def assume(self, text: str) -> None:
        """Note an assumption."""
        self.assumed.setdefault(text)

    # ---- tensors ----

    def facts(self, tensor: Any) -> Facts:
        """Return what a price needs of a tensor."""
        return Facts(
            tuple(int(n) for n in tensor.shape),
            tuple(int(n) for n in tensor.stride()),
            self._formats.get(tensor.dtype, "int8" if tensor.element_size() == 1 else "fp32"),
            tensor.element_size(),
        )

    def _tensors(self, value: Any) -> Iterator[Any]:
        if isinstance(value, self.torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from self._tensors(inner)
        elif isinstance(value, dict):
            for inner in value.values():
                yield from self._tensors(inner)

    def _named(
        self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, list[Any]], list[Any]]:
        """Arguments by name with `Facts` for tensors; the tensors in each; those that are written to."""
        named: dict[str, Any] = {}
        tensors: dict[str, list[Any]] = {}
        written: list[Any] = []
        for place, declared in enumerate(function._schema.arguments):
            if place < len(arguments) and not declared.kwarg_only:
                value = arguments[place]
            elif declared.name in options:
                value = options[declared.name]
            elif declared.default_value is not None:
                value = declared.default_value
            else:
                continue
            found = list(self._tensors(value))
            if found:
                tensors[declared.name] = found
            if declared.alias_info is not None and declared.alias_info.is_write:
                written += found
            named[declared.name] = self._plain(value)
        return named, tensors, written

    def _plain(self, value: Any) -> Any:
        if isinstance(value, self.torch.Tensor):
            return self.facts(value)
        if isinstance(value, list | tuple):
            return [self._plain(inner) for inner in value]
        return value


_SINGLE = {
    "c10d.allreduce_coalesced_": "allreduce_",
    "c10d.allgather_into_tensor_coalesced_": "_allgather_base_",
    "c10d.reduce_scatter_tensor_coalesced_": "_reduce_scatter_base_",
}
"""Messages of several tensors at once, for which tensors without data have no rule -> the same of one."""


def _joined(name: str) -> Any:
    """What runs in place of a message of several tensors; None where it can run itself."""
    import torch

    if name not in _SINGLE:
        return None
    one = getattr(torch.ops.c10d, _SINGLE[name])
    if name == "c10d.allreduce_coalesced_":
        return lambda tensors, group, how, *rest: one(tensors, group, how, None, *rest)[1]
    return lambda outputs, inputs, *rest: one(outputs[0], inputs[0], *rest)[1]


def place_in_script() -> str:
    """Where the user's code stands now: the innermost line that is not in a library."""
    for frame in reversed(traceback.extract_stack(sys._getframe(1))):
        name = frame.filename
        if "site-packages" not in name and "/simulator/" not in name and "dist-packages" not in name and name[0] != "<":
            return f"{name}:{frame.lineno}"
    return "a library"


def dispatch_mode(recorder: Recorder) -> Any:
    """Return the mode of PyTorch that hands every operator to a recorder; wrappers such as DTensor are left to unwrap themselves."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = {torch.Tensor, torch.nn.Parameter, FakeTensor, torch.nn.Buffer}

    class Mode(TorchDispatchMode):  # type: ignore[misc]  # torch is not there where types are checked
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
            if any(kind not in plain for kind in types):
                return NotImplemented
            if recorder.unseen.depth:
                return function(*arguments, **(options or {}))
            if function._schema.name in WHOLE:
                with self:
                    return function.decompose(*arguments, **(options or {}))
            return recorder.operator(function, tuple(arguments), options or {})

    return Mode()
