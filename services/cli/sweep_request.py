"""From the words of `kernalyse bench` to a sweep that any node can run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.cli.axis_grammar import parse_argument, parse_axes, parse_block, parse_buffer, parse_tie
from services.cli.usage import UsageError
from services.core.expressions import parse_expression
from services.core.model import (
    BackendName,
    CacheMode,
    KernelSelection,
    KernelSource,
    KernelSweep,
    MeasuringOptions,
)
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.catalog import Catalog, derive_definition, load_catalog

SOURCE_SUFFIXES: Final = (".cu", ".cuh")
DEFAULT_MIN_DURATION_NS: Final = MeasuringOptions().min_duration_ns


@dataclass(frozen=True, slots=True)
class DefinitionOptions:
    """What the user says of kernels outside the catalogue. file: definitions in the catalogue's format."""

    buffers: tuple[str, ...] = ()
    flop: str | None = None
    bytes: str | None = None
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The options as they were written."""

    kernels: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    where: str = ""
    arguments: tuple[str, ...] = ()
    definition: DefinitionOptions = DefinitionOptions()
    backend: BackendName = BackendName.AUTO
    block: str | None = None
    device_id: str | None = None
    cache_mode: CacheMode = CacheMode.DEFAULT
    max_sample_count: int | None = None
    max_duration_s: float | None = None
    seed: int = 0
    skip_verification: bool = False
    with_counters: bool = False


def build_sweep(request: SweepRequest) -> tuple[KernelSweep, tuple[str, ...]]:
    """The sweep, and what has to be said aloud: every assumption about a kernel that nobody described.

    Raises:
        UsageError: an option cannot be read, or a file is not there.
        InvalidRequestError, UnknownKernelError: a source or a definition cannot be used.
    """
    if request.where:
        parse_expression(request.where)
    kernels, notices = _select_kernels(request)
    sweep = KernelSweep(
        kernels=kernels,
        axes=parse_axes(request.parameters),
        ties=tuple(map(parse_tie, request.ties)),
        where=request.where,
        arguments=tuple(map(parse_argument, request.arguments)),
        blocks=() if request.block is None else (parse_block(request.block),),
        backend=request.backend,
        device_id=request.device_id,
        measuring=_measuring(request),
        with_counters=request.with_counters,
    )
    return sweep, notices


def _measuring(request: SweepRequest) -> MeasuringOptions:
    options = MeasuringOptions(
        cache_mode=request.cache_mode,
        max_sample_count=request.max_sample_count,
        skip_verification=request.skip_verification,
        seed=request.seed,
    )
    if request.max_sample_count is not None:
        options = replace(options, min_sample_count=min(options.min_sample_count, request.max_sample_count))
    if request.max_duration_s is None:
        return options
    if not 0 < request.max_duration_s < 1e6:
        raise UsageError("option --max-time", found=str(request.max_duration_s), expected="seconds, more than 0")
    max_duration_ns = int(request.max_duration_s * 1e9)
    return replace(options, max_duration_ns=max_duration_ns, min_duration_ns=min(DEFAULT_MIN_DURATION_NS, max_duration_ns))


def _select_kernels(request: SweepRequest) -> tuple[tuple[KernelSelection, ...], tuple[str, ...]]:
    options = request.definition
    own_catalog = None if options.file is None else load_catalog(options.file)
    notices: list[str] = []
    used_buffers: set[str] = set()
    selections = []
    for word in request.kernels:
        file_name, separator, function_name = word.rpartition(":")
        if separator:
            source = _read_source(word, Path(file_name))
            selections.append(_from_file(source, function_name, own_catalog, request, used_buffers, notices))
        elif word.endswith(SOURCE_SUFFIXES):
            raise UsageError(f"kernel {word}", found="a file", expected="FILE.cu:KERNEL", remedy=f"For example: {word}:{Path(word).stem}")
        elif own_catalog is not None and word in own_catalog.kernel_names:
            selections.append(KernelSelection(word, own_catalog.source(word), own_catalog.definition(word)))
        else:
            selections.append(KernelSelection(word))
    _check_definition_options(options, selections, used_buffers)
    return tuple(selections), tuple(notices)


def _from_file(
    source: KernelSource,
    function_name: str,
    own_catalog: Catalog | None,
    request: SweepRequest,
    used_buffers: set[str],
    notices: list[str],
) -> KernelSelection:
    if own_catalog is not None:
        definition = replace(own_catalog.definition(function_name), source_file_name=source.file_name)
        return KernelSelection(function_name, source, definition)
    signature = parse_kernel_source(source).kernel(function_name).parameters
    pointers = {parameter.name for parameter in signature if parameter.is_pointer}
    scalars = {parameter.name for parameter in signature if not parameter.is_pointer}
    buffers = dict(map(parse_buffer, request.definition.buffers))
    arguments = {argument.name: argument.expression for argument in map(parse_argument, request.arguments)}
    definition, assumptions = derive_definition(
        source,
        function_name,
        buffers={name: count for name, count in buffers.items() if name in pointers},
        arguments={name: expression for name, expression in arguments.items() if name in scalars},
        flop=request.definition.flop,
        bytes=request.definition.bytes,
    )
    used_buffers |= pointers & buffers.keys()
    notices.extend(f"{function_name}: {assumption}" for assumption in assumptions)
    return KernelSelection(function_name, source, definition)


def _read_source(word: str, path: Path) -> KernelSource:
    try:
        return KernelSource(path.name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"kernel {word}", found=f"{path}: {error.strerror}", expected="a CUDA source file", remedy="Correct the path."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"kernel {word}", found=f"{path}, which is not text", expected="a CUDA source file") from error


def _check_definition_options(options: DefinitionOptions, selections: Sequence[KernelSelection], used_buffers: set[str]) -> None:
    """An option that nothing uses is a mistake: it would be lost without a word."""
    has_own = any(selection.source is not None for selection in selections)
    for option, is_given in (
        ("--buffer", bool(options.buffers)),
        ("--flop", options.flop is not None),
        ("--bytes", options.bytes is not None),
    ):
        if is_given and (options.file is not None or not has_own):
            raise UsageError(
                f"option {option}",
                found="no kernel that it could describe",
                expected="a kernel FILE.cu:KERNEL without --definition",
                remedy="Leave it out: the definition of these kernels is known.",
            )
    unused = dict(map(parse_buffer, options.buffers)).keys() - used_buffers
    if unused:
        raise UsageError(f"option --buffer {min(unused)}", found="no such pointer", expected="a pointer parameter of one of the kernels")
