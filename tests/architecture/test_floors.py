"""Imports go down only: between rooms by the table of floors, inside a room without a circle of modules.

Every import statement counts, also one inside a function or for annotations alone: who reads a module reads what it names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tests.package_sources import package_sources

FLOORS = (
    ("units", "errors", "compiled"),
    ("aliases",),
    ("specs", "registry", "options", "remembered", "processes"),
    ("workload", "hardware", "plan", "schedules", "program"),
    ("collectives", "partition"),
    ("lowering", "job"),
    ("engine", "costs", "report"),
    ("simulation", "calibration", "importers", "energy", "capture", "planners"),
    ("search",),
    ("studies", "probes"),
    ("accuracy",),
    ("html",),
    ("goodput",),
    ("cli",),
    ("__main__",),
)
"""From the ground up.  A room may import rooms below it and its own files; never a neighbour on its floor."""

FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
TESTING_FLOOR = FLOOR_OF["search"]
"""`testing` may import up to this floor, and nobody may import it."""


def imports(nodes: Iterable[ast.AST], module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (line, dotted module) of every import in a file, function-level ones too, as absolute names."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level] if node.level else ()
            target = (*base, *(node.module.split(".") if node.module else ()))
            if target == ("simulator",):
                yield from ((node.lineno, (*target, alias.name)) for alias in node.names)
            else:
                yield node.lineno, target


def offences(nodes: Iterable[ast.AST], module: tuple[str, ...]) -> list[str]:
    """Return what a file imports that its floor forbids; `module` is its dotted name with a part for the file."""
    room = module[1]
    found = []
    for line, target in imports(nodes, module):
        if target[0] != "simulator" or len(target) < 2 or target[1] in (room, "__version__"):
            continue
        other = target[1]
        place = f"{'/'.join(module)}.py:{line}: {room} imports {'.'.join(target)}"
        if other == "testing":
            found.append(f"{place}; nothing may import testing")
        elif other not in FLOOR_OF:
            found.append(f"{place}; {other!r} is on no floor")
        elif room == "testing":
            if FLOOR_OF[other] > TESTING_FLOOR:
                found.append(f"{place}; testing may import floors up to {TESTING_FLOOR}")
        elif FLOOR_OF[other] == FLOOR_OF[room]:
            found.append(f"{place}; both are on floor {FLOOR_OF[room]}")
        elif FLOOR_OF[other] > FLOOR_OF[room]:
            found.append(f"{place}; floor {FLOOR_OF[other]} is above floor {FLOOR_OF[room]}")
    return found


def module_imports(files: Iterable[tuple[tuple[str, ...], Iterable[ast.AST]]]) -> set[tuple[str, str]]:
    """Return (importer, imported) of the package's own modules; `from a import b` means module a.b where there is one."""
    listed = [(module, tuple(nodes)) for module, nodes in files]
    known = {".".join(module).removesuffix(".__init__") for module, _ in listed}
    found = set()
    for module, nodes in listed:
        importer = ".".join(module).removesuffix(".__init__")
        for node in nodes:
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else [""]
            for _, target in imports([node], module):
                inner = {f"{'.'.join(target)}.{name}" for name in names}
                found |= {(importer, name) for name in inner & known or {".".join(target)} & known}
    return found


def on_circles(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the imports that lie on a circle: both ends in one strongly connected component."""
    names = sorted({name for edge in edges for name in edge})
    number = {name: place for place, name in enumerate(names)}
    rows, columns = np.array([[number[a], number[b]] for a, b in sorted(edges)], np.int32).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(len(names), len(names)))
    group = connected_components(graph, directed=True, connection="strong")[1]
    return {(a, b) for a, b in edges if group[number[a]] == group[number[b]]}


def test_imports_go_down_only() -> None:
    found = [
        line
        for source in package_sources()
        if source.module != ("simulator", "__init__")
        for line in offences(source.nodes, source.module)
    ]
    assert [] == found


def test_modules_import_each_other_in_no_circle() -> None:
    edges = module_imports((source.module, source.nodes) for source in package_sources())

    assert len(package_sources()) < len(edges)
    assert set() == on_circles(edges)


def test_every_room_is_on_a_floor() -> None:
    rooms = {source.module[1] for source in package_sources()} - {"__init__", "testing"}
    assert set() == rooms - set(FLOOR_OF)


def test_the_front_door_loads_nothing_by_itself() -> None:
    door = next(source for source in package_sources() if source.module == ("simulator", "__init__"))
    inner = [target for _, target in imports(door.nodes, door.module) if target[0] == "simulator"]
    assert [] == inner


@pytest.mark.parametrize(
    ("statement", "module"),
    [
        ("from simulator.report.prediction import measure", "simulator.engine.compiled_engine"),
        ("import simulator.cli", "simulator.studies.search"),
        ("def f():\n    from simulator.simulation import simulate", "simulator.lowering.steps.emit"),
        ("from simulator import costs", "simulator.engine.compiled_engine"),
        ("from ..hardware import gpu", "simulator.plan.plan"),
        ("from simulator.testing import schedule_contract", "simulator.schedules.base"),
        ("from simulator.cli import main", "simulator.testing.contract"),
        ("from simulator.helpers import thing", "simulator.cli.run"),
    ],
)
def test_the_reader_sees_every_kind_of_forbidden_import(statement: str, module: str) -> None:
    assert 1 == len(offences(ast.walk(ast.parse(statement)), tuple(module.split("."))))


def test_the_reader_lets_downward_and_own_imports_pass() -> None:
    source = "import numpy\nfrom simulator import __version__\nfrom simulator.units import parse\nfrom . import base"
    assert [] == offences(ast.walk(ast.parse(source)), ("simulator", "collectives", "ring"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from simulator.plan.b import thing", "from simulator.plan.a import thing"),
        ("from simulator.plan import b", "def f():\n    from simulator.plan.a import thing"),
        ("from .b import thing", "import simulator.plan.a"),
        ("from simulator.plan import c, b", "if TYPE_CHECKING:\n    from simulator.plan.a import Thing"),
        ("from simulator.plan.c import thing\nimport simulator.plan.b", "from . import a"),
    ],
)
def test_the_reader_sees_every_kind_of_circle(first: str, second: str) -> None:
    files = {"a": first, "b": second, "c": "import numpy", "__init__": "from simulator.plan.a import thing"}
    edges = module_imports((("simulator", "plan", name), ast.walk(ast.parse(text))) for name, text in files.items())
    a, b = "simulator.plan.a", "simulator.plan.b"

    assert {(a, b), (b, a)} == on_circles(edges)
    assert set() == on_circles(edges - {(b, a)})
