"""Mutation testing: turn single operators, constants and words of the product round, and see whether a test notices.

    python -m tests.mutate --count 200 --seed 1                       random mutants of the rooms below
    python -m tests.mutate --since main                               of the files changed since a commit
    python -m tests.mutate simulator/collectives --tests tests/unit   of some files, judged by some tests

Works in a copy of the tree, one mutant after the other.  Prints every survivor with its line; leaves 1 when fewer than --least of
the mutants are killed.  A survivor may be equivalent (a bound that only rounds): whoever reads the list decides.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "mutants_of"]

ROOT = Path(__file__).resolve().parents[1]
ROOMS = tuple(f"simulator/{room}" for room in ("lowering", "costs", "engine", "collectives", "schedules", "report"))
TESTS = ("tests/unit", "tests/golden", "tests/contracts", "tests/differential", "tests/replay")
_OPERATORS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Add: "-", ast.Sub: "+",
    ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
_WORDS = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: text from `begin` to `end` (line from 1, column) of a file becomes `becomes`."""

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

    for node in ast.walk(ast.parse(source)):
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


def _is_program(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _files(arguments: argparse.Namespace) -> list[Path]:
    if arguments.since:
        words = ["git", "diff", "--name-only", arguments.since, "--", *(arguments.paths or ["simulator"])]
        changed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        return [Path(name) for name in changed if name.endswith(".py") and (ROOT / name).exists()]
    found = [ROOT / name for name in arguments.paths or ROOMS]
    files = [file for path in found for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [file.relative_to(ROOT) for file in files]


def _survives(copy: Path, tests: list[str]) -> bool:
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *tests]
    try:
        return subprocess.run(words, cwd=copy, capture_output=True, timeout=1800).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    """Return 0 when enough mutants were killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("paths", nargs="*", help="files or folders; default: the rooms of physics and time")
    parser.add_argument("--since", metavar="COMMIT", help="only files changed since this commit")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--least", type=float, default=0.95)
    arguments = parser.parse_args()
    every = [m for path in _files(arguments) for m in mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))]
    random.Random(arguments.seed).shuffle(every)
    programs = (m for m in every if _is_program(m.applied((ROOT / m.path).read_text(encoding="utf-8"))))
    chosen = list(itertools.islice(programs, arguments.count))
    print(f"{len(chosen)} of {len(every)} mutants, seed {arguments.seed}")
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "build", ".mypy_cache", ".venv"))
        for mutant in chosen:
            source = (copy / mutant.path).read_text(encoding="utf-8")
            (copy / mutant.path).write_text(mutant.applied(source), encoding="utf-8")
            survives = _survives(copy, arguments.tests)
            (copy / mutant.path).write_text(source, encoding="utf-8")
            killed += not survives
            if survives:
                row = mutant.begin[0]
                print(
                    f"survived: {mutant.path}:{row}: {source.splitlines()[row - 1].strip()}  ->  {mutant.becomes.strip()}"
                )
    print(f"killed {killed} of {len(chosen)} ({killed / max(len(chosen), 1):.0%})")
    return int(killed < arguments.least * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
