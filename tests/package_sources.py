"""What tests of the tree share: the package's files as text and syntax trees, read and parsed once, and the blocks of pages."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGE", "ROOT", "Source", "package_sources", "page_blocks", "page_files"]

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "simulator"
FENCE = re.compile(r"(?:^`(?P<file>[\w./]+)`\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


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


@functools.cache
def page_blocks(page: Path) -> tuple[re.Match[str], ...]:
    """Return the fenced blocks of a page: kind, body, and the file name that stands in the line before."""
    return tuple(FENCE.finditer(page.read_text()))


def page_files(page: Path) -> dict[str, str]:
    """Return the files that a page shows, by the names it gives them."""
    return {block["file"]: block["body"] for block in page_blocks(page) if block["file"]}
