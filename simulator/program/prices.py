"""Prices: the seconds of every item of a program, and where they go.  Made by costs, read by engines and report."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ACCOUNTS",
    "BLOCKED",
    "HOST_BOUND",
    "PARTS_OF_AXES",
    "RESOURCE_KINDS",
    "ByClass",
    "PriceClass",
    "Prices",
    "account_of",
]

ACCOUNTS = ("forward", "backward", "recompute", "optimizer", "host", "tp", "cp", "ep", "dp", "pp", "bubble")
"""Where an instant of a rank can go; a step's breakdown has one entry each and sums to the step time."""

HOST_BOUND, BLOCKED = "host-bound", "blocked launches"
"""Models of segments whose kernels wait for the host: for its launches as a whole, or for each of them, on top of the kernels."""

PARTS_OF_AXES = {"replica": "dp", "ring": "cp", "heads": "tp", "cols": "tp", "rows": "tp", "depth": "tp"}
"""Mesh axes that are a part of another one, whose account they share."""

RESOURCE_KINDS = ("gemm", "memory", "tp", "dp", "pp", "copy")
"""Kinds of activity that can slow each other when they overlap on one GPU (design 5b I): kernels by what they need; collectives whose
multiprocessors set their pace, as over NVLink ("tp", and those of a layer), or that a network or PCIe holds up ("dp"); messages between
pipeline ranks; copies of the host's link."""


def account_of(group: tuple[str, ...]) -> str:
    """Return the account of a collective over these mesh axes.

    >>> account_of(("tp", "ep")), account_of(("ring",))
    ('tp', 'cp')
    """
    return PARTS_OF_AXES.get(group[0], group[0])


class PriceClass(NamedTuple):
    """What prices have in common that are wrong together.

    Args:
        kind: gemm, attention, memory_bound, host, host_copy, host_update or the name of a collective.
        which: the number format of a gemm, the kernel of attention, the algorithm of a collective; "" else.
        level: of a collective, the outermost level that it crosses; "" else.

    >>> str(PriceClass("all_reduce", "ring", "node")), str(PriceClass("gemm", "bf16")), str(PriceClass("host"))
    ('all_reduce:ring:node', 'gemm:bf16', 'host')
    """

    kind: str
    which: str = ""
    level: str = ""

    def __str__(self) -> str:
        return ":".join(filter(None, self))


HOST_CLASS = PriceClass("host")
"""Time in which a GPU waits for its host: no kernel."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByClass:
    """What prices rest on.

    Args:
        classes: the price classes.
        class_share: [items, classes] seconds of occupancy + latency by class.
        sigma: [classes] standard deviation of log(measured / priced) of each class, from its residual file.
        calibrated: per class, whether measurements stand behind it.
    """

    classes: tuple[PriceClass, ...]
    class_share: NDArray[np.float64]
    sigma: NDArray[np.float64]
    calibrated: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prices:
    """Seconds per item, item i of the program being row i of each array.

    Args:
        occupancy: [items] seconds for which a row of this item holds its streams.
        latency: [items] seconds that successors in `after` wait beyond its end; holds nothing.
        account: [items, len(ACCOUNTS)] seconds of the occupancy by account; rows sum to `occupancy` for segments.
        share: [items, len(RESOURCE_KINDS)] the part of its own time in which an item uses each kind of resource.
        slowdown: [kinds, kinds] how many times longer an activity of the first kind takes beside one of the second (>= 1).
        model: per item, which model priced it, for the provenance.
        placement: per item, where a link's group lies, such as "8 of 8 replicas leave the node"; "" for segments.
        by_class: makes what the band and the provenance say of price classes, when that is first asked for.
    """

    occupancy: NDArray[np.float64]
    latency: NDArray[np.float64]
    account: NDArray[np.float64]
    share: NDArray[np.float64]
    slowdown: NDArray[np.float64]
    model: tuple[str, ...]
    placement: tuple[str, ...]
    by_class: Callable[[], ByClass]

    @functools.cached_property
    def _by_class(self) -> ByClass:
        return self.by_class()

    @property
    def classes(self) -> tuple[PriceClass, ...]:
        """As of `ByClass`."""
        return self._by_class.classes

    @property
    def class_share(self) -> NDArray[np.float64]:
        """As of `ByClass`."""
        return self._by_class.class_share

    @property
    def sigma(self) -> NDArray[np.float64]:
        """As of `ByClass`."""
        return self._by_class.sigma

    @property
    def calibrated(self) -> tuple[bool, ...]:
        """As of `ByClass`."""
        return self._by_class.calibrated

    @property
    def interferes(self) -> bool:
        """Whether any activity slows another."""
        return bool((self.slowdown > 1.0).any() and (self.share > 0.0).any())

    @classmethod
    def plain(cls, occupancy: NDArray[np.float64], latency: NDArray[np.float64]) -> Prices:
        """Return prices that hold times only: no accounts, classes or interference (abstract schedules, tests)."""
        n = len(occupancy)
        kinds = len(RESOURCE_KINDS)
        return cls(
            occupancy=np.asarray(occupancy, np.float64),
            latency=np.asarray(latency, np.float64),
            account=np.zeros((n, len(ACCOUNTS))),
            share=np.zeros((n, kinds)),
            slowdown=np.ones((kinds, kinds)),
            model=("given",) * n,
            placement=("",) * n,
            by_class=functools.partial(_no_classes, n),
        )


def _no_classes(items: int) -> ByClass:
    return ByClass(classes=(), class_share=np.zeros((items, 0)), sigma=np.zeros(0), calibrated=())
