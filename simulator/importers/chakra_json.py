"""Execution traces as JSON: what PyTorch's ExecutionTraceObserver writes of a rank, and the JSON form that Chakra's feeder reads.

    {"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id", "name", "ctrl_deps", "inputs": {"values", "types"}, "attrs"}, ...]}
    {"workload_graph": [{"Id", "Name", "NodeType", "runtime", "is_cpu_op", "data_deps"}, ...]}

PyTorch's nodes are operators of the host and have no times; those of a name such as `nccl:all_reduce` send, and their tensors say
how much.  Sources: torch 2.13.0 (files that it wrote), and mlcommons/chakra, src/feeder/json_node.cpp and its test data.
"""

from __future__ import annotations

import json
import re
from typing import Any

from simulator.errors import SpecError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.importers import chakra_wire as wire
from simulator.importers.base import Importer
from simulator.importers.chakra import Reading
from simulator.importers.chakra_nodes import MOST_NODES, Node
from simulator.importers.document import Document
from simulator.importers.events import events_of
from simulator.importers.imported import Findings, brief

__all__ = ["ChakraJson", "PyTorchTrace"]

_SENDS = re.compile(
    r"(nccl|gloo|mpi|ucc|xccl|hccl):_?([a-z_]{3,40}?)(_base|_tensor|_coalesced|_single|v|_v|_barrier)*(\s.{0,60})?"
)
_KINDS = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather", "allgather": "all_gather",
    "all_gather_into": "all_gather", "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all", "alltoall": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "send": "send", "recv": "recv",
    "barrier": "barrier",
}  # fmt: skip
_GROUPS = "process_group:init"
_MOST_DEPTH = 6


class PyTorchTrace(Importer):
    """Nodes of one rank's host, as PyTorch writes them."""

    name = "pytorch_execution_trace"
    title = "execution trace of PyTorch (ExecutionTraceObserver, JSON)"
    aliases = ("chakra_host",)

    def recognises(self, document: Document) -> int:
        """Look for the schema's version before the nodes."""
        return 3 if re.search(r'"schema"\s*:\s*"[0-9.]{1,20}-chakra', document.head[:4096]) else 0

    def read(self, document: Document) -> Findings:
        """Return what is sent, by kind, how many operators run, and the GPUs.

        Raises:
            SpecError: no JSON, or no node that can be used.
        """
        reading = _Host(document.place, self.name)
        for number, event in enumerate(events_of(document, "nodes", MOST_NODES), 1):
            reading.take_host(number, event)
        if reading.world:
            place = f"{document.place}: the largest process group"
            reading.findings.put("cluster.gpus", reading.world, place)
        return reading.done()


class _Host(Reading):
    """Adds up nodes of PyTorch's host."""

    world = 0

    def take_host(self, number: int, event: dict[str, object]) -> None:
        """Add a node of JSON."""
        name, inputs = event.get("name"), event.get("inputs")
        values = inputs.get("values") if isinstance(inputs, dict) else None
        if not isinstance(name, str) or not name:
            raise SpecError(f"{self.place}, node {number}: expected a node with a name, got {brief(event)}")
        if _GROUPS in name:
            self._read_groups(values)
            return
        sends = _SENDS.fullmatch(name)
        node = Node(name=brief(name), kind=wire.COMPUTE, waits=1 if event.get("ctrl_deps") else 0)
        node.attributes = {str(one.get("name")): one.get("value") for one in _tables(event.get("attrs"))}
        node.attributes["is_cpu_op"] = True
        if sends and sends[2] in _KINDS:
            node.collective, node.kind = _KINDS[sends[2]], wire.COLLECTIVE
            node.attributes |= {"is_cpu_op": False, "comm_size": _bytes(values)}
        self.take(number, node)

    def _read_groups(self, values: Any) -> None:
        """Process groups, which stand as a JSON text in a node of their own."""
        try:
            groups = json.loads(values[0])
        except (ValueError, RecursionError, TypeError, KeyError, IndexError):
            self.findings.skip(self.place, f"{_GROUPS}: {brief(values)}")
            return
        for group in _tables(groups):
            size = group.get("group_size")
            if isinstance(size, int) and not isinstance(size, bool) and 0 < size <= MAX_WORLD_SIZE:
                self.groups[brief(group.get("pg_desc") or group.get("pg_name"))] = size
                self.world = max(self.world, size)


def _tables(value: object) -> list[dict[str, object]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _bytes(values: Any, depth: int = 0) -> int:
    """Bytes of the tensors among a node's inputs: [tensor, storage, offset, elements, bytes of one, device], also in lists."""
    if not isinstance(values, list) or depth > _MOST_DEPTH:
        return 0
    if len(values) == 6 and isinstance(values[5], str) and all(type(v) is int and 0 <= v < 2**62 for v in values[:5]):
        return int(values[3] * values[4])
    return sum(_bytes(value, depth + 1) for value in values)


class ChakraJson(Importer):
    """Nodes as Chakra's feeder reads them from JSON."""

    name = "chakra_json"
    title = "Chakra execution trace (JSON)"

    def recognises(self, document: Document) -> int:
        """Look for the list of nodes."""
        return 3 if document.head.lstrip()[:1] == "{" and '"workload_graph"' in document.head[:4096] else 0

    def read(self, document: Document) -> Findings:
        """Return operations by kind, as of the binary form.

        Raises:
            SpecError: no JSON, or no node that can be used.
        """
        reading = Reading(document.place, self.name)
        for number, event in enumerate(events_of(document, "workload_graph", MOST_NODES), 1):
            reading.take(number, _node(event, document.place, number))
        return reading.done()


def _node(event: dict[str, Any], place: str, number: int) -> Node:
    lower = {key.lower(): value for key, value in event.items()}
    name, kind, runtime = lower.get("name"), lower.get("nodetype"), lower.get("runtime", 0)
    if not isinstance(name, str) or not name or type(kind) is not int:
        raise SpecError(f"{place}, node {number}: expected a node with Name and NodeType, got {brief(event)}")
    if isinstance(runtime, bool) or not isinstance(runtime, int | float) or not 0 <= runtime < 1e15:
        raise SpecError(f"{place}, node {number}: runtime: expected microseconds from 0, got {brief(runtime)}")
    waits = [lower.get(key) for key in ("ctrldeps", "ctrl_deps", "data_deps")]
    node = Node(name=brief(name), kind=kind, microseconds=runtime)
    node.waits = sum(len(some) for some in waits if isinstance(some, list))
    used = {"id", "name", "nodetype", "runtime", "ctrldeps", "ctrl_deps", "data_deps"}
    node.attributes = {brief(key): value for key, value in lower.items() if key not in used}
    node.complete()
    return node
