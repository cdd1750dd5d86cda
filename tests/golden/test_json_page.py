"""The page of JSON answers says what is declared."""

from __future__ import annotations

from tests.golden.json_page import PAGE, text


def test_the_page_is_made_of_the_declarations() -> None:
    assert PAGE.read_text() == text()
