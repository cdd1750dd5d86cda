"""What belongs together is a value with fields: no text is taken apart at a colon but what a user, a file or other software wrote."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest

from tests.package_sources import PACKAGE, package_sources

BORDER = (
    "cli/",
    "importers/",
    "capture/",
    "calibration/collectives/read/",
    "hardware/coefficients.py",
    "program/text_parser.py",
)
"""Where such text comes in: rooms, and files that read a format of our own."""

CUTS = ("split", "rsplit", "partition", "rpartition")


def cuts(nodes: Iterable[ast.AST]) -> list[int]:
    """Lines on which a text is cut at a colon."""
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CUTS
        and any(isinstance(a, ast.Constant) and a.value == ":" for a in (*node.args, *(k.value for k in node.keywords)))
    ]


def test_text_is_taken_apart_at_the_border_only() -> None:
    found = {
        str(source.path.relative_to(PACKAGE)): lines for source in package_sources() if (lines := cuts(source.nodes))
    }
    assert {} == {place: lines for place, lines in found.items() if not place.startswith(BORDER)}
    assert set() == {border for border in BORDER if not any(place.startswith(border) for place in found)}


@pytest.mark.parametrize("source", ['kind = name.split(":")[0]', 'a, _, b = f(x).partition(":")', 'x.rsplit(sep=":")'])
def test_a_cut_is_seen(source: str) -> None:
    assert [1] == cuts(ast.walk(ast.parse(source)))


@pytest.mark.parametrize("source", ["words = line.split()", 'name = ":".join(parts)', 'head = text.partition("=")[0]'])
def test_other_splits_and_joins_are_not(source: str) -> None:
    assert [] == cuts(ast.walk(ast.parse(source)))
