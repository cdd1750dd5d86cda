"""Single changes of a source: operators, constants and words turned round."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "mutants_of"]

_OPERATORS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Add: "-", ast.Sub: "+",
    ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
_WORDS = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: text from `begin` to `end` (line from 1, column in bytes) of a file becomes `becomes`."""

    path: Path
    begin: tuple[int, int]
    end: tuple[int, int]
    becomes: str

    def applied(self, source: str) -> str:
        """Return the source with the change."""
        lines = source.encode().split(b"\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line) + 1)
        low, high = (starts[row - 1] + column for row, column in (self.begin, self.end))
        raw = source.encode()
        return (raw[:low] + self.becomes.encode() + raw[high:]).decode()

    def line(self, source: str) -> str:
        """Return the changed line, without its indentation."""
        return self.applied(source).split("\n")[self.begin[0] - 1].strip()


def mutants_of(path: Path, source: str) -> Iterator[Mutant]:
    """Yield every change of one operator, constant or word; what is left may be no program (an operand in parentheses).

    >>> source = "a = min(b, 2) if b < c and d else e"
    >>> sorted(mutant.applied(source) for mutant in mutants_of(Path("x.py"), source))[:2]
    ['a = max(b, 2) if b < c and d else e', 'a = min(b, 2) if b < c or d else e']
    """

    def between(left: ast.AST, right: ast.AST, operator: ast.AST) -> Mutant | None:
        begin = (left.end_lineno, left.end_col_offset)  # type: ignore[attr-defined]
        end = (right.lineno, right.col_offset)  # type: ignore[attr-defined]
        becomes = _OPERATORS.get(type(operator))
        return Mutant(path, begin, end, f" {becomes} ") if becomes and begin[0] == end[0] else None

    tree = ast.parse(source)
    decorators = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())]
    passed_over = {
        id(inner) for one in decorators for inner in ast.walk(one)
    }  # frozen=True, maxsize=64: no behaviour of ours
    for node in ast.walk(tree):
        if id(node) in passed_over:
            continue
        found: list[Mutant | None] = []
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            found.append(between(node.left, node.comparators[0], node.ops[0]))
        elif isinstance(node, ast.BinOp):
            found.append(between(node.left, node.right, node.op))
        elif isinstance(node, ast.BoolOp):
            found += [between(a, b, node.op) for a, b in zip(node.values, node.values[1:], strict=False)]
        elif isinstance(node, ast.Name) and node.id in _WORDS:
            end = (node.lineno, node.col_offset + len(node.id))
            found.append(Mutant(path, (node.lineno, node.col_offset), end, _WORDS[node.id]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int) and node.end_col_offset is not None:
            becomes = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
            found.append(Mutant(path, (node.lineno, node.col_offset), (node.lineno, node.end_col_offset), becomes))
        for mutant in found:
            if mutant is not None:
                yield mutant
