"""Every number of the data files says where it was read; a framework profile holds facts, never a factor."""

from __future__ import annotations

import functools
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.plan.framework import Framework, load_framework
from simulator.specs import NamedSpec, lineage, names, resolve
from simulator.units import Unit

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "hardware_specs").rglob("*.toml"), *(ROOT / "workloads" / "models").rglob("*.toml")])
WORDS = {"name", "aliases", "notes", "sources", "residuals"}
QUANTITY = re.compile(r"\s*[-+.\d]+(e[-+]?\d+)?\s*[A-Za-zµ$/]*\s*")


@functools.cache
def contents(path: Path) -> dict[str, Any]:
    """Return what stands in a file; several tests ask."""
    return tomllib.loads(path.read_text())


def is_number(value: object) -> bool:
    """A number, a quantity such as "80 GB", or a list that holds one."""
    if isinstance(value, list):
        return any(is_number(item) for item in value)
    if isinstance(value, str):
        return QUANTITY.fullmatch(value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def keys(data: dict[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield (path, value) of every key of a file that is not about the file itself, nor in a table that has its own source."""
    for key, value in data.items():
        if key in WORDS or (isinstance(value, dict) and isinstance(value.get("source"), str)):
            continue
        if isinstance(value, dict):
            yield from keys(value, (*above, key))
        else:
            yield (*above, key), value


def covered(path: tuple[str, ...], sources: dict[str, str]) -> bool:
    """A source may be given for a key, for a table it lies in, or for all others with "*"."""
    return "*" in sources or any(".".join(path[:n]) in sources for n in range(1, len(path) + 1)) or path[-1] in sources


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_has_a_source(path: Path) -> None:
    data = contents(path)
    sources = data.get("sources", {})
    numbers = [key for key, value in keys(data) if is_number(value)]

    assert all(isinstance(text, str) and len(text) > 5 for text in sources.values())
    assert [] == [".".join(key) for key in numbers if not covered(key, sources)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sources_are_of_keys_that_exist(path: Path) -> None:
    data = contents(path)
    inherited = resolve(lineage(path, path.parent.name)).data if "extends" in data else {}
    known = {".".join(key[:n]) for key, _ in keys(inherited | data) for n in range(1, len(key) + 1)}
    known |= {key.rpartition(".")[2] for key in known} | {"*", "notes"}

    assert set() == set(data.get("sources", {})) - known


def parts(annotation: object) -> Iterator[object]:
    """Yield the plain types of an annotation; a quantity gives its unit."""
    if typing.get_origin(annotation) is typing.Annotated:
        inner, *extra = typing.get_args(annotation)
        unit = [item.symbol for item in extra if isinstance(item, Unit)]
        yield from unit or parts(inner)
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for inner in typing.get_args(annotation):
            yield from parts(inner)
    elif typing.get_origin(annotation) in (tuple, dict):
        for inner in typing.get_args(annotation):
            yield from () if inner is Ellipsis else parts(inner)
    elif typing.get_origin(annotation) is typing.Literal:
        yield from {type(value) for value in typing.get_args(annotation)}
    else:
        yield annotation


def test_most_switches_of_profiles_name_where_they_were_read() -> None:
    """At most 8 in 100 are from memory."""
    stated = [
        data["sources"].get(key, data["sources"].get("*", ""))
        for path in sorted((ROOT / "hardware_specs" / "frameworks").glob("*.toml"))
        for data in [tomllib.loads(path.read_text())]
        for key in data.keys() - set(NamedSpec.model_fields) - {"extends", "sources"}
    ]
    assert len(stated) > 400
    assert sum("unverified" in source for source in stated) <= 0.08 * len(stated)


def test_a_framework_profile_cannot_scale_a_time() -> None:
    """Allowed: yes or no, a name, a count, a size in bytes, a dtype, seconds of the host.  No other number."""
    hints = typing.get_type_hints(Framework, include_extras=True)
    own = {name: hints[name] for name in Framework.__annotations__}
    allowed = {bool, str, int, "B", "s"}
    bad = {name: list(parts(hint)) for name, hint in own.items() if not set(parts(hint)) <= allowed}

    assert {} == bad
    assert {
        "cycle_time",
        "fetch_slice_time",
        "fetch_time",
        "launch_time",
        "launch_wait",
        "layer_wait",
        "message_wait",
        "module_time",
        "operator_time",
        "slice_time",
        "split_module_time",
        "step_time",
        "weight_gradient_time",
    } == {name for name, hint in own.items() if "s" in set(parts(hint))}


def test_the_times_of_a_framework_are_the_hosts_and_cited() -> None:
    for path in sorted((ROOT / "hardware_specs" / "frameworks").glob("*.toml")):
        files = [tomllib.loads(Path(file.path).read_text()) for file in lineage(path, "frameworks")]
        assert {"launch_time", "step_time"} <= {key for data in files for key in data.get("sources", {})}, path.name


@pytest.mark.parametrize("name", [name for name in names("frameworks") if load_framework(name).extends])
def test_a_profile_says_only_what_is_other_than_in_the_one_it_extends(name: str) -> None:
    """A shipped file that repeated a value would keep the old one when it changes there; a user's file may."""
    own, parent = load_framework(name), load_framework(str(load_framework(name).extends))
    data = tomllib.loads((ROOT / "hardware_specs" / "frameworks" / f"{name}.toml").read_text())
    stated = data.keys() - set(NamedSpec.model_fields) - {"extends"}

    assert stated or data["sources"]
    assert [] == [key for key in sorted(stated) if getattr(own, key) == getattr(parent, key)]
    cited = {key: text for key, text in data.get("sources", {}).items() if key != "*" and key not in stated}
    assert [] == [key for key, text in cited.items() if parent.sources.get(key) == text]
