"""A kernel of a .cu file, ready to be benchmarked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from services.compat.benchmarking.given_reference import like_catalog_kernel, reference_from_function
from services.compat.benchmarking.kernel_launch import GridFunction, derive_launch, fixed_launch, grid_callable, read_extents
from services.core.errors import InvalidParameterError, InvalidSourceError
from services.core.model import DataType, Dim3, KernelDefinition, KernelSource, LaunchDefinition
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.catalog import check_definition, derive_definition
from services.profiler.workloads.sweep_plan import KernelCallables

ReferenceFunction = Callable[..., Any]

NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """A kernel with everything that is known of it but the values of its integer parameters."""

    source_file: str
    kernel_name: str
    block_size: tuple[int, ...]  # as given
    grid_size_func: GridFunction | None
    definition: KernelDefinition = field(repr=False)
    source: KernelSource = field(repr=False)
    callables: KernelCallables = field(repr=False)
    assumptions: str = field(repr=False)  # one sentence; empty: nothing had to be assumed

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Of the integer parameters, in their order."""
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
    """Reads a `__global__` function with its signature. No device is needed yet.

    Args:
        source_file: path of the .cu file.
        kernel_name: name of the function.
        block_size: threads along x, y and z. Without a grid_size_func, those along an axis that the kernel never reads go to x.
        grid_size_func: blocks along x, y and z, from the integer parameters: by name where it names them, else in their order.
            None: enough to cover them (services.compat.benchmarking.kernel_launch).
        buffers: elements behind a pointer, as a number or an expression: {"a": "N*K"}. A pointer left out gets as many as
            the product of the two largest integer parameters.
        arguments: values of scalars that are not swept: {"alpha": 2.0}. Floating-point ones left out are 1.0.
        reference: what the results are compared with. A function with the kernel's own parameters that writes into its
            arrays what the kernel should write, or the name of a catalogue kernel that computes the same from the same
            parameters in the same order, such as "matmul_naive".
        relative_tolerance: allowed max|output - reference| / max|reference|. None: the catalogue's, else 1e-5.
        dtype: of the arithmetic, where it is not the widest type of the pointers: "float16".
        path: "tensor" for a kernel on tensor cores.
        flop, bytes: of one launch, as expressions of the integer parameters: "2*N*M*K". A rate over what the device can do
            marks the result as implausible. None: the catalogue's, else not known.

    Raises:
        InvalidSourceError: no such file, or one that cannot be read as CUDA.
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
        _refuse_both(kernel_name, buffers)
        definition, computed = like_catalog_kernel(definition, signature, reference, arguments)
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
    block: Dim3 = read_extents(f"block_size of kernel {definition.kernel_name}", block_size)
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


def _refuse_both(kernel_name: str, buffers: Mapping[str, Any]) -> None:
    if buffers:
        raise InvalidParameterError(
            f"buffers of kernel {kernel_name}",
            found="sizes beside a reference of the catalogue, which says them",
            expected="one of the two",
            remedy="Leave out buffers, or give a Python function as the reference.",
        )
