"""The front door is light: importing the package loads no heavy library, reads no data file, looks at nothing outside."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

HEAVY = ("numba", "scipy", "matplotlib", "pandas", "simpy", "rich", "typer")

PROBE = """
import json, sys
opened = []
def watch(event, args):
    if event == "open" and isinstance(args[0], str) and not args[0].endswith((".py", ".pyc")) and "site-packages" not in args[0]:
        opened.append(args[0])
sys.addaudithook(watch)
{statement}
print(json.dumps({{"modules": sorted(sys.modules), "opened": opened}}))
"""


def after(statement: str) -> dict[str, list[str]]:
    """Return the modules loaded and the files opened (Python's own aside) by a statement in a fresh interpreter."""
    answer = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=True
    )
    return json.loads(answer.stdout)


def loaded(modules: list[str], names: tuple[str, ...]) -> set[str]:
    return {name for name in names if name in modules}


def test_importing_the_package_loads_nothing_else() -> None:
    found = after("import simulator")

    assert set() == loaded(found["modules"], (*HEAVY, "pydantic", "numpy"))
    assert [] == [path for path in found["opened"] if path.endswith((".toml", ".csv", ".json"))]


def test_loading_a_job_needs_none_of_the_heavy_libraries() -> None:
    found = after("import simulator; simulator.load_job('gpt3_175b')")

    assert set() == loaded(found["modules"], HEAVY)


def test_reading_the_engine_of_record_needs_no_compiler() -> None:
    found = after("import simulator.engine.simpy_engine")

    assert "numba" not in found["modules"]


def test_dir_and_help_show_the_public_names_before_their_first_use() -> None:
    ask = "import pydoc, simulator; print(dir(simulator)); print(pydoc.plain(pydoc.render_doc(simulator)))"
    listed, _, page = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.partition("\n")
    import simulator

    assert set(simulator.__all__) <= set(ast.literal_eval(listed))
    for name in set(simulator.__all__) - {"__version__"}:
        assert re.search(rf"^    (class )?{name}\b", page, re.MULTILINE), name


def test_all_public_names_can_be_loaded() -> None:
    import simulator

    assert all(hasattr(simulator, name) for name in simulator.__all__)
    assert len(simulator.__all__) <= 30
