"""Chakra execution traces as ASTRA-sim reads them: PREFIX.RANK.et of a GPU, in both schemas, and the groups beside them.

A trace says what a GPU does, not which plan made it: it becomes operations by kind (`operations`), and steps where its nodes have
times.  Several files are joined, one per GPU.  The order of nodes makes no field: a job's order follows from its plan.
"""

from __future__ import annotations

from collections import Counter

from simulator.errors import SpecError
from simulator.hardware.cluster import MAX_WORLD_SIZE
from simulator.importers import chakra_wire as wire
from simulator.importers.base import Importer
from simulator.importers.chakra_nodes import Node, WireError, messages, nodes_of
from simulator.importers.document import Document
from simulator.importers.imported import Findings, brief
from simulator.importers.kineto import kind_of_kernel
from simulator.importers.operations import Operations, Tally
from simulator.importers.steps import Steps
from simulator.units import parse

__all__ = ["ChakraGroups", "ChakraTrace", "Reading"]

_MICROSECOND = parse("1 us", "s")
_KINDS = {wire.LOAD: "load", wire.STORE: "store", wire.SEND: "send", wire.RECEIVE: "recv"}
_READ = {"is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size", "pg_name", "runtime"}
_ENDS = {"comm_src", "comm_dst", "comm_tag", "comm_priority"}
_OF_PROFILER = {
    "rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema", "kernel_backend", "kernel_file", "tensor_range", "stream",
}  # fmt: skip


class ChakraTrace(Importer):
    """A trace of one GPU, as messages of Protocol Buffers."""

    name = "chakra"
    title = "Chakra execution trace (.et)"
    aliases = ("et",)

    def recognises(self, document: Document) -> int:
        """Look at the ending, or for a first message with a version or attributes and a node behind it."""
        if document.suffix == ".et":
            return 3
        if b"\0" not in document.data[:4096] and document.data[:1] < b"\x80":
            return 0
        try:
            found = [message for _, (_, message) in zip(range(2), messages(document.data), strict=False)]
        except WireError:
            return 0
        return 2 if len(found) == 2 and found[0][:1] in (b"\x0a", b"\x12") and found[1][:1] in (b"\x08", b"\x12") else 0

    def read(self, document: Document) -> Findings:
        """Return operations by kind, and the step where nodes have times.

        Raises:
            SpecError: the bytes are no such trace; the message says at which byte.
        """
        reading = Reading(document.place, self.name)
        for number, node in nodes_of(document.data, document.place):
            reading.take(number, node)
        return reading.done()


class Reading:
    """Adds up the nodes of a trace.

    Args:
        place: the file.
        name: of the format.
    """

    def __init__(self, place: str, name: str) -> None:
        self.place, self.findings = place, Findings(name)
        self.tally = Tally()
        self.groups: dict[str, int] = {}
        self._unread: dict[str, tuple[str, int]] = {}
        self._attributes: Counter[str] = Counter()
        self._waits = self._nodes = 0
        self._first, self._last = float("inf"), 0.0

    def take(self, number: int, node: Node) -> None:
        """Add a node."""
        self._nodes += 1
        self._waits += node.waits
        self._attributes.update(node.attributes.keys())
        amount = node.attributes.get
        seconds = float(node.microseconds) * _MICROSECOND
        kind, size, group = _KINDS.get(node.kind, ""), _count(amount("comm_size")), ""
        if amount("is_cpu_op") is True or amount("is_cpu_op") == 1:
            kind, size = "host", 0
        elif node.kind == wire.COMPUTE:
            kind, size = "compute", _count(amount("tensor_size"))
        elif node.kind == wire.COLLECTIVE:
            kind, group = node.collective or _named(node), brief(amount("pg_name") or "")
        elif node.kind in (wire.LOAD, wire.STORE):
            size = _count(amount("tensor_size"))
        if not kind:
            what = f"node type {node.kind}" if node.kind != wire.COLLECTIVE else f"comm_type {amount('comm_type')}"
            place, count = self._unread.get(what, (f"{self.place}, node {number}", 0))
            self._unread[what] = (place, count + 1)
            return
        flops = _count(amount("num_ops"))
        self.tally.count(kind, node.name, group=group, bytes=size, flops=flops, seconds=seconds)
        if node.start and kind != "host":
            self._first, self._last = min(self._first, node.start), max(self._last, node.start + node.microseconds)

    def done(self) -> Findings:
        """Return what was found.

        Raises:
            SpecError: no node can be used.
        """
        findings = self.findings
        rows = self.tally.rows()
        if not rows:
            raise SpecError(f"{self.place}: {self._nodes:,} nodes, but none that computes or sends")
        for what, (place, count) in list(self._unread.items())[:100]:
            findings.skip(place, f"{what}: {count:,} nodes of it")
        for name, count in sorted(self._attributes.items())[:200]:
            if name in _OF_PROFILER:
                findings.ignore(self.place, f"attribute {name} of {count:,} nodes")
            elif name in _ENDS:
                findings.skip(
                    self.place, f"attribute {name} of {count:,} nodes: who sends to whom follows from the plan"
                )
            elif name not in _READ:
                findings.skip(self.place, f"attribute {name} of {count:,} nodes")
        if self._waits:
            text = f"{self._waits:,} dependencies between nodes: a job's order follows from its plan"
            findings.skip(self.place, text)
        span = "the file"
        if self._last > self._first:
            length = (self._last - self._first) * _MICROSECOND
            findings.assumed_key(
                "measured.steps", 1, f"{self.place}: a trace names no steps; all nodes are taken for one"
            )
            findings.steps = Steps(place=self.place, unit="seconds", values=(length,))
            span = "a step"
        findings.operations = Operations(span=span, rows=rows, groups=self.groups)
        return findings


def _named(node: Node) -> str:
    """The collective that the name of a kernel tells, where no attribute does; "" = none."""
    kind = "" if "comm_type" in node.attributes else kind_of_kernel(node.name)
    return kind if kind in wire.COLLECTIVES else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else 0


class ChakraGroups(Importer):
    """Communicator groups beside traces: number -> GPUs."""

    name = "chakra_groups"
    title = "communicator groups of Chakra traces (JSON)"

    def recognises(self, document: Document) -> int:
        """Look for lists of GPUs under numbers."""
        table = document.table
        return 2 if table and all(key.isdigit() and isinstance(value, list) for key, value in table.items()) else 0

    def read(self, document: Document) -> Findings:
        """Return how many GPUs each group has, and how many there are.

        Raises:
            SpecError: a group is no list of GPUs.
        """
        findings, groups = Findings(self.name), {}
        most = -1
        for name, members in document.table.items():
            good = isinstance(members, list) and all(type(gpu) is int and 0 <= gpu < MAX_WORLD_SIZE for gpu in members)
            if not good or not members or len(set(members)) < len(members):
                raise SpecError(
                    f"{document.place}: group {brief(name)}: expected GPUs by number, each once, got {brief(members)}"
                )
            groups[name] = len(members)
            most = max(most, *members)
        if most < 0:
            raise SpecError(f"{document.place}: expected groups of GPUs by their numbers, but there are none")
        findings.put("cluster.gpus", most + 1, f"{document.place}: the highest GPU of a group")
        findings.operations = Operations(span="the files", gpus=0, groups=groups)
        return findings
