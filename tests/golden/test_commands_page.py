"""The page of commands says what the verbs say."""

from __future__ import annotations

from tests.golden.commands_page import PAGE, text


def test_the_page_is_made_of_the_help() -> None:
    assert PAGE.read_text() == text()
