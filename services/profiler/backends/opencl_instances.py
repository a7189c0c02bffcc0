"""Instances of template kernels as kernels without template, for runtimes that know no template kernels.

Its arguments are written into the text on the syntax tree, and the text is read anew: from there on it is an ordinary
kernel, with the types that its declarations really have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tree_sitter import Node

from services.core.model import KernelSource
from services.profiler.backends.kernel_source import ParsedSource, SourceFunction, parse_kernel_source
from services.profiler.backends.opencl_constructs import PYCUDA, refuse
from services.profiler.backends.source_edits import Edit, apply_edits, remove
from services.profiler.backends.source_nodes import descendants, node_text
from services.profiler.backends.template_instances import argument_edits

MACRO_NODES: Final = ("preproc_def", "preproc_function_def")
WORD: Final = re.compile(r"[A-Za-z_]\w*")


def without_template(parsed: ParsedSource, instance: SourceFunction, runtime: str) -> tuple[ParsedSource, SourceFunction]:
    """Return the source in which this instance is an ordinary kernel of the same name, and that kernel. Lines stay where they are.

    Raises UnsupportedConstructError for a macro that means the template's parameters: its text is not the kernel's.
    """
    _refuse_macros(parsed, instance, runtime)
    text = parsed.source.text.encode()
    edits = [*_template_edits(instance), *argument_edits(instance, instance.node)]
    rewritten = parse_kernel_source(KernelSource(parsed.source.file_name, apply_edits(text, 0, len(text), edits)))
    return rewritten, next(kernel for kernel in rewritten.kernels if (kernel.name, kernel.line) == (instance.name, instance.line))


def _template_edits(instance: SourceFunction) -> Iterator[Edit]:
    template = instance.node.parent
    assert template is not None
    yield from (remove(child) for child in template.children if child.id != instance.node.id)


def _refuse_macros(parsed: ParsedSource, instance: SourceFunction, runtime: str) -> None:
    parameters = {name for name, _ in instance.template_arguments}
    macros = _macros(parsed.tree.root_node)
    waiting, reached = list(_words(instance.node)), set[str]()
    while waiting:
        name = waiting.pop()
        if name in reached or name not in macros:
            continue
        reached.add(name)
        node, words = macros[name]
        used = sorted(parameters & words)
        if name in parameters or used:
            what = "the name of a template parameter" if name in parameters else f"the template parameter {used[0]} in its text"
            refuse(
                node,
                f"the macro {name}, with {what} of {instance.name}",
                parsed.source.file_name,
                runtime,
                possible=PYCUDA,
                advice="Rename it, or give it a parameter.",
            )
        waiting.extend(words)


def _macros(root: Node) -> Mapping[str, tuple[Node, set[str]]]:
    """Return each macro's definition and the names in its text, its own parameters left out."""
    found: dict[str, tuple[Node, set[str]]] = {}
    for node in descendants(root):
        name = node.child_by_field_name("name") if node.type in MACRO_NODES else None
        if name is not None:
            value, own = node.child_by_field_name("value"), node.child_by_field_name("parameters")
            words = set(WORD.findall(node_text(value))) if value is not None else set[str]()
            found[node_text(name)] = node, words - set(WORD.findall(node_text(own)) if own is not None else ())
    return found


def _words(node: Node) -> Iterator[str]:
    yield from (node_text(child) for child in descendants(node) if child.type in ("identifier", "type_identifier"))
