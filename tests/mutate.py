"""Mutation testing: turn single operators, constants and words of the product round, and see whether a test notices.

    python -m tests.mutate --count 200 --seed 1                       random mutants of the rooms below
    python -m tests.mutate --since main                               of the files changed since a commit
    python -m tests.mutate simulator/collectives --tests tests/unit   of some files, judged by some tests

A mutant is first judged by `--cases` of the predictions that tests/replay records, then by the tests that import its file,
at last by all of `--tests` (with --quick it is not).  Each judgement is a fork of this process, in which the mutated code takes the
place of the one that was imported; constants of modules and compiled functions need an import of their own.  Prints every survivor
with its line; leaves 1 when fewer than --least of the mutants are killed.  A survivor may be equivalent (a bound that only rounds):
whoever reads the list decides.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import itertools
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

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


def _judged(work: Callable[[], bool], seconds: int) -> bool:
    """Whether `work` in a fork of this process finds nothing: it returns True, and neither raises nor runs for ever."""
    child = os.fork()
    if not child:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            code = int(not work())
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _swapped(path: Path, source: str) -> bool:
    """Let the functions of an imported module be those of a mutated source; False when something else than these differs."""
    module = sys.modules.get(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    if module is None or "numba" in source:
        return False
    old, new = (compile(text, str(ROOT / path), "exec") for text in ((ROOT / path).read_text(encoding="utf-8"), source))
    bodies: dict[CodeType, CodeType] = {}
    if not _alike(old, new, bodies):
        return False
    met = 0
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__module__ == module.__name__:
            for before, after in bodies.items():
                if thing.__code__ == before and thing.__code__.co_firstlineno == before.co_firstlineno:
                    thing.__code__ = after
                    met += 1
    return met > 0


def _alike(old: CodeType, new: CodeType, bodies: dict[CodeType, CodeType]) -> bool:
    """Whether two modules (or classes in them) differ in the bodies of functions alone; these come into `bodies`."""
    if old.co_code != new.co_code or old.co_names != new.co_names or len(old.co_consts) != len(new.co_consts):
        return False
    for one, two in zip(old.co_consts, new.co_consts, strict=True):
        if isinstance(one, CodeType) and isinstance(two, CodeType):
            if one == two:
                continue
            if one.co_flags & inspect.CO_OPTIMIZED:
                if one.co_freevars:
                    return False
                bodies[one] = two
            elif not _alike(one, two, bodies):
                return False
        elif one != two or type(one) is not type(two):
            return False
    return True


def _predictions(most: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (case, its columns) of the replay: jobs first, then others in an order drawn once."""
    from tests.replay.cases import cases
    from tests.replay.figures import read_figures
    from tests.replay.recorder import Recorder

    work, recorder = dict(cases()), Recorder()
    wanted = list(read_figures())
    random.Random(1).shuffle(wanted)
    wanted.sort(key=lambda name: not name.startswith("job "))
    return ((name, recorder.digest(work[name])) for name in wanted[:most])


def _told(columns: dict[str, str]) -> str:
    return columns.get("figures") or "refused"


def _predicts(most: int, before: dict[str, str]) -> bool:
    """Whether the predictions of the replay are those of the tree without a mutant, to seven digits."""
    from tests.replay.figures import differing

    return not any(differing(before[name], columns) for name, columns in _predictions(most))


def _passes(tests: list[str]) -> bool:
    import pytest

    return not tests or pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]) == 0


def _about(path: Path) -> list[str]:
    """The quick tests that import a module, or hold one of a family to its contract."""
    module = ".".join(path.with_suffix("").parts)
    word = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(module.rpartition('.')[0])} import .*\b{path.stem}\b")
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if "validation" not in file.parts]
    family = path.parts[1].removesuffix("s")  # members of a family are found by their names, not imported
    return [
        str(file.relative_to(ROOT))
        for file in files
        if family in file.stem or word.search(file.read_text(encoding="utf-8"))
    ]


def _fresh(copy: Path, mutant: Mutant, source: str, work: Callable[[], bool]) -> Callable[[], bool]:
    """`work` in a process that has imported nothing of the product yet, with the mutated file in a copy of the tree."""

    def judge() -> bool:
        import numba

        (copy / mutant.path).write_text(source, encoding="utf-8")
        numba.config.DISABLE_JIT = (
            "numba" in source
        )  # what calls a mutated compiled function is cached with the old one
        for name in [name for name in sys.modules if name.split(".")[0] in ("simulator", "tests")]:
            del sys.modules[name]
        os.chdir(copy)
        sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
        sys.dont_write_bytecode = True
        return work()

    return judge


def _survives(copy: Path, mutant: Mutant, arguments: argparse.Namespace, before: dict[str, str]) -> bool:
    plain = (ROOT / mutant.path).read_text(encoding="utf-8")
    source = mutant.applied(plain)

    def with_swap(work: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: not _swapped(mutant.path, source) or work()

    swaps = not _judged(lambda: not _swapped(mutant.path, source), 60)
    steps: list[tuple[Callable[[], bool], int]] = [
        (lambda: _predicts(arguments.cases, before), 300),
        (lambda: _passes(_about(mutant.path)), 600),
    ]
    if not arguments.quick:
        steps.append((lambda: _passes(arguments.tests), 3600))
    try:
        return all(_judged(with_swap(w) if swaps else _fresh(copy, mutant, source, w), limit) for w, limit in steps)
    finally:
        (copy / mutant.path).write_text(plain, encoding="utf-8")


def _warm() -> None:
    """Import what mutants are judged with, so that each fork has it; nothing is computed, for what is kept would hide a mutant."""
    import importlib
    import pkgutil

    import simulator
    import tests.replay.cases
    import tests.replay.recorder  # noqa: F401

    for found in pkgutil.walk_packages(simulator.__path__, "simulator."):
        if not found.name.endswith("__main__") and ".cli." not in found.name:
            importlib.import_module(found.name)


def main() -> int:
    """Return 0 when enough mutants were killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("paths", nargs="*", help="files or folders; default: the rooms of physics and time")
    parser.add_argument("--since", metavar="COMMIT", help="only files changed since this commit")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="of the drawn mutants, to go on where a run was stopped")
    parser.add_argument("--cases", type=int, default=150, help="recorded predictions that are looked at first")
    parser.add_argument(
        "--quick", action="store_true", help="judge by predictions and the tests that import the file alone"
    )
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--least", type=float, default=0.95)
    arguments = parser.parse_args()
    every = [m for path in _files(arguments) for m in mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))]
    random.Random(arguments.seed).shuffle(every)
    programs = (m for m in every if _is_program(m.applied((ROOT / m.path).read_text(encoding="utf-8"))))
    chosen = list(itertools.islice(programs, arguments.count))[arguments.first :]
    print(f"{len(chosen)} of {len(every)} mutants, seed {arguments.seed}", flush=True)
    _warm()
    killed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "build", ".mypy_cache", ".venv"))
        record = Path(folder, "figures.json")
        if not _judged(
            lambda: bool(
                record.write_text(json.dumps({name: _told(columns) for name, columns in _predictions(arguments.cases)}))
            ),
            600,
        ):
            print("the predictions of the replay fail without any mutant: mend that first")
            return 2
        before = json.loads(record.read_text())
        for number, mutant in enumerate(chosen, arguments.first):
            survives = _survives(copy, mutant, arguments, before)
            killed += not survives
            row = mutant.begin[0]
            line = (ROOT / mutant.path).read_text(encoding="utf-8").splitlines()[row - 1].strip()
            said = f"{mutant.path}:{row}:{mutant.begin[1]}: {line}  ->  {mutant.becomes.strip()}"
            print(f"{number} survived: {said}" if survives else f"{number} killed", flush=True)
    print(f"killed {killed} of {len(chosen)} ({killed / max(len(chosen), 1):.0%})")
    return int(killed < arguments.least * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
