"""The sweep that the options of `kernalyse bench` describe, with its kernels from the catalog, a definition file or .cu files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import UsageError
from kernalyse.services.core.model import ArgumentDefinition, KernelDefinition, KernelSelection, KernelSource, KernelSweep
from kernalyse.services.core.request_syntax import SweepOptions, parse_buffer
from kernalyse.services.profiler.kernel_sources.catalog import Catalog, derive_definition, load_catalog
from kernalyse.services.profiler.kernel_sources.functions import parse_instance_name, parse_kernel_source
from kernalyse.services.profiler.kernel_sources.headers import HeaderBundle, pack_headers


@dataclass(frozen=True, slots=True)
class SweepRequest(SweepOptions):
    """The options of `kernalyse bench`, as text that nothing has parsed yet."""

    kernels: KernelOptions = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class SweepSubmission:
    """A sweep that any node can run, with what goes before it.

    Attributes:
        notices: sentences for the user.
        bundles: headers to upload before the run.
    """

    sweep: KernelSweep
    notices: tuple[str, ...] = ()
    bundles: tuple[HeaderBundle, ...] = ()


def build_sweep(request: SweepRequest) -> SweepSubmission:
    """Return the sweep that the options describe, with its notices and headers.

    Raises:
        UsageError: an option cannot be parsed, or a file does not exist.
        InvalidRequestError, UnknownKernelError: a source or a definition cannot be used.
    """
    macro_names = tuple(axis.name for axis in request.macro_axes())
    selected = request.kernels.select(request.parsed_arguments(), macro_names)
    sweep = request.sweep(selected.selections)
    return SweepSubmission(sweep, (*selected.notices, *request.measuring.notices()), selected.bundles)


# ---------------------------------------------------------------- kernels

SOURCE_SUFFIXES: Final = (".cu", ".cuh")
LONE_COLON: Final = re.compile(r"(?<!:):(?!:)|:(?=::(?!:))")  # a colon that is not half of a "::"; of three in a row the first


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """The kernels that the command line names, and the options that describe those outside the catalog.

    Attributes:
        names: catalog names, or FILE.cu:KERNEL.
        buffers: `NAME=EXPRESSION`, the number of elements behind a pointer.
        flop, bytes: expressions for the cost of one launch; None: not given.
        file: definitions in the catalog's format.
        include_directories: directories that are searched for headers.
    """

    names: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    flop: str | None = None
    bytes: str | None = None
    file: Path | None = None
    include_directories: tuple[Path, ...] = ()

    def select(self, arguments: Sequence[ArgumentDefinition] = (), macro_names: tuple[str, ...] = ()) -> KernelSelections:
        """Read every file that the options name and return the kernels.

        Args:
            arguments: scalar arguments that the request gives a value.
            macro_names: compile-time constants that expressions may use.

        Raises:
            UsageError: a name cannot be parsed, a file does not exist, or an option applies to no kernel.
            InvalidRequestError, UnknownKernelError: a source or a definition cannot be used.
        """
        for directory in self.include_directories:
            if not directory.is_dir():
                raise UsageError(
                    f"option -I {directory}", found="no such directory", expected="a directory of headers", remedy="Correct the path."
                )
        file_catalog = None if self.file is None else load_catalog(self.file, macro_names)
        argument_expressions = {argument.name: argument.expression for argument in arguments}
        reader = _KernelReader(self, file_catalog, argument_expressions, macro_names)
        selections = tuple(map(reader.select, self.names))
        self._reject_unused(selections, reader.used_buffers)
        return KernelSelections(selections, tuple(reader.notices), tuple(reader.bundles.values()))

    def _reject_unused(self, selections: Sequence[KernelSelection], used_buffers: set[str]) -> None:
        """Raise UsageError for an option that no kernel uses, which would otherwise be ignored silently."""
        has_source_file = any(selection.source is not None for selection in selections)
        for option, is_given in (
            ("--buffer", bool(self.buffers)),
            ("--flop", self.flop is not None),
            ("--bytes", self.bytes is not None),
        ):
            if is_given and (self.file is not None or not has_source_file):
                raise UsageError(
                    f"option {option}",
                    found="no kernel that it could describe",
                    expected="a kernel FILE.cu:KERNEL without --definition",
                    remedy="Leave it out: the definition of these kernels is known.",
                )
        if self.include_directories and not has_source_file:
            raise UsageError(
                f"option -I {self.include_directories[0]}",
                found="no kernel whose headers it could hold",
                expected="a kernel FILE.cu:KERNEL",
                remedy="Leave it out.",
            )
        unused = dict(map(parse_buffer, self.buffers)).keys() - used_buffers
        if unused:
            raise UsageError(
                f"option --buffer {min(unused)}", found="no such pointer", expected="a pointer parameter of one of the kernels"
            )


@dataclass(frozen=True, slots=True)
class KernelSelections:
    """The kernels of a request, with what goes before its run.

    Attributes:
        notices: one sentence for each assumption about a kernel without a definition.
        bundles: headers to upload before the run.
    """

    selections: tuple[KernelSelection, ...]
    notices: tuple[str, ...]
    bundles: tuple[HeaderBundle, ...]


def split_file_and_function(name: str) -> tuple[str, str] | None:
    """Return file and function of `FILE.cu:ns::kernel<a::b>`, or None for a name without a file."""
    colons = [found.start() for found in LONE_COLON.finditer(name.partition("<")[0])]
    return (name[: colons[-1]], name[colons[-1] + 1 :]) if colons else None


@dataclass(slots=True)
class _KernelReader:
    options: KernelOptions
    file_catalog: Catalog | None
    arguments: Mapping[str, str]
    macro_names: tuple[str, ...]
    notices: list[str] = field(default_factory=list)
    used_buffers: set[str] = field(default_factory=set)
    bundles: dict[str, HeaderBundle] = field(default_factory=dict)  # by digest

    def select(self, name: str) -> KernelSelection:
        file_and_function = split_file_and_function(name)
        if file_and_function is not None:
            return self._from_file(name, Path(file_and_function[0]), str(parse_instance_name(file_and_function[1])))
        if name.endswith(SOURCE_SUFFIXES):
            raise UsageError(f"kernel {name}", found="a file", expected="FILE.cu:KERNEL", remedy=f"For example: {name}:{Path(name).stem}")
        if self.file_catalog is not None and name in self.file_catalog.kernel_names:
            assert self.options.file is not None
            source = self.file_catalog.source(name)
            digest = self._pack(name, self.options.file.parent / source.file_name)
            return KernelSelection(name, source, self.file_catalog.definition(name), digest)
        return KernelSelection(name)

    def _from_file(self, name: str, path: Path, function_name: str) -> KernelSelection:
        source = _read_source(name, path)
        digest = self._pack(name, path)
        if self.file_catalog is not None:
            definition = replace(_find_definition(self.file_catalog, function_name), source_file_name=source.file_name)
            return KernelSelection(function_name, source, definition, digest)
        return KernelSelection(function_name, source, self._derive(source, function_name), digest)

    def _derive(self, source: KernelSource, function_name: str) -> KernelDefinition:
        signature = parse_kernel_source(source).kernel(function_name).parameters
        pointers = {parameter.name for parameter in signature if parameter.is_pointer}
        scalars = {parameter.name for parameter in signature if not parameter.is_pointer}
        buffers = dict(map(parse_buffer, self.options.buffers))
        definition, assumptions = derive_definition(
            source,
            function_name,
            buffers={name: count for name, count in buffers.items() if name in pointers},
            arguments={name: expression for name, expression in self.arguments.items() if name in scalars},
            flop=self.options.flop,
            bytes=self.options.bytes,
            macro_names=self.macro_names,
        )
        self.used_buffers |= pointers & buffers.keys()
        self.notices.extend(f"{function_name}: {assumption}" for assumption in assumptions)
        return definition

    def _pack(self, name: str, path: Path) -> str | None:
        """Return the digest of the bundle of headers that the file includes, or None where it includes only system headers."""
        try:
            bundle = pack_headers(path, self.options.include_directories)
        except OSError as error:
            raise UsageError(
                f"headers of {name}", found=f"{error.filename}: {error.strerror}", expected="readable files", remedy="Correct its mode."
            ) from error
        if bundle is None:
            return None
        self.bundles[bundle.digest] = bundle
        return bundle.digest


def _find_definition(file_catalog: Catalog, function_name: str) -> KernelDefinition:
    """Return the definition of that name; an instance of a template has the definition of its template."""
    plain_name = parse_instance_name(function_name).function_name
    if function_name not in file_catalog.kernel_names and plain_name in file_catalog.kernel_names:
        return replace(file_catalog.definition(plain_name), kernel_name=function_name, function_name="")
    return file_catalog.definition(function_name)


def _read_source(name: str, path: Path) -> KernelSource:
    try:
        return KernelSource(path.name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"kernel {name}", found=f"{path}: {error.strerror}", expected="a CUDA source file", remedy="Correct the path."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"kernel {name}", found=f"{path}, which is not text", expected="a CUDA source file") from error
