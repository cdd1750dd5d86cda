"""Which operators of a layer with experts have no kernel of their own, because others do their work.

An exchange that sends a row once to every node that needs it makes the copies there and sums them on the way back (DeepEP, HybridEP), so
there is nothing to permute in front of it.  Where the grouped products apply the activation function and write narrow results
themselves, both ways (cuDNN's fused grouped MLP), the activation function, weighted biases and the casts of what lies between the two
products are gone.  What is kept for backward stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.workload.operator import KernelStyle, Operator

__all__ = ["with_kernels"]


def with_kernels(operators: Sequence[Operator], style: KernelStyle, once: bool) -> tuple[Operator, ...]:
    """Return the operators that run kernels of their own.

    Args:
        once: whether ranks exchange rows, and a node gets each of them once.
    """
    return tuple(
        o
        for o in operators
        if not (style.fuses_experts and o.op.absorbed == "grouped") and not (once and o.op.absorbed == "exchange")
    )
