"""Memory of the loss, by hand: bytes per logit beside what the loss saves."""

from __future__ import annotations

import pytest

from simulator.lowering.layers.loss_memory import loss_marks
from simulator.workload.operator import KernelStyle


def per_logit(style: KernelStyle, tensor: int, gradient: float = 0.0) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes by category, forward and backward, of a thousand logits in 16 bits."""
    marks = loss_marks(style, 1000.0, tensor, 2.0, gradient)
    forward, backward = ({t.category: t.bytes / 1000.0 for t in side} for side in marks)
    return forward, backward


@pytest.mark.parametrize(
    ("style", "tensor", "forward", "backward"),
    [
        # Megatron works in place: 16-bit logits, then 16-bit gradients; a rank of four has a quarter
        (KernelStyle(), 1, {"workspace": 2.0}, {"workspace": 2.0}),
        (KernelStyle(), 4, {"workspace": 0.5}, {"workspace": 0.5}),
        # torch: fp32 copy beside them; backward two fp32 gradients, and the 16-bit logits
        (KernelStyle(in_place_cross_entropy=False), 1, {"workspace": 6.0}, {"workspace": 8.0, "logits": 2.0}),
        # torch on the logits as they are: no copy, and all of it in 16 bits
        (
            KernelStyle(in_place_cross_entropy=False, widens_logits=False),
            1,
            {"workspace": 2.0},
            {"workspace": 4.0, "logits": 2.0},
        ),
        # DTensor's split loss: one fp32 number more
        (KernelStyle(in_place_cross_entropy=False), 2, {"workspace": 3.0}, {"workspace": 6.0, "logits": 1.0}),
        # one fused kernel: no fp32 copy; in place: gradients where the logits were; Megatron-Core's: fp32 logits all the same
        (
            KernelStyle(fused_cross_entropy=True, in_place_cross_entropy=False),
            1,
            {"workspace": 2.0},
            {"workspace": 2.0},
        ),
        (KernelStyle(fused_cross_entropy=True), 1, {}, {}),
        (KernelStyle(fused_cross_entropy=True, widens_fused_loss=True), 1, {"workspace": 6.0}, {"workspace": 2.0}),
        # four chunks, each forward and backward at once: nothing is left for the backward
        (KernelStyle(in_place_cross_entropy=False, loss_chunks=4), 1, {"workspace": 2.5}, {}),
        # gathered: every rank has all of them, and one rank's form of the loss
        (
            KernelStyle(in_place_cross_entropy=False, gathers_logits=True),
            2,
            {"workspace": 6.0},
            {"workspace": 8.0, "logits": 2.0},
        ),
    ],
)
def test_bytes_per_logit(
    style: KernelStyle, tensor: int, forward: dict[str, float], backward: dict[str, float]
) -> None:
    assert (forward, backward) == per_logit(style, tensor)


def test_a_gradient_made_in_the_place_of_logits_leaves_the_rest_of_it_useless() -> None:
    style = KernelStyle(makes_gradients=True)
    assert 4.0 - 1.5 == pytest.approx(per_logit(style, 1, gradient=1500.0)[0]["fragmentation"])
    assert "fragmentation" not in per_logit(style, 1, gradient=4000.0)[1]
