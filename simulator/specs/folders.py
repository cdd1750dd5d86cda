"""Folders of data files, and names to paths: a kind is a folder, a name a file's stem or one of its aliases."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from simulator.errors import SpecError, UnknownNameError
from simulator.specs.files import read_bytes
from simulator.specs.toml_text import read_toml

__all__ = [
    "KINDS",
    "data_roots",
    "find_extended",
    "find_spec",
    "is_path",
    "name_of",
    "named_in",
    "names",
    "searched_folders",
    "spec_files",
    "working_folder",
]

KINDS = {
    "gpus": ("hardware_specs", "GPU"),
    "links": ("hardware_specs", "link"),
    "nodes": ("hardware_specs", "node"),
    "clusters": ("hardware_specs", "cluster"),
    "calibrations": ("hardware_specs", "calibration"),
    "frameworks": ("hardware_specs", "framework"),
    "recompute_policies": ("hardware_specs", "recompute policy"),
    "reliability": ("hardware_specs", "record of failures"),
    "models": ("workloads", "model"),
    "jobs": ("workloads", "job"),
    "published": ("workloads", "published table"),
}
"""Kind -> (top folder, the word for one of them)."""

_LARGEST = 2**20
_ALIASES = re.compile(r"^aliases\s*=\s*\[([^\]]*)\]", re.MULTILINE)


def data_roots() -> list[Path]:
    """Return the folders that may hold `hardware_specs` and `workloads`: the working directory, the package's own."""
    return [Path(root) for root in _roots()]


def _roots() -> list[str]:
    own, here = _own_root(), working_folder()
    return [own] if here in (own, "") else [here, own]


def working_folder() -> str:
    """Return the working directory, "" when it was deleted: the package's own data answer then."""
    try:
        return os.getcwd()
    except OSError:
        return ""


@functools.cache
def _own_root() -> str:
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data"
    return str(installed if installed.is_dir() else package.parent)


def names(kind: str) -> list[str]:
    """Return the names of all data files of a kind, in alphabetical order.

    Raises:
        UnknownNameError: no such kind.
    """
    return sorted({file.removesuffix(".toml") for folder in searched_folders(kind) for file in _toml_files(folder)})


def is_path(name: str) -> bool:
    """Return whether what names a data file is its path: it ends in .toml or holds a path separator."""
    return name.lower().endswith(".toml") or "/" in name or os.sep in name


def named_in(file: str, name: str) -> str:
    """Return what a data file names: a name as it is, a path as it is seen from the working directory, or, where nothing is there, from the
    file's own folder."""
    if not is_path(name) or os.path.exists(os.path.expanduser(name)):
        return name
    beside = os.path.join(os.path.dirname(file), name)
    return beside if os.path.exists(beside) else name


def name_of(given: object) -> str:
    """Return a name or a path as text.

    Raises:
        SpecError: it is neither, such as a number or None.
    """
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(name, str):
        raise SpecError(f"{given!r:.60} is no name and no path of a file")
    return name


def find_spec(kind: str, name: str) -> Path:
    """Return the path of a data file, by name or alias; case, "-", "_", "." and spaces do not matter.

    A name that ends in .toml or holds a path separator is a path.

    Raises:
        SpecError: the path does not exist.
        UnknownNameError: nobody bears the name; the nearest known one is offered.
        SpecError: the name is known, but not what bears it (such as a model whose shape was never published).
    """
    if is_path(name):
        path = Path(name).expanduser()
        if not os.path.exists(path):
            raise SpecError(f"{name[:200]}: no such file")
        return path
    exact = _file_called(kind, name)
    if exact:
        return exact
    files = spec_files(kind)
    plain = _plain(name)
    for known, path in files.items():
        if plain and _plain(known) == plain:
            return path
    for path in files.values():
        match = _ALIASES.search(read_bytes(path, _LARGEST).decode("utf-8", "replace"))
        if match and plain and plain in {_plain(alias) for alias in re.findall(r"[\"']([^\"']*)[\"']", match.group(1))}:
            return path
    reason = _reasons(kind).get(plain)
    if reason:
        raise SpecError(
            f"{KINDS[kind][1]} {name[:100]!r} is known by name only: {reason}. Way out: your own file with a shape, or another "
            f"{KINDS[kind][1]}."
        )
    raise UnknownNameError(KINDS[kind][1], name[:100], files, shown_by=f"dtsim list {kind}")


def find_extended(kind: str, name: str, path: str) -> str:
    """Return the path of the data file that the one at `path` means by `extends = name`: exactly this name, no alias.

    It is looked for beside the file, then in the working directory, then among the package's own; that of one of the package's own
    files only among these, so that no file of a user comes between them.  A file that extends its own name means the next of that
    name, the package's: a user's variant may bear the name of what it varies.

    Raises:
        UnknownNameError: nobody bears the name; the nearest known one is offered.
    """
    beside, own = os.path.dirname(path), os.path.join(_own_root(), KINDS[kind][0], kind)
    folders = [own] if beside == own else list(dict.fromkeys([beside, *searched_folders(kind)]))
    found = ""
    for folder in folders:
        file = _file_in(folder, name)
        if file and file != path:
            return file
        found = file or found
    if not found:
        known = {file.removesuffix(".toml") for folder in folders for file in _toml_files(folder)}
        raise UnknownNameError(KINDS[kind][1], name[:100], known, shown_by=f"dtsim list {kind}")
    return found


def _reasons(kind: str) -> dict[str, str]:
    """Names without a file, and why they have none (unknown_shapes.toml beside the folder of their kind)."""
    found: dict[str, str] = {}
    for root in data_roots():
        path = root / KINDS[kind][0] / "unknown_shapes.toml"
        if path.is_file():
            table = read_toml(path).get(kind, {})
            found |= {_plain(known): str(reason) for known, reason in table.items()}
    return found


def spec_files(kind: str) -> dict[str, Path]:
    """Return name -> path of all data files of a kind; one in the working directory hides the package's own.

    Raises:
        UnknownNameError: no such kind.
    """
    found: dict[str, Path] = {}
    for folder in searched_folders(kind):
        for file in _toml_files(folder):
            found.setdefault(file.removesuffix(".toml"), Path(folder, file))
    return found


def _toml_files(folder: str) -> list[str]:
    return sorted(file for file in os.listdir(folder) if file.endswith(".toml")) if os.path.isdir(folder) else []


def searched_folders(kind: str) -> list[str]:
    """Return the folders in which data files of a kind are looked for, the first first.

    Raises:
        UnknownNameError: no such kind.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of data file", kind, KINDS)
    return [os.path.join(root, KINDS[kind][0], kind) for root in _roots()]


def _file_called(kind: str, name: str) -> Path | None:
    path = next((path for folder in searched_folders(kind) if (path := _file_in(folder, name))), "")
    return Path(path) if path else None


def _file_in(folder: str, name: str) -> str:
    """The path of a folder's data file whose stem is exactly `name`, or "": a file system that ignores case does not decide."""
    file = f"{name}.toml"
    path = os.path.join(folder, file)
    if not name or not os.path.exists(path):
        return ""
    listed = file in _listed(folder, os.stat(folder).st_mtime_ns) or file in os.listdir(folder)
    return path if listed else ""


@functools.lru_cache(maxsize=64)
def _listed(folder: str, changed: int) -> frozenset[str]:
    """The files of a folder as of its last change: a search asks for the same dozen names thousands of times."""
    return frozenset(os.listdir(folder))


def _plain(name: str) -> str:
    """Return a name without case and separators, but keep numbers apart: gpt3_1_3b is not gpt3_13b."""
    return re.sub(r"[^a-z0-9]+", "", re.sub(r"(?<=[0-9])[^a-z0-9]+(?=[0-9])", "dot", name.lower()))
