"""`threadIdx.x` and its like as direct OpenCL calls, signed where CUDA's unsigned value cannot differ.

CUDA's built-in indices are unsigned. Unsigned arithmetic may wrap around, and a CPU compiler that must expect that loads
element by element what it could load as one vector: a tiled matrix product ran at 10 instead of 96 GFLOP/s. Where an index
only goes through sums and products into a variable of type int, a signed index gives the same value, so it is used there.
So it is where it subscripts an array, with 64 bits if there are sums or products. Everywhere else (comparisons,
differences, arguments) the index stays unsigned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from services.profiler.backends.source_edits import Edit, replace
from services.profiler.backends.source_nodes import declarator_name, descendants, node_text, type_node

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
    """Return the type in which an index is read, by where its value goes."""
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
