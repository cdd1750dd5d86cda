"""The contract of a kind of attention: from a layer's normed input to the attention's output, before the output projection."""

from __future__ import annotations

import abc

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Tensor
from simulator.workload.model_fields import ModelFields

__all__ = ["Attention"]


class Attention(abc.ABC):
    """How queries, keys and values are made of a layer's input."""

    name: str
    source: str

    def check(self, model: ModelFields) -> None:  # noqa: B027 - most kinds go with every model
        """Refuse a model whose fields do not go with it.

        Raises:
            ValueError: the rule, the values and a way out.
        """

    @abc.abstractmethod
    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """Add its operations to a layer; return the output, of dimensions (batch, sequence, heads, value_dim).

        Args:
            x: the normed input (batch, sequence, hidden).
        """
