"""The dashboard uses what libraries offer to their users, and none of their insides: versions may go on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from kernalyse.services import ui

DIRECTORY = Path(ui.__path__[0])
PUBLIC = {"_replace", "_fields"}
"""Of named tuples, which their documentation offers."""

KNOWN = {("report/powerpoint.py", "_element"), ("report/process.py", "_exit")}
"""python-pptx has no other way to a shape's XML; the other is os._exit."""


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield names with a leading underscore that are taken from anything but the object itself."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                yield name
            case ast.ImportFrom(module=module, names=names):
                parts = [*(module or "").split("."), *(alias.name for alias in names)]
                yield from (part for part in parts if part.startswith("_") and part != "__future__")


def own_names(tree: ast.AST) -> set[str]:
    """Return private names that the module itself gives to something."""
    assigned = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return assigned | defined | named


def test_no_private_name_of_a_library_is_used() -> None:
    found = {
        (path.relative_to(DIRECTORY).as_posix(), name)
        for path in DIRECTORY.rglob("*.py")
        for name in private_names(ast.parse(path.read_text()))
        if name not in PUBLIC
    }
    assert found - KNOWN == set()


def test_private_names_of_a_class_are_its_own() -> None:
    """What `self._name` reads was set by the dashboard, not inherited from a library."""
    trees = {path.relative_to(DIRECTORY).as_posix(): ast.parse(path.read_text()) for path in DIRECTORY.rglob("*.py")}
    own = set.union(*map(own_names, trees.values()))
    read = {
        (path, node.attr)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert {(path, name) for path, name in read if name not in own | PUBLIC} == set()
