"""Seconds of derived operations on a cluster, by the prices of products, attention, memory traffic and collectives that steps have."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.collectives import collective_seconds
from simulator.costs.tables import Machine, machine_of, price_table
from simulator.errors import SpecError
from simulator.hardware.cluster import load_cluster
from simulator.hardware.group_placement import place_group
from simulator.lowering.layers.rows import Rows
from simulator.partition.derive import DerivedOp
from simulator.partition.exchanges import Collective
from simulator.partition.layout import Mesh
from simulator.program.calls import AttentionCall, Product, Traffic
from simulator.workload.graph import Attention, Kernel
from simulator.workload.graph import Product as ProductOp

__all__ = ["Seconds", "op_seconds"]

_ORDERS = {"forward": "TN", "input": "NN", "weight": "NT"}


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of one operation [s]: its work forward and backward, and each of its collectives."""

    forward: float
    backward: float
    collectives: tuple[float, ...]


def op_seconds(derived: Sequence[DerivedOp], mesh: Mesh, cluster: str, dtype: str = "bf16") -> list[Seconds]:
    """Return the seconds of each operation, one after the other; nothing hides a collective.

    Args:
        mesh: ranks of its last axis are neighbours.

    Raises:
        SpecError: no such cluster, or it has fewer GPUs than the mesh has ranks.
    """
    machine, axes = _machine(mesh, cluster), tuple(reversed(mesh))
    rows = {"forward": Rows("forward"), "backward": Rows("backward")}
    owners: dict[str, list[int]] = {"forward": [], "backward": []}
    for number, one in enumerate(derived):
        for direction in rows:
            before = len(rows[direction].rows)
            _add(rows[direction], one, direction, dtype)
            owners[direction] += [number] * (len(rows[direction].rows) - before)
    work = {direction: [0.0] * len(derived) for direction in rows}
    for direction, made in rows.items():
        priced = price_table(made.table(), machine, axes).rows if made.rows else ()
        for number, seconds in zip(owners[direction], priced, strict=True):
            work[direction][number] += float(seconds)
    return [
        Seconds(forward, backward, tuple(_collective(c, axes, machine) for c in one.collectives))
        for one, forward, backward in zip(derived, work["forward"], work["backward"], strict=True)
    ]


def _machine(mesh: Mesh, cluster: str) -> Machine:
    world = math.prod(size for _, size in mesh)
    known = load_cluster(cluster)
    node = known.node.gpus
    if world > known.world_size:
        raise SpecError(
            f"a mesh lies on one GPU per rank, but it has {world} ranks and cluster {known.name!r} {known.world_size} GPUs. "
            f"Way out: a smaller mesh, or a larger cluster"
        )
    return machine_of(load_cluster(cluster, -(-world // node) * node if world > node else world))


def _collective(c: Collective, axes: Mesh, machine: Machine) -> float:
    """Seconds of a collective; of one among neighbours, on that part of its innermost axis."""
    group = tuple(sorted(c.axes))
    if c.ranks < math.prod(size for axis, size in axes if axis in group):
        group, axes = ("neighbours",), _cut(axes, c)
    return _collective_seconds(c.kind, c.bytes, group, axes, machine)


def _cut(axes: Mesh, c: Collective) -> Mesh:
    """A mesh of which the innermost axis of a collective is two: its neighbours, and the rest."""
    inner, size = next((axis, size) for axis, size in axes if axis in c.axes)
    ranks = math.gcd(c.ranks, size)
    return tuple(
        one
        for axis, n in axes
        for one in ((("neighbours", ranks), (axis, n // ranks)) if axis == inner else ((axis, n),))
    )


@functools.lru_cache(maxsize=4096)
def _collective_seconds(kind: str, size: float, group: tuple[str, ...], axes: Mesh, machine: Machine) -> float:
    return collective_seconds(kind, size, place_group(axes, group, machine.fabric), machine.fabric).seconds


def _add(rows: Rows, one: DerivedOp, direction: str, dtype: str) -> None:
    """Add the kernels of an operation on one rank."""
    op, backward = one.op, direction == "backward"
    common = {"label": op.label, "phase": direction, "dtype": dtype}
    if one.shapes:
        for b, m, n, k in _kernels(one):
            for order, shape in (
                ((_ORDERS["input"], (b, m, k, n)), (_ORDERS["weight"], (b, n, k, m)))
                if backward
                else ((_ORDERS["forward"], (b, m, n, k)),)
            ):
                written = 2.0 * math.prod(shape[:3])
                rows.add(
                    work="gemm",
                    shape=shape,
                    call=Product(order),
                    written=written,
                    flops=2.0 * math.prod(shape),
                    **common,
                )
    elif isinstance(op, Attention):
        q, keys, v = (o.used_shape for o in one.part("input")[:3])
        size = {d.name: d.size for d in q}
        heads = next(d.size for d in keys if "heads" in (d.name, d.serves))
        masked = op.causal and 0 < op.window < op.keys
        mask = ("chunk" if op.chunked else "window") if masked else "causal" if op.causal else "full"
        shape = (size["batch"], size["heads"], size["sequence"], (q[-1].size + v[-1].size) // 2)
        call = AttentionCall(op.kernel, mask, op.window if masked else 0, heads, op.keys)
        rows.add(
            work="attention", shape=shape, call=call, flops=one.backward_flops if backward else one.flops, **common
        )
    elif isinstance(op, Kernel):
        access = "scores backward" if op.access == "scores" and backward else op.access or "layer"
        moved = one.backward_bytes if backward else one.bytes
        launches = op.backward_launches if backward else op.launches
        rows.add(work="memory_bound", call=Traffic(access), read=moved, written=0.0, launches=launches, **common)


def _kernels(one: DerivedOp) -> list[tuple[int, int, int, int]]:
    """Shapes of the products that run: those of several outputs side by side are one."""
    kernels = one.op.kernels if isinstance(one.op, ProductOp) else ()
    shapes, out = list(one.shapes), []
    for number in kernels or (len(shapes),):
        some, shapes = shapes[:number], shapes[number:]
        batch, m, _, k = some[0]
        out.append((batch, m, sum(shape[2] for shape in some), k))
    return out
