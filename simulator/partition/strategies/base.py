"""The contract of a way to lay a layer out over the ranks of tensor parallelism."""

from __future__ import annotations

import abc

from simulator.errors import LayoutError
from simulator.partition.layout import Rule, rule

__all__ = ["TENSOR", "Strategy"]

TENSOR = "tensor"
"""The mesh axis of tensor parallelism, where a strategy does not cut it into several."""


class Strategy(abc.ABC):
    """Which dimensions of a model's tensors lie on the ranks of tensor parallelism."""

    name: str
    source: str
    """Where it is described."""
    axes: tuple[str, ...] = (TENSOR,)
    """The mesh axes that it lays dimensions on; the first has consecutive ranks."""
    output_stationary = False
    panels = False
    keeps_gathered = False
    """As of `Layout`."""

    @property
    @abc.abstractmethod
    def dims(self) -> frozenset[str]:
        """Names of the widths that are divided; of any one activation at most one."""

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of the layout."""
        return (rule(TENSOR, *self.dims),)

    def mesh(self, ranks: int, shape: tuple[int, ...] | None = None) -> tuple[tuple[str, int], ...]:
        """Return the axes and their ranks.

        Args:
            ranks: of tensor parallelism.
            shape: as a plan declares it (`tensor_mesh`); None = as the strategy has it.

        Raises:
            LayoutError: the ranks, or the shape, are not what the strategy needs.
        """
        if shape is not None:
            raise LayoutError(
                f"tensor_mesh shapes the ranks of layouts on several mesh axes, but tensor_mesh = {list(shape)} and layout = {self.name!r} "
                "has one. Way out: leave tensor_mesh out, or layout = 'summa_2d'."
            )
        return ((TENSOR, ranks),)
