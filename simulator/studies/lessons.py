"""The lessons: Jupyter notebooks that come with the package, and their data, copied to a folder of the reader's own."""

from __future__ import annotations

import os
from pathlib import Path

from simulator.errors import SpecError
from simulator.specs import data_roots, write_text

__all__ = ["copy_lessons", "lessons"]


def _folder() -> Path:
    return data_roots()[-1] / "notebooks"


def lessons() -> list[Path]:
    """Return the notebooks, in order, and the files that they read.

    >>> lessons()[0].name
    '01_one_prediction.ipynb'
    """
    home = _folder()
    return [*sorted(home.glob("[0-9]*.ipynb")), *sorted(p for p in (home / "data").rglob("*") if p.is_file())]


def copy_lessons(folder: str, force: bool = False) -> list[Path]:
    """Copy the lessons to a folder, which is made where there is none; return the notebooks.

    Args:
        force: overwrite what is there; else nothing is written over a file of the reader's.

    Raises:
        SpecError: the folder is a file, or holds a file of one of these names.
    """
    target, home = Path(folder).expanduser(), _folder()
    if os.path.exists(target) and not os.path.isdir(target):
        raise SpecError(f"{folder}: is a file; expected a folder to copy the lessons to")
    pairs = [(source, target / source.relative_to(home)) for source in lessons()]
    there = [str(copy) for _, copy in pairs if os.path.lexists(copy)]
    if there and not force:
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        raise SpecError(f"{there[0]}{more}: exists already. Way out: another folder, or --force to overwrite it")
    for source, copy in pairs:
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_text(str(copy), source.read_text(encoding="utf-8"))
    return [copy for _, copy in pairs if copy.suffix == ".ipynb"]
