"""Parts of a cluster that differ from the rest: other GPUs, a throttled clock, a weak card, a slow link.

    [[parts]]                                  [[parts]]
    nodes = "0-3"                              ranks = 17
    gpu = "a100_80gb_sxm"                      clock = 0.8

A part names whom it is about (nodes, ranks, pipeline_ranks, replicas; several of them: the ranks that all of them name) and
what is different there.  Factors are speeds: 0.5 takes twice as long.  Parts that name the same rank add up: factors
multiply.  A *condition* is a kind of GPU with its wires that occurs in the job, as a cluster in which every node is like that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer, SerializationInfo, model_validator

from simulator.errors import PlanError
from simulator.specs import Name, Spec
from simulator.units import WRITTEN, Watts, show

__all__ = ["NORMAL", "Pace", "Part", "RankKind", "parts_within", "shown_numbers", "which_parts"]

_MOST_TEXT = 2000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
Pair = tuple[int, int]


def _ranges(value: object) -> object:
    """3, "0-3,7" or [0, 1, 7] as pairs (first, last)."""
    if isinstance(value, bool):
        raise ValueError("expected numbers such as 3, [0, 1] or '0-3,7'")
    if isinstance(value, int):
        value = [value]
    if isinstance(value, list):
        if not value or not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value):
            raise ValueError("expected numbers from 0 on, such as [0, 1, 7]")
        return tuple((v, v) for v in sorted(set(value)))
    if not isinstance(value, str):
        return value
    pairs = []
    for word in value[:_MOST_TEXT].replace(" ", "").split(","):
        match = _RANGE.fullmatch(word)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise ValueError("expected numbers such as 3, [0, 1] or '0-3,7'")
        pairs.append((int(match[1]), int(match[2] or match[1])))
    return tuple(pairs)


def _written(value: object, info: SerializationInfo) -> object:
    """Pairs as the text that a file has, where they are written for one (`units.WRITTEN`)."""
    return _shown(value) if isinstance(value, tuple) and info.context == WRITTEN else value


Ranges = Annotated[tuple[Pair, ...] | None, BeforeValidator(_ranges), PlainSerializer(_written)]
Factor = Annotated[float, Field(ge=0.001, le=1000)]
_SELECTORS = ("nodes", "ranks", "pipeline_ranks", "replicas")
FACTORS = ("clock", "memory_bandwidth", "host", "link", "network")


class Part(Spec):
    """Some of a cluster's GPUs, and what is different there.

    Args:
        nodes, ranks: which machines, which GPUs; consecutive ranks fill nodes.
        pipeline_ranks, replicas: which places of the plan's mesh, replicas in the order of their ranks.
        gpu: another kind of GPU; its links stay.
        node: another kind of machine, with its GPU, links and network cards, and as many GPUs.
        gpu_power: what each GPU may draw there [W], where that is less than elsewhere.
        clock: speed of matrix products and attention, 1 = as priced.
        memory_bandwidth: speed of memory-bound kernels.
        host: speed at which the host launches kernels.
        link, network: bandwidth between the node's GPUs, and of its network cards.
        reason: for people.
    """

    nodes: Ranges = None
    ranks: Ranges = None
    pipeline_ranks: Ranges = None
    replicas: Ranges = None
    gpu: Name | None = None
    node: Name | None = None
    gpu_power: Watts | None = None
    clock: Factor | None = None
    memory_bandwidth: Factor | None = None
    host: Factor | None = None
    link: Factor | None = None
    network: Factor | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Part:
        if not any(getattr(self, name) for name in _SELECTORS):
            raise ValueError(f"a part says whom it is about: give one of {', '.join(_SELECTORS)}")
        if self.gpu is not None and self.node is not None:
            raise ValueError("a part names another gpu or another node (which has its own GPU), not both")
        kinds = ("gpu", "node", "gpu_power", *FACTORS)
        if all(getattr(self, name) is None for name in kinds):
            raise ValueError(f"a part says what is different there: give one of {', '.join(kinds)}")
        return self

    @property
    def text(self) -> str:
        """The part in words: whom and what.

        >>> Part(nodes=((3, 3),), clock=0.8).text
        'nodes 3: clock 0.8'
        """
        whom = " and ".join(
            f"{name.replace('_', ' ')} {_shown(getattr(self, name))}" for name in _SELECTORS if getattr(self, name)
        )
        names = [f"{name} {getattr(self, name)}" for name in ("gpu", "node") if getattr(self, name)]
        names += [] if self.gpu_power is None else [f"gpu power {show(self.gpu_power, 'W')}"]
        factors = [f"{n.replace('_', ' ')} {getattr(self, n):g}" for n in FACTORS if getattr(self, n) is not None]
        return f"{whom}: {', '.join(names + factors)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a GPU runs what its calibration prices, 1 = as priced: matrix products and attention, memory-bound kernels,
    the host's launches."""

    clock: float = 1.0
    memory_bandwidth: float = 1.0
    host: float = 1.0


NORMAL = Pace()
"""As priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKind:
    """What one rank of a program stands for, where ranks differ.

    Args:
        pipeline_rank: its place in the pipeline.
        replicas: the replicas it stands for, such as "0-2,5".
        gpus: kinds of GPU of its members.
        memory: what programs can use of the smallest of them [B].
        host_memory, nvme: of the smallest of their nodes [B], 0 where a node's file does not say.
        peak_flops: of the mean of them, by number format [FLOP/s].
        parts: numbers of the parts of the cluster that its members belong to.
    """

    pipeline_rank: int
    replicas: str
    gpus: tuple[str, ...]
    memory: float
    host_memory: float
    nvme: float
    peak_flops: Mapping[str, float]
    parts: tuple[int, ...]


def which_parts(
    parts: tuple[Part, ...], gpus_per_node: int, coordinates: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return [world ranks] which parts each rank belongs to, as bits.

    Args:
        parts: of the cluster.
        gpus_per_node: ranks that fill a node.
        coordinates: [world ranks] each: "pipeline_ranks" and "replicas" of each world rank.

    Raises:
        PlanError: a part names what the job does not have, or no rank at all, or there are more parts than bits.
    """
    world = np.arange(len(coordinates["replicas"]), dtype=np.int64)
    where = {"nodes": world // gpus_per_node, "ranks": world, **coordinates}
    if len(parts) > _MOST_PARTS:
        raise PlanError(f"a job has at most {_MOST_PARTS} parts, but {len(parts)} are given. Way out: join them")
    out = np.zeros(len(world), np.int64)
    for number, part in enumerate(parts):
        chosen = np.ones(len(world), bool)
        for name in _SELECTORS:
            pairs = getattr(part, name)
            if not pairs:
                continue
            count = int(where[name].max()) + 1
            last = max(high for _, high in pairs)
            if last >= count:
                raise PlanError(
                    f"parts[{number}].{name} must be from 0 to {count - 1}, for the job has {count} {name.replace('_', ' ')}, "
                    f"but it names {last}"
                )
            table = np.zeros(count, bool)
            for low, high in pairs:
                table[low : high + 1] = True
            chosen &= table[where[name]]
        if not chosen.any():
            raise PlanError(f"parts[{number}] ({part.text}) names no GPU of the job: no rank is in all of them")
        out[chosen] |= 1 << number
    return out


def parts_within(parts: tuple[Part, ...], inside: Mapping[str, int], known: Mapping[str, int]) -> tuple[Part, ...]:
    """Return the parts of a cluster's file for a job on some of its machines: those that lie on the others are left out.

    Args:
        inside: how many nodes and ranks the job has.
        known: how many the file has; what lies beyond these, too, is kept, and refused by `which_parts`.

    >>> row = Part(nodes=((6, 9),), clock=0.8)
    >>> [parts_within((row,), {"nodes": n}, {"nodes": 10}) for n in (6, 8)] == [(), (Part(nodes=((6, 7),), clock=0.8),)]
    True
    """
    out = []
    for part in parts:
        cut = {
            name: tuple((low, min(high, count - 1)) for low, high in pairs if low < count)
            for name, count in inside.items()
            if (pairs := getattr(part, name)) and max(high for _, high in pairs) < known[name]
        }
        if all(cut.values()):
            out.append(part.model_copy(update=cut) if cut else part)
    return tuple(out)


_MOST_PARTS = 62


def _shown(pairs: tuple[Pair, ...]) -> str:
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in pairs)


def shown_numbers(numbers: object) -> str:
    """Return ascending whole numbers as ranges.

    >>> shown_numbers([0, 1, 2, 5])
    '0-2,5'
    """
    values = np.asarray(numbers, np.int64)
    if not len(values):
        return ""
    cuts = np.flatnonzero(np.diff(values) != 1) + 1
    runs = np.split(values, cuts)
    return _shown(tuple((int(run[0]), int(run[-1])) for run in runs))
