"""Blocks and grids of kernels for which nobody says more than a block size: by which indices their source reads.

Convention of row-major matrices: of two dimensions the first integer parameter counts rows, along y, and the second
columns, along x, as in matmul(a, b, c, N, M, K).
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from services.core.errors import InvalidParameterError
from services.core.model import Dim3, LaunchDefinition
from services.profiler.backends.kernel_source import ParsedSource, SourceFunction
from services.profiler.backends.source_nodes import descendants, node_text
from services.profiler.definition_checks import BLOCK_NAMES

AXES: Final = ("x", "y", "z")

GridFunction = Callable[..., Sequence[int]]


def derive_launch(
    source: ParsedSource, kernel: SourceFunction, parameter_names: Sequence[str], block: Dim3
) -> tuple[LaunchDefinition, str]:
    """A launch that covers the parameters, and the sentence that says how.

    A block has threads along an axis only where the source reads threadIdx of it: others would do the same work again, and
    in a kernel that updates in place more than once. Their number goes to x.
    """
    thread_axes, block_axes = _axes_read("threadIdx", source, kernel), _axes_read("blockIdx", source, kernel)
    folded = _fold(block, thread_axes)
    grid = tuple(_extents(parameter_names, block_axes))
    launch = LaunchDefinition(block=(str(folded.x), str(folded.y), str(folded.z)), grid=grid)
    remark = "" if folded == block else f" (not {block}: it reads no other index of its thread)"
    return launch, f"taken for granted: a grid of ({', '.join(grid)}); blocks of {folded}{remark}"


def fixed_launch(block: Dim3) -> LaunchDefinition:
    """A block as it is, and a grid that a function is to say."""
    return LaunchDefinition(block=(str(block.x), str(block.y), str(block.z)), grid=("1",))


def grid_callable(function: GridFunction, kernel_name: str, parameter_names: Sequence[str]) -> Callable[[Mapping[str, int]], Dim3]:
    """`function` as the engine calls it: with all names of a configuration.

    It gets the kernel's integer parameters by name where it asks for no others, else all of them in their order.
    """
    asked = _argument_names(function)
    by_name = asked is not None and set(asked) <= set(parameter_names)

    def grid(names: Mapping[str, int]) -> Dim3:
        values = {name: names[name] for name in parameter_names}
        extents = function(**{name: values[name] for name in asked or ()}) if by_name else function(*values.values())
        return read_extents(f"grid_size_func of kernel {kernel_name}", extents)

    return grid


def read_extents(subject: str, extents: Any) -> Dim3:
    """(x,), (x, y) or (x, y, z). Raises InvalidParameterError."""
    try:
        numbers = [operator.index(extent) for extent in extents]
    except TypeError:
        numbers = []
    if not 1 <= len(numbers) <= len(AXES) or min(numbers) < 1:
        raise InvalidParameterError(
            subject, found=repr(extents), expected="one to three whole numbers of at least 1, such as (16, 16, 1)", remedy="Correct it."
        )
    return Dim3(*numbers)


def _argument_names(function: GridFunction) -> list[str] | None:
    """None: written in C, or takes whatever comes."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    is_named = all(argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY) for argument in arguments)
    return [argument.name for argument in arguments] if is_named else None


def _axes_read(builtin: str, source: ParsedSource, kernel: SourceFunction) -> tuple[str, ...]:
    """Axes of threadIdx or blockIdx that the kernel, or a device function beside it, reads; all where it takes it whole."""
    read = set[str]()
    for function in (kernel, *source.device_functions):
        for node in descendants(function.node):
            if node.type == "identifier" and node_text(node) == builtin:
                parent = node.parent
                is_field = parent is not None and parent.type == "field_expression"
                read |= {node_text(parent).rpartition(".")[2].strip()} if is_field and parent is not None else set(AXES)
    return tuple(axis for axis in AXES if axis in read)


def _fold(block: Dim3, axes: tuple[str, ...]) -> Dim3:
    extents = dict(zip(AXES, (block.x, block.y, block.z), strict=True))
    kept = {axis: extent if axis in axes else 1 for axis, extent in extents.items() if axis != "x"}
    others = kept["y"] * kept["z"]
    return Dim3(block.count // others, kept["y"], kept["z"])


def _extents(parameter_names: Sequence[str], axes: tuple[str, ...]) -> list[str]:
    """Expressions of x, y and z. One parameter counts along every axis that is read: a square, a cube."""
    dimension_count = 1 + max((AXES.index(axis) for axis in axes), default=-1)
    innermost_first = list(reversed(parameter_names[:dimension_count]))
    extents = []
    for index, axis in enumerate(AXES):
        if axis not in axes or not innermost_first:
            extents.append("1")
        elif len(innermost_first) == 1:
            extents.append(f"ceil_div({innermost_first[0]}, {BLOCK_NAMES[index]})")
        else:
            extents.append(f"ceil_div({innermost_first[index]}, {BLOCK_NAMES[index]})" if index < len(innermost_first) else "1")
    return extents
