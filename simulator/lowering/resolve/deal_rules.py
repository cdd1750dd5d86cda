"""How codes deal layers out over the chunks of a pipeline, where a plan has no split."""

from __future__ import annotations

from simulator.lowering.steps.assign import by_weights, ends_as_layers
from simulator.plan.framework import Framework
from simulator.workload.model import Model

__all__ = ["dealt_layers"]


def dealt_layers(model: Model, framework: Framework, chunks: int) -> tuple[int, ...] | None:
    """Return the layers of each chunk; None = as even as can be.

    Models with more than one stack of layers, and those too small for the code's own rule, are dealt out evenly.
    """
    if chunks == 1 or framework.deals_layers == "evenly" or model.depth != model.layers:
        return None
    if framework.deals_layers == "ends_as_layers":
        found = ends_as_layers(model.layers, chunks)
    else:
        width = model.hidden
        found = by_weights(model.layers, chunks, 4 * width * width + 3 * model.ffn * width, model.vocabulary * width)
    return tuple(found) if found else None
