"""Which kernel of a source is meant: a function by its name, or one instance of a template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tree_sitter import Node

from services.core.errors import UnsupportedConstructError
from services.profiler.backends.kernel_source import (
    ParsedSource,
    SourceFunction,
    SourceParameter,
    descendants,
    element_type,
    function_declarator,
    node_text,
)

CLOSING: Final = {"<": ">", "(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class KernelInstance:
    """One kernel that can be compiled and launched.

    qualified_name: as C++ names it from outside every namespace: "::math::scale<float, 4>". signature: its parameters,
    with the template's own parameters replaced by what they stand for.
    """

    qualified_name: str
    signature: SourceFunction


def find_instance(parsed: ParsedSource, function_name: str) -> KernelInstance:
    """The kernel of that name, which may carry template arguments and namespaces.

    Raises:
        InvalidSourceError, UnknownKernelError: it is not there.
        UnsupportedConstructError: a template without arguments, of which the file has not exactly one explicit instance.
    """
    name, arguments = split_template_arguments(function_name)
    function = parsed.kernel(name.rpartition("::")[2])
    if function.is_template and not arguments:
        arguments = _only_explicit_instance(parsed, function)
    qualified_name = "::".join(("", *_namespaces(function.node), function.name))
    if arguments:
        qualified_name += f"<{', '.join(arguments)}>"
    return KernelInstance(qualified_name, _with_arguments(function, arguments))


def split_template_arguments(function_name: str) -> tuple[str, tuple[str, ...]]:
    """`scale<float, Pair<int, 2>>` gives ("scale", ("float", "Pair<int, 2>")); a plain name has no arguments."""
    name, bracket, rest = function_name.partition("<")
    if not bracket:
        return function_name.strip(), ()
    arguments, awaited = [""], ""
    for letter in rest.rstrip().removesuffix(">"):
        if letter in CLOSING and not (letter == "<" and awaited[-1:] not in ("", ">")):  # there, < and > compare
            awaited += CLOSING[letter]
        elif letter == awaited[-1:]:
            awaited = awaited[:-1]
        if letter == "," and not awaited:
            arguments.append("")
        else:
            arguments[-1] += letter
    return name.strip(), tuple(argument.strip() for argument in arguments)


def _namespaces(node: Node) -> list[str]:
    """Names of those around `node`, outermost first; a namespace without a name needs none."""
    names: list[str] = []
    parent = node.parent
    while parent is not None:
        if parent.type == "namespace_definition":
            named = [child for child in parent.children if child.type in ("namespace_identifier", "nested_namespace_specifier")]
            names[:0] = [node_text(child) for child in named]
        parent = parent.parent
    return names


def _only_explicit_instance(parsed: ParsedSource, function: SourceFunction) -> tuple[str, ...]:
    instances = [
        split_template_arguments(text)
        for text in _explicit_instances(parsed)
        if text.partition("<")[0].rpartition("::")[2] == function.name
    ]
    if len(instances) == 1:
        return instances[0][1]
    written = f"{function.name}<{', '.join(function.template_parameters)}>"
    raise UnsupportedConstructError(
        f"{parsed.source.file_name}, line {function.line}",
        found=f"the template kernel {written}" + (f" with {len(instances)} instances" if instances else " without an instance"),
        expected="one instance by its arguments",
        remedy=f"Name it with them, for example {function.name}<float>.",
    )


def _explicit_instances(parsed: ParsedSource) -> Iterator[str]:
    """Names with arguments, as in `template __global__ void scale<float>(…);`."""
    for node in descendants(parsed.tree.root_node):
        declarator = function_declarator(node) if node.type == "template_instantiation" else None
        if declarator is not None:
            yield " ".join(node_text(declarator).partition("(")[0].split())


def _with_arguments(function: SourceFunction, arguments: tuple[str, ...]) -> SourceFunction:
    names = [parameter.partition("=")[0].split()[-1].lstrip(".") for parameter in function.template_parameters]
    defaults = [parameter.partition("=")[2].strip() for parameter in function.template_parameters]
    given = (*arguments, *defaults[len(arguments) :])
    meanings = {name: meaning for name, meaning in zip(names, given, strict=False) if meaning}
    return replace(function, parameters=tuple(_with_meaning(parameter, meanings) for parameter in function.parameters))


def _with_meaning(parameter: SourceParameter, meanings: dict[str, str]) -> SourceParameter:
    if parameter.type_name not in meanings:
        return parameter
    meaning = meanings[parameter.type_name].removeprefix("const ").strip()
    type_name = meaning.rstrip(" *")
    dtype, component_count = element_type(type_name)
    is_pointer = parameter.is_pointer or meaning.endswith("*")
    return replace(parameter, type_name=type_name, is_pointer=is_pointer, dtype=dtype, component_count=component_count)
