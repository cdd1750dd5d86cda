"""Mutation testing: turn single operators, constants and words of the product round, and see whether a test notices.

    python -m tests.mutate --count 200 --seed 1          random mutants of the rooms below
    python -m tests.mutate --since main                  of the files changed since a commit
    python -m tests.mutate simulator/collectives         of some files
    python -m tests.mutate --record                      run the tests once to learn which functions each of them enters

A mutant is judged by recorded predictions (tests/replay) and tests that enter its function, some of each first.  What reads as
equivalent stands in equivalent.csv with its reason and is not counted.  Prints every survivor with its line; leaves 1 when fewer than
--least of the mutants are killed.
"""

from __future__ import annotations

import argparse
import ast
import csv
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutate.covering import covering, record
from tests.mutate.judging import ROOT, is_compiled, survives
from tests.mutate.mutants import Mutant, mutants_of

ROOMS = tuple(f"simulator/{room}" for room in ("lowering", "costs", "engine", "collectives", "schedules", "report"))
TESTS = tuple(
    f"tests/{room}" for room in ("unit", "golden", "contracts", "differential", "properties", "replay", "validation")
)
EQUIVALENT = Path(__file__).with_name("equivalent.csv")


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


def equivalents() -> dict[tuple[str, str], str]:
    """Return (path, the changed line) -> why no test can notice it."""
    with EQUIVALENT.open(newline="", encoding="utf-8") as file:
        return {(row["path"], row["line"]): row["reason"] for row in csv.DictReader(file)}


def _warm() -> None:
    """Import what mutants are judged with, so that each fork has it; nothing is computed, for what is kept would hide a mutant."""
    import importlib
    import pkgutil

    import simulator
    import tests.replay.cases
    import tests.replay.recorder

    for found in pkgutil.walk_packages(simulator.__path__, "simulator."):
        if not found.name.endswith("__main__") and ".cli." not in found.name:
            importlib.import_module(found.name)
    for name in ("pytest", "hypothesis", "xdist.plugin", "random_order.plugin", "simulator.cli.app", "tests.conftest"):
        importlib.import_module(name)
    dict(tests.replay.cases.cases())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("paths", nargs="*", help="files or folders; default: the rooms of physics and time")
    parser.add_argument("--since", metavar="COMMIT", help="only files changed since this commit")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="of the drawn mutants, to go on where a run was stopped")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of drawn mutants, to judge these again")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of tests that are asked about a mutant, quickest first"
    )
    parser.add_argument("--record", action="store_true", help="learn anew which functions each test enters")
    parser.add_argument("--least", type=float, default=0.95)
    return parser.parse_args()


def _chosen(arguments: argparse.Namespace) -> list[tuple[int, Mutant]]:
    every = [m for path in _files(arguments) for m in mutants_of(path, (ROOT / path).read_text(encoding="utf-8"))]
    random.Random(arguments.seed).shuffle(every)
    programs = (m for m in every if _is_program(m.applied((ROOT / m.path).read_text(encoding="utf-8"))))
    chosen = list(enumerate(itertools.islice(programs, arguments.count)))
    wanted = arguments.only or range(arguments.first, arguments.count)
    print(f"{len(chosen)} of {len(every)} mutants, seed {arguments.seed}", flush=True)
    found = [(number, mutant) for number, mutant in chosen if number in wanted]
    return sorted(
        found, key=lambda pair: is_compiled((ROOT / pair[1].path).read_text(encoding="utf-8"))
    )  # compiling takes long


def main() -> int:
    """Return 0 when enough mutants were killed."""
    arguments = _arguments()
    if arguments.record or not covering():
        record(list(TESTS))
    entered, known = covering(), equivalents()
    chosen = _chosen(arguments)
    _warm()
    killed = equivalent = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tree")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "build", ".mypy_cache", ".venv"))
        for number, mutant in chosen:
            plain = (ROOT / mutant.path).read_text(encoding="utf-8")
            line, begun = mutant.line(plain), time.monotonic()
            said = f"{mutant.path}:{mutant.begin[0]}: {plain.splitlines()[mutant.begin[0] - 1].strip()}  ->  {line}"
            if reason := known.get((str(mutant.path), line)):
                equivalent += 1
                print(f"{number} equivalent: {said} ({reason})", flush=True)
                continue
            lives = survives(copy, mutant, arguments.seconds, entered)
            killed += not lives
            print(
                f"{number} {'survived' if lives else 'killed'} in {time.monotonic() - begun:.0f} s: {said}", flush=True
            )
    counted = len(chosen) - equivalent
    print(f"killed {killed} of {counted} ({killed / max(counted, 1):.0%}), {equivalent} equivalent")
    return int(killed < arguments.least * counted)


if __name__ == "__main__":
    sys.exit(main())
