"""The translation of CUDA kernels to OpenCL C by edits that keep every line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from kernalyse.services.core.errors import UnsupportedConstructError
from kernalyse.services.core.model import Dim3, KernelSource
from kernalyse.services.profiler.backends.opencl import dialect as opencl_prelude
from kernalyse.services.profiler.backends.opencl.address_spaces import KernelScope, SpacedFunctions, find_kernel_scope
from kernalyse.services.profiler.backends.opencl.dialect import (
    HARMLESS_HEADERS,
    INTEL,
    PYCUDA,
    Dialect,
    check_supported,
    first_warp_call,
    raise_unsupported,
)
from kernalyse.services.profiler.kernel_sources.functions import ParsedSource, SourceFunction, argument_edits, parse_kernel_source
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

# ---------------------------------------------------------------- translation
# Most of CUDA's vocabulary is covered by the prelude's macros. What macros cannot do is edited on the syntax tree: address spaces of
# kernel parameters, `__shared__` in nested scopes, dynamic shared memory, types that OpenCL names otherwise. For the C dialect
# `opencl_spaces` adds the address space of every other pointer.

WARP_SIZE: Final = 32
DYNAMIC_SHARED: Final = "kernalyse_dynamic_shared"  # the kernel argument that carries dynamic shared memory


@dataclass(frozen=True, slots=True)
class Translation:
    """The OpenCL text of a kernel, and what its launch has to pass."""

    text: str
    uses_dynamic_shared_memory: bool  # one more argument, of local memory, after the source's own
    uses_warps: bool  # built for sub-groups of 32


@dataclass(frozen=True, slots=True)
class Target:
    """The runtime and device that the translation is for."""

    dialect: Dialect
    runtime: str  # as errors name it
    has_warps: bool  # sub-groups of 32 can be asked for


def translate(parsed: ParsedSource, function_name: str, block: Dim3, target: Target) -> Translation:
    """Return OpenCL text for one kernel of a .cu file, or for one instance of a template kernel.

    Raises:
        UnknownKernelError, InvalidSourceError: the kernel is not there.
        UnsupportedConstructError: names construct, line, and the runtime that could take it.
    """
    kernel = parsed.kernel(function_name)
    file_name = parsed.source.file_name
    if kernel.is_template:
        raise_unsupported(
            kernel.node,
            f"the template kernel {function_name}<{', '.join(kernel.template_parameters)}> without its arguments",
            file_name,
            target.runtime,
            possible=f"{target.runtime} and on {PYCUDA}",
            advice=f"Name one instance, for example {kernel.example_instance}.",
        )
    if kernel.template_arguments:
        parsed, kernel = without_template(parsed, kernel, target.runtime)
    elif "<" in kernel.name:
        raise_unsupported(kernel.node, f"the specialization {kernel.name}", file_name, target.runtime, possible=PYCUDA)
    scope = find_kernel_scope(parsed.tree.root_node, kernel)
    reached = [item.node for item in scope.reached]
    _reject_headers(scope, file_name, target)
    check_supported(reached, target.dialect, file_name, target.runtime)
    _reject_variables(scope, file_name, target)
    warp_call = first_warp_call(reached)
    if warp_call is not None:
        _check_warps(warp_call, block, file_name, target)

    text = parsed.source.text.encode()
    edits = [
        *_scope_edits(scope),
        *_kernel_edits(kernel, scope, text, file_name, target, uses_warps=warp_call is not None),
        *(edit for node in reached for edit in _shared_text_edits(node)),
        *(edit for item in scope.reached if item.is_function for edit in index_edits(item.inner)),
    ]
    if target.dialect is Dialect.C:
        edits = SpacedFunctions(scope, text, edits, file_name, target.runtime).all_edits()
    body = apply_edits(text, 0, len(text), edits)
    prelude = opencl_prelude.C if target.dialect is Dialect.C else opencl_prelude.CPLUSPLUS
    if warp_call is not None:
        prelude += opencl_prelude.SHUFFLES
    quoted = file_name.replace("\\", "/").replace('"', "'")
    return Translation(
        text=f'#line 1 "kernalyse prelude"\n{prelude}\n#line 1 "{quoted}"\n{body}\n',
        uses_dynamic_shared_memory=bool(_dynamic_shared(kernel, scope)),
        uses_warps=warp_call is not None,
    )


def _reject_headers(scope: KernelScope, file_name: str, target: Target) -> None:
    for include in scope.includes:
        path = include.child_by_field_name("path")
        header = node_text(path).strip('<>"') if path is not None else node_text(include)
        if header not in HARMLESS_HEADERS:
            raise_unsupported(
                include,
                f"#include of {header}",
                file_name,
                target.runtime,
                possible=PYCUDA,
                advice="Put what the kernel needs of it into the .cu file.",
            )


def _reject_variables(scope: KernelScope, file_name: str, target: Target) -> None:
    """Raise UnsupportedConstructError for memory that CUDA reserves outside kernels, and for shared memory outside of them."""
    for item in scope.reached:
        if not item.is_function and has_qualifier(item.inner, "__device__"):
            raise_unsupported(item.node, f"the __device__ variable {item.name}", file_name, target.runtime, possible=PYCUDA)
        if not item.is_function and has_qualifier(item.inner, "__constant__") and "=" not in node_text(item.node):
            raise_unsupported(
                item.node, f"the __constant__ variable {item.name} without a value", file_name, target.runtime, possible=PYCUDA
            )
        if item.inner.type == "namespace_definition" and any(node_text(node) == "__global__" for node in descendants(item.node)):
            raise_unsupported(item.node, "a kernel inside a namespace", file_name, target.runtime, possible=PYCUDA)
        if item.inner.id == scope.kernel.node.id:
            continue
        for node in descendants(item.node):
            if node.type == "declaration" and has_qualifier(node, "__shared__"):
                raise_unsupported(
                    node,
                    "__shared__ in a __device__ function",
                    file_name,
                    target.runtime,
                    possible=PYCUDA,
                    advice="Declare it in the kernel and pass a pointer.",
                )


def _check_warps(call: Node, block: Dim3, file_name: str, target: Target) -> None:
    name = node_text(call)
    if not target.has_warps:
        raise_unsupported(call, f"the warp function {name}", file_name, target.runtime, possible=f"{INTEL} and on {PYCUDA}")
    if block.x % WARP_SIZE:
        raise UnsupportedConstructError(
            str(source_location(call, file_name)),
            found=f"the warp function {name} with a block of {block}",
            expected=f"a block whose x is a multiple of {WARP_SIZE} on {target.runtime}",
            remedy=f"Choose such a block (--block {WARP_SIZE}x{max(block.count // WARP_SIZE, 1)}), or run it on {PYCUDA}.",
        )


def _scope_edits(scope: KernelScope) -> Iterator[Edit]:
    yield from (remove(item.node) for item in scope.dropped)
    yield from (remove(include) for include in scope.includes)
    for node in scope.file_dynamic_shared:
        yield remove(node)
    for linkage in scope.linkages:  # OpenCL kernels have C names anyway
        for child in linkage.children:
            if child.type in ("extern", "string_literal"):
                yield remove(child)
            elif child.type == "declaration_list":
                yield from (remove(brace) for brace in child.children if brace.type in ("{", "}"))


def _shared_text_edits(root: Node) -> Iterator[Edit]:
    """Yield types that OpenCL names otherwise; `long long` is reserved there, and its `long` has 64 bits as CUDA's has."""
    for node in descendants(root):
        if node.type == "sized_type_specifier" and node_text(node).split().count("long") == 2:
            yield replace(node, "ulong" if "unsigned" in node_text(node) else "long")
        elif node.type == "type_identifier" and node_text(node) in ("longlong2", "ulonglong2"):
            yield replace(node, node_text(node).replace("longlong", "long"))


def _kernel_edits(
    kernel: SourceFunction, scope: KernelScope, text: bytes, file_name: str, target: Target, *, uses_warps: bool
) -> Iterator[Edit]:
    node, body = kernel.node, function_body(kernel.node)
    declarator = function_declarator(node)
    assert declarator is not None
    assert body is not None
    for child in node.children:
        if child.type == "launch_bounds" or node_text(child) in ("static", "inline", "__forceinline__"):
            yield remove(child)
        if child.type == "__global__" and uses_warps:
            yield insert_before(child, f"__attribute__((intel_reqd_sub_group_size({WARP_SIZE}))) ")
    for child in declarator.children:
        if child.type == "launch_bounds":
            yield remove(child)
    yield from _parameter_edits(declarator, file_name, target)
    dynamic = _dynamic_shared(kernel, scope)
    if dynamic:
        parameters = next(child for child in declarator.children if child.type == "parameter_list")
        comma = ", " if kernel.parameters else ""
        closing = parameters.children[-1]
        if not kernel.parameters:  # f(void)
            yield from (remove(child) for child in parameters.named_children)
        yield insert_before(closing, f"{comma}__local char* {DYNAMIC_SHARED}")
        for declaration in scope.file_dynamic_shared:
            opening = body.children[0]
            yield Edit(opening.end_byte, opening.end_byte, " " + _dynamic_pointer(declaration, file_name, target))
    for declaration in (child for child in descendants(body) if child.type == "declaration"):
        if is_dynamic_shared(declaration):
            yield replace(declaration, _dynamic_pointer(declaration, file_name, target))
        elif has_qualifier(declaration, "__shared__"):
            yield from _shared_edits(declaration, body, text, file_name, target)


def _parameter_edits(declarator: Node, file_name: str, target: Target) -> Iterator[Edit]:
    for parameter in (node for node in descendants(declarator) if node.type == "parameter_declaration"):
        kind = type_node(parameter)
        kinds = [child.type for child in descendants(parameter)]
        pointer_count = kinds.count("pointer_declarator") + kinds.count("abstract_pointer_declarator") + kinds.count("array_declarator")
        if pointer_count > 1:
            raise_unsupported(parameter, f"a pointer to pointers, '{node_text(parameter)}'", file_name, target.runtime, possible=PYCUDA)
        if "reference_declarator" in kinds or "function_declarator" in kinds:
            raise_unsupported(parameter, f"the kernel parameter '{node_text(parameter)}'", file_name, target.runtime, possible=PYCUDA)
        if pointer_count:
            yield insert_before(parameter, "__global ")
        elif kind is not None and node_text(kind) == "bool":
            raise_unsupported(parameter, "a bool kernel parameter", file_name, target.runtime, possible=PYCUDA, advice="Make it an int.")
        elif kind is not None and node_text(kind) in ("size_t", "ptrdiff_t"):  # OpenCL kernels may not take these
            yield replace(kind, "ulong" if node_text(kind) == "size_t" else "long")


def _dynamic_shared(kernel: SourceFunction, scope: KernelScope) -> list[Node]:
    inside = [node for node in descendants(kernel.node) if is_dynamic_shared(node)]
    used = {node_text(node) for item in scope.reached for node in descendants(item.node) if node.type == "identifier"}
    outside = [node for node in scope.file_dynamic_shared if (name := declarator_name(node)) is not None and node_text(name) in used]
    return inside + outside


def _dynamic_pointer(declaration: Node, file_name: str, target: Target) -> str:
    """Write `extern __shared__ T s[]` as a pointer into the kernel's local argument; all of them share its start, as in CUDA."""
    kind = type_node(declaration)
    arrays = [node for node in descendants(declaration) if node.type == "array_declarator"]
    name = declarator_name(arrays[0]) if arrays else None
    if kind is None or name is None or len(arrays) != 1:
        raise_unsupported(
            declaration, f"'{node_text(declaration)}'", file_name, target.runtime, possible=PYCUDA, advice="Declare it as T name[]."
        )
    type_name = node_text(kind)
    return f"__local {type_name}* {node_text(name)} = (__local {type_name}*){DYNAMIC_SHARED};"


def _shared_edits(declaration: Node, body: Node, text: bytes, file_name: str, target: Target) -> Iterator[Edit]:
    """Move nested local variables before the statement they are in: OpenCL takes them only at a kernel's outermost scope."""
    scope = declaration.parent
    if scope is None or scope.id == body.id:
        return
    statement = declaration
    while statement.parent is not None and statement.parent.id != body.id:
        statement = statement.parent
    names = {node_text(name) for child in declaration.children if (name := _declared(child)) is not None}
    local_constants = {
        node_text(name)
        for node in descendants(statement)
        if node.type == "init_declarator" and (name := declarator_name(node)) is not None and node.start_byte < declaration.start_byte
    }
    sizes = {node_text(node) for node in descendants(declaration) if node.type == "identifier"} - names
    if sizes & local_constants:
        raise_unsupported(
            declaration,
            f"__shared__ in a nested scope, sized by {', '.join(sorted(sizes & local_constants))} of that scope",
            file_name,
            target.runtime,
            possible=PYCUDA,
            advice="Declare it at the kernel's outermost scope.",
        )
    renamed = {name: f"{name}_{declaration.start_byte}" for name in names}  # another scope may use the same name
    renames = [
        replace(node, renamed[node_text(node)])
        for node in descendants(declaration)
        if node.type == "identifier" and node_text(node) in renamed
    ]
    hoisted = apply_edits(text, declaration.start_byte, declaration.end_byte, renames)
    yield insert_before(statement, " ".join(hoisted.split("\n")) + " ")
    yield remove(declaration)
    for node in descendants(scope):
        if node.type == "identifier" and node_text(node) in renamed and node.start_byte > declaration.end_byte:
            yield replace(node, renamed[node_text(node)])


def _declared(node: Node) -> Node | None:
    return declarator_name(node) if node.type in ("identifier", "init_declarator") or node.type.endswith("declarator") else None


# ---------------------------------------------------------------- template instances
# For runtimes without template kernels, an instance becomes an ordinary kernel: its arguments are written into the text on the syntax
# tree, and the text is parsed again, which gives the real types of its declarations.

MACRO_NODES: Final = ("preproc_def", "preproc_function_def")
WORD: Final = re.compile(r"[A-Za-z_]\w*")


def without_template(parsed: ParsedSource, instance: SourceFunction, runtime: str) -> tuple[ParsedSource, SourceFunction]:
    """Return the source in which this instance is an ordinary kernel of the same name, and that kernel. Lines stay where they are.

    Raises UnsupportedConstructError for a macro that means the template's parameters: its text is not the kernel's.
    """
    _reject_macros(parsed, instance, runtime)
    text = parsed.source.text.encode()
    edits = [*_template_edits(instance), *argument_edits(instance, instance.node)]
    rewritten = parse_kernel_source(KernelSource(parsed.source.file_name, apply_edits(text, 0, len(text), edits)))
    return rewritten, next(kernel for kernel in rewritten.kernels if (kernel.name, kernel.line) == (instance.name, instance.line))


def _template_edits(instance: SourceFunction) -> Iterator[Edit]:
    template = instance.node.parent
    assert template is not None
    yield from (remove(child) for child in template.children if child.id != instance.node.id)


def _reject_macros(parsed: ParsedSource, instance: SourceFunction, runtime: str) -> None:
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
            raise_unsupported(
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


# ---------------------------------------------------------------- index types
# `threadIdx.x` and its like as direct OpenCL calls, signed where CUDA's unsigned value cannot differ.
#
# CUDA's built-in indices are unsigned. Unsigned arithmetic may wrap around, and a CPU compiler that must expect that loads element by
# element what it could load as one vector: a tiled matrix product ran at 10 instead of 96 GFLOP/s. Where an index only goes through
# sums and products into a variable of type int, a signed index gives the same value, so it is used there. So it is where it subscripts
# an array, with 64 bits if there are sums or products. Everywhere else (comparisons, differences, arguments) the index stays unsigned.

FUNCTIONS: Final = {
    "threadIdx": "get_local_id",
    "blockIdx": "get_group_id",
    "blockDim": "get_local_size",
    "gridDim": "get_num_groups",
}
DIMENSIONS: Final = {"x": 0, "y": 1, "z": 2}
SAME_WHEN_SIGNED: Final = frozenset({"+", "*"})  # modulo 2**32 these give one value, signed or not


def index_edits(function: Node) -> Iterator[Edit]:
    """Yield the edits of one function."""
    whole = _int_variables(function)
    for node in descendants(function):
        if node.type != "field_expression" or len(node.children) != 3:
            continue
        name, dimension = node_text(node.children[0]), node_text(node.children[2])
        if name in FUNCTIONS and dimension in DIMENSIONS:
            yield replace(node, f"(({_type_of(node, whole)}){FUNCTIONS[name]}({DIMENSIONS[dimension]}))")


def _type_of(node: Node, whole: frozenset[str]) -> str:
    """Return the type in which an index can be read, inferred from how its value is used."""
    child, parent = node, node.parent
    in_arithmetic = False
    while parent is not None:
        match parent.type:
            case "parenthesized_expression":
                pass
            case "binary_expression":
                operator = parent.child_by_field_name("operator")
                if operator is None or node_text(operator) not in SAME_WHEN_SIGNED:
                    return "uint"
                in_arithmetic = True
            case "init_declarator" | "assignment_expression":
                target, operator = parent.children[0], parent.children[1]
                return "int" if target.id != child.id and node_text(operator) in ("=", "+=") and node_text(target) in whole else "uint"
            case "subscript_argument_list":
                return "long" if in_arithmetic else "int"
            case _:
                return "uint"
        child, parent = parent, parent.parent
    return "uint"


def _int_variables(function: Node) -> frozenset[str]:
    """Return the names that are plain int wherever the function declares them."""
    types: dict[str, set[str]] = {}
    for node in descendants(function):
        if node.type in ("declaration", "parameter_declaration"):
            kind = type_node(node)
            for child in node.children:
                is_plain = child.type == "identifier" or (child.type == "init_declarator" and child.children[0].type == "identifier")
                name = declarator_name(child) if child.type == "identifier" or child.type.endswith("declarator") else None
                if name is not None:
                    types.setdefault(node_text(name), set()).add(node_text(kind) if kind is not None and is_plain else "")
    return frozenset(name for name, found in types.items() if found == {"int"})
