"""The files of the package as text and as syntax trees, read and parsed once for all tests that look at them."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGE", "ROOT", "Source", "package_sources"]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file: its path, its dotted name with a part for the file, what stands in it, and every node of its tree."""

    path: Path
    module: tuple[str, ...]
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]

    @property
    def place(self) -> str:
        return str(self.path.relative_to(ROOT))


@functools.cache
def package_sources() -> tuple[Source, ...]:
    """Return every Python file of the package; `__init__` keeps its own part in the dotted name."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_data" not in path.parts:
            text = path.read_text()
            tree = ast.parse(text)
            module = ("simulator", *path.relative_to(PACKAGE).with_suffix("").parts)
            found.append(Source(path=path, module=module, text=text, tree=tree, nodes=tuple(ast.walk(tree))))
    return tuple(found)
