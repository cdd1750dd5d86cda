"""Which tests, and which recorded predictions, enter which functions of the product: what is asked whether it notices a mutant.

A pytest plugin (`-p tests.mutate.covering`) notes while tests run which Python functions of the product each of them enters, and how
long it took; predictions are made one by one likewise.  Compiled functions are not seen.  The map is kept in build/, and stays useful
when the tree has moved on: a test that is no more, or does not enter the function any more, is one that finds nothing.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

__all__ = ["PREDICTION", "covering", "functions_at", "record"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutate"
_entered: dict[str, dict[str, Any]] = {}
PREDICTION = "prediction "
"""How the map names a case of tests/replay."""
EVERY = 4
"""Of the cases of the replay that are no jobs every so many are in the map."""


class Watch:
    """Notes the functions of the product that are entered while it is open, and the seconds of the processor."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.seconds = 0.0

    def __enter__(self) -> Watch:
        self.seconds = -time.process_time()
        sys.settrace(self._entered)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)
        self.seconds += time.process_time()

    def _entered(self, frame: FrameType, event: str, argument: object) -> None:
        self.codes.add(frame.f_code)

    def seen(self) -> dict[str, Any]:
        """Return what is kept of it."""
        product, cut = str(ROOT / "simulator") + os.sep, len(str(ROOT)) + 1
        mine = {f"{c.co_filename[cut:]}:{c.co_qualname}" for c in self.codes if c.co_filename.startswith(product)}
        return {"seconds": round(self.seconds, 4), "functions": sorted(mine)}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the functions that a test enters, with what its fixtures do."""
    with Watch() as watch:
        yield
    _entered[item.nodeid] = watch.seen()


def pytest_sessionfinish() -> None:
    """Write what this process saw."""
    if _entered:
        _write(os.environ.get("PYTEST_XDIST_WORKER", "main"), _entered)


def _write(name: str, entered: dict[str, dict[str, Any]]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"entered.{name}.json").write_text(json.dumps(entered))


def record(tests: list[str]) -> None:
    """Run the tests once, and every few of the recorded predictions, and keep the map (some minutes)."""
    for old in FOLDER.glob("entered.*.json"):
        old.unlink()
    words = ("-q", "-p", "tests.mutate.covering", "-p", "no:cacheprovider", *tests)
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False)
    record_predictions()


def record_predictions() -> None:
    """Note what every few of the recorded predictions enter, all jobs among them."""
    from tests.replay.cases import cases
    from tests.replay.recorder import Recorder

    recorder, found = Recorder(), {}
    every = list(cases())
    every[0][1]()  # what is read once for all
    for number, (name, work) in enumerate(every):
        if name.startswith("job ") or number % EVERY == 0:
            with Watch() as watch:
                recorder.parts(work)
            found[PREDICTION + name] = watch.seen()
    recorder.close()
    _write("predictions", found)


def covering() -> dict[str, list[tuple[float, str]]]:
    """Return path:function -> (seconds of the processor, test or prediction), quickest first; empty when nothing was recorded."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for path in FOLDER.glob("entered.*.json"):
        for test, seen in json.loads(path.read_text()).items():
            for function in seen["functions"]:
                found[function].append((seen["seconds"], test))
    return {function: sorted(tests) for function, tests in found.items()}


def functions_at(path: Path, source: str, row: int) -> list[str]:
    """Return the functions around a line, innermost first, as the map names them.

    >>> functions_at(Path("x.py"), "class A:\\n    def b(self):\\n        return 1", 3)
    ['x.py:A.b']
    """
    found: list[str] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            within = child.lineno <= row <= (child.end_lineno or 0) if isinstance(child, ast.stmt | ast.expr) else True
            if isinstance(child, ast.FunctionDef) and within:
                found.append(f"{path}:{prefix}{child.name}")
                walk(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef) and within:
                walk(child, f"{prefix}{child.name}.")
            elif within:
                walk(child, prefix)

    walk(ast.parse(source), "")
    return found[::-1]
