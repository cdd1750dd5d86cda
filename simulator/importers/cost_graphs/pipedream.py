"""`graph.txt` of PipeDream's profiler (repository msr-fiddle/pipedream, `graph/graph.py`).

A line per node, then a line per edge that is indented:

    node4 -- Conv2d(64, 64) -- forward_compute_time=46.201, backward_compute_time=113.330, activation_size=1644.0, parameter_size=147.0
            node4 -- node5

Times are milliseconds of a minibatch, sizes bytes.  An output of several tensors has a list of sizes in brackets: they are added up.
"""

from __future__ import annotations

import re

from simulator.errors import SpecError
from simulator.importers.cost_graphs.base import GraphReader
from simulator.importers.document import Document
from simulator.units import parse, plain_number
from simulator.workload.cost_graph import CostEdge, CostGraph, CostNode

__all__ = ["PipeDreamGraph"]

_KEYS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NODE = re.compile(
    r"(?P<name>\S+) -- (?P<kind>.*) -- "
    + ", ".join(rf"{key}=(?P<{key}>[^,]*)" for key in _KEYS)
    + r"( -- stage_id=\d+)?"
)
_EDGE = re.compile(r"\s+(?P<source>\S+) -- (?P<target>\S+)\s*")


class PipeDreamGraph(GraphReader):
    """Nodes with times of both directions; edges carry the activation of their source."""

    name = "pipedream"
    title = "graph.txt of PipeDream's profiler"

    def recognises(self, document: Document) -> bool:
        """Look for a node's keys in the first lines."""
        return document.form == "text" and " -- forward_compute_time=" in document.head

    def read(self, document: Document) -> CostGraph:
        """See `GraphReader.read`."""
        nodes: list[CostNode] = []
        edges: list[CostEdge] = []
        numbers: dict[str, int] = {}
        for number, line in enumerate(document.text.split("\n"), 1):
            place = document.line_of(number)
            if found := _EDGE.fullmatch(line):
                ends = [numbers.get(found[end]) for end in ("source", "target")]
                if None in ends:
                    raise SpecError(f"{place}: an edge joins nodes of lines above, got {line.strip()[:80]!r}")
                source, target = (end for end in ends if end is not None)
                edges.append(CostEdge(source=source, target=target, bytes=nodes[source].activation))
            elif found := _NODE.fullmatch(line.strip()):
                numbers[found["name"]] = len(nodes)
                nodes.append(_node(found, place))
            elif line.strip():
                raise SpecError(
                    f"{place}: expected `NAME -- KIND -- {_KEYS[0]}=..., ...` or an edge, got {line[:80]!r}"
                )
        return CostGraph(name=document.stem, nodes=tuple(nodes), edges=tuple(edges))


def _node(found: re.Match[str], place: str) -> CostNode:
    try:
        forward, backward = (parse(f"{found[key]} ms", "s") for key in _KEYS[:2])
        parameters = plain_number(found["parameter_size"])
        activation = sum(plain_number(size) for size in found["activation_size"].strip("[]").split(";"))
    except ValueError as error:
        raise SpecError(f"{place}: {error}") from None
    return CostNode(
        name=found["name"],
        kind=found["kind"],
        forward=forward,
        backward=backward,
        activation=activation,
        parameters=parameters,
        memory=activation + parameters,
    )
