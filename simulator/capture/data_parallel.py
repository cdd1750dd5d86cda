"""DistributedDataParallel where tensors have no data.

It compares its replicas when it is made, agrees on new buckets after the first backward, and reads the results of its messages: all
by data.  Here replicas are alike; buckets are made anew in the order in which gradients came, as its Reducer does
(torch/csrc/distributed/c10d/reducer.cpp, rebuild_buckets); the same messages go out through its communication hook.
"""

from __future__ import annotations

from typing import Any

from simulator.capture.recorder import Recorder

__all__ = ["DataParallel"]


class DataParallel:
    """Replaces what needs data in torch.nn.parallel.DistributedDataParallel."""

    def __init__(self, recorder: Recorder) -> None:
        import torch
        import torch.distributed as dist
        import torch.nn.parallel.distributed as ddp

        self.torch, self.dist, self.recorder = torch, dist, recorder
        self.arrived: dict[int, int] = {}
        self._models: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        ddp._verify_param_shape_across_processes = lambda *arguments, **options: None
        ddp._sync_module_states = lambda *arguments, **options: None
        dist.Reducer._rebuild_buckets = lambda reducer: False
        self._assign = dist._compute_bucket_assignment_by_size
        self._parallel = parallel = ddp.DistributedDataParallel
        self._make, self._register, self._help = (
            parallel.__init__,
            parallel.register_comm_hook,
            parallel._ddp_init_helper,
        )
        sandbox = self

        def made(
            model: Any, module: Any, device_ids: Any = None, output_device: Any = None, *arguments: Any, **options: Any
        ) -> None:
            """On no device in particular: a GPU's number, which scripts tell, names none here."""
            sandbox._make(model, module, None, None, *arguments, **options)
            sandbox._register(model, model.process_group, sandbox._hook())

        def helped(model: Any, *arguments: Any) -> None:
            met = len(recorder.storages.lives)
            sandbox._help(model, *arguments)
            recorder.storages.filled_on_host(met, "int32")  # which weights were used: its Reducer reads them there
            sandbox._models[id(model.reducer)] = (model, arguments)

        def refused(model: Any, *arguments: Any, **options: Any) -> None:
            recorder.assume("a communication hook of DistributedDataParallel is recorded as a plain all_reduce")

        parallel.__init__, parallel._ddp_init_helper, parallel.register_comm_hook = made, helped, refused

    def came(self, parameter: Any) -> None:
        """Note that a gradient is there."""
        self.arrived.setdefault(id(parameter), len(self.arrived))

    def _hook(self) -> Any:
        def reduce(group: Any, bucket: Any) -> Any:
            self.dist.all_reduce(bucket.buffer(), group=group, async_op=True)
            done = self.torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        reduce.__annotations__ = {
            "bucket": self.dist.GradBucket,
            "return": self.torch.futures.Future[self.torch.Tensor],
        }
        return reduce

    def rebuild(self) -> None:
        """Make new buckets where gradients have come."""
        for model, arguments in list(self._models.values()):
            if not model.find_unused_parameters and all(id(p) in self.arrived for p in arguments[0]):
                self._rebuild(model, arguments)

    def _rebuild(self, model: Any, arguments: tuple[Any, ...]) -> None:
        parameters, static = arguments[0], arguments[3]
        config = model._bucket_config
        limits = config.compute_bucket_size_limits(
            static_graph=static, find_unused_parameters=model.find_unused_parameters
        )[1] or [config.first_bucket_bytes_cap, model.bucket_bytes_cap]
        order = sorted(range(len(parameters)), key=lambda place: self.arrived[id(parameters[place])])

        def assign(given: Any, _: Any, sparse: Any) -> Any:
            buckets, sizes = self._assign(
                [given[p] for p in order], limits, [sparse[p] for p in order] if sparse else []
            )
            return [[order[place] for place in bucket] for bucket in reversed(buckets)], list(reversed(sizes))

        model.reducer._remove_autograd_hooks()
        self.dist._compute_bucket_assignment_by_size = assign
        try:
            self._help(model, *arguments)
        finally:
            self.dist._compute_bucket_assignment_by_size = self._assign
        self._register(model, model.process_group, self._hook())
