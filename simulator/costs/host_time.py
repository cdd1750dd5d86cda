"""Seconds of the host's thread that starts an operator table's kernels, and what the GPU waits for it.

A framework's thread runs through Python, dispatches every operator and launches its kernels, ahead of the GPU:

    kernel      launch_time                                         each
    operator    operator_time       each kernel that no module of a library starts; a weight's gradient twice: its place in the graph
                                    of gradients, and the hook that notes it for its bucket; what quantises an operand once,
                                    however many kernels do it
    fetch       fetch_time          hooks around a module whose weights are sharded (`FETCHED`), forward, made again and backward
    slice       fetch_slice_time    each rank's part of a weight that is gathered or scattered with others (`JOINED`), as slow as operators
    group       launch_time         each product of grouped ones beside its launch: the library's own code
    module      module_time         a linear layer or attention, forward or backward; rows in another order; a collective.  A linear
                                    layer that quantises counts twice, one of experts in a loop once for each of them
    weight      weight_gradient_time    the library's own code for the gradient of a linear layer's weight, beside its two operators
    message     point_to_point_call     of the library, a send and a receive for every rank of an all_to_all that it has no kernel for
    split       split_module_time   what DTensor dispatches, where tensor parallelism splits layers: linear layers and norms, weight by
                                    weight, and the collectives between them, in place of operator and module

The thread stays ahead as long as the GPU has more to do than it.  Where it needs a result to go on, such as the counts of rows of
experts (a call that the host waits for), it waits for the GPU, and both start anew together.  Between two such points, with
h_i the host's and d_i the GPU's seconds of kernel i, kernel i starts when its launch is done and kernel i - 1 has ended, so that the
last one ends after

    T = max over k of (h_1 + ... + h_k + d_k + ... + d_n)

Without such a point, over many layers, that is the larger of both sums.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.costs.tables import Machine, TablePrice, price_table
from simulator.hardware.coefficients import load_cost_table
from simulator.hardware.host import host_pace, load_host_coefficients
from simulator.plan.framework import Framework
from simulator.program.calls import EXCHANGED, NodeExchange, Traffic, waits
from simulator.program.program import COLLECTIVE, EAGER, IN_LAYER_GRAPH, IN_STEP_GRAPH, Axes, OperatorTable
from simulator.remembered import hashed_once
from simulator.units import BYTES_PER_ELEMENT

__all__ = ["NO_HOST", "HostTimes", "TableTime", "host_rows", "host_times", "interval", "table_time"]

_PER_WEIGHT = 2
"""Operators for each weight tensor whose gradient is done (Megatron-LM, distributed_data_parallel.py: a hook per parameter)."""
_GATHER = Traffic("gather")
_CAST = Traffic("cast")
_NORMS = ("norm", "norm backward", "norm sums", "plain")
_NARROW = 2.0
"""Bytes of an element below which a product's operands were quantised."""
_QUANTISING_MODULES = 2
"""A quantising linear layer keeps the host at least twice as long as one in 16 bits (NVIDIA/TransformerEngine issue 761)."""


@hashed_once
@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """Seconds of the host per kernel launch, per operator, per module, per `weight` gradient of a module beside its operators, per
    `message` that a collective is made of, per operator or module of split layers (0 = as of others), per linear layer whose weights hooks
    `fetch`, per `slice` of these weights; `blocked`: what the GPU waits for each launch where these do not queue (0 = they do);
    `synchronised`: what it waits after each synchronised layer; `slowed`: how many times as long the code of libraries takes in a training
    step as in a loop (launches take as long)."""

    launch: float = 0.0
    operator: float = 0.0
    module: float = 0.0
    weight: float = 0.0
    message: float = 0.0
    split: float = 0.0
    fetch: float = 0.0
    slice: float = 0.0
    blocked: float = 0.0
    synchronised: float = 0.0
    slowed: float = 1.0


NO_HOST = HostTimes()
"""A host that costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTime:
    """One run through a table: what the GPU computes and the host works [s], and `joint`, what both take where the host waits
    for counts on the way (each run follows another one of its kind); 0 where it does not wait."""

    device: float
    host: float
    joint: float


def host_times(framework: Framework, kind: str, pace: float, splits: bool = False) -> HostTimes:
    """Return the times of a framework on a host, operators and modules as slow as they are in a training step.

    Args:
        kind: of host, as its node's file says ("intel", "arm", ...).
        pace: speed of this host beside others of its kind.
        splits: whether tensor parallelism splits layers.
    """
    factor = pace * host_pace(kind)
    busy = factor * load_host_coefficients().training_pace
    return HostTimes(
        launch=framework.launch_time / factor,
        operator=framework.operator_time / busy,
        module=framework.module_time / busy,
        weight=framework.weight_gradient_time / busy,
        message=load_cost_table().point_to_point_call / busy if framework.module_time else 0.0,
        split=framework.split_module_time / busy if splits else 0.0,
        fetch=framework.fetch_time / factor,
        slice=framework.fetch_slice_time / busy,
        blocked=framework.launch_wait / factor,
        synchronised=framework.layer_wait / factor,
        slowed=1.0 / load_host_coefficients().training_pace,
    )


def table_time(table: OperatorTable, machine: Machine, axes: Axes, times: HostTimes) -> TableTime:
    """Return what a run through a table takes of both."""
    priced: TablePrice = price_table(table, machine, axes)
    host, whole = _kept_rows(table, times, _exchanging(table, axes))
    last, joint = _stops(table), 0.0
    if len(last):
        for first, end in zip(np.roll(last, 1), last, strict=True):
            rows = np.arange(first + 1, end + 1 + (len(table) if end <= first else 0)) % len(table)
            joint += interval(host[rows], priced.rows[rows])
    return TableTime(device=priced.seconds, host=whole, joint=joint)


def _exchanging(table: OperatorTable, axes: Axes) -> Axes:
    """What of a mesh the host's seconds depend on: the axes over which a table's ranks send to each of the others."""
    used = _exchanged(table)
    return tuple(axis for axis in axes if axis[0] in used) if used else ()


@functools.lru_cache(maxsize=4096)
def _exchanged(table: OperatorTable) -> frozenset[str]:
    """The axes of a table's exchanges by messages."""
    return frozenset(name for i in range(len(table)) if _sends(table, i) for name in table.group[i])


def _sends(table: OperatorTable, i: int) -> bool:
    """Whether a row is an all_to_all of the library's, which is a send and a receive for every rank (NCCL user guide, Point-to-point
    communication), not one by a kernel of its own."""
    return table.work[i] == "all_to_all" and not isinstance(table.call[i], NodeExchange)


@functools.lru_cache(maxsize=4096)
def _kept_rows(table: OperatorTable, times: HostTimes, axes: Axes) -> tuple[NDArray[np.float64], float]:
    """`host_rows`, and their sum."""
    host = host_rows(table, times, axes)
    return host, float(host.sum())


@functools.lru_cache(maxsize=4096)
def _stops(table: OperatorTable) -> NDArray[np.int64]:
    """The rows of a table at whose ends the host waits."""
    stops = np.array([waits(call, "end") for call in table.call], np.bool_) & (table.captured != IN_STEP_GRAPH)
    return np.flatnonzero(stops)


def interval(host: NDArray[np.float64], device: NDArray[np.float64]) -> float:
    """Return when the last of some kernels ends that the host starts in turn, both beginning at 0 [s].

    >>> interval(np.array([1.0, 1.0, 1.0]), np.array([5.0, 5.0, 5.0])), interval(np.full(3, 5.0), np.ones(3))
    (16.0, 16.0)
    """
    if not len(host):
        return 0.0
    return float((np.cumsum(host) + np.cumsum(device[::-1])[::-1]).max())


def host_rows(table: OperatorTable, times: HostTimes, axes: Axes = ()) -> NDArray[np.float64]:
    """Return the host's seconds of each row of a table; what a CUDA graph starts costs one module where the graph begins.

    Args:
        axes: of the mesh; those over which ranks send to each other are enough.
    """
    sizes = dict(axes)
    out = [0.0] * len(table)
    before = EAGER
    for i, (launches, captured) in enumerate(zip(table.launches.tolist(), table.captured.tolist(), strict=True)):
        if captured == IN_LAYER_GRAPH and before != IN_LAYER_GRAPH:
            out[i] = times.launch + times.module
        elif waits(table.call[i], "hooks"):
            out[i] = launches * times.fetch
        elif waits(table.call[i], "slices"):
            out[i] = launches * times.slice
        elif captured == EAGER and launches:
            out[i] = launches * times.launch + _python(table, i, launches, times) + _grouped(table, i, launches, times)
            if _sends(table, i):
                out[i] += 2 * math.prod(sizes.get(name, 1) for name in table.group[i]) * times.message
        before = captured
    return np.array(out)


def _python(table: OperatorTable, i: int, launches: int, times: HostTimes) -> float:
    """The host's seconds of a row beside its launches."""
    split = times.split if times.split and _is_split(table, i) else 0.0
    operator, module = split or times.operator, split or times.module
    if table.kind[i] == COLLECTIVE:
        return module
    if table.work[i] not in ("gemm", "attention") or table.phase[i] == "optimizer":  # no module's forward
        calls = 1 if table.call[i] == _CAST else launches
        return module if table.call[i] in (_GATHER, EXCHANGED) else calls * operator
    if table.part[i] == "weight":
        weights = int(table.shape[i, 0]) if launches > 1 and table.work[i] == "gemm" else 1
        return _PER_WEIGHT * weights * operator + times.weight
    calls = launches if _apart(table, i, launches) else 1
    return calls * (_QUANTISING_MODULES if BYTES_PER_ELEMENT[table.dtype[i]] < _NARROW else 1) * module


def _is_split(table: OperatorTable, i: int) -> bool:
    """Whether a row of layers that tensor parallelism splits is one with a split weight or beside one: a linear layer, a norm, or a
    collective of these ranks.  Attention and what is between get plain tensors; so do groups of experts."""
    if table.kind[i] == COLLECTIVE:
        return "tp" in table.group[i]
    if table.work[i] == "gemm":
        return int(table.shape[i, 0]) == 1
    call = table.call[i]
    return isinstance(call, Traffic) and call.access in _NORMS


def _apart(table: OperatorTable, i: int, launches: int) -> bool:
    """Whether a row is several products that are started one by one, each an operator of its own: as many launches as products."""
    return launches == int(table.shape[i, 0]) > 1


def _grouped(table: OperatorTable, i: int, launches: int, times: HostTimes) -> float:
    """What the library's own code for each of grouped products takes longer than in the loop that its launches stand for."""
    if table.work[i] != "gemm" or launches < 2 or _apart(table, i, launches):
        return 0.0
    return int(table.shape[i, 0]) * (times.slowed - 1.0) * times.launch
