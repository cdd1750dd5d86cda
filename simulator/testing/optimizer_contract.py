"""What every optimizer must keep, ours and other people's: the states it holds, and the bytes that its update must move.

`OptimizerContract(optimizer).check_all(states)` raises an AssertionError that names the broken promise and the precision.
`states` lists what the rule keeps between steps, tensor by tensor, as its paper has it; the optimizer's own file states
bytes per parameter, and both must be the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simulator.testing.member_contract import MemberContract
from simulator.workload.optimizers.base import Optimizer, OptimizerCost

__all__ = ["MATRIX", "OptimizerContract", "StateTensor", "States"]

MATRIX = (4096, 4096)
"""Shape of the weight whose states are listed: costs per parameter are those of a matrix of this size."""

_PRECISIONS = ((2, 4, True), (2, 2, True), (4, 4, False), (2, 2, False))
"""Bytes of a weight, bytes of its gradient, and whether an fp32 copy of the weight is what is updated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """A tensor that an optimizer keeps from step to step.

    Args:
        name: of the state, such as "first moment".
        shape: its dimensions.
        bytes: of one of its numbers: 4 for fp32, 1 for 8 bits.
    """

    name: str
    shape: tuple[int, ...]
    bytes: float

    @property
    def size(self) -> float:
        """Bytes of the whole tensor [B]."""
        return math.prod(self.shape) * self.bytes


States = Callable[[tuple[int, ...], int], Iterable[StateTensor]]
"""(shape of the weight, bytes of a number of the weight that is updated) -> the states kept for it."""


class OptimizerContract(MemberContract[Optimizer]):
    """The promises of one optimizer, over the precisions that it meets."""

    what = "optimizer"

    def check_all(self, states: States) -> None:
        """Check every promise below.

        Raises:
            AssertionError: one is broken.
        """
        self.check_identity()
        self.check_states(states)
        self.check_traffic()

    def check_identity(self) -> None:
        """Check that the name is the file's, and that source and aliases are given.

        Raises:
            AssertionError: one is missing or wrong.
        """
        member = self.member
        self.check_named()
        self._require(all(isinstance(alias, str) and alias for alias in member.aliases), "its aliases are names")
        whole = isinstance(member.listed_results, int) and member.listed_results >= 0
        self._require(whole, f"listed_results is a whole number >= 0, not {member.listed_results!r}")

    def check_states(self, states: States) -> None:
        """Check that the bytes kept per parameter are those of the states listed for a matrix: their number, shapes, widths.

        Raises:
            AssertionError: they are not.
        """
        for weight, gradient, master in _PRECISIONS:
            kept = list(states(MATRIX, 4 if master else weight))
            self._require(len({state.name for state in kept}) == len(kept), "every state has a name of its own")
            expected = sum(state.size for state in kept) / math.prod(MATRIX)
            found = self.member.cost(weight, gradient, master).state
            listed = ", ".join(f"{state.name} {list(state.shape)} of {state.bytes:g} B" for state in kept) or "none"
            self._require(
                math.isclose(found, expected, rel_tol=1e-9, abs_tol=0.0),
                f"it keeps {found:g} B per parameter with {_words(weight, gradient, master)}, but the states listed "
                f"({listed}) take {expected:g}",
            )

    def check_traffic(self) -> None:
        """Check that an update reads its states, the weight and the gradient, and writes states and weights, at the least.

        Raises:
            AssertionError: bytes are missing, or a figure is not finite.
        """
        for weight, gradient, master in _PRECISIONS:
            cost, where = self.member.cost(weight, gradient, master), _words(weight, gradient, master)
            figures = (cost.state, cost.read, cost.written, cost.flops, cost.separate)
            self._require(
                all(math.isfinite(f) and f >= 0 for f in figures), f"finite figures >= 0 with {where}: {cost}"
            )
            self._require(cost.flops > 0, f"an update computes something with {where}")
            launches = isinstance(cost.fused_launches, int) and cost.fused_launches >= 1
            self._require(launches, f"fused_launches is a whole number >= 1 with {where}: {cost.fused_launches!r}")
            updated, rewritten = (4, weight) if master else (weight, 0)
            self._moves(cost.read, cost.state + updated + gradient, "reads", "states, weight and gradient", where)
            self._moves(cost.written, cost.state + updated + rewritten, "writes", "states and weights", where)
            self._require(
                cost.host_bytes(False) >= cost.host_bytes(True),
                f"without a fused kernel it moves no less with {where}: {cost}",
            )
        self._require(
            _state(self.member, 2, False) <= _state(self.member, 4, False),
            "narrower weights need no wider states",
        )

    def _moves(self, found: float, least: float, verb: str, what: str, where: str) -> None:
        fits = found >= least * (1 - 1e-9)
        self._require(fits, f"it {verb} {found:g} B per parameter with {where}, but {what} alone are {least:g}")


def _state(optimizer: Optimizer, weight: int, master: bool) -> float:
    cost: OptimizerCost = optimizer.cost(weight, weight, master)
    return cost.state


def _words(weight: int, gradient: int, master: bool) -> str:
    copy = " and an fp32 copy" if master else ""
    return f"weights of {weight} B{copy}, gradients of {gradient} B"
