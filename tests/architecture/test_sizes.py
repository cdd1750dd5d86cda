"""Rooms stay small, and no file bears a name that says nothing."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.package_sources import ROOT, package_sources

MOST_LINES = 450
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if "_data" not in path.parts]


def test_no_file_is_too_long_to_read() -> None:
    lengths = {
        path.relative_to(ROOT): len(path.read_text().splitlines()) for path in python_files("simulator", "tests")
    }
    assert {} == {str(path): lines for path, lines in lengths.items() if lines > MOST_LINES}


def test_half_of_the_files_fit_on_two_screens() -> None:
    lengths = sorted(len(path.read_text().splitlines()) for path in python_files("simulator"))
    assert lengths[len(lengths) // 2] <= 150


def test_names_of_files_say_what_they_hold() -> None:
    files = python_files("simulator", "tests", "notebooks")
    bad = [str(p.relative_to(ROOT)) for p in files if EMPTY_NAMES & {part.removesuffix(".py") for part in p.parts[-3:]}]
    assert [] == bad


def test_no_file_of_the_package_is_a_placeholder() -> None:
    """An __init__.py may be a bare marker; any other file has something in it."""
    bare = [
        str(path.relative_to(ROOT))
        for path in python_files("simulator")
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < 5
    ]
    assert [] == bare


def test_nothing_is_left_for_later() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "NotImplemented" + "Error")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in python_files("simulator", "tests", "notebooks")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(word in line for word in words)
    ]
    assert [] == found


def test_a_users_mistake_never_meets_an_assert() -> None:
    found = [
        f"{source.place}:{node.lineno}"
        for source in package_sources()
        if source.module[1] != "testing"
        for node in source.nodes
        if isinstance(node, ast.Assert)
    ]
    assert [] == found
