"""What `dtsim layout` is asked: a model, a mesh, and what lies on it."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import SpecError
from simulator.importers.jobs import is_foreign, model_of
from simulator.partition.layout import Layout
from simulator.partition.words import batch_ranks, layout_of, read_map, read_mesh
from simulator.specs import validate_spec
from simulator.studies.layout_figures import Block, LayoutFigures, layout_figures, model_blocks
from simulator.workload.model import Model, load_model

__all__ = ["answer_layout", "model_named"]

MOST_TOKENS = 10**9


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
    mesh: str,
    maps: Sequence[str] = (),
    batch: int | None = None,
    sequence: int | None = None,
    cluster: str | None = None,
) -> LayoutFigures:
    """Return the figures of a layout that is given by dimensions.

    Args:
        model: its name or file.
        mesh: NAME=N,NAME=N; `maps`: DIM=NAME each.
        batch: sequences; None = one for every part into which they are cut.
        sequence: tokens of each; None = the model's own.
        cluster: for seconds; None = without.

    Raises:
        LayoutError: tensors cannot lie so.
        SpecError: what is written cannot be understood.
    """
    known, axes = model_named(model), read_mesh(mesh)
    on = read_map(maps, axes)
    parts = batch_ranks(on, axes)
    sequences, length = _positive("--batch", batch, parts), _positive("--sequence", sequence, known.sequence_length)
    notes = [f"{sequences:,} sequences of {length:,} tokens, products in bf16"]
    words = known.vocabulary
    ranks = _ranks(on.get("vocabulary", ()), axes)
    if ranks > 1:
        words = known.padded_vocabulary(ranks)
        if words != known.vocabulary:
            notes.append(
                f"vocabulary padded from {known.vocabulary:,} to {words:,}: a multiple of 128 on each of {ranks} ranks"
            )
    blocks = model_blocks(known, sequences, length, words)
    layout = layout_of(on, axes, (block.graph for block in blocks))
    notes += [f"nothing lies on mesh axis {axis!r}: its {n} ranks all do the same" for axis, n in _idle(layout, blocks)]
    return layout_figures(known, blocks, layout, axes, sequences, length, cluster, tuple(notes))


def _positive(option: str, given: int | None, default: int) -> int:
    number = default if given is None else given
    if not 0 < number <= MOST_TOKENS:
        raise SpecError(f"{option}: expected a whole number from 1 to {MOST_TOKENS:,}, got {number}")
    return number


def _ranks(on: Sequence[str], mesh: tuple[tuple[str, int], ...]) -> int:
    out = 1
    for axis, size in mesh:
        out *= size if axis in on else 1
    return out


def _idle(layout: Layout, blocks: Sequence[Block]) -> list[tuple[str, int]]:
    used = {axis for rule in layout.rules for axis in rule.axes}
    return [(axis, n) for axis, n in layout.mesh if axis not in used and n > 1]
