"""Tensor parallelism in two and a half dimensions: d layers of q x q ranks, each with its own sequences and all with the same weights.

Sequences lie on depth and rows, weights as in two dimensions on every layer (`summa_2d.py`, whose rules for all else hold), so the
gradients of weights are added over the depth.  That is once a step; Tesseract's code does it in every backward.
"""

from __future__ import annotations

import math

from simulator.partition.strategies.meshes import COLS, DEPTH, ROWS
from simulator.partition.strategies.summa_2d import Summa2D

__all__ = ["Tesseract"]


class Tesseract(Summa2D):
    """Blocks on q x q ranks in d layers, products by panels."""

    name = "tesseract"
    source = "Wang et al., Tesseract, arXiv 2105.14500"
    axes = (COLS, ROWS, DEPTH)
    needs = "q x q x d ranks with d <= q, tensor_mesh = [q, q, d]"
    tokens = (DEPTH, ROWS)

    def shapes(self, ranks: int) -> list[tuple[int, ...]]:
        """See `MeshStrategy.shapes`: the deepest first."""
        found = [(q, q, ranks // (q * q)) for q in range(2, math.isqrt(ranks) + 1) if ranks % (q * q) == 0]
        return [shape for shape in found if shape[2] <= shape[0]]
