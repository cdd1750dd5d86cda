"""Inputs of "Efficient Algorithms for Device Placement of DNN Graph Operators" (repository msr-fiddle/dnn-partitioning, its README).

A JSON object with `maxSizePerFPGA`, `maxFPGAs`, `maxCPUs`, `nodes` (id, fpgaLatency, cpuLatency, size, supportedOnFpga, isBackwardNode,
colorClass) and `edges` (sourceId, destId, cost).  What is called FPGA there is any accelerator.  The README gives no unit of time; the
layers' times are those of PipeDream's profiles in milliseconds.  `cost` is what moving the source's output to or from the host takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.errors import SpecError
from simulator.importers.cost_graphs.base import GraphReader
from simulator.importers.cost_graphs.entries import amount, ends, entries, one_object, seconds, whole
from simulator.importers.document import Document
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode, Machine

__all__ = ["DnnPartitioningGraph"]


class DnnPartitioningGraph(GraphReader):
    """Nodes of one direction each, tied to their mates by a colour; edges carry seconds."""

    name = "dnn_partitioning"
    title = "JSON of dnn-partitioning (nodes with fpgaLatency, edges with cost)"

    def recognises(self, document: Document) -> bool:
        """Look for its own keys."""
        return document.form == "json" and '"maxFPGAs"' in document.head

    def read(self, document: Document) -> CostGraph:
        """See `GraphReader.read`."""
        data, place = one_object(document), document.place
        numbers: dict[int, int] = {}
        nodes: list[CostNode] = []
        for entry in entries(data, "nodes", place):
            where = f"{place}: nodes[{len(nodes)}]"
            identity = whole(entry, "id", where)
            if identity in numbers:
                raise SpecError(f"{where}: ids are unique, but {identity} stands twice")
            numbers[identity] = len(nodes)
            nodes.append(_node(entry, identity, where))
        edges: list[CostEdge] = []
        for entry in entries(data, "edges", place):
            where = f"{place}: edges[{len(edges)}]"
            source, target = ends(entry, numbers, where)
            took = seconds(entry, "cost", where, "ms")
            size = amount(entry, "size", where) if "size" in entry else 0.0
            edges.append(CostEdge(source=source, target=target, bytes=size, seconds=took))
        machine = Machine(
            devices=whole(data, "maxFPGAs", place),
            hosts=whole(data, "maxCPUs", place),
            memory=amount(data, "maxSizePerFPGA", place),
        )
        return CostGraph(name=document.stem, nodes=tuple(nodes), edges=tuple(edges), machine=machine)


def _node(entry: Mapping[str, Any], identity: int, where: str) -> CostNode:
    back, runs = bool(entry.get("isBackwardNode")), bool(entry.get("supportedOnFpga", True))
    took = seconds(entry, "fpgaLatency", where, "ms") if runs else 0.0
    size = amount(entry, "size", where) if "size" in entry else 0.0
    return CostNode(
        name=str(identity),
        kind=str(entry.get("name", ""))[:200],
        forward=0.0 if back else took,
        backward=took if back else 0.0,
        memory=size,
        host=seconds(entry, "cpuLatency", where, "ms"),
        device=runs,
        belongs_to=whole(entry, "colorClass", where) if "colorClass" in entry else None,
        passes_back=back,
    )
