"""Tensor parallelism in two dimensions: weights and activations both lie in q x q blocks, and products are SUMMA's.

    activations   sequences on rows, the width (hidden, heads, inner, vocabulary) on cols
    weights       depth on rows, columns on cols; the vocabulary on cols in the table and in the output matrix, so that they can be one
    vectors       their width on cols; biases, scales and shifts lie on every row, and their gradients are added over rows once a step

What follows, forward; gradients accordingly:

    product       x in panels along cols, the weight in panels along rows; results stay (`output_stationary`)
    bias          added where it lies
    norm          sums of a row's parts (two numbers of a layer norm, one of an RMS norm) are added along cols, backward as many again
    attention     whole heads of whole sequences on each rank: nothing
    residual      both operands lie alike: nothing
    embedding     each rank looks its words and its part of the width up; tokens go along rows to where they belong, sums along cols
    loss          maximum, target and sum of a row of logits along cols

Optimus keeps vectors on the first row only and broadcasts them with each product; here they are on all rows, 1/q of what a rank has of
activations per sequence, and travel once a step.
"""

from __future__ import annotations

import math

from simulator.partition.layout import ACTIVATIONS, MATRICES, VECTORS, Rule, rule
from simulator.partition.strategies.meshes import COLS, ROWS, WIDTHS, MeshStrategy

__all__ = ["Summa2D"]


class Summa2D(MeshStrategy):
    """Blocks on q x q ranks, products by panels."""

    name = "summa_2d"
    source = "Xu et al., Optimus, arXiv 2104.05343; van de Geijn and Watts 1997, SUMMA"
    axes: tuple[str, ...] = (COLS, ROWS)
    output_stationary = True
    panels = True
    needs = "q x q ranks, tensor_mesh = [q, q]"
    tokens: tuple[str, ...] = (ROWS,)
    """Axes that sequences lie on."""

    def rules(self) -> tuple[Rule, ...]:
        """See `Strategy.rules`."""
        return (
            rule(self.tokens, "batch"),
            rule(COLS, "vocabulary", kinds=(MATRICES,)),
            rule(COLS, *WIDTHS, kinds=(MATRICES,), takes="last"),
            rule(ROWS, *(WIDTHS - {"vocabulary"}), kinds=(MATRICES,), takes="first"),
            rule(COLS, *WIDTHS, kinds=(ACTIVATIONS, VECTORS)),
        )

    def shapes(self, ranks: int) -> list[tuple[int, ...]]:
        """See `MeshStrategy.shapes`."""
        q = math.isqrt(ranks)
        return [(q, q)] if q > 1 and q * q == ranks else []
