"""The tiers of a node's memory below its GPUs': what stands there, how much room there is, and what goes there and back in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.hardware.cluster import Cluster
from simulator.hardware.parts import RankKind
from simulator.program.prices import Prices
from simulator.program.program import COPIES, COPY, Effect, Link, Program
from simulator.report.table import Section, Table, percent
from simulator.units import show

__all__ = ["Tier", "Traffic", "tiers_of", "traffic_of", "traffic_section"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A tier.

    Args:
        place: "the host" or "NVMe".
        held: what the GPUs of the fullest node have put there, at most [B].
        capacity: of a node, of the smallest where they differ; 0 where its file does not say [B].
    """

    place: str
    held: float
    capacity: float

    @property
    def over(self) -> float:
        """Bytes too much, 0 where all fits."""
        return max(0.0, self.held - self.capacity)


def tiers_of(program: Program, cluster: Cluster, ranks: Sequence[RankKind]) -> tuple[Tier, ...]:
    """Return the host's memory and its drives.

    Args:
        ranks: of the program, where ranks differ.
    """

    def held(resident: tuple[Effect, ...]) -> float:
        return max((sum(t.bytes for t in effect.tensors) for effect in resident), default=0.0) * cluster.gpus_per_node

    memory = min((kind.host_memory for kind in ranks), default=cluster.node.host_memory or 0.0)
    drives = min((kind.nvme for kind in ranks), default=cluster.node.nvme or 0.0)
    return (
        Tier(place="the host", held=held(program.host_resident), capacity=memory),
        Tier(place="NVMe", held=held(program.nvme_resident), capacity=drives),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one GPU moves in a step one way between two tiers.

    Args:
        what: the copy: to_host, to_device, host_update, from_nvme or to_nvme.
        bytes: in all; `seconds`: one after the other.
        intensity: floating-point operations of the GPU's kernels per byte.
        efficiency: part of the time in which kernels would run if none of it were hidden: a b / (a b + p) of intensity a, bandwidth b
            and the kernels' rate p (ZeRO-Infinity, arXiv 2104.07857, equation 6) [1].
    """

    what: str
    bytes: float
    seconds: float
    intensity: float
    efficiency: float


def traffic_of(program: Program, prices: Prices, flops: float, kernels: float) -> tuple[Traffic, ...]:
    """Return what the GPU that copies longest moves, by kind of copy; () where nothing leaves GPUs.

    Args:
        flops: of one GPU in a step, what runs again among them; `kernels`: seconds in which they run.
    """
    copies = np.flatnonzero(program.kind == COPY)
    out = []
    for what in COPIES[1:]:
        named = np.array(
            [isinstance(one, Link) and one.kind == COPY and one.collective == what for one in program.items]
        )
        rows = copies[named[program.item[copies]]]
        if not len(rows):
            continue
        size = program.messages[rows]
        seconds = np.bincount(program.rank[rows], prices.occupancy[program.item[rows]], program.ranks)
        rank = int(seconds.argmax())
        moved, took = float(size[program.rank[rows] == rank].sum()), float(seconds[rank])
        out.append(
            Traffic(
                what=what,
                bytes=moved,
                seconds=took,
                intensity=flops / moved if moved else 0.0,
                efficiency=kernels / (kernels + took) if took else 1.0,
            )
        )
    return tuple(out)


def traffic_section(traffic: Sequence[Traffic]) -> Section:
    """Return the same to read."""
    rows = tuple(
        (
            one.what,
            show(one.bytes, "B"),
            show(one.seconds, "s"),
            f"{one.intensity:,.0f} FLOP/B",
            percent(one.efficiency),
        )
        for one in traffic
    )
    return Section(
        title="what a GPU moves below its memory in a step",
        table=Table(headings=("", "bytes", "alone", "kernels do", "efficiency if nothing is hidden"), rows=rows),
    )
