"""ASTRA-sim's network and system files: how many GPUs, and the links nearest to the bandwidths that they state.

    topology: [ Ring, Switch ]        the first dimension is taken for the inside of a machine, the last for the network
    npus_count: [ 8, 4 ]              a dimension's NPUs; their product is the GPUs
    bandwidth: [ 400.0, 50.0 ]        GB/s of an NPU in that dimension
    latency: [ 500.0, 2000.0 ]        ns

The names of the keys were read in astra-sim/astra-sim (docs and inputs of the analytical network).
"""

from __future__ import annotations

import math
from typing import Any

from simulator.errors import SpecError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.hardware.link import load_link
from simulator.importers.base import Importer
from simulator.importers.document import Document
from simulator.importers.imported import Findings, brief
from simulator.specs import names
from simulator.units import parse, show

__all__ = ["AstraNetwork", "AstraSystem"]

_INSIDE: tuple[str, ...] = ("nvlink", "pcie")
_NETWORKS: tuple[str, ...] = ("infiniband", "roce", "ethernet")
_NEAR = 0.30
"""A link is taken for a bandwidth that is at most so far off."""
_MOST_DIMENSIONS = 16


class AstraNetwork(Importer):
    """The analytical network of ASTRA-sim."""

    name = "astra_network"
    title = "ASTRA-sim network file (YAML)"

    def recognises(self, document: Document) -> int:
        """Look for the counts of NPUs."""
        return 3 if {"topology", "npus_count"} <= set(document.table) else 0

    def read(self, document: Document) -> Findings:
        """Return the GPUs and the nearest links.

        Raises:
            SpecError: lists of unequal length, or what is no number.
        """
        table, findings = document.table, Findings(self.name)
        counts = _numbers(document, "npus_count", table, 1.0, float(MAX_WORLD_SIZE))
        if any(count != int(count) for count in counts):
            raise SpecError(f"{document.place}: npus_count: expected whole numbers, got {brief(table['npus_count'])}")
        gpus = math.prod(int(count) for count in counts)
        if gpus > MAX_WORLD_SIZE:
            raise SpecError(
                f"{document.place}: npus_count: {gpus:,} GPUs in all; at most {MAX_WORLD_SIZE:,} are possible"
            )
        findings.put("cluster.gpus", gpus, f"{document.place}: npus_count")
        if "bandwidth" in table:
            _links(document, findings, counts, _numbers(document, "bandwidth", table, 1e-3, 1e6))
        for key in table:
            if key not in ("npus_count", "bandwidth"):
                findings.skip(document.place, f"{key}: {brief(table[key])}; the cluster's own files say such things")
        return findings


def _links(document: Document, findings: Findings, counts: list[float], bandwidths: list[float]) -> None:
    """Assume the links whose bandwidths are nearest."""
    if len(bandwidths) != len(counts):
        raise SpecError(
            f"{document.place}: as many bandwidths as npus_count, but there are {len(bandwidths)} and {len(counts)}"
        )
    inside, outside = ("cluster.link", _INSIDE), ("cluster.network_link", _NETWORKS)
    places = [(0, *inside)] if counts[0] > 1 else []
    places += [(len(counts) - 1, *outside)] if len(counts) > 1 else []
    for place, name, technologies in places:
        wanted = parse(f"{bandwidths[place]} GB/s", "B/s")
        link = _nearest(wanted, technologies)
        why = f"{document.place}: dimension {place + 1} has {show(wanted, 'B/s')} per GPU"
        if link is None:
            findings.skip(document.place, f"{why}: no link that is known here is within {_NEAR:.0%}")
        else:
            findings.assume(name, link, f"{why}; the nearest link that is known here")
    if findings.get("cluster.network_link"):
        findings.assume("cluster.nics", int(counts[0]), "a card for every GPU of the first dimension")
    if len(counts) > 2:
        findings.skip(document.place, f"{len(counts) - 2} dimensions between the first and the last")


def _nearest(wanted: float, technologies: tuple[str, ...]) -> str | None:
    links = [link for name in names("links") if (link := load_link(name)).technology in technologies]
    best = min(links, key=lambda link: (abs(math.log(link.bandwidth / wanted)), link.name))
    return best.name if abs(best.bandwidth / wanted - 1.0) <= _NEAR else None


def _numbers(document: Document, key: str, table: dict[str, Any], least: float, most: float) -> list[float]:
    """A list of numbers, or one."""
    if key not in table:
        raise SpecError(f"{document.place}: a network of ASTRA-sim has {key}, but this has none")
    given = table[key] if isinstance(table[key], list) else [table[key]]
    good = all(isinstance(v, int | float) and not isinstance(v, bool) and least <= v <= most for v in given)
    if not given or len(given) > _MOST_DIMENSIONS or not good:
        raise SpecError(
            f"{document.place}: {key}: expected 1 to {_MOST_DIMENSIONS} numbers from {least:g} to {most:g}, got {brief(given)}"
        )
    return [float(value) for value in given]


class AstraSystem(Importer):
    """The system layer of ASTRA-sim: nothing of it is a field of a job, and all of it is listed."""

    name = "astra_system"
    title = "ASTRA-sim system file (JSON)"

    def recognises(self, document: Document) -> int:
        """Look for an algorithm of a collective."""
        return 3 if "all-reduce-implementation" in document.table else 0

    def read(self, document: Document) -> Findings:
        """Return what the file says, all of it as not understood: collectives' algorithms belong to a cluster's file."""
        findings = Findings(self.name)
        for key, value in document.table.items():
            hint = "; [algorithms] of a cluster's file names algorithms" if key.endswith("-implementation") else ""
            findings.skip(document.place, f"{key}: {brief(value)}{hint}")
        return findings
