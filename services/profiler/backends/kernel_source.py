"""Declarations of a .cu text: its kernels, their parameters, and the `__device__` functions beside them.

The text is parsed with tree-sitter's CUDA grammar. The parser is lenient: a place it cannot read becomes a
`SyntaxProblem`, because the compiler has the better words for it. Only when a kernel cannot be found at all is a problem
an error here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tree_sitter import Node, Tree

from services.core.errors import InvalidSourceError, UnknownKernelError
from services.core.model import KernelSource
from services.profiler.backends.source_constants import open_constants
from services.profiler.backends.source_functions import SourceFunction, SourceParameter, read_function
from services.profiler.backends.source_nodes import (
    descendants,
    function_body,
    function_declarator,
    has_qualifier,
    line_of,
    node_text,
    parse_text,
)
from services.profiler.backends.template_instances import explicit_instances, instance_of, parse_instance_name

__all__ = ["MAX_SOURCE_BYTES", "ParsedSource", "SourceFunction", "SourceParameter", "SyntaxProblem", "parse_kernel_source"]

MAX_SOURCE_BYTES: Final = 4 * 2**20  # far above any kernel file; parsing stays below a second


@dataclass(frozen=True, slots=True)
class SyntaxProblem:
    """A place in a .cu text that the grammar cannot read."""

    line: int
    text: str  # what stands there


@dataclass(frozen=True, slots=True)
class ParsedSource:
    """A .cu text with its syntax tree, its functions, and what could not be read."""

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
                return instance_of(kernel, name.arguments, self.source.file_name)
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
        return kernel if arguments is None else instance_of(kernel, arguments, self.source.file_name)


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
            yield SyntaxProblem(line_of(node), f"a missing {node.type}")
        elif node.type == "ERROR":
            yield SyntaxProblem(line_of(node), node_text(node).strip().split("\n")[0][:80])
