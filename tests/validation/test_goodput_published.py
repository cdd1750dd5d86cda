"""Figures of long runs that others published, against the simulation; docs/goodput.md shows this very table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validation.published_goodput import Row, markdown, rows

PAGE = Path(__file__).parents[2] / "docs" / "goodput.md"


@pytest.fixture(scope="module")
def table() -> list[Row]:
    return rows()


def test_predictions_are_as_near_as_the_table_says(table: list[Row]) -> None:
    far = {row.id: row.error for row in table if row.within is not None and abs(row.error) > row.within}
    assert {} == far


def test_published_bounds_hold(table: list[Row]) -> None:
    assert [] == [row.id for row in table if row.bound == "least" and row.predicted < row.published]


def test_every_row_has_a_source_and_says_what_it_leaves_open(table: list[Row]) -> None:
    assert [] == [row.id for row in table if len(row.source) < 8 or len(row.left_open) < 8]


def test_the_page_shows_this_table(table: list[Row]) -> None:
    assert markdown(table) in PAGE.read_text()
