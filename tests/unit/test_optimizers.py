"""Optimizer costs."""

from __future__ import annotations

import pytest

from simulator.errors import UnknownNameError
from simulator.workload.optimizers import OPTIMIZERS


@pytest.mark.parametrize("member", list(OPTIMIZERS), ids=lambda m: m.name)
def test_every_optimizer_gives_a_sound_cost(member: object) -> None:
    mixed, plain = member.cost(2, 4, True), member.cost(4, 4, False)
    assert mixed.state > 0
    assert mixed.read > mixed.state
    assert mixed.written > mixed.state
    assert mixed.fused_launches >= 1
    assert plain.state == mixed.state
    assert member.cost(2, 2, False).state <= plain.state
    assert member.source


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
