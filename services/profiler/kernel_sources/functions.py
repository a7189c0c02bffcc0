"""Kernels of a CUDA source: their parameters and the instances of their templates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from kernalyse.services.core.errors import InvalidSourceError, UnknownKernelError, UnsupportedConstructError
from kernalyse.services.core.model import DataType, KernelSource
from kernalyse.services.profiler.kernel_sources.syntax import (
    Edit,
    apply_edits,
    declarator_name,
    descendants,
    function_body,
    function_declarator,
    has_qualifier,
    is_dynamic_shared,
    line_number,
    node_text,
    open_constants,
    parse_text,
    tree_root,
    type_node,
)
from kernalyse.services.profiler.kernel_sources.syntax import replace as replace_text

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

# ---------------------------------------------------------------- source functions

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
        """Return the name with its namespaces: "math::scale"."""
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
        line=line_number(node),
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
        line=line_number(node),
    )


# ---------------------------------------------------------------- parsed sources
# The text is parsed with tree-sitter's CUDA grammar. The parser is lenient: what it cannot read becomes a `SyntaxProblem`, because the
# compiler has better messages for it. A problem is an error here only when a kernel cannot be found at all.

__all__ = ["MAX_SOURCE_BYTES", "ParsedSource", "SourceFunction", "SourceParameter", "SyntaxProblem", "parse_kernel_source"]

MAX_SOURCE_BYTES: Final = 4 * 2**20  # far above any kernel file; parsing stays below a second


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """A place in a .cu text that the grammar cannot read."""

    line: int
    text: str  # what stands there


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """A .cu text with its syntax tree, its functions, and its syntax problems."""

    source: KernelSource
    tree: Tree
    kernels: tuple[SourceFunction, ...]
    device_functions: tuple[SourceFunction, ...]
    problems: tuple[SyntaxProblem, ...]
    constants: Mapping[str, int]  # that -D may set, with the values that they have without it

    def kernel(self, function_name: str) -> SourceFunction:
        """Return the kernel of that name; with template arguments, "scale<float, 4>", that instance of it.

        A template's name alone means its explicit instance, where the file has exactly one.

        Raises:
            InvalidSourceError: it is not there, and the text has places that cannot be read.
            UnknownKernelError: it is not there, or takes other template arguments; names what there is.
            UnsupportedConstructError: a template whose parameters are more than types and numbers.
        """
        name = parse_instance_name(function_name)
        specialization = "".join(function_name.split())
        for kernel in self.kernels:
            if specialization in (kernel.name, kernel.qualified_name):
                return self._sole_instance(kernel)
        for kernel in self.kernels:
            if name.arguments is not None and name.function_name in (kernel.name, kernel.qualified_name):
                return instantiate_template(kernel, name.arguments, self.source.file_name)
        if self.problems:
            first = self.problems[0]
            raise InvalidSourceError(
                f"{self.source.file_name}, line {first.line}",
                found=f"text that is not CUDA C++: '{first.text}'",
                expected=f"a readable file with the kernel {function_name}",
                remedy="Correct that place.",
            )
        names = ", ".join(kernel.qualified_name for kernel in self.kernels)
        raise UnknownKernelError(
            f"kernel {function_name} of {self.source.file_name}",
            found=f"the kernels {names}" if names else "no __global__ function",
            expected=f"a __global__ function {name.function_name}",
            remedy="Check the spelling of the kernel's name.",
        )

    def _sole_instance(self, kernel: SourceFunction) -> SourceFunction:
        """Return the instance of a template that its name alone means; the kernel as it is where there is none, or a choice."""
        if not kernel.is_template or any(other.name.startswith(f"{kernel.name}<") for other in self.kernels):
            return kernel
        made = explicit_instances(kernel, self.tree.root_node)
        arguments = next(iter(made)) if len(made) == 1 else None
        return kernel if arguments is None else instantiate_template(kernel, arguments, self.source.file_name)


@lru_cache(maxsize=64)
def parse_kernel_source(source: KernelSource) -> ParsedSource:
    """Parse a .cu text.

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
    tree = parse_text(text)
    functions = [read_function(node) for node in descendants(tree.root_node) if _is_function(node)]
    return ParsedSource(
        source=source,
        tree=tree,
        kernels=tuple(function for function in functions if has_qualifier(function.node, "__global__")),
        device_functions=tuple(function for function in functions if not has_qualifier(function.node, "__global__")),
        problems=tuple(_problems(tree.root_node)),
        constants=open_constants(tree.root_node),
    )


def _is_function(node: Node) -> bool:
    return (
        node.type in ("function_definition", "declaration")
        and (has_qualifier(node, "__global__") or has_qualifier(node, "__device__"))
        and function_declarator(node) is not None
        and function_body(node) is not None
    )


def _problems(root: Node) -> Iterator[SyntaxProblem]:
    if not root.has_error:
        return
    for node in descendants(root):
        if node.is_missing:
            yield SyntaxProblem(line_number(node), f"a missing {node.type}")
        elif node.type == "ERROR":
            yield SyntaxProblem(line_number(node), node_text(node).strip().split("\n")[0][:80])


# ---------------------------------------------------------------- template instances
# Instances of template kernels, named as C++ names them: `scale<float, 4>`.
#
# The arguments are text: a type, a number, a macro. They replace the template's parameters on the syntax tree, so that members of the
# same name and text in comments are left alone.

TYPE_PARAMETERS: Final = frozenset({"type_parameter_declaration", "optional_type_parameter_declaration"})
VALUE_PARAMETERS: Final = frozenset({"parameter_declaration", "optional_parameter_declaration"})
NAME_NODES: Final = frozenset({"identifier", "type_identifier", "namespace_identifier"})
CLOSING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
NUMBER: Final = re.compile(r"[+-]?\d[\w.]*")
PLAIN: Final = re.compile(r"[\w.:]+|\(.*\)")  # needs no brackets of its own
WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class InstanceName:
    """A function's name, and its template arguments. None: no brackets are given; `()`: `name<>`."""

    function_name: str  # perhaps with namespaces
    arguments: tuple[str, ...] | None

    def __str__(self) -> str:
        return self.function_name if self.arguments is None else f"{self.function_name}<{', '.join(self.arguments)}>"


def parse_instance_name(text: str) -> InstanceName:
    """Read `name` or `name<A, B>`. Raises UnknownKernelError for brackets that do not close."""
    name, bracket, rest = text.strip().partition("<")
    if not bracket:
        return InstanceName("".join(name.split()), None)
    arguments, is_closed = _split_arguments(rest)
    if not is_closed or (len(arguments) > 1 and "" in arguments):
        raise UnknownKernelError(
            f"kernel {text}",
            found="template arguments that cannot be read",
            expected="NAME<ARGUMENT, ARGUMENT>",
            remedy="For example: scale<float,4>",
        )
    return InstanceName("".join(name.split()), () if arguments == [""] else tuple(arguments))


def _split_arguments(text: str) -> tuple[list[str], bool]:
    """Return the arguments in front of the `>` that ends them, and whether nothing comes after it."""
    arguments, waiting, start = list[str](), list[str](), 0
    for position, letter in enumerate(text):
        in_brackets = bool(waiting) and waiting[-1] != ">"  # where < and > compare
        if letter in CLOSING and not (letter == "<" and in_brackets):
            waiting.append(CLOSING[letter])
        elif waiting and letter == waiting[-1]:
            waiting.pop()
        elif not waiting and letter in ",>":
            arguments.append(" ".join(text[start:position].split()))
            start = position + 1
            if letter == ">":
                return arguments, not text[start:].strip()
    return arguments, False


def instantiate_template(function: SourceFunction, arguments: tuple[str, ...], file_name: str) -> SourceFunction:
    """Return the function with its template parameters bound, defaults included, and the types of its parameters filled in.

    Raises:
        UnknownKernelError: it is no template, or takes other arguments.
        UnsupportedConstructError: a parameter pack or a template as template parameter.
    """
    subject = f"kernel {InstanceName(function.qualified_name, arguments)} of {file_name}"
    nodes = template_parameter_nodes(function.node)
    if not nodes:
        raise UnknownKernelError(
            subject,
            found=f"template arguments for {function.name}, which is no template",
            expected=function.qualified_name,
            remedy="Leave the arguments out.",
        )
    parameters = [_read_template_parameter(node, file_name) for node in nodes]
    required_count = sum(parameter.default is None for parameter in parameters)
    if not required_count <= len(arguments) <= len(parameters):
        raise UnknownKernelError(
            subject,
            found=f"{len(arguments)} template argument{'' if len(arguments) == 1 else 's'}",
            expected=f"{_range(required_count, len(parameters))}: {', '.join(function.template_parameters)}",
            remedy="Name one for each template parameter.",
        )
    bound: dict[str, str] = {}
    for position, parameter in enumerate(parameters):
        given = arguments[position] if position < len(arguments) else None
        text = given if given is not None else WORD.sub(lambda word: bound.get(word[0], word[0]), parameter.default or "")
        _check_kind(subject, parameter, text)
        bound[parameter.name] = text
    instance = replace(function, template_arguments=tuple(bound.items()), given_argument_count=len(arguments))
    return replace(instance, parameters=_bound_parameters(instance, subject))


def without_arguments(template: SourceFunction, file_name: str) -> UnsupportedConstructError:
    """Return the error for a kernel that is a template where an instance of it is needed."""
    return UnsupportedConstructError(
        f"{file_name}, line {template.line}",
        found=f"the template kernel {template.name}<{', '.join(template.template_parameters)}> without its arguments",
        expected="its template arguments, or exactly one explicit instance in the file",
        remedy=f"Name one instance, for example {template.example_instance}.",
    )


def explicit_instances(function: SourceFunction, root: Node) -> frozenset[tuple[str, ...] | None]:
    """Return template arguments of the explicit instances in a file, `template __global__ void scale<float>(…);`.

    None stands for one whose arguments follow from its parameters alone.
    """
    declarators = [function_declarator(node) for node in descendants(root) if node.type == "template_instantiation"]
    names = [parse_instance_name(node_text(declarator.children[0])) for declarator in declarators if declarator is not None]
    return frozenset(name.arguments for name in names if name.function_name.rpartition("::")[2] == function.name)


def compiled_name(function: SourceFunction) -> InstanceName:
    """Return the C++ name of a kernel or instance, with namespaces and the arguments that are not defaults."""
    name = parse_instance_name(function.qualified_name)  # a specialization carries its arguments in its name
    if not function.template_arguments:
        return name
    return replace(name, arguments=tuple(text for _, text in function.template_arguments[: function.given_argument_count]))


def argument_edits(instance: SourceFunction, root: Node) -> Iterator[Edit]:
    """Yield the edits that replace template parameters by the arguments of an instance, below `root`."""
    values = _texts(instance)
    for node in descendants(root):
        if node.type in NAME_NODES and node_text(node) in values and not _is_member(node):
            yield _edit(node, values[node_text(node)])
        elif node.type == "preproc_arg" and node.parent is not None and node.parent.type == "preproc_call":  # #pragma unroll N
            yield replace_text(node, WORD.sub(lambda word: values.get(word[0], word[0]), node_text(node)))


@dataclass(frozen=True, slots=True)
class _TemplateParameter:
    name: str
    is_type: bool
    text: str
    default: str | None


def _read_template_parameter(node: Node, file_name: str) -> _TemplateParameter:
    text = " ".join(node_text(node).split())
    if node.type not in TYPE_PARAMETERS | VALUE_PARAMETERS:
        raise UnsupportedConstructError(
            f"{file_name}, line {line_number(node)}",
            found=f"the template parameter {text}",
            expected="types and numbers",
            remedy="Write a kernel with plain template parameters that calls this one's code.",
        )
    declared, equals, default = text.partition("=")
    names = WORD.findall(declared)
    return _TemplateParameter(names[-1], node.type in TYPE_PARAMETERS, text, default.strip() if equals else None)


def _check_kind(subject: str, parameter: _TemplateParameter, argument: str) -> None:
    is_number, is_type = NUMBER.fullmatch(argument) is not None, element_type(argument)[0] is not None
    if (parameter.is_type and is_number) or (not parameter.is_type and is_type) or not argument:
        raise UnknownKernelError(
            subject,
            found=f"{argument or 'nothing'} for {parameter.text}",
            expected="a type" if parameter.is_type else "a value",
            remedy="Give the template arguments in the order of the template's parameters.",
        )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _texts(instance: SourceFunction) -> Mapping[str, str]:
    """Return the text that replaces each template parameter; values get brackets where operators next to them would bind to a part."""
    is_type = {
        name: node.type in TYPE_PARAMETERS
        for (name, _), node in zip(instance.template_arguments, template_parameter_nodes(instance.node), strict=True)
    }
    return {name: text if is_type[name] or PLAIN.fullmatch(text) else f"({text})" for name, text in instance.template_arguments}


def _is_member(node: Node) -> bool:
    """Return whether a name is looked up in another one's scope: `Other::N` is not the template parameter N."""
    parent = node.parent
    return parent is not None and parent.type == "qualified_identifier" and node.prev_sibling is not None


def _edit(node: Node, text: str) -> Edit:
    """Return the edit that turns `T(x)` into `(float)(x)` and `T()` into `((float)0)`, which C and types of two words need."""
    call = node.parent
    if call is None or call.type != "call_expression" or call.children[0].id != node.id:
        return replace_text(node, text)
    has_arguments = bool(call.children[-1].named_children)
    return replace_text(node, f"({text})") if has_arguments else replace_text(call, f"(({text})0)")


def _bound_parameters(instance: SourceFunction, subject: str) -> tuple[SourceParameter, ...]:
    """Return the function's parameters with the template's arguments in their types; lines stay those of the source."""
    declarator = function_declarator(instance.node)
    assert declarator is not None
    edits = argument_edits(instance, declarator)
    text = apply_edits(tree_root(declarator).text or b"", declarator.start_byte, declarator.end_byte, edits)
    bound = next((node for node in descendants(parse_text(f"void {text} {{}}".encode()).root_node) if node.type == declarator.type), None)
    parameters = () if bound is None else read_parameters(bound)
    if len(parameters) != len(instance.parameters):
        raise UnknownKernelError(
            subject, found="arguments that do not fit its signature", expected="types and numbers", remedy="Use plain types."
        )
    return tuple(replace(new, line=old.line) for new, old in zip(parameters, instance.parameters, strict=True))
