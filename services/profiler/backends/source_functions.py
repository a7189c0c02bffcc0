"""Functions of a .cu text: name, parameters, template parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from services.core.model import DataType
from services.profiler.backends.source_nodes import (
    declarator_name,
    descendants,
    function_declarator,
    has_qualifier,
    is_dynamic_shared,
    line_of,
    node_text,
    type_node,
)

DATA_TYPES: Final[dict[str, DataType]] = {
    "float": DataType.FLOAT32,
    "double": DataType.FLOAT64,
    "half": DataType.FLOAT16,
    "__half": DataType.FLOAT16,
    "char": DataType.INT8,
    "signed char": DataType.INT8,
    "int8_t": DataType.INT8,
    "unsigned char": DataType.UINT8,
    "uint8_t": DataType.UINT8,
    "int": DataType.INT32,
    "signed": DataType.INT32,
    "signed int": DataType.INT32,
    "int32_t": DataType.INT32,
    "unsigned": DataType.UINT32,
    "unsigned int": DataType.UINT32,
    "uint": DataType.UINT32,
    "uint32_t": DataType.UINT32,
    "long": DataType.INT64,
    "long int": DataType.INT64,
    "long long": DataType.INT64,
    "long long int": DataType.INT64,
    "int64_t": DataType.INT64,
    "ptrdiff_t": DataType.INT64,
    "unsigned long": DataType.UINT64,
    "unsigned long int": DataType.UINT64,
    "unsigned long long": DataType.UINT64,
    "unsigned long long int": DataType.UINT64,
    "uint64_t": DataType.UINT64,
    "size_t": DataType.UINT64,
}

VECTOR_ELEMENTS: Final[dict[str, DataType]] = {
    "float": DataType.FLOAT32,
    "double": DataType.FLOAT64,
    "int": DataType.INT32,
    "uint": DataType.UINT32,
    "char": DataType.INT8,
    "uchar": DataType.UINT8,
    "longlong": DataType.INT64,
    "ulonglong": DataType.UINT64,
}


@dataclass(frozen=True, slots=True)
class SourceParameter:
    """A parameter of a kernel as the source writes it, template arguments filled in."""

    name: str
    type_name: str  # without const, *, & and __restrict__: "float", "unsigned int", "float4"
    is_pointer: bool
    is_const: bool  # a pointer's target, or the value
    dtype: DataType | None  # of the element, or of one component of a vector type; None: a type without an array equivalent
    component_count: int  # 4 for float4
    line: int


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A `__global__` or `__device__` function; with template arguments, one instance of it."""

    name: str  # without namespaces and template arguments
    namespace: str  # "a::b"; empty: none
    line: int
    parameters: tuple[SourceParameter, ...]
    template_parameters: tuple[str, ...]  # as the source writes them, e.g. "typename T", "int N = 4"
    uses_dynamic_shared_memory: bool
    node: Node  # the function's own definition, without template<...>
    template_arguments: tuple[tuple[str, str], ...] = ()  # name and argument of each template parameter
    given_argument_count: int = 0  # of these, the others are defaults

    @property
    def is_template(self) -> bool:
        """Return whether arguments are missing before it can be built."""
        return bool(self.template_parameters) and not self.template_arguments

    @property
    def example_instance(self) -> str:
        """Return an example of how to name an instance of a template."""
        arguments = ("float" if _is_type(parameter) else "16" for parameter in self.template_parameters)
        return f"{self.name}<{', '.join(arguments)}>"

    @property
    def qualified_name(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


def _is_type(template_parameter: str) -> bool:
    return template_parameter.split(maxsplit=1)[0] in ("typename", "class")


def read_function(node: Node) -> SourceFunction:
    """Return a function's definition. Template arguments are not known here: types are those of the text."""
    declarator = function_declarator(node)
    assert declarator is not None
    name = next((child for child in declarator.children if child.type != "parameter_list"), declarator)
    return SourceFunction(
        name="".join(node_text(name).split()),
        namespace=_namespace(node),
        line=line_of(node),
        parameters=read_parameters(declarator),
        template_parameters=tuple(" ".join(node_text(parameter).split()) for parameter in template_parameter_nodes(node)),
        uses_dynamic_shared_memory=any(is_dynamic_shared(child) for child in descendants(node)),
        node=node,
    )


def read_parameters(declarator: Node) -> tuple[SourceParameter, ...]:
    """Return the parameters of a function's declarator."""
    parameters = next((child for child in declarator.children if child.type == "parameter_list"), None)
    return tuple(
        _read_parameter(child, index)
        for index, child in enumerate(parameters.named_children if parameters is not None else ())
        if child.type in ("parameter_declaration", "optional_parameter_declaration") and node_text(child) != "void"
    )


def template_parameter_nodes(function: Node) -> tuple[Node, ...]:
    """Return the template parameters of a function's definition; none for an ordinary function and for a specialization."""
    parent = function.parent
    if parent is None or parent.type != "template_declaration":
        return ()
    parameters = next((child for child in parent.children if child.type == "template_parameter_list"), None)
    return tuple(child for child in parameters.named_children if child.type != "comment") if parameters is not None else ()


def element_type(type_name: str) -> tuple[DataType | None, int]:
    """Return scalar type and component count: `float4` gives (FLOAT32, 4), `Point` gives (None, 1)."""
    if type_name in DATA_TYPES:
        return DATA_TYPES[type_name], 1
    if type_name[-1:] in ("2", "3", "4") and type_name[:-1] in VECTOR_ELEMENTS:
        return VECTOR_ELEMENTS[type_name[:-1]], int(type_name[-1])
    return None, 1


def _namespace(node: Node) -> str:
    names: list[str] = []
    parent = node.parent
    while parent is not None:
        name = parent.child_by_field_name("name") if parent.type == "namespace_definition" else None
        if name is not None:
            names.append(node_text(name))
        parent = parent.parent
    return "::".join(reversed(names))


def _read_parameter(node: Node, index: int) -> SourceParameter:
    kind = type_node(node)
    type_name = " ".join(node_text(kind).split()) if kind is not None else node_text(node)
    name = next((declarator_name(child) for child in node.children if child.type == "identifier" or "declarator" in child.type), None)
    pointers = [
        child for child in descendants(node) if child.type in ("pointer_declarator", "abstract_pointer_declarator", "array_declarator")
    ]
    element, component_count = element_type(type_name)
    return SourceParameter(
        name=node_text(name) if name is not None else f"parameter_{index}",
        type_name=type_name,
        is_pointer=bool(pointers),
        is_const=has_qualifier(node, "const"),
        dtype=element if len(pointers) <= 1 else None,
        component_count=component_count,
        line=line_of(node),
    )
