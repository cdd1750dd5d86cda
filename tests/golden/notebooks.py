"""The lessons as .ipynb, made from their sources: `python -m tests.golden.notebooks`."""

from __future__ import annotations

from pathlib import Path

from tests.package_sources import ROOT

__all__ = ["FOLDER", "sources", "text"]

FOLDER = ROOT / "notebooks"


def sources() -> list[Path]:
    """Return the lessons, kept as plain Python."""
    return sorted(FOLDER.glob("[0-9]*.py"))


def text(source: Path) -> str:
    """Return a lesson as a notebook without outputs; the same source gives the same text."""
    import jupytext
    import nbformat

    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    notebook.metadata.pop("jupytext", None)
    return str(nbformat.writes(notebook, version=nbformat.NO_CONVERT)) + "\n"


if __name__ == "__main__":
    for each in sources():
        each.with_suffix(".ipynb").write_text(text(each))
