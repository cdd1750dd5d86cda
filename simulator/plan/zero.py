"""ZeRO: what each stage shards over the data-parallel group.

Bytes of model state per GPU for P parameters on N replicas (Rajbhandari et al., arXiv 1910.02054, section 3 and Table 1),
with weight bytes w, gradient bytes g, optimizer bytes k (12 for Adam in mixed precision: fp32 weight and two moments):

    stage 0: (w + g + k) P        stage 2: w P + (g + k) P / N
    stage 1: (w + g) P + k P / N  stage 3: (w + g + k) P / N
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ModelStates", "model_states"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStates:
    """Bytes of model state on one GPU."""

    weights: float
    gradients: float
    optimizer_states: float

    @property
    def total(self) -> float:
        """All three [B]."""
        return self.weights + self.gradients + self.optimizer_states


def model_states(
    parameters: float,
    *,
    weight: float,
    gradient: float,
    optimizer: float,
    zero_stage: int,
    replicas: int,
    lanes: int = 1,
) -> ModelStates:
    """Return the model-state bytes per GPU.

    Args:
        parameters: weights held by one replica's rank before sharding [count].
        weight, gradient, optimizer: bytes per parameter.
        zero_stage: 0 to 3.
        replicas: size of the sharding group.
        lanes: copies that a schedule keeps on other pipeline ranks; ZeRO-1 and 2 shard optimizer states over them too.

    >>> model_states(7.5e9, weight=2, gradient=2, optimizer=12, zero_stage=1, replicas=64).total
    31406250000.0
    """
    share = [replicas if zero_stage >= stage else 1 for stage in (1, 2, 3)]
    share[0] *= lanes if zero_stage in (1, 2) else 1
    return ModelStates(
        weights=parameters * weight / share[2],
        gradients=parameters * gradient / share[1],
        optimizer_states=parameters * optimizer / share[0],
    )
