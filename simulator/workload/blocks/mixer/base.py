"""The contract of a mixer: from a layer's normed input to what is added to the residual stream."""

from __future__ import annotations

import abc

from simulator.workload.builder import LayerBuilder
from simulator.workload.graph import Tensor

__all__ = ["Mixer"]


class Mixer(abc.ABC):
    """What mixes the tokens of a layer."""

    name: str
    source: str
    state = False
    """Whether it carries a state along the sequence, in place of attention."""

    @abc.abstractmethod
    def build(self, g: LayerBuilder, x: Tensor) -> Tensor:
        """Add its operations to a layer; return what is added to the residual stream (batch, sequence, hidden).

        Args:
            x: the normed input (batch, sequence, hidden).
        """
