"""Convolutions of PyTorch as the products that they are: positions times what a window holds (Chetlur et al., cuDNN, arXiv 1410.0759,
section 3).  A transposed convolution is the input gradient of one from its output to its input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from simulator.capture.facts import Facts
from simulator.program.calls import Convolved, Product
from simulator.workload.blocks.image import multiplications_saved

__all__ = ["Shaped", "convolution", "convolution_gradients"]

Shaped = tuple[tuple[int, int, int, int], Product, str]
"""A product: batch, m, n and k, the call, and the number format."""


def convolution(arguments: Mapping[str, Any], outputs: Sequence[Facts]) -> Shaped:
    """Return the product of `aten.convolution`: its arguments by name, its output."""
    made = _products(arguments, arguments["input"], outputs[0])
    return made["onto windows" if arguments.get("transposed") else "of windows"]


def convolution_gradients(arguments: Mapping[str, Any]) -> list[tuple[Shaped, list[Facts], Facts]]:
    """Return the gradients that `aten.convolution_backward` makes: product, what it reads, a tensor as large as what it writes."""
    x, weight, gradient = arguments["input"], arguments["weight"], arguments["grad_output"]
    made = _products(arguments, x, gradient)
    into_input = made["of windows" if arguments.get("transposed") else "onto windows"]
    both = [(into_input, [gradient, weight], x), (made["of weights"], [gradient, x], weight)]
    asked = arguments.get("output_mask", (True, True))
    return [(product, read, written) for (product, read, written), wanted in zip(both, asked, strict=False) if wanted]


def _products(arguments: Mapping[str, Any], x: Facts, y: Facts) -> dict[str, Shaped]:
    """The three products between a tensor and its windows.

    Rows of the first are windows; of the second positions of the tensor, and its depth are the windows that read one, of which there
    are none with a stride wider than the window (Dumoulin and Visin, arXiv 1603.07285, chapter 4); the third sums over windows.
    """
    weight, groups = arguments["weight"], int(arguments.get("groups", 1))
    windowed, windows = (y, x) if arguments.get("transposed") else (x, y)
    m, positions = (math.prod(t.shape) // max(1, t.shape[1]) for t in (windows, windowed))
    window = tuple(weight.shape[2:])
    taps, n, channels = math.prod(window), weight.shape[0] // groups, weight.shape[1]
    shared = m * taps / max(1, positions)
    read = max(1.0, shared)
    saved = multiplications_saved(window, tuple(arguments.get("stride", (1,) * len(window))))

    def call(order: str, stands: float) -> Product:
        return Product(order) if stands == 1 else Convolved(order, stands, saved)

    return {
        "of windows": ((groups, m, n, channels * taps), call("TN", shared), weight.dtype),
        "onto windows": (
            (groups, round(m * taps / read), channels, round(n * read)),
            call("NN", taps),
            weight.dtype,
        ),
        "of weights": ((groups, n, channels * taps, m), call("NT", shared), weight.dtype),
    }
