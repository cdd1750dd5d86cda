"""The contract of a way to lay a layer out over the ranks of tensor parallelism."""

from __future__ import annotations

import abc

from simulator.partition.layout import Rule, rule

__all__ = ["TENSOR", "Strategy"]

TENSOR = "tensor"
"""The mesh axis of tensor parallelism."""


class Strategy(abc.ABC):
    """Which dimensions of a model's tensors lie on the ranks of tensor parallelism."""

    name: str
    source: str
    """Where it is described."""

    @property
    @abc.abstractmethod
    def dims(self) -> frozenset[str]:
        """Names of the dimensions that are divided; of any one tensor, and of the tensors of any one product, at most one."""

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of the layout."""
        return (rule(TENSOR, *self.dims),)
