"""What `dtsim layout` is asked: a model, a mesh, and what lies on it, by hand, by a strategy or a file, or by propagation."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.errors import LayoutError, SpecError, UnknownNameError
from simulator.importers.jobs import is_foreign, model_of
from simulator.partition.infer import Inferred, infer
from simulator.partition.layout import ACTIVATIONS, MATRICES, PARTIAL, VECTORS, Layout, Mesh, Rule, Shard, kind_of
from simulator.partition.layout_file import load_layout_file
from simulator.partition.placements import LaidOut, lay_out, local_dims, tensors_of
from simulator.partition.sbp import from_sbp
from simulator.partition.signatures import choose as choose_layouts
from simulator.partition.strategies import STRATEGIES
from simulator.partition.words import batch_ranks, check_words, dimension, layout_of, read_map, read_mesh, rules_of
from simulator.specs import validate_spec
from simulator.studies.layout_figures import Block, LayoutFigures, layout_figures, model_blocks
from simulator.workload.graph import Tensor
from simulator.workload.model import Model, load_model

__all__ = ["LayoutAsked", "answer_layout", "model_named", "read_layout"]

MOST_TOKENS = 10**9
Maps = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAsked:
    """A layout in a user's words.

    Args:
        name: "map", or that of the strategy or file.
        maps: dimension -> axes; `weights`, `activations`: of these tensors only.
        tensors: tensor -> dimension -> axes, instead of rules.
        sbp: tensor -> one word per mesh axis, likewise.
        rules: of a strategy, in front of all.
        output_stationary, keeps_gathered: as of `Layout`.
    """

    name: str
    mesh: Mesh
    maps: Maps
    weights: Maps
    activations: Maps
    tensors: Mapping[str, Maps]
    sbp: Mapping[str, tuple[str, ...]]
    rules: tuple[Rule, ...] = ()
    output_stationary: bool = False
    keeps_gathered: bool = False

    @property
    def batch(self) -> int:
        """Into how many parts sequences are cut."""
        parts = max(batch_ranks(maps, self.mesh) for maps in (self.maps, self.activations))
        axes = {axis for rule in self.rules if "batch" in rule.dims for axis in rule.axes}
        return max(parts, math.prod(n for axis, n in self.mesh if axis in axes))

    @property
    def words(self) -> int:
        """Into how many parts the vocabulary may be cut."""
        axes = {a for maps in (self.maps, self.weights, self.activations) for a in maps.get("vocabulary", ())}
        axes |= {axis for rule in self.rules if "vocabulary" in rule.dims for axis in rule.axes}
        axes |= {a for on in self.tensors.values() for a in on.get("vocabulary", ())}
        return math.prod(n for axis, n in self.mesh if axis in axes)


def read_layout(layout: str | None, mesh: str | None, maps: Sequence[str] = ()) -> LayoutAsked:
    """Return a layout from a strategy's name or a file (or neither), a mesh NAME=N,NAME=N, and maps DIM=NAME or TENSOR.DIM=NAME.

    Raises:
        SpecError: what is written cannot be understood.
        LayoutError: a strategy has other mesh axes.
    """
    single = [text for text in maps if "." in text.partition("=")[0]]
    plain = [text for text in maps if text not in single]
    if layout is not None and (os.path.isfile(os.path.expanduser(layout)) or layout.lower().endswith(".toml")):
        file = load_layout_file(os.path.expanduser(layout))
        axes: Mesh = tuple(file.mesh.items())
        if mesh is not None and read_mesh(mesh) != axes:
            raise SpecError(f"{layout} says what its mesh is, and --mesh says another. Way out: leave out --mesh")
        asked = LayoutAsked(
            name=file.name,
            mesh=axes,
            maps=_named(file.rules, axes, layout),
            weights=_named(file.weights, axes, layout),
            activations=_named(file.activations, axes, layout),
            tensors={name: _named(on, axes, layout) for name, on in file.tensors.items()},
            sbp=file.sbp,
        )
    elif mesh is None:
        raise SpecError("on which mesh? Give --mesh NAME=N,NAME=N, or --layout FILE, which says it")
    else:
        axes = read_mesh(mesh)
        asked = LayoutAsked(name="map", mesh=axes, maps={}, weights={}, activations={}, tensors={}, sbp={})
        if layout is not None:
            asked = _of_strategy(asked, layout)
    given = read_map(plain, axes)
    return replace(asked, maps={**asked.maps, **given}, tensors={**asked.tensors, **_of_tensors(single, axes)})


def _of_strategy(asked: LayoutAsked, name: str) -> LayoutAsked:
    member = STRATEGIES.get(name)
    rules = member.rules()
    wanted = list(dict.fromkeys(axis for rule in rules for axis in rule.axes))
    if lacks := [axis for axis in wanted if axis not in dict(asked.mesh)]:
        raise LayoutError(
            f"layout {member.name!r} lays dimensions on mesh axes {', '.join(wanted)}, but the mesh lacks {', '.join(lacks)}. "
            f"Nearest: --mesh {','.join(f'{axis}={n}' for axis, n in zip(wanted, _sizes(asked.mesh, wanted), strict=True))}"
        )
    return replace(
        asked,
        name=member.name,
        rules=rules,
        output_stationary=member.output_stationary,
        keeps_gathered=member.keeps_gathered,
    )


def _sizes(mesh: Mesh, wanted: list[str]) -> list[int]:
    sizes = [n for _, n in mesh]
    return (sizes + [sizes[-1]] * len(wanted))[: len(wanted)]


def _named(places: Maps, mesh: Mesh, place: str) -> Maps:
    out = {dimension(name): axes for name, axes in places.items()}
    check_words(out, mesh, place)
    return out


def _of_tensors(texts: Sequence[str], mesh: Mesh) -> dict[str, Maps]:
    """Maps of single tensors, TENSOR.DIM=AXIS."""
    out: dict[str, dict[str, tuple[str, ...]]] = {}
    for text in texts:
        where, _, _ = text.rpartition("=")
        tensor, _, dim = where.rpartition(".")
        on = read_map([f"{dim}={text.rpartition('=')[2]}"], mesh)
        mine = out.setdefault(tensor.strip(), {})
        for name, axes in on.items():
            mine[name] = (*mine.get(name, ()), *axes)
    for on in out.values():
        check_words(on, mesh, "--map")
    return dict(out)


def model_named(name: str) -> Model:
    """Return the model of this name, of a file of ours, or of another program's config.json.

    Raises:
        SpecError: there is none, or its file is wrong.
    """
    if not is_foreign(name):
        return load_model(name)
    return validate_spec(model_of(name), Model, name, from_file=False)


def answer_layout(
    model: str,
    asked: LayoutAsked,
    propagate: bool = False,
    batch: int | None = None,
    sequence: int | None = None,
    cluster: str | None = None,
    choose: bool = False,
) -> LayoutFigures:
    """Return the figures of a layout.

    Args:
        model: its name or file.
        propagate: rules annotate weights and token ids only, and all else follows.
        batch: sequences; None = one for every part into which they are cut.
        sequence: tokens of each; None = the model's own.
        cluster: for seconds; None = without.
        choose: rules annotate as with `propagate`, and what operations divide is chosen one by one; what would follow stands beside it.

    Raises:
        LayoutError: tensors cannot lie so.
        SpecError: a tensor or dimension is not the model's, or nothing is left to choose.
    """
    if choose and asked.rules:
        raise SpecError(
            f"--choose: strategy {asked.name!r} says what every operation divides, and leaves nothing to choose. Way out: --layout "
            f"{asked.name} alone, or --choose with --map or a layout's file"
        )
    known = model_named(model)
    sequences = _positive("--batch", batch, asked.batch)
    length = _positive("--sequence", sequence, known.usual_length)
    if length > known.most_tokens:
        raise SpecError(
            f"--sequence {length}: the model's position table ends at {known.sequence_length} tokens. Way out: no more than these"
        )
    notes = [f"{sequences:,} sequence{'s' * (sequences > 1)} of {length:,} tokens, products in bf16"]
    words = known.padded_vocabulary(asked.words) if asked.words > 1 else known.vocabulary
    if words != known.vocabulary:
        notes.append(
            f"vocabulary padded from {known.vocabulary:,} to {words:,}: a multiple of 128 on each of {asked.words} ranks"
        )
    blocks = model_blocks(known, sequences, length, words)
    layout = _layout(asked, blocks)
    notes += [f"nothing lies on mesh axis {axis!r}: its {n} ranks all do the same" for axis, n in _idle(asked, layout)]
    annotations = _annotations(asked, blocks)

    def figures(made: Mapping[str, LaidOut], inferred: Inferred | None = None) -> LayoutFigures:
        named = {kind: replace(laid, name=asked.name) for kind, laid in made.items()}
        return layout_figures(known, blocks, named, asked.mesh, sequences, length, cluster, tuple(notes), inferred)

    if not (propagate or choose):
        return figures({b.kind: _placed(lay_out(b.graph, layout), b, annotations) for b in blocks})
    given, graphs = _given(blocks, layout, annotations), [block.graph for block in blocks]
    inferred = infer(graphs, asked.mesh, given)
    followed = figures(inferred.graphs, inferred)
    if not choose:
        return followed
    chosen = choose_layouts(graphs, asked.mesh, given)
    return replace(figures(chosen.graphs), chosen=chosen, beside=followed)


def _layout(asked: LayoutAsked, blocks: Sequence[Block]) -> Layout:
    graphs = [block.graph for block in blocks]
    for maps in (asked.maps, asked.weights, asked.activations):
        layout_of(maps, asked.mesh, graphs)
    some = [replace(rule, kinds=(MATRICES, VECTORS)) for rule in rules_of(asked.weights)]
    some += [replace(rule, kinds=(ACTIVATIONS,)) for rule in rules_of(asked.activations)]
    rules = (*asked.rules, *some, *rules_of(asked.maps))
    return Layout(
        asked.name,
        asked.mesh,
        rules,
        output_stationary=asked.output_stationary,
        keeps_gathered=asked.keeps_gathered,
    )


def _idle(asked: LayoutAsked, layout: Layout) -> list[tuple[str, int]]:
    used = {axis for rule in layout.rules for axis in rule.axes}
    used |= {axis for on in asked.tensors.values() for axes in on.values() for axis in axes}
    used |= {
        axis for words in asked.sbp.values() for (axis, _), word in zip(asked.mesh, words, strict=False) if word != "B"
    }
    return [(axis, n) for axis, n in layout.mesh if axis not in used and n > 1]


def _annotations(asked: LayoutAsked, blocks: Sequence[Block]) -> dict[str, dict[str, str]]:
    """Tensor -> axis -> dimension, of tensors that are placed one by one."""
    known = {t.name: t for block in blocks for t in tensors_of(block.graph)}
    out: dict[str, dict[str, str]] = {}
    for name in (*asked.tensors, *asked.sbp):
        if name not in known:
            raise UnknownNameError("tensor of this model", name, known, few=True)
    for name, on in asked.tensors.items():
        dims = {d.name: d for d in known[name].dims}
        for dim, axes in on.items():
            if dim not in dims:
                raise UnknownNameError(f"dimension of {name!r}", dim, dims)
            for axis in axes:
                if axis in out.setdefault(name, {}):
                    raise LayoutError(
                        f"an axis divides one dimension of a tensor, but {name!r} has {out[name][axis]} and {dim} on mesh axis {axis!r}. "
                        "Nearest: one of them whole"
                    )
                out[name][axis] = dim
    for name, words in asked.sbp.items():
        out[name] = _of_sbp(known[name], words, asked.mesh)
    return out


def _of_sbp(tensor: Tensor, words: tuple[str, ...], mesh: Mesh) -> dict[str, str]:
    out = {}
    for axis, placement in from_sbp(tensor, words, mesh).items():
        if placement == PARTIAL:
            raise LayoutError(
                f"{tensor.name!r} would lie on mesh axis {axis!r} as terms of a sum that nobody adds up. Nearest: B, or "
                f"S({len(tensor.dims) - 1}), {tensor.dims[-1].name}"
            )
        if isinstance(placement, Shard):
            out[axis] = placement.dim
    return out


def _placed(laid: LaidOut, block: Block, annotations: Mapping[str, Mapping[str, str]]) -> LaidOut:
    """A graph with some tensors elsewhere than rules have them."""
    mine = {t.name: t for t in tensors_of(block.graph) if t.name in annotations}
    ranks = laid.ranks
    tensors = dict(laid.tensors)
    for name, tensor in mine.items():
        tensors[name] = {axis: Shard(dim) for axis, dim in annotations[name].items() if ranks[axis] > 1}
        local_dims(tensor, tensors[name], ranks, laid.name)
    return replace(laid, tensors=tensors)


def _given(
    blocks: Sequence[Block], layout: Layout, annotations: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    """Tensor -> axis -> dimension, of what rules annotate where the rest is to be found: weights, token ids, and single tensors."""
    given: dict[str, Mapping[str, str]] = {}
    for block in blocks:
        ids = [t for op in block.graph.ops for t in op.inputs[:1] if t.element >= 8.0]
        for tensor in (*block.graph.weights, *ids):
            on = {axis: dim.name for axis, dim in layout.axes(tensor.dims, kind_of(tensor)).items()}
            if on:
                given[tensor.name] = on
    return {**given, **annotations}


def _positive(option: str, given: int | None, default: int) -> int:
    number = default if given is None else given
    if not 0 < number <= MOST_TOKENS:
        raise SpecError(f"{option}: expected a whole number from 1 to {MOST_TOKENS:,}, got {number}")
    return number
