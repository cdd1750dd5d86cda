"""A graph of costs as a model: a layer per node, in an order in which every node stands behind those that it reads."""

from __future__ import annotations

from simulator.errors import SpecError
from simulator.specs.toml_text import toml_value
from simulator.units import FP32, in_unit, show
from simulator.workload.cost_graph import CostGraph

__all__ = ["model_text"]


def model_text(graph: CostGraph, name: str, images: int, source: str) -> str:
    """Return the text of a model file whose layers take as long as was measured.

    Args:
        name: of the model.
        images: of the minibatch that was measured; the file has times and bytes of one.
        source: where the graph is from.

    Raises:
        SpecError: fewer than three nodes, or these have several ways to run them.
    """
    graph.refuse_ways()
    if len(graph.nodes) < 3:
        raise SpecError(
            f"graph {graph.name!r} has {len(graph.nodes)} nodes; a model has two ends and a layer between them"
        )
    first = graph.nodes[graph.order[0]]
    head = {"name": name, "family": "measured", "architecture": "network"}
    lines = [f"{key} = {toml_value(value)}" for key, value in head.items()]
    times = f"{show(graph.forward, 's')} forward and {show(graph.backward, 's')} backward of {images:,} images"
    lines += [f'notes = "{times}, as measured"', "", "[network]"]
    lines.append(f"image = [{max(1, round(first.activation / images / FP32))}, 1, 1]")
    for place, number in enumerate(graph.order):
        node = graph.nodes[number]
        reads = [f"node{source}" for source in graph.sources[number]] or ["input"]
        step = {
            "op": "measured",
            "name": f"node{number}",
            "forward": f"{_written(in_unit(node.forward / images, 'us', 's'))} us",
            "backward": f"{_written(in_unit(node.backward / images, 'us', 's'))} us",
            "makes": f"{_written(node.activation / images)} B",
        }
        step_text = ", ".join(f"{key} = {toml_value(value)}" for key, value in step.items())
        weights = round(node.parameters / FP32)
        more = (f", parameters = {weights}" if weights else "") + (f", reads = {toml_value(reads)}" if place else "")
        kind = " ".join(node.kind.split())
        lines += [
            "",
            *([f"# {kind}"] if kind else []),
            "[[network.layers]]",
            f'name = "layer{number}"',
            f"steps = [{{ {step_text}{more} }}]",
        ]
    lines += ["", "[sources]", f'"*" = {toml_value(source)}']
    return "\n".join(lines) + "\n"


def _written(number: float) -> str:
    """A number with at most nine digits behind the point."""
    return f"{number:.9f}".rstrip("0").rstrip(".")
