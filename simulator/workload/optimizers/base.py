"""The contract of an optimizer: state bytes per parameter and the memory traffic of its step."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace

__all__ = ["Optimizer", "OptimizerCost", "updated_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """What one parameter costs.

    Args:
        state: bytes kept from step to step, master weight not counted [B per parameter].
        read, written: bytes moved by the update, master weight, gradient and compute weight included [B per parameter].
        flops: floating-point operations [FLOP per parameter].
        fused_launches: kernels per update when fused over all tensors.
        separate: bytes moved when every arithmetic operation is a loop over fp32 arrays of its own, lines read before they are
            first written included (what an update on the CPU does without a kernel of its own); 0 = twice the fused ones.
        listed: bytes (read, written) when every operation is a kernel over a list of all tensors [B per parameter]; (0, 0) = it has
            no such form.
    """

    state: float
    read: float
    written: float
    flops: float
    fused_launches: int
    separate: float = 0.0
    listed: tuple[float, float] = (0.0, 0.0)

    def mixed(self, other: OptimizerCost, share: float) -> OptimizerCost:
        """Return the mean cost of a parameter where this share of them costs as the other, in kernels of its own.

        >>> one = OptimizerCost(state=4.0, read=10.0, written=8.0, flops=8.0, fused_launches=4)
        >>> one.mixed(replace(one, state=8.0), 0.25).state
        5.0
        """
        mean = {
            name: (1.0 - share) * getattr(self, name) + share * getattr(other, name)
            for name in ("state", "read", "written", "flops")
        }
        return replace(
            self, **mean, fused_launches=self.fused_launches + other.fused_launches, separate=0.0, listed=(0.0, 0.0)
        )

    def with_moments(self, formats: tuple[float, ...], wide: float) -> OptimizerCost:
        """Return the cost with moments of so many bytes each, in place of `wide` ones: each is kept, and read and written by one kernel.

        >>> one = OptimizerCost(state=8.0, read=16.0, written=14.0, flops=12.0, fused_launches=4, listed=(48.0, 32.0))
        >>> kept = one.with_moments((2.0, 2.0), 4.0)
        >>> kept.state, kept.read, kept.written, kept.listed
        (4.0, 12.0, 10.0, (0.0, 0.0))
        """
        less = sum(wide - size for size in formats)
        return replace(
            self,
            state=self.state - less,
            read=self.read - less,
            written=self.written - less,
            separate=0.0,
            listed=(0.0, 0.0),
        )

    def host_bytes(self, fused: bool) -> float:
        """Bytes that the CPU moves in its memory for one parameter's update [B]."""
        once = self.read + self.written
        return once if fused else self.separate or 2.0 * once


def updated_bytes(weight_bytes: int, master_weights: bool) -> tuple[float, float]:
    """Return the bytes of the weight that an update changes, and of the one that it then writes anew for the products.

    >>> updated_bytes(2, master_weights=True), updated_bytes(2, master_weights=False)
    ((4.0, 2.0), (2.0, 0.0))
    """
    return (4.0, float(weight_bytes)) if master_weights else (float(weight_bytes), 0.0)


class Optimizer(abc.ABC):
    """A rule that turns gradients into new weights.

    `listed_results`: results as large as all weights that an update over lists of tensors makes on its way; `looped_results`: as large
    as one tensor, of an update that takes one after the other in every code (0: it does not).  `norms`: of every whole tensor, that its
    update needs; ranks that have parts of tensors add them up, those of all tensors at once.  `newton_schulz`: iterations of Newton and
    Schulz on every matrix of a layer; `others`: the optimizer of what is none, "" = the same.  `moments`: numbers per parameter, as wide
    as the weights that are updated, that each update reads and writes once, and that may be kept in other formats.
    """

    name: str
    aliases: tuple[str, ...] = ()
    source: str
    listed_results: int = 1
    looped_results: int = 0
    norms: int = 0
    newton_schulz: int = 0
    others: str = ""
    moments: int = 0

    @abc.abstractmethod
    def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool) -> OptimizerCost:
        """Return the cost per parameter for weights and gradients of these sizes [B per parameter]."""
