"""Everything public says what it is: a module what its room is for, a name what it gives."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "simulator"
DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "_data" not in path.parts and path.read_text().strip()]
    return [(str(path.relative_to(PACKAGE.parent)), ast.parse(path.read_text())) for path in paths]


def public_names(tree: ast.Module) -> set[str] | None:
    """The entries of __all__ that are written out; None without an __all__."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value and any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return {str(item.value) for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
    return None


def test_every_module_says_what_it_is_for() -> None:
    assert [] == [place for place, tree in trees() if not ast.get_docstring(tree)]


def test_every_module_lists_its_public_names() -> None:
    lists = {place: public_names(tree) for place, tree in trees() if not place.endswith("__main__.py")}
    defines = {place for place, tree in trees() if any(isinstance(node, DOCUMENTED) for node in tree.body)}
    assert [] == sorted(place for place, names in lists.items() if names is None and place in defines)


def test_every_public_class_and_function_has_a_docstring() -> None:
    bare = [
        f"{place}:{node.lineno} {node.name}"
        for place, tree in trees()
        for node in tree.body
        if isinstance(node, DOCUMENTED) and node.name in (public_names(tree) or ()) and not ast.get_docstring(node)
    ]
    assert [] == bare


def test_every_public_method_of_a_public_class_has_a_docstring() -> None:
    """A method that overrides one of the same name needs none: its base class says what it does."""
    documented = {
        method.name
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, DOCUMENTED) and ast.get_docstring(method)
    }
    bare = [
        f"{place}:{method.lineno} {node.name}.{method.name}"
        for place, tree in trees()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in (public_names(tree) or ())
        for method in node.body
        if isinstance(method, DOCUMENTED) and not method.name.startswith("_")
        if not ast.get_docstring(method) and not (node.bases and method.name in documented)
    ]
    assert [] == bare


def test_public_names_exist() -> None:
    missing = []
    for place, tree in trees():
        defined = {node.name for node in tree.body if isinstance(node, DOCUMENTED)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                defined |= {alias.asname or alias.name for alias in node.names}
        if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
            missing += [f"{place}: {name}" for name in sorted((public_names(tree) or set()) - defined)]
    assert [] == missing
