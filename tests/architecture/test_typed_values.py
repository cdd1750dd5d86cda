"""What belongs together is a value with fields: no text is taken apart at a colon but what a user, a file or other software wrote, and
nothing is decided by a label, which is for people."""

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
LOOKS = (*CUTS, "startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "count", "replace")
SHOWS = ("report/",)
"""Rooms that shorten labels to show them."""


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


def is_label(node: ast.AST) -> bool:
    """Whether an expression is a label, or one of a column of them."""
    if isinstance(node, ast.Subscript):
        return is_label(node.value)
    return (isinstance(node, ast.Name) and node.id == "label") or (
        isinstance(node, ast.Attribute) and node.attr == "label"
    )


def label_looks(nodes: Iterable[ast.AST]) -> list[int]:
    """Lines on which it matters what a label is: a method looks into it, or it is compared with a text that stands there."""
    out = []
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in LOOKS and is_label(node.func.value):
                out.append(node.lineno)
        elif isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            texts = [one for side in sides for one in ast.walk(side) if isinstance(one, ast.Constant)]
            if any(map(is_label, sides)) and any(isinstance(one.value, str) and one.value for one in texts):
                out.append(node.lineno)
    return out


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


def test_no_label_decides_anything() -> None:
    found = {
        str(source.path.relative_to(PACKAGE)): lines
        for source in package_sources()
        if (lines := label_looks(source.nodes))
    }
    assert {} == {place: lines for place, lines in found.items() if not place.startswith(SHOWS)}


@pytest.mark.parametrize(
    "source", ["o.label.startswith(names)", 'table.label[i] == "softmax"', '"scores" in label', 'label in ("a", "b")']
)
def test_a_look_at_a_label_is_seen(source: str) -> None:
    assert [1] == label_looks(ast.walk(ast.parse(source)))


@pytest.mark.parametrize("source", ['f"{o.label} sums"', "label == other", 'op.role == "softmax"', 'label or ""'])
def test_a_label_that_is_passed_on_is_not(source: str) -> None:
    assert [] == label_looks(ast.walk(ast.parse(source)))
