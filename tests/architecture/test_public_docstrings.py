"""Everything public says what it is: a module what its room is for, a name what it gives."""

from __future__ import annotations

import ast

from tests.package_sources import Source, package_sources

DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def sources() -> list[Source]:
    return [source for source in package_sources() if source.text.strip()]


def public_names(tree: ast.Module) -> set[str] | None:
    """The entries of __all__ that are written out; None without an __all__."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if node.value and any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                return {str(item.value) for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
    return None


def test_every_module_says_what_it_is_for() -> None:
    assert [] == [source.place for source in sources() if not ast.get_docstring(source.tree)]


def test_every_module_lists_its_public_names() -> None:
    lists = {source.place: public_names(source.tree) for source in sources() if source.module[-1] != "__main__"}
    defines = {source.place for source in sources() if any(isinstance(node, DOCUMENTED) for node in source.tree.body)}
    assert [] == sorted(place for place, names in lists.items() if names is None and place in defines)


def test_every_public_class_and_function_has_a_docstring() -> None:
    bare = [
        f"{source.place}:{node.lineno} {node.name}"
        for source in sources()
        for node in source.tree.body
        if isinstance(node, DOCUMENTED) and node.name in (public_names(source.tree) or ())
        if not ast.get_docstring(node)
    ]
    assert [] == bare


def test_every_public_method_of_a_public_class_has_a_docstring() -> None:
    """A method that overrides one of the same name needs none: its base class says what it does."""
    documented = {
        method.name
        for source in sources()
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, DOCUMENTED) and ast.get_docstring(method)
    }
    bare = [
        f"{source.place}:{method.lineno} {node.name}.{method.name}"
        for source in sources()
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name in (public_names(source.tree) or ())
        for method in node.body
        if isinstance(method, DOCUMENTED) and not method.name.startswith("_")
        if not ast.get_docstring(method) and not (node.bases and method.name in documented)
    ]
    assert [] == bare


def test_public_names_exist() -> None:
    missing = []
    for source in sources():
        tree = source.tree
        defined = {node.name for node in tree.body if isinstance(node, DOCUMENTED)}
        for node in source.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                defined |= {alias.asname or alias.name for alias in node.names}
        if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
            missing += [f"{source.place}: {name}" for name in sorted((public_names(tree) or set()) - defined)]
    assert [] == missing
