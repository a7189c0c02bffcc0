"""Instances of template kernels, named as C++ names them: `scale<float, 4>`.

The arguments are words: a type, a number, a macro. They are put in the place of the template's parameters, on the syntax
tree, so that members of the same name and text in comments stay what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tree_sitter import Node

from services.core.errors import UnknownKernelError, UnsupportedConstructError
from services.profiler.backends.source_edits import Edit, apply_edits
from services.profiler.backends.source_edits import replace as replace_text
from services.profiler.backends.source_functions import (
    SourceFunction,
    SourceParameter,
    element_type,
    read_parameters,
    template_parameter_nodes,
)
from services.profiler.backends.source_nodes import descendants, function_declarator, line_of, node_text, parse_text, root_of

TYPE_PARAMETERS: Final = frozenset({"type_parameter_declaration", "optional_type_parameter_declaration"})
VALUE_PARAMETERS: Final = frozenset({"parameter_declaration", "optional_parameter_declaration"})
NAME_NODES: Final = frozenset({"identifier", "type_identifier", "namespace_identifier"})
CLOSING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}
NUMBER: Final = re.compile(r"[+-]?\d[\w.]*")
PLAIN: Final = re.compile(r"[\w.:]+|\(.*\)")  # needs no brackets of its own
WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class InstanceName:
    """A function's name apart from its template arguments; None: none are given, `()`: `name<>`."""

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


def instance_of(function: SourceFunction, arguments: tuple[str, ...], file_name: str) -> SourceFunction:
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
    """Return how C++ finds a kernel, or one instance of it: with its namespaces, and the arguments that are no defaults."""
    name = parse_instance_name(function.qualified_name)  # a specialization carries its arguments in its name
    if not function.template_arguments:
        return name
    return replace(name, arguments=tuple(text for _, text in function.template_arguments[: function.given_argument_count]))


def argument_edits(instance: SourceFunction, root: Node) -> Iterator[Edit]:
    """Yield the edits that put the arguments of an instance in the place of its template parameters, below `root`."""
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
            f"{file_name}, line {line_of(node)}",
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
    """Return what stands for each template parameter; values in brackets where they would join with their neighbours."""
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
    """Make `T(x)` `(float)(x)` and `T()` `((float)0)`: C has no other form, and types of two words neither."""
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
    text = apply_edits(root_of(declarator).text or b"", declarator.start_byte, declarator.end_byte, edits)
    bound = next((node for node in descendants(parse_text(f"void {text} {{}}".encode()).root_node) if node.type == declarator.type), None)
    parameters = () if bound is None else read_parameters(bound)
    if len(parameters) != len(instance.parameters):
        raise UnknownKernelError(
            subject, found="arguments that do not fit its signature", expected="types and numbers", remedy="Use plain types."
        )
    return tuple(replace(new, line=old.line) for new, old in zip(parameters, instance.parameters, strict=True))
