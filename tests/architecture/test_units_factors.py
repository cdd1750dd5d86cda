"""Units are converted in simulator/units.py and nowhere else: no power of ten scales a number in other code."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import pytest

from tests.package_sources import package_sources

FACTORS = {10.0**n for n in (3, 6, 9, 12, 15, 18, -3, -6, -9, -12)} | {2.0**n for n in (10, 20, 30, 40)}
"""Looked for where a number is multiplied or divided; limits and tolerances (compared, added, passed on) are no factors."""

TOLERANCES = {1e-9, 1e-12}
"""May multiply: `x * (1 + 1e-9)` and `1e-9 * scale` are tolerances relative to a value.  As a divisor they convert units."""


def value_of(node: ast.expr) -> float | None:
    """The number a literal expression stands for: 1e6, 10**9, 2.0**30, 1 << 20, -1e3; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = value_of(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
        left, right = value_of(node.left), value_of(node.right)
        if left is None or right is None or abs(right) > 64:
            return None
        return left**right if isinstance(node.op, ast.Pow) else left * 2.0**right
    return None


def factors(nodes: Iterable[ast.AST]) -> list[int]:
    """Lines on which a value is multiplied by, or divided by, a factor between units."""
    found = []
    for node in nodes:
        if isinstance(node, ast.BinOp):
            op, left, right = node.op, value_of(node.left), value_of(node.right)
        elif isinstance(node, ast.AugAssign):
            op, left, right = node.op, None, value_of(node.value)
        else:
            continue
        if isinstance(op, ast.Mult) and (left is None) != (right is None):
            number = left if right is None else right
            if number in FACTORS - TOLERANCES:
                found.append(node.lineno)
        elif isinstance(op, (ast.Div, ast.FloorDiv)) and left is None and right in FACTORS:
            found.append(node.lineno)
    return found


def test_no_factor_between_units_outside_units() -> None:
    found = [
        f"{source.place}:{line}"
        for source in package_sources()
        if source.module != ("simulator", "units")
        for line in factors(source.nodes)
    ]
    assert [] == found


@pytest.mark.parametrize(
    "source",
    ["y = x * 1e6", "y = 1e-3 * x", "x *= 1e9", "y = x / 10**9", "y = x / 2**30", "y = x / 1e12", "y = x // 1024"],
)
def test_a_conversion_is_seen(source: str) -> None:
    assert [1] == factors(ast.walk(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["y = x * 2", "ok = x <= 1e6", "ok = a > b * (1 + 1e-9)", "y = f(x, maximum=10**9)", "y = 12 * x / 8"]
)
def test_limits_tolerances_and_formulas_are_not(source: str) -> None:
    assert [] == factors(ast.walk(ast.parse(source)))
