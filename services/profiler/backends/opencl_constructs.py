"""Constructs of CUDA sources that an OpenCL runtime cannot take: found by construct and line, and refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NoReturn

from tree_sitter import Node

from services.core.errors import UnsupportedConstructError
from services.profiler.backends.source_nodes import descendants, node_text, place_of


class Dialect(StrEnum):
    """The OpenCL language that a source is translated to."""

    CPLUSPLUS = "C++ for OpenCL 2021"  # templates, references, casts, generic pointers
    C = "OpenCL C"  # the smaller set


PYCUDA: Final = "the PYCUDA backend on an NVIDIA GPU"
INTEL: Final = "the Intel CPU runtime (OPENCL=intel)"

HARMLESS_HEADERS: Final = frozenset(
    """
    cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h device_functions.h math_constants.h
    math.h cmath stdint.h cstdint stddef.h cstddef float.h cfloat limits.h climits
    stdio.h cstdio stdlib.h cstdlib iostream string vector cassert assert.h
    """.split()  # noqa: SIM905 - words read better as words
)
"""Headers whose device-side content the prelude carries, or that only host code needs (which is left out)."""

NO_OPENCL_CALLS: Final = {
    "printf": "printf",
    "assert": "assert",
    "malloc": "malloc in device code",
    "free": "free in device code",
    "clock": "clock",
    "clock64": "clock64",
    "__trap": "__trap",
    "__nanosleep": "__nanosleep",
    "tex1Dfetch": "texture fetch",
    "tex2D": "texture fetch",
    "tex3D": "texture fetch",
    "__activemask": "__activemask",
    "__match_any_sync": "__match_any_sync",
    "__match_all_sync": "__match_all_sync",
    "__reduce_add_sync": "__reduce_add_sync",
    "__syncthreads_count": "__syncthreads_count",
    "__syncthreads_and": "__syncthreads_and",
    "__syncthreads_or": "__syncthreads_or",
    "__dp4a": "__dp4a",
}

WARP_CALLS: Final = frozenset(
    ["__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__any_sync", "__all_sync", "__ballot_sync", "__syncwarp"]
)

NO_OPENCL_TYPES: Final = {
    "__half": "the type __half",
    "__half2": "the type __half2",
    "half2": "the type half2",
    "__nv_bfloat16": "the type __nv_bfloat16",
    "__nv_bfloat162": "the type __nv_bfloat162",
    "cudaTextureObject_t": "a texture object",
    "cudaSurfaceObject_t": "a surface object",
}

THREE_COMPONENT_TYPES: Final = frozenset({"float3", "int3", "uint3", "double3", "char3", "uchar3"})

NODES_NO_OPENCL: Final = {
    "kernel_call_syntax": "a kernel launch inside device code",
    "gnu_asm_expression": "inline assembly",
    "new_expression": "new",
    "delete_expression": "delete",
    "try_statement": "try",
    "throw_statement": "throw",
}

NODES_NOT_IN_C: Final = {
    "template_declaration": "a template",
    "reference_declarator": "a reference",
    "abstract_reference_declarator": "a reference",
    "lambda_expression": "a lambda",
    "for_range_loop": "a range-based for",
    "class_specifier": "a class",
    "alias_declaration": "using T = …",
    "optional_parameter_declaration": "a default argument",
    "namespace_definition": "a namespace",
    "qualified_identifier": "a qualified name (a::b)",
    "compound_literal_expression": "a braced value T{…}",
    "static_assert_declaration": "static_assert",
    "decltype": "decltype",
}

CASTS: Final = frozenset({"static_cast", "reinterpret_cast", "const_cast"})


def refuse(node: Node, construct: str, file_name: str, runtime: str, *, possible: str, advice: str = "") -> NoReturn:
    """Raise UnsupportedConstructError: construct, line, and the runtime that could take it."""
    raise UnsupportedConstructError(
        str(place_of(node, file_name)),
        found=construct,
        expected=f"CUDA C++ that {runtime} can take",
        remedy=(f"{advice} " if advice else "") + f"It runs on {possible}.",
    )


def refuse_unsupported(nodes: Iterable[Node], dialect: Dialect, file_name: str, runtime: str) -> None:
    """Check the definitions that a kernel needs. Raises UnsupportedConstructError at the first that cannot be taken."""
    for root in nodes:
        for node in _with_root(root):
            construct = _never(node)
            if construct:
                refuse(node, construct, file_name, runtime, possible=PYCUDA)
            construct = _not_in_c(node) if dialect is Dialect.C else None
            if construct:
                refuse(node, construct, file_name, runtime, possible=f"{INTEL} and on {PYCUDA}")


def first_warp_call(nodes: Iterable[Node]) -> Node | None:
    """Return the first use of a warp shuffle or vote, which needs sub-groups of 32."""
    return next((node for root in nodes for node in _with_root(root) if node.type == "identifier" and node_text(node) in WARP_CALLS), None)


def _with_root(root: Node) -> Iterator[Node]:
    yield root
    yield from descendants(root)


def _never(node: Node) -> str | None:
    if node.type in NODES_NO_OPENCL:
        return NODES_NO_OPENCL[node.type]
    if node.type == "identifier" and node.parent is not None and node.parent.type == "call_expression":
        return NO_OPENCL_CALLS.get(node_text(node))
    if node.type == "type_identifier":
        name = node_text(node)
        if name in THREE_COMPONENT_TYPES and _in_memory(node):
            return f"{name} in memory (12 bytes in CUDA, 16 in OpenCL)"
        return NO_OPENCL_TYPES.get(name)
    if node.type == "namespace_identifier" and node_text(node) in ("cooperative_groups", "cg", "wmma", "nvcuda", "cuda"):
        return f"the namespace {node_text(node)}"
    return None


def _in_memory(node: Node) -> bool:
    """Return whether a type stands behind a pointer or in an array, where its size shows."""
    parent = node.parent
    if parent is None:
        return False
    return any(child.type in ("pointer_declarator", "abstract_pointer_declarator", "array_declarator") for child in descendants(parent))


def _not_in_c(node: Node) -> str | None:
    if node.type in NODES_NOT_IN_C:
        return NODES_NOT_IN_C[node.type]
    if node.type == "identifier" and node_text(node) in WARP_CALLS:
        return f"the warp function {node_text(node)}"
    if node.type == "template_function":
        name = node_text(node.children[0])
        return None if name in CASTS else f"the template {name}<…>"
    if node.type == "function_definition" and node.parent is not None and node.parent.type == "field_declaration_list":
        return "a member function"
    if node.type == "init_declarator" and any(child.type == "initializer_list" for child in node.children):
        if any(child.type == "function_declarator" for child in node.children):
            return None  # a function whose body cannot be read: the compiler says why
        braces_only = not any(node_text(child) == "=" for child in node.children)
        return "initialization by T name{…}" if braces_only else None
    return None
