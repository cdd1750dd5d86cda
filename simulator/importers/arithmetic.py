"""Small expressions that files write in place of numbers: sums of products, and lists such as ([0]*3+[1]*58).

Parsed as Python's grammar has them, then calculated here: nothing is evaluated.
"""

from __future__ import annotations

import ast

__all__ = ["whole_number", "whole_numbers"]

_MOST_ITEMS = 10_000
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


def whole_number(text: str) -> int | None:
    """Return the value of a sum of products of whole numbers, divided as a shell divides; None when it is none.

    >>> whole_number("2 * (8 + 1) / 4"), whole_number("2 ** 99"), whole_number("import os")
    (4, None, None)
    """
    if len(text) > 300:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _calculate(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return None


def _calculate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculate(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        a, b = _calculate(node.left), _calculate(node.right)
        if isinstance(node.op, ast.Add):
            value = a + b
        elif isinstance(node.op, ast.Sub):
            value = a - b
        elif isinstance(node.op, ast.Mult):
            value = a * b
        elif isinstance(node.op, ast.Mod):
            value = a % b
        else:
            value = a // b
        if abs(value) < 2**62:
            return value
    raise ValueError("no whole number")


def whole_numbers(text: str) -> list[int] | None:
    """Return the list that a sum of repeated lists stands for; None when it is none.

    >>> whole_numbers("([0]*3+[1]*2)"), whole_numbers("[1] * 10**9")
    ([0, 0, 0, 1, 1], None)
    """
    if len(text) > 3000:
        return None
    try:
        return _list(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError):
        return None


def _list(node: ast.expr) -> list[int]:
    if isinstance(node, ast.List):
        return [_calculate(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        found = _list(node.left) + _list(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        inner, times = (node.left, node.right) if not isinstance(node.left, ast.Constant) else (node.right, node.left)
        items, count = _list(inner), _calculate(times)
        if len(items) * count > _MOST_ITEMS:
            raise ValueError("too long")
        found = items * count
    else:
        raise ValueError("no list")
    if len(found) > _MOST_ITEMS:
        raise ValueError("too long")
    return found
