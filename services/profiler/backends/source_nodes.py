"""Places and parts of a syntax tree that tree-sitter's CUDA grammar has made of a .cu text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Tree

ALIGNMENT: Final = re.compile(rb"__align__\s*\([^()]*\)")
"""The grammar lacks this attribute; it is hidden from the parser, byte positions kept."""

LINE_DIRECTIVE: Final = re.compile(rb'[ \t]*#[ \t]*line[ \t]+(\d+)[ \t]+"([^"\n]*)"')

TYPE_NODES: Final = frozenset(
    {"primitive_type", "type_identifier", "sized_type_specifier", "template_type", "qualified_identifier", "struct_specifier"}
)


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_cuda.language()))


def parse_text(text: bytes) -> Tree:
    """Return the tree of a .cu text. What the grammar cannot read becomes a node of type ERROR."""
    return _parser().parse(ALIGNMENT.sub(lambda found: b" " * len(found[0]), text))


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, as compilers name it."""

    file_name: str
    line: int

    def __str__(self) -> str:
        return f"{self.file_name}, line {self.line}"


def place_of(node: Node, file_name: str) -> Place:
    """Return where `node` begins: by the last #line before it, which expanded headers have, else in `file_name`."""
    lines = (root_of(node).text or b"")[: node.start_byte].split(b"\n")
    for distance, line in enumerate(reversed(lines[:-1])):
        found = LINE_DIRECTIVE.match(line)
        if found is not None:
            return Place(found[2].decode(errors="replace"), int(found[1]) + distance)
    return Place(file_name, line_of(node))


def root_of(node: Node) -> Node:
    """Return the root of the tree that `node` is in."""
    while node.parent is not None:
        node = node.parent
    return node


def node_text(node: Node) -> str:
    """Return the text of `node`."""
    return (node.text or b"").decode(errors="replace")


def line_of(node: Node) -> int:
    """Return the line, from 1, as editors count."""
    return int(node.start_point[0]) + 1


def descendants(node: Node) -> Iterator[Node]:
    """Yield every node below `node`, in the order of the text."""
    waiting = list(reversed(node.children))  # not recursive: a deeply nested text must not reach Python's limit
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def has_qualifier(node: Node, qualifier: str) -> bool:
    """Return whether a declaration has the qualifier, outside of its body."""
    return any(node_text(child) == qualifier for child in node.children if child.type != "compound_statement")


def function_declarator(node: Node) -> Node | None:
    """Return the part `name(parameters)` of a function's definition, whatever pointers and initializers surround it."""
    for child in node.children:
        if child.type == "function_declarator":
            return child
        if child.type in ("pointer_declarator", "reference_declarator", "init_declarator"):
            return function_declarator(child)
    return None


def function_body(node: Node) -> Node | None:
    """Return the braces of a definition; a broken body parses as an initializer list."""
    for child in node.children:
        if child.type in ("compound_statement", "initializer_list"):
            return child
        if child.type == "init_declarator":
            return function_body(child)
    return None


def declarator_name(node: Node) -> Node | None:
    """Return the name that a declarator declares, behind its stars, brackets and initializer."""
    if node.type in ("identifier", "type_identifier"):
        return node
    for child in node.children:
        if child.type.endswith("declarator") or child.type == "identifier":
            return declarator_name(child)
    return None


def type_node(declaration: Node) -> Node | None:
    """Return the type of a declaration; None: it has none."""
    return next((child for child in declaration.children if child.type in TYPE_NODES), None)


def is_dynamic_shared(node: Node) -> bool:
    """Return whether `node` is a declaration `extern __shared__ T name[]`."""
    return node.type == "declaration" and has_qualifier(node, "extern") and has_qualifier(node, "__shared__")
