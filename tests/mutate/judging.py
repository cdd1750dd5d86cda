"""Whether the tree notices a mutant: its own predictions and its tests, each in a fork that has the mutated code.

In the fork the mutated functions take the place of the imported ones; constants of modules and compiled functions need an import of
their own, from a copy of the tree, and compile anew.
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import re
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutate.covering import PREDICTION, functions_at
from tests.mutate.mutants import Mutant

__all__ = ["ROOT", "judged", "predicts", "survives"]

ROOT = Path(__file__).resolve().parents[2]
FIRST = 20
"""Predictions and tests in the first round: most mutants are killed there, before many files of tests are read."""
Map = dict[str, list[tuple[float, str]]]


def judged(work: Callable[[], bool], seconds: int) -> bool:
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


def is_compiled(source: str) -> bool:
    """Whether functions of a module are compiled."""
    return "numba" in source or "simulator.compiled" in source


def _swapped(path: Path, source: str) -> bool:
    """Let the functions of an imported module be those of a mutated source; False when something else than these differs."""
    module = sys.modules.get(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    if module is None or is_compiled(source):
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


def predicts(wanted: list[str]) -> bool:
    """Whether these predictions of the replay are those recorded, to seven digits."""
    from tests.replay.cases import cases
    from tests.replay.figures import differing, read_figures
    from tests.replay.recorder import Recorder

    work, recorder, recorded = dict(cases()), Recorder(), read_figures()
    return not any(differing(recorded[name], recorder.digest(work[name])) for name in wanted if name in recorded)


class _Ordered:
    """Of the tests that were collected those wanted, in this order."""

    def __init__(self, wanted: list[str]) -> None:
        self.place = {test: place for place, test in enumerate(wanted)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda item: self.place[item.nodeid])


def _passes(tests: list[str]) -> bool:
    """Whether no test fails; one that is no more says nothing."""
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    words = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *(file for file in files if Path(file).exists())]
    return not tests or pytest.main(words, [_Ordered(tests)]) in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    )


def _asked(mutant: Mutant, plain: str, entered: Map) -> list[tuple[float, str]]:
    """Who enters the function of the mutant; where nobody is known to, its file; of what is compiled the files that import it."""
    function = next(iter(functions_at(mutant.path, plain, mutant.begin[0])), "")
    within = [] if is_compiled(plain) else entered.get(function) or _of_files([mutant.path], entered)
    return within or _of_files(_importers(mutant.path), entered)


def _some(asked: list[tuple[float, str]], most: float) -> list[str]:
    """As many as fit into some seconds."""
    seconds, found = 0.0, []
    for took, name in asked:
        seconds += took
        if seconds < most:
            found.append(name)
    return found


def _of_files(paths: list[Path], entered: Map) -> list[tuple[float, str]]:
    names = {str(path) for path in paths}
    return sorted(
        {test for function, tests in entered.items() if function.partition(":")[0] in names for test in tests}
    )


def _importers(path: Path) -> list[Path]:
    module = ".".join(path.with_suffix("").parts)
    word = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(module.rpartition('.')[0])} import .*\b{path.stem}\b")
    files = sorted((ROOT / "simulator").rglob("*.py"))
    return [file.relative_to(ROOT) for file in files if word.search(file.read_text(encoding="utf-8"))]


def _fresh(copy: Path, mutant: Mutant, source: str, work: Callable[[], bool]) -> Callable[[], bool]:
    """`work` in a process that has imported nothing of the product yet, with the mutated file in a copy of the tree."""

    def judge() -> bool:
        (copy / mutant.path).write_text(source, encoding="utf-8")
        for name in [name for name in sys.modules if name.split(".")[0] in ("simulator", "tests")]:
            del sys.modules[name]
        os.chdir(copy)
        sys.path[:] = [str(copy), *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
        sys.dont_write_bytecode = True
        if not is_compiled(source):
            return work()
        import numba

        with (
            tempfile.TemporaryDirectory() as folder
        ):  # what calls a mutated compiled function is cached with the old one
            numba.config.CACHE_DIR = folder
            return work()

    return judge


def survives(copy: Path, mutant: Mutant, seconds: float, entered: Map) -> bool:
    """Whether neither predictions nor tests that enter its function notice a mutant."""
    plain = (ROOT / mutant.path).read_text(encoding="utf-8")
    source = mutant.applied(plain)

    def with_swap(work: Callable[[], bool]) -> Callable[[], bool]:
        return lambda: not _swapped(mutant.path, source) or work()

    swaps = not judged(lambda: not _swapped(mutant.path, source), 60)
    asked = _asked(mutant, plain, entered)
    tests = _some([one for one in asked if not one[1].startswith(PREDICTION)], seconds)
    cases = [name.removeprefix(PREDICTION) for _, name in asked if name.startswith(PREDICTION)]
    random.Random(1).shuffle(cases)
    steps: tuple[tuple[Callable[[], bool], int], ...] = (
        (lambda: predicts(cases[:FIRST]), 300),
        (lambda: _passes(tests[:FIRST]), 300),
        (lambda: predicts(cases[FIRST : 10 * FIRST]), 600),
        (lambda: _passes(tests[FIRST:]), 1200),
    )
    try:
        return all(judged(with_swap(w) if swaps else _fresh(copy, mutant, source, w), limit) for w, limit in steps)
    finally:
        (copy / mutant.path).write_text(plain, encoding="utf-8")
