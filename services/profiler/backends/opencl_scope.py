"""The part of a .cu file that belongs to one kernel: the definitions it reaches, without everything else (host code above all)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from services.profiler.backends.source_functions import SourceFunction
from services.profiler.backends.source_nodes import (
    declarator_name,
    descendants,
    function_body,
    function_declarator,
    has_qualifier,
    is_dynamic_shared,
    node_text,
)

CONTAINERS: Final = frozenset(
    {"translation_unit", "preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "linkage_specification", "declaration_list"}
)
NAME_NODES: Final = frozenset({"identifier", "type_identifier", "namespace_identifier", "field_identifier"})
WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Item:
    """A definition or declaration at file scope."""

    node: Node  # with its template<…>
    inner: Node  # without
    name: str | None  # None: an operator, an unnamed enum, a static_assert
    is_function: bool


@dataclass(frozen=True, slots=True)
class KernelScope:
    """The items of a .cu file by whether the kernel reaches them."""

    kernel: SourceFunction
    kept: tuple[Item, ...]  # in the order of the file, the kernel included
    dropped: tuple[Item, ...]
    includes: tuple[Node, ...]
    linkages: tuple[Node, ...]  # extern "C"
    file_dynamic_shared: tuple[Node, ...]  # extern __shared__ at file scope


def scope_of(root: Node, kernel: SourceFunction) -> KernelScope:
    """Follow names from the kernel's definition; overloads of one name are kept together."""
    items = tuple(_items(root))
    macros: dict[str, set[str]] = {}
    for node in descendants(root):
        if node.type in ("preproc_def", "preproc_function_def"):
            words = WORD.findall(node_text(node))
            macros.setdefault(words[1] if len(words) > 1 else "", set()).update(words[2:])
    definitions: dict[str, list[Item]] = {}
    for item in items:
        if item.name is not None and not has_qualifier(item.inner, "__global__"):
            definitions.setdefault(item.name, []).append(item)
    kept: set[int] = {item.node.id for item in items if _always_kept(item)}
    reached: set[str] = set()
    waiting = [name for item in items if item.node.id in kept or item.inner.id == kernel.node.id for name in _names(item.node)]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        waiting.extend(macros.get(name, ()))
        for item in definitions.get(name, ()):
            if not _is_host_only(item):
                kept.add(item.node.id)
                waiting.extend(_names(item.node))
    kept |= {item.node.id for item in items if item.inner.id == kernel.node.id}
    return KernelScope(
        kernel=kernel,
        kept=tuple(item for item in items if item.node.id in kept),
        dropped=tuple(item for item in items if item.node.id not in kept and not is_dynamic_shared(item.inner)),
        includes=tuple(node for node in descendants(root) if node.type == "preproc_include"),
        linkages=tuple(node for node in descendants(root) if node.type == "linkage_specification"),
        file_dynamic_shared=tuple(item.inner for item in items if is_dynamic_shared(item.inner)),
    )


def _items(node: Node) -> Iterator[Item]:
    asked = [node.child_by_field_name(name) for name in ("name", "condition")]  # what an #ifdef or #if looks at
    for child in node.children:
        if any(one is not None and one.id == child.id for one in asked):
            continue
        if child.type in CONTAINERS:
            yield from _items(child)
        elif child.type == "template_declaration":
            inner = next(
                (part for part in child.children if part.type in ("function_definition", "declaration", "struct_specifier")), child
            )
            yield _item(child, inner)
        elif (
            child.is_named
            and not child.type.startswith("preproc")
            and child.type not in ("comment", "string_literal", "expression_statement")
        ):
            # what stands between an extern "C" and its braces is no item, and neither is a stray semicolon
            yield _item(child, child)


def _item(node: Node, inner: Node) -> Item:
    declarator = function_declarator(inner) if inner.type in ("function_definition", "declaration") else None
    name = declarator_name(declarator) if declarator is not None else _declared_name(inner)
    return Item(node, inner, node_text(name) if name is not None else None, declarator is not None)


def _declared_name(node: Node) -> Node | None:
    if node.type in (
        "struct_specifier",
        "class_specifier",
        "enum_specifier",
        "union_specifier",
        "alias_declaration",
        "namespace_definition",
    ):
        return node.child_by_field_name("name")
    if node.type == "declaration":
        kind = node.child_by_field_name("type")
        for child in node.children:
            if child.type in ("identifier", "init_declarator") or child.type.endswith("declarator"):
                return declarator_name(child)
        return kind.child_by_field_name("name") if kind is not None else None
    if node.type == "type_definition":
        return next((found for child in reversed(node.children) if (found := declarator_name(child)) is not None), None)
    return None


def _always_kept(item: Item) -> bool:
    if item.name is not None:
        return False
    if item.is_function:
        return has_qualifier(item.inner, "__device__")  # an operator
    return item.inner.type in ("enum_specifier", "static_assert_declaration", "type_definition", "declaration")


def _is_host_only(item: Item) -> bool:
    """Return a function that device code cannot call: nvcc would refuse the call, so a name met is another thing's."""
    if not item.is_function or function_body(item.inner) is None:
        return item.inner.type == "using_declaration"
    return not has_qualifier(item.inner, "__device__") and not has_qualifier(item.inner, "constexpr")


def _names(node: Node) -> Iterator[str]:
    for child in descendants(node):
        if child.type in NAME_NODES:
            yield node_text(child)
        elif child.type == "preproc_arg":
            yield from WORD.findall(node_text(child))
