"""Inputs of "Piper: Multidimensional Planner for DNN Parallelization" (repository msr-fiddle/piper, its README).

A JSON object with `maxMemoryPerDevice`, `maxDevices`, `bandwidth` (B/s of a device), `mbsInBatch`, `nodes` and `edges` (sourceId, destId,
communicationCost in bytes).  A node has `TMPCs`: for each degree of tensor parallelism a list of ways to run it (id, timePerSample in
seconds, parameterSize, memoryUsageA of every microbatch in flight, memoryUsageB, syncTimeFw by the ids of nodes that it reads, syncTimeBw
by those of its readers).  What is called a time to synchronise there is bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.errors import SpecError
from simulator.importers.cost_graphs.base import GraphReader
from simulator.importers.cost_graphs.entries import amount, ends, entries, one_object, seconds, whole
from simulator.importers.document import Document
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode, CostWay, Machine

__all__ = ["PiperGraph"]


class PiperGraph(GraphReader):
    """Nodes with several ways to run them."""

    name = "piper"
    title = "JSON of Piper (nodes with TMPCs)"

    def recognises(self, document: Document) -> bool:
        """Look for its own keys."""
        return document.form == "json" and '"TMPCs"' in document.head

    def read(self, document: Document) -> CostGraph:
        """See `GraphReader.read`."""
        data, place = one_object(document), document.place
        listed = entries(data, "nodes", place)
        numbers: dict[int, int] = {}
        for number, entry in enumerate(listed):
            identity = whole(entry, "id", f"{place}: nodes[{number}]")
            if numbers.setdefault(identity, number) != number:
                raise SpecError(f"{place}: nodes[{number}]: ids are unique, but {identity} stands twice")
        ids = list(numbers)
        reads: list[list[int]] = [[] for _ in ids]
        readers: list[list[int]] = [[] for _ in ids]
        edges: list[CostEdge] = []
        for number, entry in enumerate(entries(data, "edges", place)):
            where = f"{place}: edges[{number}]"
            source, target = ends(entry, numbers, where)
            edges.append(CostEdge(source=source, target=target, bytes=amount(entry, "communicationCost", where)))
            reads[target].append(ids[source])
            readers[source].append(ids[target])
        nodes = [
            CostNode(
                name=str(ids[number]),
                kind=str(entry.get("name", ""))[:200],
                ways=_ways(entry, reads[number], readers[number], f"{place}: nodes[{number}]"),
            )
            for number, entry in enumerate(listed)
        ]
        machine = Machine(
            devices=whole(data, "maxDevices", place),
            hosts=0,
            memory=amount(data, "maxMemoryPerDevice", place),
            bandwidth=amount(data, "bandwidth", place),
            microbatches=whole(data, "mbsInBatch", place),
        )
        return CostGraph(name=document.stem, nodes=tuple(nodes), edges=tuple(edges), machine=machine)


def _ways(entry: Mapping[str, object], reads: list[int], readers: list[int], where: str) -> tuple[CostWay, ...]:
    by_degree = entry.get("TMPCs")
    if not isinstance(by_degree, dict) or not all(str(key).isdecimal() and int(key) for key in by_degree):
        raise SpecError(f"{where}: TMPCs is an object by degrees of tensor parallelism, 1 or more")
    found = []
    for degree in by_degree:
        for number, way in enumerate(entries(by_degree, degree, f"{where}: TMPCs")):
            place = f"{where}: TMPCs[{degree}][{number}]"
            found.append(
                CostWay(
                    kind=str(way.get("id", ""))[:200],
                    tensor=int(degree),
                    seconds=seconds(way, "timePerSample", place, "s"),
                    parameters=amount(way, "parameterSize", place),
                    kept=amount(way, "memoryUsageA", place),
                    held=amount(way, "memoryUsageB", place),
                    gathers=_by_id(way, "syncTimeFw", reads, place),
                    scatters=_by_id(way, "syncTimeBw", readers, place),
                )
            )
    if not found:
        raise SpecError(f"{where}: a node has one way to run it or more")
    return tuple(found)


def _by_id(way: Mapping[str, object], key: str, ids: list[int], where: str) -> tuple[float, ...]:
    table = way.get(key)
    if not isinstance(table, dict):
        raise SpecError(f"{where}: {key} is an object by the ids of nodes")
    return tuple(amount(table, str(one), f"{where}: {key}") for one in ids)
