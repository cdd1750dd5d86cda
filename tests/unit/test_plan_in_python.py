"""A plan that is made in Python is refused in the words of a file's."""

import pytest

from simulator import Plan
from simulator.errors import SpecError


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"tensor_paralel": 8}, "Plan: tensor_paralel = 8: unknown key. Did you mean tensor_parallel?"),
        ({"tensor_parallel": "x"}, 'Plan: tensor_parallel = "x": expected a whole number such as 8, got text'),
        ({"zero_stage": 9}, "Plan: zero_stage = 9: expected at most 3"),
    ],
)
def test_a_wrong_field_is_told_in_one_line(values: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError) as error:
        Plan(**values)  # type: ignore[arg-type]
    assert str(error.value).startswith(says)
    assert "pydantic" not in str(error.value)
