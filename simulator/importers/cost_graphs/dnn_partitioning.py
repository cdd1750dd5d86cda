"""Inputs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (repository msr-fiddle/dnn-partitioning, its README).

A JSON object with `maxSizePerFPGA`, `maxFPGAs`, `maxCPUs`, `nodes` (id, fpgaLatency, cpuLatency, size, supportedOnFpga, isBackwardNode,
colorClass) and `edges` (sourceId, destId, cost).  What is called FPGA there is any accelerator.  The README gives no unit of time; the
layers' times are those of PipeDream's profiles in milliseconds.  `cost` is what moving the source's output to or from the host takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from simulator.errors import SpecError
from simulator.importers.cost_graphs.base import GraphReader
from simulator.importers.document import Document
from simulator.units import parse, plain_number
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode, Machine

__all__ = ["DnnPartitioningGraph"]

_MOST_NODES = 100_000


class DnnPartitioningGraph(GraphReader):
    """Nodes of one direction each, tied to their mates by a colour; edges carry seconds."""

    name = "dnn_partitioning"
    title = "JSON of dnn-partitioning (nodes with fpgaLatency, edges with cost)"

    def recognises(self, document: Document) -> bool:
        """Look for its own keys."""
        return document.form == "json" and '"maxFPGAs"' in document.head

    def read(self, document: Document) -> CostGraph:
        """See `GraphReader.read`."""
        data, place = document.table, document.place
        if not data and document.tree is not None:
            data = document.tree.data
        if not isinstance(data, dict):
            raise SpecError(f"{place}: expected one JSON object")
        numbers: dict[int, int] = {}
        nodes: list[CostNode] = []
        for entry in _entries(data, "nodes", place):
            where = f"{place}: nodes[{len(nodes)}]"
            identity = _whole(entry, "id", where)
            if identity in numbers:
                raise SpecError(f"{where}: ids are unique, but {identity} stands twice")
            numbers[identity] = len(nodes)
            nodes.append(_node(entry, identity, where))
        edges: list[CostEdge] = []
        for entry in _entries(data, "edges", place):
            where = f"{place}: edges[{len(edges)}]"
            ends = [_whole(entry, key, where) for key in ("sourceId", "destId")]
            unknown = [end for end in ends if end not in numbers]
            if unknown:
                raise SpecError(f"{where}: no node has the id {unknown[0]}")
            seconds = _seconds(entry, "cost", where)
            size = _amount(entry, "size", where) if "size" in entry else 0.0
            edges.append(CostEdge(source=numbers[ends[0]], target=numbers[ends[1]], bytes=size, seconds=seconds))
        machine = Machine(
            devices=_whole(data, "maxFPGAs", place),
            hosts=_whole(data, "maxCPUs", place),
            memory=_amount(data, "maxSizePerFPGA", place),
        )
        return CostGraph(name=document.stem, nodes=tuple(nodes), edges=tuple(edges), machine=machine)


def _node(entry: Mapping[str, Any], identity: int, where: str) -> CostNode:
    back, runs = bool(entry.get("isBackwardNode")), bool(entry.get("supportedOnFpga", True))
    seconds = _seconds(entry, "fpgaLatency", where) if runs else 0.0
    size = _amount(entry, "size", where) if "size" in entry else 0.0
    return CostNode(
        name=str(identity),
        kind=str(entry.get("name", ""))[:200],
        forward=0.0 if back else seconds,
        backward=seconds if back else 0.0,
        memory=size,
        host=_seconds(entry, "cpuLatency", where),
        device=runs,
        belongs_to=_whole(entry, "colorClass", where) if "colorClass" in entry else None,
        passes_back=back,
    )


def _entries(data: Mapping[str, Any], key: str, place: str) -> list[Mapping[str, Any]]:
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found) or len(found) > _MOST_NODES:
        raise SpecError(f"{place}: {key} is a list of at most {_MOST_NODES:,} objects")
    return found


def _whole(entry: Mapping[str, Any], key: str, where: str) -> int:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or abs(value) > 2**53:
        raise SpecError(f"{where}: {key} is a whole number, got {str(value)[:40]!r}")
    return int(value)


def _amount(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = entry.get(key)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected a number, got {str(value)[:40]!r}")
        return plain_number(value)
    except ValueError as error:
        raise SpecError(f"{where}: {key}: {error}") from None


def _seconds(entry: Mapping[str, Any], key: str, where: str) -> float:
    amount = _amount(entry, key, where)
    if amount < 0 or math.isinf(amount):
        raise SpecError(f"{where}: {key} is a time, 0 or more, got {amount:g}")
    return parse(f"{amount!r} ms", "s")
