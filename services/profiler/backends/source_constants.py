"""Compile-time constants of a .cu text: those that -D may set, with the text's own values, and those that it fixes."""

from __future__ import annotations

import re
from typing import Final

from tree_sitter import Node

from services.profiler.backends.source_nodes import descendants, line_of, node_text

WORD: Final = re.compile(r"\w+")
CONDITIONS: Final = frozenset({"preproc_ifdef", "preproc_if", "preproc_elif", "preproc_else"})


def open_constants(root: Node) -> dict[str, int]:
    """Return integers by name that the text defines only where nobody else has: `#ifndef NAME`, `#define NAME 16`."""
    found: dict[str, int] = {}
    for node in descendants(root):
        value = _value(node) if node.type == "preproc_def" and _leaves_it_open(_guard(node), _name(node)) else None
        if value is not None:
            found[_name(node)] = value
    return found


def fixed_line(root: Node, name: str) -> int | None:
    """Return the line that defines `name` under no condition, and so overrules any -D. None: there is no such line."""
    for node in descendants(root):
        if node.type == "preproc_def" and _name(node) == name and _guard(node) is None:
            return line_of(node)
    return None


def is_mentioned(root: Node, name: str) -> bool:
    """Return whether the text uses `name` at all, be it in a condition or in the value of another macro."""
    return any(
        name in WORD.findall(_uncommented(node)) if node.type == "preproc_arg" else not node.children and node_text(node) == name
        for node in descendants(root)
    )


def has_includes(root: Node) -> bool:
    """Return whether there is an #include below `root`."""
    return any(node.type == "preproc_include" for node in descendants(root))


def _guard(definition: Node) -> Node | None:
    """Return the innermost condition under which it stands."""
    node = definition.parent
    while node is not None and node.type not in CONDITIONS:
        node = node.parent
    return node


def _leaves_it_open(guard: Node | None, name: str) -> bool:
    return guard is not None and guard.children[0].type == "#ifndef" and _name(guard) == name


def _name(node: Node) -> str:
    name = node.child_by_field_name("name")
    return "" if name is None else node_text(name)


def _value(definition: Node) -> int | None:
    value = definition.child_by_field_name("value")
    try:
        return int("" if value is None else _uncommented(value), 0)
    except ValueError:  # an expression, a text, nothing
        return None


def _uncommented(value: Node) -> str:
    """Return a macro's value without the comment behind it, which the grammar takes for a part of it."""
    return node_text(value).partition("//")[0].partition("/*")[0].strip()
