"""Unity's substitutions beside the best layouts there are (Unger et al., OSDI 2022; docs/surveys.md)."""

from __future__ import annotations

import pytest

from simulator.planners import PLANNERS
from simulator.studies.planning import Asked, make_problem


@pytest.mark.parametrize(
    ("model", "mesh", "over", "evaluations"),
    [
        ("gpt2_124m", "tensor=4", 1.0, 60),
        ("gpt2_124m", "tensor=8", 1.0, 60),
        ("llama3_8b", "x=4,y=4", 1.0, 800),
        ("gpt3_175b", "x=8,y=8", 1.0, 4_000),
        ("t5_base", "x=2,y=4", 1.08, 1_000),
        ("llama3_8b", "x=2,y=4", 1.36, 150),
    ],
)
def test_a_handful_of_substitutions_comes_near_the_best(model: str, mesh: str, over: float, evaluations: int) -> None:
    problem = make_problem("layout", model, Asked(mesh=mesh, batch=8))
    best, found = (PLANNERS.get(name).solve(problem) for name in ("elimination", "unity"))
    assert best.best_of
    assert found.cost <= over * best.cost * (1 + 1e-12)
    assert found.evaluations < min(evaluations, best.evaluations)
