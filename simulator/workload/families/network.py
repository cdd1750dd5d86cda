"""Networks of layers that a model file lists: convolutions and what stands around them.

The first layer takes the image, whose gradient nobody needs; the last makes the classes, and the loss stands behind it.  What the layers
compute is `workload/network.py`'s to say, what that takes `blocks/image.py`'s.
"""

from __future__ import annotations

from typing import cast

from simulator.workload.blocks.head import head
from simulator.workload.blocks.image import ImageBuilder
from simulator.workload.builder import LayerBuilder
from simulator.workload.families.base import ModelFamily
from simulator.workload.graph import Tensor
from simulator.workload.network import INPUT, Convolution, Dense, Measured, Network, Placed, PlacedLayer

__all__ = ["NetworkFamily"]


class NetworkFamily(ModelFamily):
    """Networks of convolutions."""

    name = "network"
    source = "Chetlur et al. 2014, arXiv 1410.0759: convolutions as products"
    like_boundaries = False

    def build(self, g: LayerBuilder, kind: str) -> Tensor:
        """See `ModelFamily.build`."""
        layer = cast(Network, g.m.network).kinds[kind]  # by a rule of the model file
        images = ImageBuilder(g)
        first, last = kind == "embedding", kind == "head"
        known = {name: images.tensor(name, *shape, role="stream") for name, shape in layer.passes}
        known[INPUT] = images.tensor(
            "image" if first else "hidden states", *layer.given, role="activation" if first else "stream"
        )
        g.inputs += [known.pop(INPUT), *known.values()]
        known[INPUT] = known[layer.called or INPUT] = g.inputs[0]
        if not first:
            images.forked(known[INPUT], _readers(layer, INPUT, layer.called or INPUT))
        for placed in layer.steps:
            final = placed is layer.steps[-1]
            if final and last and not isinstance(placed.step, Measured):
                return _classes(g, known[placed.reads[0]], placed)
            known[placed.name] = _step(images, placed, tuple(known[name] for name in placed.reads), first, final)
            images.forked(known[placed.name], _readers(layer, placed.name))
        sent = [known[name] for name in layer.sends]
        g.results += [x for x in sent if x is not known[layer.steps[-1].name]]
        return known[layer.steps[-1].name]


def _readers(layer: PlacedLayer, *names: str) -> int:
    """How many of a layer's steps read something of these names; a layer that passes it on counts as one, and what was measured as none:
    its time has what it takes to add up gradients."""
    reading = [placed for placed in layer.steps if not {*names}.isdisjoint(placed.reads)]
    return sum(not isinstance(placed.step, Measured) for placed in reading) + (names[-1] in layer.sends)


def _classes(g: LayerBuilder, x: Tensor, placed: Placed) -> Tensor:
    """The last product and its loss: of the image, or of each of its positions."""
    step = placed.step
    bias = isinstance(step, Convolution | Dense) and step.bias
    if g.sequence.size == 1:
        return head(g, x.view(g.batch, g.hidden), bias=bias)
    return head(g, x.view(*g.tokens, g.hidden), bias=bias)


def _step(images: ImageBuilder, placed: Placed, given: tuple[Tensor, ...], first: bool, final: bool) -> Tensor:
    """Add a step; returns what it makes."""
    step, x = placed.step, given[0]
    out = images.tensor(placed.name, *placed.made)
    if isinstance(step, Convolution):
        data = first and placed.reads == (INPUT,)
        images.convolution(x, out, step.window, step.stride, step.groups, step.bias, of_data=data)
        return out
    if isinstance(step, Measured):
        images.measured(given, out, step.forward, step.backward, step.parameters)
        return out
    if isinstance(step, Dense):
        return images.dense(x, out, step.bias)
    match step.op:
        case "batch_norm" | "instance_norm":
            images.norm(x, out, scaled=step.op == "batch_norm")
        case "relu":
            images.relu(x, out, final)
        case "dropout":
            images.dropout(x, out)
        case "add":
            images.add(given, out)
        case "concat":
            images.concat(given, out)
        case "max_pool":
            images.largest(x, out)
        case _:
            images.resampled(x, out, keeps=step.op == "average_pool")
    return out
