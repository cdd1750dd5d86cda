"""Which tests enter which functions of the product: what is asked first whether it notices a mutant.

A pytest plugin (`-p tests.mutate.covering`) notes while tests run which Python functions of the product each of them enters, and how
long it took; compiled functions are not seen.  The map is kept in build/, and stays useful when the tree has moved on: a test that is
no more, or does not enter the function any more, is one that finds nothing.
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

import pytest

__all__ = ["covering", "functions_at", "record"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutate"
_entered: dict[str, list[str]] = {}
_seconds: dict[str, float] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the functions that a test enters, with what its fixtures do."""
    codes: set[CodeType] = set()
    begun = time.process_time()

    def entered(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    sys.settrace(entered)
    yield
    sys.settrace(None)
    _seconds[item.nodeid] = round(time.process_time() - begun, 4)
    product = str(ROOT / "simulator") + os.sep
    _entered[item.nodeid] = sorted(
        {
            f"{code.co_filename[len(str(ROOT)) + 1 :]}:{code.co_qualname}"
            for code in codes
            if code.co_filename.startswith(product)
        }
    )


def pytest_sessionfinish() -> None:
    """Write what this process saw."""
    if _seconds:
        FOLDER.mkdir(parents=True, exist_ok=True)
        seen = {test: {"seconds": _seconds[test], "functions": functions} for test, functions in _entered.items()}
        (FOLDER / f"entered.{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.json").write_text(json.dumps(seen))


def record(tests: list[str]) -> None:
    """Run the tests once and keep the map (some minutes)."""
    for old in FOLDER.glob("entered.*.json"):
        old.unlink()
    words = ("-q", "-p", "tests.mutate.covering", "-p", "no:cacheprovider", *tests)
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False)


def covering() -> dict[str, list[tuple[float, str]]]:
    """Return path:function -> (seconds of the processor, test), quickest first; empty when nothing was recorded."""
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
