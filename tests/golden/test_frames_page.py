"""The page of tables says what is declared."""

from __future__ import annotations

from tests.golden.frames_page import PAGE, text


def test_the_page_is_made_of_the_declarations() -> None:
    assert PAGE.read_text() == text()
