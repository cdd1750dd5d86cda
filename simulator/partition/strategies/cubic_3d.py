"""Tensor parallelism in three dimensions: every matrix lies in q x q x q blocks, and products gather both operands and scatter their sum.

    activations   hidden on rows, or the other widths on cols; sequences on depth and on what is left of rows and cols
    weights       hidden on rows, the other width on cols; of the two the columns on depth, too (the vocabulary in both of its matrices)
    vectors       as activations; they lie on all of depth and of the other axis, where their gradients are added once a step

A product from hidden states to heads or inner widths gathers its sequences along cols and its weight along depth; its sum is scattered
along rows, on sequences.  The next one, back to hidden states, does the same with rows and cols changed, so nothing lies otherwise after
a block than before.  What was gathered stands until the backward, which gathers the gradient and scatters two sums: each matrix moves
once in each direction.

    head          BERT's transform makes whole rows, which are divided by their width again before the vocabulary's product
    norm          sums of a row's parts along rows
    attention     whole heads of whole sequences on each rank: nothing; residual: nothing
    embedding     each rank looks its words and its part of the width up; sums are scattered on sequences along depth and cols
    loss          maximum, target and sum of a row of logits along cols
"""

from __future__ import annotations

from simulator.partition.layout import ACTIVATIONS, MATRICES, VECTORS, Rule, rule
from simulator.partition.strategies.meshes import COLS, DEPTH, ROWS, WIDTHS, MeshStrategy

__all__ = ["Cubic3D"]


class Cubic3D(MeshStrategy):
    """Blocks on q x q x q ranks."""

    name = "cubic_3d"
    source = "Bian et al., arXiv 2105.14450"
    axes = (COLS, ROWS, DEPTH)
    keeps_gathered = True
    needs = "q x q x q ranks, tensor_mesh = [q, q, q]"

    def rules(self) -> tuple[Rule, ...]:
        """See `Strategy.rules`."""
        return (
            rule(ROWS, "hidden"),
            rule(COLS, *(WIDTHS - {"hidden", "transformed"})),
            rule(DEPTH, "vocabulary", kinds=(MATRICES,)),
            rule(DEPTH, *WIDTHS, kinds=(MATRICES,), takes="last"),
            rule((DEPTH, COLS, ROWS), "batch", kinds=(ACTIVATIONS, VECTORS)),
        )

    def shapes(self, ranks: int) -> list[tuple[int, ...]]:
        """See `MeshStrategy.shapes`."""
        q = round(ranks ** (1 / 3))
        return [(q, q, q)] if q > 1 and q**3 == ranks else []
