"""What a .cu text declares: its kernels, their parameters, and the `__device__` functions beside them.

The text is parsed with tree-sitter's CUDA grammar. The parser is lenient: a place it cannot read becomes a
`SyntaxProblem`, because the compiler has the better words for it. Only when a kernel cannot be found at all is a problem
an error here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Tree

from services.core.errors import InvalidSourceError, UnknownKernelError
from services.core.model import DataType, KernelSource
from services.profiler.backends.template_instances import FunctionName, bind_arguments

ALIGNMENT: Final = re.compile(rb"__align__\s*\([^()]*\)")
"""The grammar lacks this attribute; it is hidden from the parser, byte positions kept."""

MAX_SOURCE_BYTES: Final = 4 * 2**20  # far above any kernel file; parsing stays below a second

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

TYPE_NODES: Final = frozenset(
    {"primitive_type", "type_identifier", "sized_type_specifier", "template_type", "qualified_identifier", "struct_specifier"}
)


@dataclass(frozen=True, slots=True)
class SourceParameter:
    """One parameter of a kernel as the source writes it."""

    name: str
    type_name: str  # without const, *, & and __restrict__: "float", "unsigned int", "float4"
    is_pointer: bool
    is_const: bool  # a pointer's target, or the value
    dtype: DataType | None  # of the element, or of one component of a vector type; None: a type without an array equivalent
    component_count: int  # 4 for float4
    line: int


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    line: int
    text: str  # what stands there


@dataclass(frozen=True, slots=True)
class SourceFunction:
    """A `__global__` or `__device__` function."""

    name: str
    line: int
    parameters: tuple[SourceParameter, ...]
    template_parameters: tuple[str, ...]
    uses_dynamic_shared_memory: bool
    node: Node  # the function's own definition, without template<...>

    @property
    def is_template(self) -> bool:
        return bool(self.template_parameters)

    @property
    def scope(self) -> str:
        """The namespaces around it as a prefix of its name: "math::", or empty. One without a name needs none."""
        names: list[str] = []
        node = self.node.parent
        while node is not None:
            if node.type == "namespace_definition" and (name := node.child_by_field_name("name")) is not None:
                names.append(node_text(name))
            node = node.parent
        return "".join(f"{name}::" for name in reversed(names))

    def instance(self, arguments: tuple[str, ...]) -> SourceFunction:
        """With its parameters' types as these template arguments make them."""
        return _read_function(self.node, bind_arguments(self.template_parameters, arguments))


@dataclass(frozen=True, slots=True)
class ParsedSource:
    source: KernelSource
    tree: Tree
    kernels: tuple[SourceFunction, ...]
    device_functions: tuple[SourceFunction, ...]
    problems: tuple[SyntaxProblem, ...]

    def kernel(self, function_name: str) -> SourceFunction:
        """The kernel of that name, which may carry template arguments: "scale<float, 4>".

        Raises:
            InvalidSourceError: it is not there, and the text has places that cannot be read.
            UnknownKernelError: it is not there, names those that are; or it is no template.
        """
        name = FunctionName.read(function_name)
        for kernel in self.kernels:
            if kernel.name == name.plain:
                if name.arguments is None:
                    return kernel
                if kernel.is_template:
                    return kernel.instance(name.arguments)
                raise UnknownKernelError(
                    f"kernel {function_name} of {self.source.file_name}",
                    found=f"{kernel.name} in line {kernel.line}, which is no template",
                    expected=f"a template of {len(name.arguments)} parameters",
                    remedy="Leave the template arguments out.",
                )
        if self.problems:
            first = self.problems[0]
            raise InvalidSourceError(
                f"{self.source.file_name}, line {first.line}",
                found=f"text that is not CUDA C++: '{first.text}'",
                expected=f"a readable file with the kernel {function_name}",
                remedy="Correct that place.",
            )
        names = ", ".join(kernel.name for kernel in self.kernels)
        raise UnknownKernelError(
            f"kernel {function_name} of {self.source.file_name}",
            found=f"the kernels {names}" if names else "no __global__ function",
            expected=f"a __global__ function {function_name}",
            remedy="Check the spelling of the kernel's name.",
        )


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_cuda.language()))


@lru_cache(maxsize=64)
def parse_kernel_source(source: KernelSource) -> ParsedSource:
    """Parses a .cu text.

    Raises:
        InvalidSourceError: the text is empty, too long or binary.
    """
    text = source.text.encode()
    if not source.text.strip() or len(text) > MAX_SOURCE_BYTES or b"\0" in text:
        raise InvalidSourceError(
            source.file_name,
            found="binary data" if b"\0" in text else f"{len(text)} bytes",
            expected=f"CUDA C++ text of 1 to {MAX_SOURCE_BYTES} bytes",
            remedy="Give the .cu file itself.",
        )
    tree = _parser().parse(ALIGNMENT.sub(lambda found: b" " * len(found[0]), text))
    functions = [_read_function(node) for node in descendants(tree.root_node) if _is_function(node)]
    return ParsedSource(
        source=source,
        tree=tree,
        kernels=tuple(function for function in functions if has_qualifier(function.node, "__global__")),
        device_functions=tuple(function for function in functions if not has_qualifier(function.node, "__global__")),
        problems=tuple(_problems(tree.root_node)),
    )


def node_text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def line_of(node: Node) -> int:
    """From 1, as editors count."""
    return int(node.start_point[0]) + 1


def descendants(node: Node) -> Iterator[Node]:
    """Every node below `node`, in the order of the text."""
    waiting = list(reversed(node.children))  # not recursive: a deeply nested text must not reach Python's limit
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def has_qualifier(node: Node, qualifier: str) -> bool:
    return any(node_text(child) == qualifier for child in node.children if child.type != "compound_statement")


def function_declarator(node: Node) -> Node | None:
    """The part `name(parameters)` of a function's definition, whatever pointers and initializers surround it."""
    for child in node.children:
        if child.type == "function_declarator":
            return child
        if child.type in ("pointer_declarator", "reference_declarator", "init_declarator"):
            return function_declarator(child)
    return None


def function_body(node: Node) -> Node | None:
    """The braces of a definition; a broken body parses as an initializer list."""
    for child in node.children:
        if child.type in ("compound_statement", "initializer_list"):
            return child
        if child.type == "init_declarator":
            return function_body(child)
    return None


def declarator_name(node: Node) -> Node | None:
    """The name that a declarator declares, behind its stars, brackets and initializer."""
    if node.type in ("identifier", "type_identifier"):
        return node
    for child in node.children:
        if child.type.endswith("declarator") or child.type == "identifier":
            return declarator_name(child)
    return None


def type_node(declaration: Node) -> Node | None:
    return next((child for child in declaration.children if child.type in TYPE_NODES), None)


def _is_function(node: Node) -> bool:
    return (
        node.type in ("function_definition", "declaration")
        and (has_qualifier(node, "__global__") or has_qualifier(node, "__device__"))
        and function_declarator(node) is not None
        and function_body(node) is not None
    )


NO_TYPES: Final[Mapping[str, str]] = {}


def _read_function(node: Node, types: Mapping[str, str] = NO_TYPES) -> SourceFunction:
    """types: what template parameters stand for."""
    declarator = function_declarator(node)
    assert declarator is not None
    name = next((child for child in declarator.children if child.type != "parameter_list"), declarator)
    parameters = next((child for child in declarator.children if child.type == "parameter_list"), None)
    return SourceFunction(
        name=node_text(name),
        line=line_of(node),
        parameters=tuple(
            _read_parameter(child, index, types)
            for index, child in enumerate(parameters.named_children if parameters is not None else ())
            if child.type in ("parameter_declaration", "optional_parameter_declaration") and node_text(child) != "void"
        ),
        template_parameters=_template_parameters(node),
        uses_dynamic_shared_memory=any(is_dynamic_shared(child) for child in descendants(node)),
        node=node,
    )


def is_dynamic_shared(node: Node) -> bool:
    """Whether `node` is a declaration `extern __shared__ T name[]`."""
    return node.type == "declaration" and has_qualifier(node, "extern") and has_qualifier(node, "__shared__")


def _template_parameters(node: Node) -> tuple[str, ...]:
    parent = node.parent
    if parent is None or parent.type != "template_declaration":
        return ()
    parameters = next((child for child in parent.children if child.type == "template_parameter_list"), None)
    return tuple(node_text(child) for child in parameters.named_children) if parameters is not None else ()


def _read_parameter(node: Node, index: int, types: Mapping[str, str]) -> SourceParameter:
    kind = type_node(node)
    written = " ".join(node_text(kind).split()) if kind is not None else node_text(node)
    type_name = types.get(written, written)
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


def element_type(type_name: str) -> tuple[DataType | None, int]:
    """Scalar type and component count: `float4` gives (FLOAT32, 4), `Point` gives (None, 1)."""
    if type_name in DATA_TYPES:
        return DATA_TYPES[type_name], 1
    if type_name[-1:] in ("2", "3", "4") and type_name[:-1] in VECTOR_ELEMENTS:
        return VECTOR_ELEMENTS[type_name[:-1]], int(type_name[-1])
    return None, 1


def _problems(root: Node) -> Iterator[SyntaxProblem]:
    if not root.has_error:
        return
    for node in descendants(root):
        if node.is_missing:
            yield SyntaxProblem(line_of(node), f"a missing {node.type}")
        elif node.type == "ERROR":
            yield SyntaxProblem(line_of(node), node_text(node).strip().split("\n")[0][:80])
