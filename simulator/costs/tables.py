"""Seconds of one operator table on one GPU: kernels, launches, and the collectives inside a block.

A table is priced once per GPU and mesh and remembered: programs that share layers share their prices.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from simulator.collectives import CollectiveTime, collective_seconds
from simulator.costs.attention import attention_calibrated, attention_class, attention_seconds, attention_sigma
from simulator.costs.expert_exchange import once_per_node
from simulator.costs.gemm import gemm_calibrated, gemm_class, gemm_seconds, gemm_sigma
from simulator.costs.memory_bound import (
    MEMORY_BOUND_CLASS,
    memory_bound_calibrated,
    memory_bound_seconds,
    memory_bound_sigma,
)
from simulator.errors import ProgramError, SpecError, refuse
from simulator.hardware.cluster import Cluster
from simulator.hardware.compute_coefficients import (
    AttentionCoefficients,
    GemmCoefficients,
    MemoryBoundCoefficients,
    load_attention_coefficients,
    load_gemm_coefficients,
    load_memory_bound_coefficients,
)
from simulator.hardware.fabric import Backend, Fabric, fabric_of
from simulator.hardware.gpu import Gpu
from simulator.hardware.group_placement import GroupPlacement, place_group
from simulator.hardware.interference import load_interference
from simulator.hardware.parts import NORMAL, Pace
from simulator.program.calls import EXCHANGED, AttentionCall, Call, Convolved, NodeExchange, Product, Timed, Traffic
from simulator.program.prices import ACCOUNTS, RESOURCE_KINDS, PriceClass, account_of
from simulator.program.program import COLLECTIVE, COMPUTE, Axes, OperatorTable
from simulator.units import BYTES_PER_ELEMENT

__all__ = ["ClassTime", "Machine", "TablePrice", "machine_of", "mesh_of", "overlapped", "price_table"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """What prices are made from: a GPU with its coefficients, the wires, and how overlapping activities slow each other.

    Two machines are never equal but by identity: `machine_of` hands out one per cluster and backend.
    """

    cluster: Cluster
    gpu: Gpu
    fabric: Fabric
    gemm: GemmCoefficients
    attention: AttentionCoefficients
    memory_bound: MemoryBoundCoefficients
    slowdown: NDArray[np.float64]
    pace: Pace = NORMAL


@functools.lru_cache(maxsize=64)
def machine_of(cluster: Cluster, backend: Backend = "nccl", first: int = 0) -> Machine:
    """Return the machine of a cluster: with the calibrations it names, else those its GPU and wires have.

    Args:
        backend: the library that its collectives go through.
        first: the world rank at which meshes begin.

    Raises:
        SpecError: the cluster names a calibration of no kind, or one that is not there.
    """
    gpu = cluster.gpu
    named = _named_calibrations(cluster)
    return Machine(
        cluster=cluster,
        gpu=gpu,
        fabric=replace(fabric_of(cluster, backend), first=first),
        gemm=load_gemm_coefficients(gpu, named.get("gemm")),
        attention=load_attention_coefficients(gpu, named.get("attention")),
        memory_bound=load_memory_bound_coefficients(gpu, named.get("memory_bound")),
        slowdown=load_interference(gpu, named.get("interference")).matrix(RESOURCE_KINDS),
        pace=replace(cluster.pace, clock=cluster.pace.clock / (1.0 + cluster.slowest_gpu)),
    )


CALIBRATION_KINDS = ("gemm", "attention", "memory_bound", "nccl", "interference")
"""What a calibration's name begins with, and so what it is of."""


def _named_calibrations(cluster: Cluster) -> dict[str, str]:
    named: dict[str, str] = {}
    for name in cluster.calibration:
        kind = next((k for k in CALIBRATION_KINDS if name.startswith(f"{k}_")), None)
        if kind is None:
            raise SpecError(
                f"cluster {cluster.spec.name}: calibration {name!r} must begin with what it is of: "
                + ", ".join(f"{k}_" for k in CALIBRATION_KINDS)
            )
        named.setdefault(kind, name)
    return named


Ints = NDArray[np.int64]


@dataclass(slots=True)
class ClassTime:
    """Seconds priced by one class, with its mean sigma weighted by time."""

    seconds: float = 0.0
    weighted_sigma: float = 0.0
    calibrated: bool = True

    def add(self, seconds: float, sigma: float, calibrated: bool) -> None:
        """Add a price of this class."""
        self.seconds += seconds
        self.weighted_sigma += seconds * sigma
        self.calibrated &= calibrated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TablePrice:
    """One table's price.

    Args:
        seconds: device time, collectives that nothing hides included [s].
        launches: kernels started.
        account: [ACCOUNTS] seconds.
        resource: [RESOURCE_KINDS] seconds in which each kind of resource is used.
        classes: seconds by price class.
        rows: [operators] seconds of each row, hidden collectives at what stays exposed.
        crossings: collectives whose flows cross others', in words.
    """

    seconds: float
    launches: int
    account: NDArray[np.float64]
    resource: NDArray[np.float64]
    classes: dict[PriceClass, ClassTime]
    rows: NDArray[np.float64]
    crossings: tuple[str, ...] = ()


def price_table(table: OperatorTable, machine: Machine, axes: Axes) -> TablePrice:
    """Return the price of a table; `axes` place its collectives on the wires."""
    return _price_table(table, machine, mesh_of(table, axes))


@functools.lru_cache(maxsize=4096)
def _price_table(table: OperatorTable, machine: Machine, axes: Axes) -> TablePrice:
    seconds, noted, launches, account_numbers, resource_numbers = _kernel_prices(table, machine)
    seconds = seconds.copy()
    classes: dict[PriceClass, ClassTime] = defaultdict(ClassTime)
    for which, time in noted.items():
        classes[which] = ClassTime(time.seconds, time.weighted_sigma, time.calibrated)
    crossings: list[str] = []
    for i in _collectives(table):
        crossings += _collective(table, i, machine, axes, seconds, classes)
    return TablePrice(
        seconds=float(seconds.sum()),
        launches=launches,
        account=_summed(account_numbers, seconds, len(ACCOUNTS)),
        resource=_summed(resource_numbers, seconds, len(RESOURCE_KINDS)),
        classes=dict(classes),
        rows=seconds,
        crossings=tuple(dict.fromkeys(crossings)),
    )


def _summed(number: Ints, seconds: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Seconds by number, added one after the other."""
    return np.asarray(np.bincount(number, seconds, count), np.float64)


def mesh_of(table: OperatorTable, axes: Axes) -> Axes:
    """Return what of a mesh the price of a table depends on: nothing, if it has no collective; else the axes of its groups, and how many
    ranks lie between and around them."""
    used = _axes_used(table)
    return _merged(axes, used) if used else ()


@functools.lru_cache(maxsize=4096)
def _axes_used(table: OperatorTable) -> frozenset[str]:
    """The mesh axes of a table's collectives."""
    return frozenset(axis for i in _collectives(table) for axis in table.group[i])


@functools.lru_cache(maxsize=4096)
def _merged(axes: Axes, used: frozenset[str]) -> Axes:
    """Put neighbouring axes that are not used together: groups along the others lie as before.

    >>> _merged((("tp", 8), ("dp", 4), ("pp", 2)), frozenset({"tp"}))
    (('tp', 8), ('others outside', 8))
    """
    if not used <= {name for name, _ in axes}:
        return axes
    out: list[tuple[str, int]] = []
    for in_use, neighbours in itertools.groupby(axes, lambda axis: axis[0] in used):
        some = list(neighbours)
        name = f"others{' outside' * (len(out) > 0)}"
        out += some if in_use else [(name, math.prod(size for _, size in some))]
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def _collectives(table: OperatorTable) -> tuple[int, ...]:
    """The rows of a table that are collectives."""
    return tuple(np.flatnonzero(table.kind == COLLECTIVE).tolist())


@functools.lru_cache(maxsize=4096)
def _kernel_prices(
    table: OperatorTable, machine: Machine
) -> tuple[NDArray[np.float64], dict[PriceClass, ClassTime], int, Ints, Ints]:
    """Return what does not depend on the mesh: seconds of every kernel, 0 for collectives; the same by price class; launches; the
    number of the account, and of the kind of resource, of every row."""
    seconds = np.zeros(len(table))
    classes: dict[PriceClass, ClassTime] = defaultdict(ClassTime)
    for indices, priced, row_classes, sigmas, known in _kernels(table, machine):
        streams = row_classes[0] == MEMORY_BOUND_CLASS
        values = priced / (machine.pace.memory_bandwidth if streams else machine.pace.clock)
        seconds[indices] = values
        for value, which, sigma, good in zip(
            values.tolist(), row_classes, sigmas.tolist(), known.tolist(), strict=True
        ):
            classes[which].add(value, sigma, good)
    account, resource = [], []
    for i, (kind, work, group) in enumerate(zip(table.kind.tolist(), table.work, table.group, strict=True)):
        communicates = kind == COLLECTIVE
        own = "ep" if table.call[i] == EXCHANGED else table.phase[i]
        account.append(_ACCOUNT[account_of(group) if communicates else own])
        used = "tp" if communicates else "gemm" if work in ("gemm", "attention", "measured") else "memory"
        resource.append(_RESOURCE[used])
    return seconds, dict(classes), int(table.launches.sum()), np.array(account, np.int64), np.array(resource, np.int64)


_ACCOUNT = {name: number for number, name in enumerate(ACCOUNTS)}
_RESOURCE = {name: number for number, name in enumerate(RESOURCE_KINDS)}


def slowed_in_a_layer(machine: Machine) -> tuple[float, float]:
    """Return how many times longer a product and a collective of its own layer take beside each other.

    Transformer Engine carries such collectives by copy engines or 16 multiprocessors (module/base.py, initialize_ub), as few as one over
    a network holds.
    """
    product, message = _RESOURCE["gemm"], _RESOURCE["dp"]
    return float(machine.slowdown[product, message]), float(machine.slowdown[message, product])


MEASURED_CLASS = PriceClass("measured")
"""Of rows whose seconds their file says."""
Priced = tuple[NDArray[np.int64], NDArray[np.float64], list[PriceClass], NDArray[np.float64], NDArray[np.bool_]]


def _kernels(table: OperatorTable, machine: Machine) -> Iterator[Priced]:
    """Yield (rows, seconds, classes, sigmas, calibrated) of all compute rows, one model at a time."""
    of_work: dict[str, list[int]] = {"gemm": [], "attention": [], "memory_bound": [], "measured": []}
    for i, (kind, work) in enumerate(zip(table.kind.tolist(), table.work, strict=True)):
        if kind == COMPUTE:
            of_work.setdefault(work, []).append(i)
    if of_work["gemm"]:
        yield _gemms(table, np.array(of_work["gemm"]), machine)
    for i in of_work["attention"]:
        yield _attention(table, i, machine)
    if of_work["memory_bound"]:
        gpu, numbers, rows = machine.gpu, machine.memory_bound, np.array(of_work["memory_bound"])
        access = [_access(table.call[i], table.phase[i]) for i in rows]
        values = memory_bound_seconds(table.read[rows], table.written[rows], gpu, numbers, access)
        if gpu.vendor != "nvidia" or not machine.attention.libraries.get("te", "").startswith("flash"):
            values = np.where([a == "flash layout" for a in access], 0.0, values)
        again = table.launches[rows] - 1
        if again.any():
            values = values + np.where(values > 0, again * _start(gpu, numbers), 0.0)
        sigma = np.full(len(rows), memory_bound_sigma(gpu, numbers))
        known = np.full(len(rows), memory_bound_calibrated(gpu, numbers))
        yield rows, values, [MEMORY_BOUND_CLASS] * len(rows), sigma, known
    if of_work["measured"]:
        rows = np.array(of_work["measured"])
        values = np.array([cast(Timed, table.call[i]).seconds for i in rows])  # by a rule of the program
        yield rows, values, [MEASURED_CLASS] * len(rows), np.zeros(len(rows)), np.ones(len(rows), np.bool_)
    unknown = of_work.keys() - {"gemm", "attention", "memory_bound", "measured"}
    if unknown:
        raise ProgramError(f"table {table.name!r}: no price for work {min(unknown)!r}")


@functools.lru_cache(maxsize=64)
def _start(gpu: Gpu, numbers: MemoryBoundCoefficients) -> float:
    """Seconds of a kernel that moves next to nothing."""
    return float(memory_bound_seconds([1.0], [0.0], gpu, numbers)[0])


def _access(call: Call, phase: str) -> str:
    """The access of a memory-bound kernel, told apart by direction where its backward pass is slower."""
    access = cast(Traffic, call).access  # by a rule of the program
    return f"{access} backward" if access in ("layer", "norm") and phase == "backward" else access


def _gemms(table: OperatorTable, rows: NDArray[np.int64], machine: Machine) -> Priced:
    """Price the products of a table: those that no table had before, all at once."""
    shape = table.shape[rows]
    dtype = [table.dtype[i] for i in rows]
    calls = [call for i in rows if isinstance(call := table.call[i], Product)]
    order = [call.order for call in calls]
    windows = [(call.shared, call.saved) if isinstance(call, Convolved) else (1.0, 1.0) for call in calls]
    stored = np.array(
        [max(BYTES_PER_ELEMENT[d], 2) for d in dtype]
    )  # products of narrow operands are stored in 16 bits
    accumulates = table.written[rows] > 1.5 * stored * shape[:, 0] * shape[:, 1] * shape[:, 2]
    keys = list(zip(map(tuple, shape.tolist()), order, dtype, accumulates.tolist(), windows, strict=True))
    known = _products(machine.gpu, machine.gemm)
    if len(known) >= _MOST_PRODUCTS:
        known.clear()
    if fresh := [n for n, key in enumerate(keys) if key not in known]:
        sizes, orders, formats = shape[fresh], [order[n] for n in fresh], [dtype[n] for n in fresh]
        shared, saved = np.array([windows[n] for n in fresh]).T
        seconds = gemm_seconds(
            sizes, orders, formats, accumulates[fresh], machine.gpu, machine.gemm, shared=shared, saved=saved
        )
        sigmas = gemm_sigma(sizes, formats, machine.gpu, machine.gemm)
        known |= {keys[n]: some for n, *some in zip(fresh, seconds.tolist(), sigmas.tolist(), strict=True)}
    values, sigma = np.array([known[key] for key in keys]).T
    convolved = [isinstance(call, Convolved) for call in calls]
    good = np.array([gemm_calibrated(d, machine.gpu, machine.gemm) for d in dtype]) & ~np.array(convolved)
    sigma = np.where(convolved, np.maximum(sigma, machine.gemm.sigma_outside), sigma)
    return rows, values, [gemm_class(d, w) for d, w in zip(dtype, convolved, strict=True)], sigma, good


_MOST_PRODUCTS = 65536
"""Products of one GPU that are remembered."""


@functools.lru_cache(maxsize=64)
def _products(gpu: Gpu, numbers: GemmCoefficients) -> dict[tuple[object, ...], list[float]]:
    """Seconds and sigma of the products priced so far."""
    return {}


def _attention(table: OperatorTable, i: int, machine: Machine) -> Priced:
    direction = "backward" if table.phase[i] == "backward" else "forward"
    call, dtype = cast(AttentionCall, table.call[i]), table.dtype[i]  # by a rule of the program
    value, sigma = _attention_price(
        tuple(table.shape[i].tolist()), call, direction, dtype, machine.gpu, machine.attention
    )
    good = attention_calibrated(call.kernel, dtype, machine.gpu, machine.attention)
    return np.array([i]), np.array([value]), [attention_class(call.kernel)], np.array([sigma]), np.array([good])


@functools.lru_cache(maxsize=8192)
def _attention_price(
    shape: tuple[int, ...], call: AttentionCall, direction: str, dtype: str, gpu: Gpu, numbers: AttentionCoefficients
) -> tuple[float, float]:
    """Seconds and sigma of an attention kernel."""
    if not numbers.runs(call.kernel):
        refuse(
            "an attention kernel runs on the chips that it was written for",
            f"attention = {call.kernel!r}, and GPU {gpu.name!r} ({gpu.architecture}) has "
            f"{', '.join(sorted({*numbers.kernels, *numbers.libraries}))} (calibration {numbers.name!r})",
            "attention = 'flash2'",
        )
    sequences, heads, length, width = shape
    value = attention_seconds(
        sequences,
        heads,
        call.kv_heads,
        length,
        call.keys,
        width,
        call.mask != "full",
        direction,
        call.kernel,
        dtype,
        gpu,
        numbers,
        window=call.window,
        chunked=call.mask == "chunk",
    )
    return float(value), float(attention_sigma(length, call.keys, call.kernel, dtype, gpu, numbers))


def _collective(
    table: OperatorTable,
    i: int,
    machine: Machine,
    axes: Axes,
    seconds: NDArray[np.float64],
    classes: dict[PriceClass, ClassTime],
) -> Iterator[str]:
    """Price a collective inside a block; beside a compute row only what that row does not hide counts.

    Yields what is to be said of a group that leaves its node or whose flows cross.
    """
    place = place_group(axes, table.group[i], machine.fabric)
    message, call = float(table.message[i]), table.call[i]
    if isinstance(call, NodeExchange):
        time = once_per_node(message, call, place, machine.fabric, machine.memory_bound)
    else:
        time = collective_seconds(table.work[i], message, place, machine.fabric)
    exposed = time.seconds
    if table.beside[i] >= 0:
        other = int(table.beside[i])
        exposed = overlapped(float(seconds[other]), time.seconds, *slowed_in_a_layer(machine)) - float(seconds[other])
    seconds[i] = exposed
    classes[time.price_class].add(exposed, time.sigma, time.calibrated)
    if time.method.engine == "steps" or place.leaving:
        yield f"{table.work[i]} over {'-'.join(table.group[i])}: {placement_text(place, time)}"


def placement_text(place: GroupPlacement, time: CollectiveTime) -> str:
    """Return where a group lies, in words, and on what its time rests where flows cross."""
    return place.text + (f", by {time.method}" if time.method.engine == "steps" else "")


def overlapped(compute: float, communication: float, slow_compute: float, slow_communication: float) -> float:
    """Return the time of two activities side by side, each slowed while the other runs [s].

    >>> overlapped(2.0, 1.0, 2.0, 1.0), overlapped(1.0, 3.0, 1.5, 1.0)
    (2.5, 3.0)
    """
    first, second = compute * slow_compute, communication * slow_communication
    if first <= second:
        return first + communication - first / slow_communication
    return second + compute - second / slow_compute
