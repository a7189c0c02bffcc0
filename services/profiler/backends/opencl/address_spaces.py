"""Inference of the address spaces of pointers, and of the definitions that a kernel reaches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from kernalyse.services.core.model import DataType
from kernalyse.services.profiler.backends.opencl.dialect import CASTS, INTEL, PYCUDA, raise_unsupported
from kernalyse.services.profiler.kernel_sources.functions import DATA_TYPES, SourceFunction
from kernalyse.services.profiler.kernel_sources.syntax import (
    Edit,
    apply_edits,
    declarator_name,
    descendants,
    function_body,
    function_declarator,
    has_qualifier,
    insert_before,
    is_dynamic_shared,
    node_text,
    remove,
    replace,
    source_location,
    type_node,
)

# ---------------------------------------------------------------- inference
# OpenCL C has no generic pointers: every pointer declares whether it points to global, local, private or constant memory. The kernel's
# pointer parameters are global, `__shared__` arrays local, other arrays private. From there the space follows initializers,
# assignments and casts; a helper gets one overload per combination of spaces that it is called with. A pointer whose space is unclear
# is an error that names its line.

Spaces = tuple[str, ...]

MAX_VARIANTS: Final = 64  # of one helper; more would multiply the compile time, fewer would reject real sources
INTEGER_TYPES: Final = (DataType.INT8, DataType.UINT8, DataType.INT32, DataType.UINT32)  # what an enum constant can stand for


class SpacedFunctions:
    """The kernel and helpers of one scope, with the address space of every pointer inferred."""

    def __init__(self, scope: KernelScope, text: bytes, edits: list[Edit], file_name: str, runtime: str) -> None:
        self._scope = scope
        self._text = text
        self._edits = edits
        self._file_name = file_name
        self._runtime = runtime
        self._helpers: dict[str, list[Item]] = {}
        self._variants: dict[tuple[str, int], list[Spaces]] = {}
        for item in scope.reached:
            if item.is_function and item.inner.id != scope.kernel.node.id:
                self._helpers.setdefault(item.name or "", []).append(item)
        self.file_storage = {name: "__constant" for item in scope.reached if not item.is_function for name in (item.name or "",)}

    def all_edits(self) -> list[Edit]:
        """Return the translation's edits and those that declare address spaces. Raises UnsupportedConstructError."""
        kernel = self._scope.kernel.node
        edits = [*self._edits, *_Placement(self, kernel, None).edits()]
        bodies: dict[tuple[int, Spaces], str] = {}
        done: set[tuple[str, int, Spaces]] = set()
        while waiting := [
            (name, count, s) for (name, count), all_spaces in self._variants.items() for s in all_spaces if (name, count, s) not in done
        ]:
            for name, count, spaces in waiting:
                done.add((name, count, spaces))
                for item in self._helpers[name]:
                    if len(_parameters(item.inner)) == count and len(_pointer_indexes(item.inner)) == len(spaces):
                        bodies[item.inner.id, spaces] = self._variant(item, spaces)
        for items in self._helpers.values():
            for item in items:
                texts = [text for (node_id, _), text in bodies.items() if node_id == item.inner.id]
                place = source_location(item.node, self._file_name)
                again = f'\n#line {place.line} "{place.file_name}"\n'
                edits.append(replace(item.node, again.join(texts)) if texts else remove(item.node))
        for item in self._scope.reached:
            if not item.is_function:
                edits.extend(_file_scope_edits(item))
        return edits

    def request(self, call: Node, placement: _Placement) -> None:
        """Record the address spaces of one call of a helper, so that the helper gets a matching overload."""
        function = call.child_by_field_name("function")
        arguments = call.child_by_field_name("arguments")
        if function is None or arguments is None or node_text(function) not in self._helpers:
            return
        name, values = node_text(function), [child for child in arguments.named_children if child.type != "comment"]
        for item in self._helpers[name]:
            if len(_parameters(item.inner)) != len(values):
                continue
            spaces = tuple(placement.placed(values[index]) for index in _pointer_indexes(item.inner))
            variants = self._variants.setdefault((name, len(values)), [])
            if spaces not in variants:
                variants.append(spaces)
            if len(variants) > MAX_VARIANTS:
                self.reject(call, f"more than {MAX_VARIANTS} combinations of memory that {name} is called with")

    def reject(self, node: Node, construct: str) -> None:
        """Raise UnsupportedConstructError for a construct at `node`."""
        raise_unsupported(node, construct, self._file_name, self._runtime, possible=f"{INTEL} and on {PYCUDA}")

    def _variant(self, item: Item, spaces: Spaces) -> str:
        node = item.inner
        declarator = function_declarator(node)
        if item.name is None:
            self.reject(node, "an operator")
        if declarator is not None and declarator.parent is not None and declarator.parent.type == "pointer_declarator":
            self.reject(node, f"the function {item.name}, which returns a pointer")
        edits = [edit for edit in self._edits if node.start_byte <= edit.start and edit.end <= node.end_byte]
        for child in node.children:
            if node_text(child) == "__device__":
                edits.append(replace(child, "static OVERLOAD"))
            elif node_text(child) in ("static", "constexpr", "__host__"):
                edits.append(remove(child))
        if not has_qualifier(node, "__device__"):
            edits.append(insert_before(node, "static OVERLOAD "))
        edits.extend(_Placement(self, node, spaces).edits())
        return apply_edits(self._text, node.start_byte, node.end_byte, edits)


class _Placement:
    """The address spaces of the pointers of one function, and the edits that declare them. `spaces` is None for the kernel."""

    def __init__(self, functions: SpacedFunctions, node: Node, spaces: Spaces | None) -> None:
        self._functions = functions
        self._node = node
        self._parameter_edits: list[Edit] = []
        self._pointees: dict[str, str] = dict(functions.file_storage)  # what a pointer or an array leads to
        self._storage: dict[str, str] = dict(functions.file_storage)  # where a variable itself lives
        parameters = _parameters(node)
        for position, index in enumerate(_pointer_indexes(node)):
            name = next((declarator_name(child) for child in parameters[index].children if "declarator" in child.type), None)
            self._pointees[node_text(name) if name is not None else ""] = "__global" if spaces is None else spaces[position]
            if spaces is not None:
                self._parameter_edits.append(insert_before(parameters[index], spaces[position] + " "))

    def edits(self) -> list[Edit]:
        edits = list(self._parameter_edits)
        body = function_body(self._node)
        for node in descendants(body) if body is not None else ():
            match node.type:
                case "declaration":
                    edits.extend(self._declaration(node))
                case "cast_expression":
                    edits.extend(self._cast(node))
                case "call_expression":
                    edits.extend(self._call(node))
                case "assignment_expression":
                    self._check_assignment(node)
                case "if_statement":
                    edits.extend(remove(child) for child in node.children if child.type == "constexpr")
                case _:
                    pass
        return edits

    def placed(self, node: Node) -> str:
        """Return the address space that an expression points into. Raises UnsupportedConstructError."""
        space = self._infer(node)
        if space is None:
            self._functions.reject(node, f"the pointer '{node_text(node)}', whose memory (global, shared or local) is unclear")
        return space or ""

    def _declaration(self, node: Node) -> Iterator[Edit]:
        declarators = [
            child for child in node.children if child.type in ("identifier", "init_declarator") or child.type.endswith("declarator")
        ]
        if is_dynamic_shared(node):
            self._pointees.update((node_text(name), "__local") for child in declarators if (name := declarator_name(child)) is not None)
            return
        storage = "__local" if has_qualifier(node, "__shared__") else "__private"
        found: list[str | None] = []
        for declarator in declarators:
            name = declarator_name(declarator)
            key = node_text(name) if name is not None else ""
            self._storage[key] = storage
            inner = [declarator.type, *(child.type for child in declarator.children)]
            value = declarator.child_by_field_name("value")
            if "pointer_declarator" in inner:
                pointer = next(child for child in (declarator, *declarator.children) if child.type == "pointer_declarator")
                if any(child.type in ("array_declarator", "pointer_declarator") for child in pointer.children):
                    self._functions.reject(node, f"'{node_text(node)}', an array of pointers or a pointer to pointers")
                space = self._infer(value) if value is not None else None
                space = space or self._first_assignment(key)
                if space is None:
                    self._functions.reject(node, f"the pointer {key}, whose memory (global, shared or local) is unclear")
                self._pointees[key] = space or ""
                found.append(space)
            elif "array_declarator" in inner:
                self._pointees[key] = storage
                found.append(None)
            else:
                space = self._infer(value) if value is not None and has_qualifier(node, "auto") else None
                self._pointees.pop(key, None)
                if space is not None:
                    self._pointees[key] = space
                found.append(None)
        if len(set(found)) > 1:
            self._functions.reject(node, f"'{node_text(node)}', which declares pointers into different memories or values as well")
        elif found and found[0] is not None:
            yield insert_before(node, found[0] + " ")
        yield from (replace(child, "__auto_type") for child in node.children if node_text(child) == "auto")
        yield from _constant_edits(node, at_file_scope=False)

    def _first_assignment(self, name: str) -> str | None:
        for node in descendants(self._node):
            if node.type == "assignment_expression":
                left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
                if left is not None and right is not None and node_text(left) == name and (space := self._infer(right)) is not None:
                    return space
        return None

    def _check_assignment(self, node: Node) -> None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is None or right is None or left.type != "identifier" or node_text(left) not in self._pointees:
            return
        before, after = self._pointees[node_text(left)], self._infer(right)
        if after is not None and after != before and right.type != "subscript_expression":
            self._functions.reject(node, f"the pointer {node_text(left)}, which points to {before} and to {after} memory")

    def _cast(self, node: Node) -> Iterator[Edit]:
        target, value = node.child_by_field_name("type"), node.child_by_field_name("value")
        if target is not None and value is not None and _is_pointer_type(target):
            yield insert_before(target, self.placed(value) + " ")

    def _call(self, node: Node) -> Iterator[Edit]:
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or arguments is None:
            return
        if function.type == "template_function" and node_text(function.children[0]) in CASTS:
            target = next((child for child in descendants(function) if child.type == "type_descriptor"), function)
            space = self.placed(arguments.named_children[0]) + " " if _is_pointer_type(target) else ""
            yield replace(function, f"(({space}{node_text(target)})")
            yield Edit(arguments.end_byte, arguments.end_byte, ")")
        elif function.type in ("primitive_type", "sized_type_specifier"):  # float(x)
            yield replace(function, f"(({node_text(function)})")
            yield Edit(arguments.end_byte, arguments.end_byte, ")")
        else:
            self._functions.request(node, self)

    def _infer(self, node: Node) -> str | None:
        """Return the space that the value of an expression, taken as a pointer, leads to; None if it is no pointer or unclear."""
        field = node.child_by_field_name
        match node.type:
            case "identifier":
                return self._pointees.get(node_text(node))
            case "parenthesized_expression":
                return self._infer(node.named_children[0])
            case "binary_expression" | "assignment_expression":
                sides = [side for side in (field("left"), field("right")) if side is not None]
                sides.sort(key=lambda side: side.type == "subscript_expression")  # an element is rather the offset
                return next((space for side in sides if (space := self._infer(side)) is not None), None)
            case "conditional_expression":
                branches = {space for name in ("consequence", "alternative") if (branch := field(name)) and (space := self._infer(branch))}
                return branches.pop() if len(branches) == 1 else None
            case "pointer_expression":
                argument, operator = field("argument"), field("operator")
                if argument is None or operator is None:
                    return None
                return self._lives_in(argument) if node_text(operator) == "&" else self._infer(argument)
            case "subscript_expression" | "update_expression":
                argument = field("argument")
                return self._infer(argument) if argument is not None else None
            case "cast_expression":
                value = field("value")
                return self._infer(value) if value is not None else None
            case "call_expression":
                function, arguments = field("function"), field("arguments")
                is_cast = function is not None and function.type == "template_function"
                return self._infer(arguments.named_children[0]) if is_cast and arguments is not None and arguments.named_children else None
            case "field_expression":
                return self._lives_in(node)
            case _:
                return None

    def _lives_in(self, node: Node) -> str | None:
        """Return the space of the object that an expression names, for `&`."""
        argument = node.child_by_field_name("argument")
        match node.type:
            case "identifier":
                name = node_text(node)
                is_pointer_variable = name in self._pointees and self._storage.get(name) != self._pointees[name]
                return None if is_pointer_variable else self._storage.get(name, "__private")
            case "parenthesized_expression":
                return self._lives_in(node.named_children[0])
            case "subscript_expression" | "pointer_expression" if argument is not None:
                return self._infer(argument)
            case "field_expression" if argument is not None:
                return self._infer(argument) if any(child.type == "->" for child in node.children) else self._lives_in(argument)
            case _:
                return None


def _parameters(node: Node) -> list[Node]:
    declarator = function_declarator(node)
    parameters = next((child for child in declarator.children if child.type == "parameter_list"), None) if declarator is not None else None
    return (
        [child for child in parameters.named_children if child.type == "parameter_declaration" and node_text(child) != "void"]
        if parameters
        else []
    )


def _pointer_indexes(node: Node) -> list[int]:
    pointers = ("pointer_declarator", "abstract_pointer_declarator", "array_declarator")
    return [index for index, child in enumerate(_parameters(node)) if any(part.type in pointers for part in descendants(child))]


def _is_pointer_type(descriptor: Node) -> bool:
    return any(child.type == "abstract_pointer_declarator" for child in descendants(descriptor))


def _file_scope_edits(item: Item) -> Iterator[Edit]:
    if item.inner.type == "struct_specifier" and item.name is not None:
        yield insert_before(item.node, f"typedef struct {item.name} {item.name}; ")  # C++ names the type without struct
    elif item.inner.type == "declaration":
        yield from _constant_edits(item.inner, at_file_scope=True)


def _constant_edits(node: Node, *, at_file_scope: bool) -> Iterator[Edit]:
    """Write `constexpr int N = 16;` as an enum, the only constant that C takes as an array size; other constants as such."""
    is_constexpr, is_const = has_qualifier(node, "constexpr"), has_qualifier(node, "const")
    if not is_constexpr and not (is_const and at_file_scope):
        return
    kind = type_node(node)
    declarators = [child for child in node.children if child.type == "init_declarator"]
    plain = all(child.children[0].type == "identifier" for child in declarators)
    if kind is not None and plain and declarators and DATA_TYPES.get(" ".join(node_text(kind).split())) in INTEGER_TYPES:
        yield replace(node, "enum { " + ", ".join(node_text(child) for child in declarators) + " };")
        return
    for child in node.children:
        if node_text(child) == "constexpr":
            yield replace(child, "__constant" if at_file_scope else "const")
        elif node_text(child) in ("static", "const") and at_file_scope:
            yield replace(child, "" if is_constexpr or node_text(child) == "static" else "__constant")


# ---------------------------------------------------------------- reachable definitions
# Only the definitions that a kernel reaches are translated; host code above all is left out.

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
    """The items of a .cu file, divided by whether the kernel reaches them."""

    kernel: SourceFunction
    reached: tuple[Item, ...]  # in the order of the file, the kernel included
    dropped: tuple[Item, ...]
    includes: tuple[Node, ...]
    linkages: tuple[Node, ...]  # extern "C"
    file_dynamic_shared: tuple[Node, ...]  # extern __shared__ at file scope


def find_kernel_scope(root: Node, kernel: SourceFunction) -> KernelScope:
    """Return what the kernel reaches by the names in its definition; overloads of one name stay together."""
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
    reached: set[int] = {item.node.id for item in items if _is_always_reached(item)}
    seen: set[str] = set()
    waiting = [name for item in items if item.node.id in reached or item.inner.id == kernel.node.id for name in _names(item.node)]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting.extend(macros.get(name, ()))
        for item in definitions.get(name, ()):
            if not _is_host_only(item):
                reached.add(item.node.id)
                waiting.extend(_names(item.node))
    reached |= {item.node.id for item in items if item.inner.id == kernel.node.id}
    return KernelScope(
        kernel=kernel,
        reached=tuple(item for item in items if item.node.id in reached),
        dropped=tuple(item for item in items if item.node.id not in reached and not is_dynamic_shared(item.inner)),
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


def _is_always_reached(item: Item) -> bool:
    if item.name is not None:
        return False
    if item.is_function:
        return has_qualifier(item.inner, "__device__")  # an operator
    return item.inner.type in ("enum_specifier", "static_assert_declaration", "type_definition", "declaration")


def _is_host_only(item: Item) -> bool:
    """Return whether device code cannot call the function: nvcc rejects such calls, so the name must mean something else."""
    if not item.is_function or function_body(item.inner) is None:
        return item.inner.type == "using_declaration"
    return not has_qualifier(item.inner, "__device__") and not has_qualifier(item.inner, "constexpr")


def _names(node: Node) -> Iterator[str]:
    for child in descendants(node):
        if child.type in NAME_NODES:
            yield node_text(child)
        elif child.type == "preproc_arg":
            yield from WORD.findall(node_text(child))
