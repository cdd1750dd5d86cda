"""Networks of layers as a model file writes them: what each layer computes, and the shapes that follow from the image.

    image (channels, height, width) - layer - layer - ... - layer, whose last step makes the classes

A layer is a list of steps.  A step reads what stands before it, or what it names in `reads`: steps of its layer, "input" (what came into
the layer), or steps of earlier layers, whose results then pass by the layers in between (U-Net).
Layers are where a pipeline may be cut.  Layers that are alike, and are given alike shapes, are one kind.

A window of k over n rows with padding p and stride s makes floor((n + 2 p - k) / s) + 1 rows (Dumoulin and Visin, arXiv 1603.07285,
relationship 6).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator

from simulator.specs import Listed, Names, Spec
from simulator.units import FP32, Bytes, Seconds
from simulator.workload.layer_kind import WORDS

__all__ = [
    "INPUT",
    "Convolution",
    "Dense",
    "Measured",
    "Network",
    "Placed",
    "PlacedLayer",
    "Pointwise",
    "Pool",
    "Shape",
    "Stage",
    "Step",
    "Upsample",
]

INPUT = "input"
"""What a layer's steps call what comes into it."""
_ENDS = ("embedding", "head")


class Shape(NamedTuple):
    """Numbers of one image at some place of a network."""

    channels: int
    height: int
    width: int

    @property
    def positions(self) -> int:
        """Places of the image."""
        return self.height * self.width

    @property
    def elements(self) -> int:
        """All numbers."""
        return self.channels * self.positions


def _pair(value: object) -> object:
    """A side as both sides; a list as it is."""
    return tuple(value) if isinstance(value, list) else (value, value) if isinstance(value, int) else value


def _positive_pair(value: object) -> object:
    found = _pair(value)
    if isinstance(found, tuple) and any(isinstance(side, int) and side < 1 for side in found):
        raise ValueError("expected at least 1")
    return found


_Side = Annotated[int, Field(ge=0, le=10**4)]
_Sides = Annotated[tuple[_Side, _Side], BeforeValidator(_positive_pair)]
_Paddings = Annotated[tuple[_Side, _Side], BeforeValidator(_pair)]
_Channels = Annotated[int, Field(ge=1, le=10**6)]
_Then = Annotated[tuple[Literal["batch_norm", "instance_norm", "relu", "dropout"], ...], Listed, Field(max_length=8)]


class _Step(Spec):
    """What all steps say: a name that others read it by, and what it reads."""

    name: str = ""
    reads: Names = ()


class _Windowed(_Step):
    """A step that reads windows; `padding`: rows of zeros at each end, by default such that a stride of 1 keeps the rows."""

    window: _Sides
    stride: _Sides = (1, 1)
    padding: _Paddings | None = None

    @property
    def paddings(self) -> tuple[int, int]:
        """Rows of zeros at each end of both sides."""
        return self.padding or ((self.window[0] - 1) // 2, (self.window[1] - 1) // 2)

    def rows(self, side: int, size: int) -> int:
        """Return how many windows lie along a side; below 1 where none fits."""
        return int((size + 2 * self.paddings[side] - self.window[side]) // self.stride[side] + 1)


class Convolution(_Windowed):
    """A convolution; `then`: what follows it, one step each."""

    op: Literal["convolution"]
    channels: _Channels
    groups: _Channels = 1
    bias: bool = False
    then: _Then = ()


class Pool(_Windowed):
    """The largest number of each window, or their mean."""

    op: Literal["max_pool", "average_pool"]


class Dense(_Step):
    """A matrix times all numbers of an image."""

    op: Literal["dense"]
    channels: _Channels
    bias: bool = True
    then: _Then = ()


class Upsample(_Step):
    """Every number several times, along both sides."""

    op: Literal["upsample"]
    times: Annotated[int, Field(ge=2, le=64)]


class Pointwise(_Step):
    """Steps without sizes of their own."""

    op: Literal["batch_norm", "instance_norm", "relu", "dropout", "global_average", "add", "concat"]


class Measured(_Step):
    """What somebody measured of an image, whatever it computes: seconds forward and backward, bytes of the result in fp32, weights."""

    op: Literal["measured"]
    forward: Seconds
    backward: Seconds
    makes: Bytes
    parameters: Annotated[int, Field(ge=0, le=10**12)] = 0


Step = Annotated[Convolution | Pool | Dense | Upsample | Pointwise | Measured, Field(discriminator="op")]


class Stage(Spec):
    """A layer, `repeat` times one after the other."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=60)]
    repeat: Annotated[int, Field(ge=1, le=10_000)] = 1
    steps: Annotated[tuple[Step, ...], Listed, Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _check(self) -> Stage:
        if self.name in WORDS:
            raise ValueError(
                f"a layer's name is none of the words of other models' layers ({', '.join(WORDS)}), got {self.name!r}"
            )
        return self


class Placed(NamedTuple):
    """A step with its shapes: the names of what it reads and makes, their shapes."""

    step: Step
    reads: tuple[str, ...]
    given: tuple[Shape, ...]
    name: str
    made: Shape


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer at its place.

    Args:
        given: shape of its input.
        passes: what earlier layers made for it or for later ones, beside its input.
        steps: in the order in which they run; the last makes its output.
        sends: names of what later layers read: its steps, and its input.
        called: the name of the step that made its input, where a layer reads it by that; "" else.
    """

    given: Shape
    passes: tuple[tuple[str, Shape], ...]
    steps: tuple[Placed, ...]
    sends: tuple[str, ...]
    called: str


class Network(Spec):
    """A chain of layers.

    Args:
        image: channels, height and width of what comes in.
        layers: in order.  The first (with the image) and the last (with the loss) are the ends of a pipeline.
    """

    image: Annotated[tuple[_Channels, _Channels, _Channels], Listed]
    layers: Annotated[tuple[Stage, ...], Listed, Field(min_length=2, max_length=10_000)]

    @model_validator(mode="after")
    def _check(self) -> Network:
        last = self.placed[-1].steps[-1]
        step = last.step
        windows = isinstance(step, Convolution) and (step.window, step.stride) != ((1, 1), (1, 1))
        if not isinstance(step, Convolution | Dense | Measured) or windows:
            raise ValueError(
                "the last step of a network makes the classes that its loss reads: a dense step, a convolution with window 1, with "
                f"nothing behind it, or what was measured; it is {last.name!r} of layer {self.layers[-1].name!r}"
            )
        if len(self.placed) < 3:
            raise ValueError(
                "a network has a first layer, a last one and at least one in between, which pipelines deal out"
            )
        return self

    @functools.cached_property
    def placed(self) -> tuple[PlacedLayer, ...]:
        """Every layer with its shapes.

        Raises:
            ValueError: a step reads what no step before it makes, or shapes do not fit.
        """
        stages = [stage for stage in self.layers for _ in range(stage.repeat)]
        own = [{step.name for step in stage.steps if step.name} for stage in stages]
        wanted = [
            {n for s in stage.steps for n in s.reads if n not in own[i] and n != INPUT}
            for i, stage in enumerate(stages)
        ]
        shape, passing, called, out = Shape(*self.image), dict[str, Shape](), "", list[PlacedLayer]()
        for i, stage in enumerate(stages):
            later = set().union(*wanted[i + 1 :])
            passing = {name: at for name, at in passing.items() if name in later | wanted[i]}
            steps = tuple(_steps(stage, shape, passing, called))
            made = {step.name: step.made for step in steps}
            sends = tuple(name for name in (called, *made) if name in later)
            out.append(PlacedLayer(shape, tuple(passing.items()), steps, sends, called))
            passing |= {name: made.get(name, shape) for name in sends if name != steps[-1].name}
            shape, called = steps[-1].made, steps[-1].name if steps[-1].name in later else ""
        return tuple(out)

    @functools.cached_property
    def kinds(self) -> dict[str, PlacedLayer]:
        """Kinds of layers by name, in the order of their first."""
        return dict(zip(self.names, self.placed, strict=True))

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of every layer its kind: the ends of the network, and between them the layers' own names."""
        stages = [stage.name for stage in self.layers for _ in range(stage.repeat)]
        known: dict[PlacedLayer, str] = {}
        taken, numbers = set[str](), Counter[str]()
        for name, layer in zip(stages[1:-1], self.placed[1:-1], strict=True):
            if layer not in known:
                kind = f"{name} layer"
                while kind in taken:
                    numbers[name] += 1
                    kind = f"{name}_{numbers[name] + 1} layer"
                known[layer] = kind
                taken.add(kind)
        return _ENDS[0], *(known[layer] for layer in self.placed[1:-1]), _ENDS[1]

    @property
    def classes(self) -> int:
        """What the last step makes of each position."""
        return self.placed[-1].steps[-1].made.channels

    @property
    def positions(self) -> int:
        """Positions of an image of which each has a class; 1 = the image as a whole."""
        return self.placed[-1].steps[-1].made.positions

    @property
    def features(self) -> int:
        """Numbers of a position that its class is made of."""
        last = self.placed[-1].steps[-1]
        return last.given[0].elements // last.made.positions


def _steps(stage: Stage, given: Shape, passing: dict[str, Shape], called: str) -> Iterator[Placed]:
    """The steps of a layer, those that follow others as steps of their own."""
    known, before = {**passing, INPUT: given, **({called: given} if called else {})}, INPUT
    for number, step in enumerate(stage.steps, 1):
        where = f"step {number} of layer {stage.name!r} ({step.op})"
        reads = step.reads or (before,)
        for name in reads:
            if name not in known:
                raise ValueError(f"{where} reads {name!r}, which nothing before it makes; made are {', '.join(known)}")
        shapes = tuple(known[name] for name in reads)
        behind = step.then if isinstance(step, Convolution | Dense) else ()
        made = _made(step, shapes, where)
        final = step.name or f"{step.op} {number}"
        if final in known:
            raise ValueError(f"{where} is called {final!r}, as one before it; give it another name")
        names = [f"{final} before {follower}" for follower in behind] + [final]
        yield Placed(step, reads, shapes, names[0], made)
        for follower, source, name in zip(behind, names, names[1:], strict=False):
            yield Placed(Pointwise(op=follower), (source,), (made,), name, made)
        known[final], before = made, final


def _made(step: Step, given: tuple[Shape, ...], where: str) -> Shape:
    """The shape of what a step makes."""
    first = given[0]
    if isinstance(step, Measured):
        return Shape(max(1, round(step.makes / FP32)), 1, 1)
    joins = step.op in ("add", "concat")
    if joins != (len(given) > 1):
        raise ValueError(f"{where} reads {len(given)}; expected {'two or more' if joins else 'one'} in reads")
    match step:
        case Convolution() | Pool():
            sides = step.rows(0, first.height), step.rows(1, first.width)
            if min(sides) < 1:
                raise ValueError(
                    f"{where}: a window of {step.window} does not fit into {first.height} x {first.width} positions"
                )
            if isinstance(step, Pool):
                return Shape(first.channels, *sides)
            if first.channels % step.groups or step.channels % step.groups:
                raise ValueError(
                    f"{where}: {step.groups} groups divide neither or one of {first.channels} and {step.channels} channels"
                )
            return Shape(step.channels, *sides)
        case Dense():
            return Shape(step.channels, 1, 1)
        case Upsample():
            return Shape(first.channels, first.height * step.times, first.width * step.times)
    if step.op == "global_average":
        return Shape(first.channels, 1, 1)
    unlike = [shape for shape in given if shape[step.op == "concat" :] != first[step.op == "concat" :]]
    if unlike:
        raise ValueError(
            f"{where} joins {tuple(first)} and {tuple(unlike[0])} (channels, height, width), which do not fit"
        )
    return first._replace(channels=sum(shape.channels for shape in given)) if step.op == "concat" else first
