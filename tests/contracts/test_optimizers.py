"""Every optimizer that the family lists keeps the contract; those shipped hold the states of their papers."""

from __future__ import annotations

import dataclasses

import pytest

from simulator.errors import UnknownNameError
from simulator.testing.optimizer_contract import OptimizerContract, States, StateTensor
from simulator.workload.optimizers import OPTIMIZERS
from simulator.workload.optimizers.adam import Adam
from simulator.workload.optimizers.base import Optimizer


def moments(*names: str) -> States:
    """States as large as the weight, of the width of the weight that is updated."""
    return lambda shape, wide: [StateTensor(name=name, shape=shape, bytes=wide) for name in names]


def in_8_bits(shape: tuple[int, ...], wide: int) -> list[StateTensor]:
    """Two moments of one byte, each with an fp32 scale per block of 256 numbers (Dettmers et al., section 2)."""
    blocks = (shape[0] * shape[1] // 256,)
    return [
        StateTensor(name=f"{order} {what}", shape=size, bytes=width)
        for order in ("first", "second")
        for what, size, width in (("moment", shape, 1), ("scales", blocks, 4))
    ]


def factored(shape: tuple[int, ...], wide: int) -> list[StateTensor]:
    """The second moment as sums over rows and over columns, in fp32 (Shazeer & Stern, algorithm 4)."""
    rows, columns = shape
    return [StateTensor(name="rows", shape=(rows,), bytes=4), StateTensor(name="columns", shape=(columns,), bytes=4)]


SHIPPED: dict[str, States] = {
    "adafactor": factored,
    "adam": moments("first moment", "second moment"),
    "adam_8bit": in_8_bits,
    "adam_fused": moments("first moment", "second moment"),
    "lamb": moments("first moment", "second moment"),
    "lars": moments("momentum"),
    "lion": moments("momentum"),
    "sgd": moments("momentum"),
}


@pytest.mark.parametrize("member", list(OPTIMIZERS), ids=lambda member: member.name)
def test_an_optimizer_keeps_its_contract(member: Optimizer) -> None:
    contract = OptimizerContract(member)
    contract.check_identity()
    contract.check_traffic()
    assert member is OPTIMIZERS.get(member.name)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_optimizer_holds_the_states_of_its_paper(name: str) -> None:
    OptimizerContract(OPTIMIZERS.get(name)).check_all(SHIPPED[name])


def test_the_contract_catches_a_state_too_few_and_a_state_too_narrow() -> None:
    adam = OptimizerContract(Adam())
    with pytest.raises(AssertionError, match=r"keeps 8 B per parameter .*momentum \[4096, 4096\] of 4 B\) take 4"):
        adam.check_states(moments("momentum"))
    with pytest.raises(AssertionError, match=r"keeps 4 B per parameter with weights of 2 B, .* take 8"):
        adam.check_states(lambda shape, _: moments("first moment", "second moment")(shape, 4))
    with pytest.raises(AssertionError, match="name of its own"):
        adam.check_states(moments("moment", "moment"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"read": 15.0}, "reads 15 B .* are 16"),
        ({"written": 13.0}, "writes 13 B .* are 14"),
        ({"fused_launches": 0}, "fused_launches"),
        ({"flops": float("nan")}, "finite"),
        ({"separate": 29.0}, "moves no less"),
    ],
)
def test_the_contract_catches_bytes_that_are_forgotten(wrong: dict[str, float], says: str) -> None:
    class Broken(Adam):
        def cost(self, weight_bytes: int, gradient_bytes: int, master_weights: bool):
            return dataclasses.replace(super().cost(weight_bytes, gradient_bytes, master_weights), **wrong)

    with pytest.raises(AssertionError, match=says):
        OptimizerContract(Broken()).check_traffic()


def test_adam_moves_thirty_bytes_per_parameter_in_mixed_precision() -> None:
    """fp32 master and two moments read and written (24), fp32 gradient read (4), 16-bit weight written (2)."""
    cost = OPTIMIZERS.get("adamw").cost(2, 4, True)
    assert 30 == cost.read + cost.written


def test_moments_are_as_wide_as_the_weights_that_are_updated() -> None:
    """bf16 alone: 2 + 2 bytes of moments; in 8 bits 1 + 1 and an fp32 scale per 256 numbers for each."""
    assert 4.0 == OPTIMIZERS.get("adam").cost(2, 2, False).state
    assert 2.0 + 8.0 / 256 == OPTIMIZERS.get("adamw_8bit").cost(2, 4, True).state


def test_unknown_optimizer_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'adam'"):
        OPTIMIZERS.get("adamm")
