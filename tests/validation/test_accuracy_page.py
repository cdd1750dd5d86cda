"""The first table of docs/accuracy.md holds what the runs behind the bands come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validation.evidence import lines

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


@pytest.mark.slow
def test_what_is_known_errs_as_the_page_states() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [] == [line for line in lines() if line not in page]
