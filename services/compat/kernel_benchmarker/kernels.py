"""load_kernel: kernels of .cu files, with derived launches, references and parameter ranges."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from kernalyse.services.core.errors import InvalidParameterError, InvalidSourceError, UnknownParameterError
from kernalyse.services.core.model import (
    ArgumentDefinition,
    Axis,
    BufferDefinition,
    DataType,
    Dim3,
    KernelDefinition,
    KernelSource,
    LaunchDefinition,
    Tie,
)
from kernalyse.services.profiler.kernel_sources.catalog import check_definition, derive_definition, load_catalog
from kernalyse.services.profiler.kernel_sources.definitions import BLOCK_NAMES
from kernalyse.services.profiler.kernel_sources.functions import ParsedSource, SourceFunction, SourceParameter, parse_kernel_source
from kernalyse.services.profiler.kernel_sources.syntax import descendants, node_text
from kernalyse.services.profiler.measuring.references import Inputs, Outputs, Reference, Scalars, compute_reference
from kernalyse.services.profiler.workloads.sweeps.plan import KernelCallables

# ---------------------------------------------------------------- kernel

ReferenceFunction = Callable[..., Any]

NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """A kernel and all that is known of it except the values of its integer parameters."""

    source_file: str
    kernel_name: str
    block_size: tuple[int, ...]  # as given
    grid_size_func: GridFunction | None
    definition: KernelDefinition = field(repr=False)
    source: KernelSource = field(repr=False)
    callables: KernelCallables = field(repr=False)
    assumptions: str = field(repr=False)  # one sentence; empty: none

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Return the names of the integer parameters, in their order."""
        return tuple(parameter.name for parameter in self.definition.parameters)


def load_kernel(
    source_file: str | Path,
    kernel_name: str,
    block_size: tuple[int, ...] = (16, 16, 1),
    grid_size_func: GridFunction | None = None,
    *,
    buffers: Mapping[str, str | int] = NOTHING,
    arguments: Mapping[str, str | float] = NOTHING,
    reference: ReferenceFunction | str | None = None,
    relative_tolerance: float | None = None,
    dtype: str | None = None,
    path: str = "",
    flop: str | None = None,
    bytes: str | None = None,
) -> KernelConfig:
    """Read a `__global__` function with its signature; no device is needed yet.

    Args:
        source_file: path of the .cu file.
        kernel_name: name of the function.
        block_size: threads along x, y and z. Without a grid_size_func, those along an axis that the kernel never reads go to x.
        grid_size_func: blocks along x, y and z, from the integer parameters: by name where it names them, else in their order.
            None: enough to cover them (kernalyse.services.compat.kernel_benchmarker.kernels).
        buffers: elements behind a pointer, as a number or an expression: {"a": "N*K"}. A pointer left out gets as many as
            the product of the two largest integer parameters.
        arguments: values of scalars that are not swept: {"alpha": 2.0}. Floating-point ones left out are 1.0.
        reference: what the results are compared with. A function with the kernel's own parameters that writes into its
            arrays what the kernel should write, or the name of a catalog kernel that computes the same from the same
            parameters in the same order, such as "matmul_naive".
        relative_tolerance: allowed max|output - reference| / max|reference|. None: the catalog's, else 1e-5.
        dtype: of the arithmetic, where it is not the widest type of the pointers: "float16".
        path: "tensor" for a kernel on tensor cores.
        flop, bytes: of one launch, as expressions of the integer parameters: "2*N*M*K". A rate above the device's ceiling
            marks the result as implausible. None: the catalog's, else not known.

    Raises:
        InvalidSourceError: the file does not exist, or cannot be parsed as CUDA.
        UnknownKernelError: the file has no such kernel; names those it has.
        UnsupportedConstructError: a parameter that is neither a number nor a pointer to numbers.
        UnknownParameterError: a buffer or argument that the kernel does not have.
        InvalidParameterError, InvalidCatalogError: another argument that cannot be used.
    """
    source = _read_source(Path(source_file))
    definition, _ = derive_definition(
        source,
        kernel_name,
        buffers={name: str(count) for name, count in buffers.items()},
        arguments={name: str(value) for name, value in arguments.items()},
    )
    signature = parse_kernel_source(source).kernel(kernel_name).parameters
    callables = KernelCallables()
    if isinstance(reference, str):
        _check_one_size_source(kernel_name, buffers)
        definition, computed = adopt_catalog_reference(definition, signature, reference, arguments)
        callables = replace(callables, reference=computed)
    elif reference is not None:
        callables = replace(callables, reference=reference_from_function(reference, signature))
    launch, launch_assumption = _launch(source, definition, block_size, grid_size_func)
    if grid_size_func is not None:
        names = [parameter.name for parameter in definition.parameters]
        callables = replace(callables, grid=grid_callable(grid_size_func, kernel_name, names))
    definition = replace(
        definition,
        launch=launch,
        dtype=definition.dtype if dtype is None else _data_type(dtype),
        path=path,
        flop=definition.flop if flop is None else flop,
        bytes=definition.bytes if bytes is None else bytes,
        relative_tolerance=definition.relative_tolerance if relative_tolerance is None else relative_tolerance,
    )
    check_definition(definition, source, str(source_file))
    is_described = isinstance(reference, str)
    assumed = [launch_assumption, *([] if is_described else _assumed_sizes(definition, buffers, arguments))]
    return KernelConfig(
        source_file=str(source_file),
        kernel_name=kernel_name,
        block_size=tuple(block_size),
        grid_size_func=grid_size_func,
        definition=definition,
        source=source,
        callables=callables,
        assumptions="; ".join(assumption for assumption in assumed if assumption),
    )


def _read_source(path: Path) -> KernelSource:
    try:
        return KernelSource(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSourceError(
            f"source file {path}", found=str(error), expected="a readable .cu file", remedy="Correct the path."
        ) from error


def _launch(
    source: KernelSource, definition: KernelDefinition, block_size: tuple[int, ...], grid_size_func: GridFunction | None
) -> tuple[LaunchDefinition, str]:
    block: Dim3 = read_dimensions(f"block_size of kernel {definition.kernel_name}", block_size)
    if grid_size_func is not None:
        return fixed_launch(block), ""
    parsed = parse_kernel_source(source)
    names = [parameter.name for parameter in definition.parameters]
    return derive_launch(parsed, parsed.kernel(definition.function), names, block)


def _assumed_sizes(definition: KernelDefinition, buffers: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    names_by_size: dict[str, list[str]] = {}
    for buffer in definition.buffers:
        if buffer.name not in buffers:
            names_by_size.setdefault(buffer.shape[0], []).append(buffer.name)
    sizes = [f"elements of {', '.join(names)}: {size}" for size, names in names_by_size.items()]
    values = [f"{argument.name} is {argument.expression}" for argument in definition.arguments if argument.name not in arguments]
    return sizes + values


def _data_type(name: str) -> DataType:
    known = [dtype.value for dtype in DataType]
    if name not in known:
        raise InvalidParameterError(
            f"dtype {name}", found="no such type", expected=f"one of {', '.join(known)}", remedy="Check the spelling."
        )
    return DataType(name)


def _check_one_size_source(kernel_name: str, buffers: Mapping[str, Any]) -> None:
    if buffers:
        raise InvalidParameterError(
            f"buffers of kernel {kernel_name}",
            found="sizes in addition to a catalog reference, which defines them",
            expected="one of the two",
            remedy="Leave out buffers, or give a Python function as the reference.",
        )


# ---------------------------------------------------------------- derived launch
# For kernels with no more than a block size, the launch follows from the indices that their source reads.
#
# Convention of row-major matrices: with two dimensions the first integer parameter counts rows, along y, and the second columns, along x,
# as in matmul(a, b, c, N, M, K).

AXES: Final = ("x", "y", "z")

GridFunction = Callable[..., Sequence[int]]


def derive_launch(
    source: ParsedSource, kernel: SourceFunction, parameter_names: Sequence[str], block: Dim3
) -> tuple[LaunchDefinition, str]:
    """Return a launch that covers the parameters, and a sentence that says how.

    A block has threads along an axis only where the source reads its threadIdx: other threads would repeat the same work,
    which corrupts in-place updates. Their number goes to x.
    """
    thread_axes, block_axes = _axes_read("threadIdx", source, kernel), _axes_read("blockIdx", source, kernel)
    folded = _fold(block, thread_axes)
    grid = tuple(_extents(parameter_names, block_axes))
    launch = LaunchDefinition(block=(str(folded.x), str(folded.y), str(folded.z)), grid=grid)
    remark = "" if folded == block else f" (not {block}: it reads no other index of its thread)"
    return launch, f"taken for granted: a grid of ({', '.join(grid)}); blocks of {folded}{remark}"


def fixed_launch(block: Dim3) -> LaunchDefinition:
    """Return a launch with this block, and a grid to be replaced by the result of a function."""
    return LaunchDefinition(block=(str(block.x), str(block.y), str(block.z)), grid=("1",))


def grid_callable(function: GridFunction, kernel_name: str, parameter_names: Sequence[str]) -> Callable[[Mapping[str, int]], Dim3]:
    """Return `function` in the form that the engine calls: with all names of a configuration.

    It receives the kernel's integer parameters by name if it has no other arguments, else all of them in their order.
    """
    argument_names = _argument_names(function)
    by_name = argument_names is not None and set(argument_names) <= set(parameter_names)

    def grid(names: Mapping[str, int]) -> Dim3:
        values = {name: names[name] for name in parameter_names}
        extents = function(**{name: values[name] for name in argument_names or ()}) if by_name else function(*values.values())
        return read_dimensions(f"grid_size_func of kernel {kernel_name}", extents)

    return grid


def read_dimensions(subject: str, extents: Any) -> Dim3:
    """Return (x,), (x, y) or (x, y, z) as dimensions.

    Raises:
        InvalidParameterError: the value has another form.
    """
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
    """Return the function's argument names; None: it is written in C, or accepts any arguments."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    is_named = all(argument.kind in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY) for argument in arguments)
    return [argument.name for argument in arguments] if is_named else None


def _axes_read(builtin: str, source: ParsedSource, kernel: SourceFunction) -> tuple[str, ...]:
    """Return the axes of threadIdx or blockIdx that the kernel or its device functions read; all axes if they pass it on as one value."""
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
    counts = {axis: extent if axis in axes else 1 for axis, extent in extents.items() if axis != "x"}
    others = counts["y"] * counts["z"]
    return Dim3(block.count // others, counts["y"], counts["z"])


def _extents(parameter_names: Sequence[str], axes: tuple[str, ...]) -> list[str]:
    """Return the expressions of x, y and z; a single parameter counts along every axis that is read: a square, a cube."""
    dimension_count = 1 + max((AXES.index(axis) for axis in axes), default=-1)
    fastest_first = list(reversed(parameter_names[:dimension_count]))
    extents = []
    for index, axis in enumerate(AXES):
        if axis not in axes or not fastest_first:
            extents.append("1")
        elif len(fastest_first) == 1:
            extents.append(f"ceil_div({fastest_first[0]}, {BLOCK_NAMES[index]})")
        else:
            extents.append(f"ceil_div({fastest_first[index]}, {BLOCK_NAMES[index]})" if index < len(fastest_first) else "1")
    return extents


# ---------------------------------------------------------------- reference
# A Python function or a catalog kernel, supplied by the caller.


def reference_from_function(function: Callable[..., Any], signature: Sequence[SourceParameter]) -> Reference:
    """Return a reference that calls `function`, which takes the kernel's arguments and writes into the arrays what the kernel should write.

    Arrays are copies, flat unless the definition's shapes say otherwise; those behind const pointers are read-only.
    """

    def expected(inputs: Inputs, scalars: Scalars) -> Outputs:
        arrays = {parameter.name: inputs[parameter.name].copy() for parameter in signature if parameter.is_pointer}
        written = {parameter.name for parameter in signature if parameter.is_pointer and not parameter.is_const}
        for name, array in arrays.items():
            array.flags.writeable = name in written
        function(*(arrays[parameter.name] if parameter.is_pointer else scalars[parameter.name] for parameter in signature))
        return {name: array for name, array in arrays.items() if name in written}

    return expected


def adopt_catalog_reference(
    definition: KernelDefinition, signature: Sequence[SourceParameter], catalog_name: str, arguments: Mapping[str, object]
) -> tuple[KernelDefinition, Reference]:
    """Return the definition with buffers, counts and tolerance of a catalog kernel, and that kernel's reference.

    Both take the same parameters in the same order; the names may differ. The caller's `arguments` take precedence.

    Raises:
        UnknownKernelError: not in the catalog; names the closest that are.
        InvalidParameterError: its signature is another, or it has no reference.
    """
    catalog = load_catalog()
    model = catalog.definition(catalog_name)
    model_signature = parse_kernel_source(catalog.source(catalog_name)).kernel(model.function).parameters
    if model.reference is None or _types(model_signature) != _types(signature):
        raise InvalidParameterError(
            f"reference {catalog_name} of kernel {definition.kernel_name}",
            found=f"a kernel that takes ({_shown(signature)})",
            expected=f"({_shown(model_signature)}), as {catalog_name} of the catalog takes them",
            remedy="Name another kernel of the catalog, or pass a Python function.",
        )
    own_names = {theirs.name: own.name for theirs, own in zip(model_signature, signature, strict=True)}
    described = replace(
        definition,
        category=model.category,
        buffers=tuple(_renamed_buffer(buffer, own_names) for buffer in model.buffers),
        arguments=tuple(_renamed_argument(argument, own_names, definition, arguments) for argument in model.arguments),
        flop=None if model.flop is None else _renamed(model.flop, own_names),
        bytes=None if model.bytes is None else _renamed(model.bytes, own_names),
        relative_tolerance=model.relative_tolerance,
    )
    return described, _under_own_names(model.reference, own_names)


def _under_own_names(reference_name: str, own_names: Mapping[str, str]) -> Reference:
    def expected(inputs: Inputs, scalars: Scalars) -> Outputs:
        their_inputs = {theirs: inputs[own] for theirs, own in own_names.items() if own in inputs}
        their_scalars = {theirs: scalars[own] for theirs, own in own_names.items() if own in scalars}
        outputs = compute_reference(reference_name, their_inputs, their_scalars)
        return {own_names[theirs]: array for theirs, array in outputs.items()}

    return expected


def _renamed_buffer(buffer: BufferDefinition, own_names: Mapping[str, str]) -> BufferDefinition:
    return replace(buffer, name=own_names[buffer.name], shape=tuple(_renamed(extent, own_names) for extent in buffer.shape))


def _renamed_argument(
    argument: ArgumentDefinition, own_names: Mapping[str, str], definition: KernelDefinition, caller_arguments: Mapping[str, object]
) -> ArgumentDefinition:
    own_name = own_names[argument.name]
    if own_name in caller_arguments:
        return next(own for own in definition.arguments if own.name == own_name)
    return ArgumentDefinition(own_name, _renamed(argument.expression, own_names))


def _renamed(expression: str, own_names: Mapping[str, str]) -> str:
    # All names at once: N may become M while M becomes N.
    return re.sub(r"[A-Za-z_]\w*", lambda found: own_names.get(found[0], found[0]), expression)


def _types(signature: Sequence[SourceParameter]) -> list[tuple[object, ...]]:
    return [(parameter.is_pointer, parameter.dtype, parameter.component_count) for parameter in signature]


def _shown(signature: Sequence[SourceParameter]) -> str:
    return ", ".join(f"{parameter.type_name}{' *' if parameter.is_pointer else ' '}{parameter.name}" for parameter in signature)


# ---------------------------------------------------------------- parameter ranges
# Ranges are given by position or by name; the other integer parameters follow the last one.

Range = Iterable[int]


@dataclass(frozen=True, slots=True)
class ParameterRanges:
    """The ranges that the caller of benchmark passed, by position and by name."""

    positional: tuple[tuple[int, ...], ...]
    named: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, positional: Sequence[Range], named: Mapping[str, Range]) -> Self:
        """Return the ranges as tuples of integers.

        Raises:
            InvalidParameterError: a range is not a list of integers.
        """
        return cls(
            tuple(_values(f"range {index + 1}", values) for index, values in enumerate(positional)),
            {name: _values(f"range {name}", values) for name, values in named.items()},
        )

    def check(self, kernels: Sequence[KernelConfig]) -> None:
        """Raise UnknownParameterError for a name that no kernel has."""
        known = {name for kernel in kernels for name in kernel.parameter_names}
        for name in self.named:
            if name not in known:
                raise UnknownParameterError(
                    f"range {name}",
                    found=f"no integer parameter of that name in {', '.join(kernel.kernel_name for kernel in kernels)}",
                    expected=f"one of {', '.join(sorted(known))}" if known else "none, for they have none",
                    remedy="Check the spelling.",
                )

    def of(self, kernel: KernelConfig) -> tuple[tuple[Axis, ...], tuple[Tie, ...]]:
        """Return the axes in the order of the kernel's parameters, and ties of parameters without a range to the last one given.

        Raises:
            InvalidParameterError: more ranges than parameters, one given twice, or none at all.
        """
        names = kernel.parameter_names
        if len(self.positional) > len(names):
            raise InvalidParameterError(
                f"ranges of kernel {kernel.kernel_name}",
                found=f"{len(self.positional)} by position",
                expected=f"at most {len(names)}, one for each of its integer parameters ({', '.join(names) or 'it has none'})",
                remedy="Give ranges by name: N=[…]. A kernel takes those it has a parameter for.",
            )
        ranges = dict(zip(names, self.positional, strict=False))
        for name, values in self.named.items():
            if name in ranges:
                raise InvalidParameterError(
                    f"range {name} of kernel {kernel.kernel_name}",
                    found="one by position and one by name",
                    expected="one of the two",
                    remedy="Leave one out.",
                )
            if name in names:
                ranges[name] = values
        if names and not ranges:
            raise InvalidParameterError(
                f"ranges of kernel {kernel.kernel_name}",
                found=f"none for its integer parameters {', '.join(names)}",
                expected="at least one",
                remedy=f"Give one, for example {names[0]}=[1024].",
            )
        last = next(reversed(ranges), "")
        axes = tuple(Axis(name, ranges[name]) for name in names if name in ranges)
        return axes, tuple(Tie(name, last) for name in names if name not in ranges)


def _values(subject: str, values: Any) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(value) for value in values)
    except TypeError:
        numbers = ()
    if not numbers:
        raise InvalidParameterError(
            subject, found=repr(values)[:80], expected="a list of whole numbers, such as [128, 256]", remedy="Correct it."
        )
    return numbers
