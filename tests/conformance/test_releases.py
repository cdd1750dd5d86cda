"""Two releases of megatron-core under the same script: what changed between them is all that profiles of releases may tell apart."""

from __future__ import annotations

from collections import Counter

import pytest

from simulator.capture.answer import saved_of
from tests.conformance.comparing import captured, flops_of, messages_of, products_of, recorded, sent_by

pytestmark = pytest.mark.slow

OLD = "megatron-core-0.13.1"
HALF = 4 * 2048 * 2816 * 2.0
"""Bytes of a half of all gates of the scripts' model."""
EXPERTS = "--experts 8 --expert-ranks 2 --tensor 2 --sequence"
CASES = {
    "--tensor 2 --sequence": {("forward", "aten.add"): 4},
    "--latent --tensor 2 --sequence": {("forward", "aten.add"): 4},
    "--tensor 2 --sequence --recompute selective --modules mlp": {
        ("forward", "aten.add"): 4, ("recompute", "aten.add"): 4,
    },
    # each of a rank's experts has a gate; the router's sum of what it chose has moved
    EXPERTS: {("forward", "aten.add"): 16, ("forward", "aten.sum"): -4},
    "--update --distributed-optimizer": {("forward", "aten.add"): 4},
}  # fmt: skip
"""Words of scripts/gpt.py -> what the newer release does beside: it adds an offset of zero to half of a gate (glu_linear_offset)."""


@pytest.mark.parametrize("words", CASES)
def test_releases_do_the_same_but_for_what_is_written_here(words: str) -> None:
    new, old = (captured("gpt.py:step", 8, words, release) for release in ("", OLD))

    for phase in ("forward", "recompute", "backward"):
        assert flops_of(new, phase) == flops_of(old, phase)
        assert products_of(new, phase) == products_of(old, phase)
    assert messages_of(new) == messages_of(old)
    assert sent_by(new) == sent_by(old)
    first, second = (
        Counter((e.phase, e.name) for e in recorded("gpt.py:step", 8, words, release).events) for release in ("", OLD)
    )
    assert CASES[words] == {key: first[key] - second[key] for key in first | second if first[key] != second[key]}


def test_the_newer_release_keeps_what_it_adds() -> None:
    new, old = (sum(saved_of(recorded("gpt.py:step", 8, "", release)).values()) for release in ("", OLD))

    assert HALF == pytest.approx(new - old, rel=1e-3)
