"""Nodes, edits and macros of a CUDA source, by tree-sitter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree

# ---------------------------------------------------------------- nodes

UNKNOWN_ATTRIBUTES: Final = re.compile(rb"__(?:align|cluster_dims|block_size|maxnreg)__\s*\((?:[^()]|\([^()]*\))*\)")
"""The grammar lacks these attributes; they are hidden from the parser, byte positions kept."""

LINE_DIRECTIVE: Final = re.compile(rb'[ \t]*#[ \t]*line[ \t]+(\d+)[ \t]+"([^"\n]*)"')

TYPE_NODES: Final = frozenset(
    {"primitive_type", "type_identifier", "sized_type_specifier", "template_type", "qualified_identifier", "struct_specifier"}
)


@lru_cache(maxsize=1)
def _parser() -> Parser:
    # Whoever sends kernels of the catalog reads no source, and the dashboard's image has no parser.
    import tree_sitter_cuda
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_cuda.language()))


def parse_text(text: bytes) -> Tree:
    """Return the tree of a .cu text. What the grammar cannot read becomes a node of type ERROR."""
    return _parser().parse(UNKNOWN_ATTRIBUTES.sub(lambda found: b" " * len(found[0]), text))


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a file, as compilers name it."""

    file_name: str
    line: int

    def __str__(self) -> str:
        return f"{self.file_name}, line {self.line}"


def source_location(node: Node, file_name: str) -> SourceLocation:
    """Return where `node` begins: by the last #line before it, which expanded headers have, else in `file_name`."""
    lines = (tree_root(node).text or b"")[: node.start_byte].split(b"\n")
    for distance, line in enumerate(reversed(lines[:-1])):
        found = LINE_DIRECTIVE.match(line)
        if found is not None:
            return SourceLocation(found[2].decode(errors="replace"), int(found[1]) + distance)
    return SourceLocation(file_name, line_number(node))


def tree_root(node: Node) -> Node:
    """Return the root of the tree that `node` is in."""
    while node.parent is not None:
        node = node.parent
    return node


def node_text(node: Node) -> str:
    """Return the text of `node`."""
    return (node.text or b"").decode(errors="replace")


def line_number(node: Node) -> int:
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


# ---------------------------------------------------------------- edits
# Edits keep every line of the source where it is.


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes `start` to `end` become `text`; `start == end` inserts."""

    start: int
    end: int
    text: str


def insert_before(node: Node, text: str) -> Edit:
    """Return an edit that puts `text` in front of `node`."""
    return Edit(node.start_byte, node.start_byte, text)


def replace(node: Node, text: str) -> Edit:
    """Return an edit to `text`, with the line ends that `node` had, so that later lines keep their numbers."""
    missing = (node.text or b"").count(b"\n") - text.count("\n")
    return Edit(node.start_byte, node.end_byte, text + "\n" * max(missing, 0))


def remove(node: Node) -> Edit:
    """Return an edit that removes `node` but keeps its line ends."""
    return replace(node, " ")


def apply_edits(text: bytes, start: int, end: int, edits: Iterable[Edit]) -> str:
    """Return `text[start:end]` after the edits within it. An edit inside another one is lost; inserts keep their order."""
    parts: list[bytes] = []
    position = start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end != edit.start, -edit.end)):
        if edit.start < position or edit.end > end:
            continue
        parts += [text[position : edit.start], edit.text.encode()]
        position = edit.end
    parts.append(text[position:end])
    return b"".join(parts).decode(errors="replace")


# ---------------------------------------------------------------- constants
# Compile-time constants of a .cu text: those that -D may set, and those that the text fixes.

WORD: Final = re.compile(r"\w+")
CONDITIONS: Final = frozenset({"preproc_ifdef", "preproc_if", "preproc_elif", "preproc_else"})


def open_constants(root: Node) -> dict[str, int]:
    """Return the integer macros that -D can override, by name: `#ifndef NAME`, `#define NAME 16`."""
    found: dict[str, int] = {}
    for node in descendants(root):
        value = _value(node) if node.type == "preproc_def" and _leaves_it_open(_guard(node), _name(node)) else None
        if value is not None:
            found[_name(node)] = value
    return found


def fixed_line(root: Node, name: str) -> int | None:
    """Return the line that defines `name` unconditionally, and so overrides any -D; None where there is none."""
    for node in descendants(root):
        if node.type == "preproc_def" and _name(node) == name and _guard(node) is None:
            return line_number(node)
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
    """Return a macro's value without the trailing comment, which the grammar includes."""
    return node_text(value).partition("//")[0].partition("/*")[0].strip()
