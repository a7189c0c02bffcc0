"""The sweep that the options of `kernalyse bench` describe, with its kernels from the catalog, a definition file or .cu files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import UsageError
from kernalyse.services.core.model import ArgumentDefinition, KernelDefinition, KernelSelection, KernelSource, KernelSweep
from kernalyse.services.core.request_syntax import SweepWords, parse_buffer
from kernalyse.services.profiler.kernel_sources.catalog import Catalog, derive_definition, load_catalog
from kernalyse.services.profiler.kernel_sources.functions import parse_instance_name, parse_kernel_source
from kernalyse.services.profiler.kernel_sources.headers import HeaderBundle, pack_headers


@dataclass(frozen=True, slots=True)
class SweepRequest(SweepWords):
    """The options as they were written."""

    kernels: KernelWords = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class BuiltSweep:
    """A sweep that is ready to run. notices: for the user. bundles: headers to upload before the run."""

    sweep: KernelSweep
    notices: tuple[str, ...] = ()
    bundles: tuple[HeaderBundle, ...] = ()


def build_sweep(request: SweepRequest) -> BuiltSweep:
    """Return the sweep, and what goes with it.

    Raises:
        UsageError: an option cannot be read, or a file is not there.
        InvalidRequestError, UnknownKernelError: a source or a definition cannot be used.
    """
    macro_names = tuple(axis.name for axis in request.macro_axes())
    selected = request.kernels.select(request.parsed_arguments(), macro_names)
    sweep = request.sweep(selected.selections)
    return BuiltSweep(sweep, (*selected.notices, *request.measuring.notices()), selected.bundles)


# ---------------------------------------------------------------- kernels

SOURCE_SUFFIXES: Final = (".cu", ".cuh")
LONE_COLON: Final = re.compile(r"(?<!:):(?!:)|:(?=::(?!:))")  # not half of a ::; the first of three stands before a ::name


@dataclass(frozen=True, slots=True)
class KernelWords:
    """Kernels of the command line, and what it says of those outside the catalogue. file: in the catalogue's format."""

    names: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    flop: str | None = None
    bytes: str | None = None
    file: Path | None = None
    include_folders: tuple[Path, ...] = ()

    def select(self, arguments: Sequence[ArgumentDefinition] = (), macro_names: tuple[str, ...] = ()) -> SelectedKernels:
        """Read every file that is named, and return the kernels.

        Args:
            arguments: scalar arguments whose value the request gives.
            macro_names: compile-time constants that expressions may use.

        Raises:
            UsageError: a word cannot be read, a file is not there, or an option describes no kernel.
            InvalidRequestError, UnknownKernelError: a source or a definition cannot be used.
        """
        for folder in self.include_folders:
            if not folder.is_dir():
                raise UsageError(f"option -I {folder}", found="no such folder", expected="a folder of headers", remedy="Correct the path.")
        own_catalog = None if self.file is None else load_catalog(self.file, macro_names)
        given = {argument.name: argument.expression for argument in arguments}
        reading = _Reading(self, own_catalog, given, macro_names)
        selections = tuple(map(reading.select, self.names))
        self._refuse_unused(selections, reading.used_buffers)
        return SelectedKernels(selections, tuple(reading.notices), tuple(reading.bundles.values()))

    def _refuse_unused(self, selections: Sequence[KernelSelection], used_buffers: set[str]) -> None:
        """Refuse an option that nothing uses: it would be lost without a word."""
        has_own = any(selection.source is not None for selection in selections)
        for option, is_given in (
            ("--buffer", bool(self.buffers)),
            ("--flop", self.flop is not None),
            ("--bytes", self.bytes is not None),
        ):
            if is_given and (self.file is not None or not has_own):
                raise UsageError(
                    f"option {option}",
                    found="no kernel that it could describe",
                    expected="a kernel FILE.cu:KERNEL without --definition",
                    remedy="Leave it out: the definition of these kernels is known.",
                )
        if self.include_folders and not has_own:
            raise UsageError(
                f"option -I {self.include_folders[0]}",
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
class SelectedKernels:
    """Selected kernels. notices: every assumption about a kernel that nobody described. bundles: to be uploaded before the run."""

    selections: tuple[KernelSelection, ...]
    notices: tuple[str, ...]
    bundles: tuple[HeaderBundle, ...]


def split_word(word: str) -> tuple[str, str] | None:
    """Return file and function of `FILE.cu:ns::kernel<a::b>`, or None for a word without a file."""
    colons = [found.start() for found in LONE_COLON.finditer(word.partition("<")[0])]
    return (word[: colons[-1]], word[colons[-1] + 1 :]) if colons else None


@dataclass(slots=True)
class _Reading:
    words: KernelWords
    own_catalog: Catalog | None
    arguments: Mapping[str, str]
    macro_names: tuple[str, ...]
    notices: list[str] = field(default_factory=list)
    used_buffers: set[str] = field(default_factory=set)
    bundles: dict[str, HeaderBundle] = field(default_factory=dict)  # by digest

    def select(self, word: str) -> KernelSelection:
        parts = split_word(word)
        if parts is not None:
            return self._from_file(word, Path(parts[0]), str(parse_instance_name(parts[1])))
        if word.endswith(SOURCE_SUFFIXES):
            raise UsageError(f"kernel {word}", found="a file", expected="FILE.cu:KERNEL", remedy=f"For example: {word}:{Path(word).stem}")
        if self.own_catalog is not None and word in self.own_catalog.kernel_names:
            assert self.words.file is not None
            source = self.own_catalog.source(word)
            digest = self._pack(word, self.words.file.parent / source.file_name)
            return KernelSelection(word, source, self.own_catalog.definition(word), digest)
        return KernelSelection(word)

    def _from_file(self, word: str, path: Path, function_name: str) -> KernelSelection:
        source = _read_source(word, path)
        digest = self._pack(word, path)
        if self.own_catalog is not None:
            definition = replace(_described(self.own_catalog, function_name), source_file_name=source.file_name)
            return KernelSelection(function_name, source, definition, digest)
        return KernelSelection(function_name, source, self._derive(source, function_name), digest)

    def _derive(self, source: KernelSource, function_name: str) -> KernelDefinition:
        signature = parse_kernel_source(source).kernel(function_name).parameters
        pointers = {parameter.name for parameter in signature if parameter.is_pointer}
        scalars = {parameter.name for parameter in signature if not parameter.is_pointer}
        buffers = dict(map(parse_buffer, self.words.buffers))
        definition, assumptions = derive_definition(
            source,
            function_name,
            buffers={name: count for name, count in buffers.items() if name in pointers},
            arguments={name: expression for name, expression in self.arguments.items() if name in scalars},
            flop=self.words.flop,
            bytes=self.words.bytes,
            macro_names=self.macro_names,
        )
        self.used_buffers |= pointers & buffers.keys()
        self.notices.extend(f"{function_name}: {assumption}" for assumption in assumptions)
        return definition

    def _pack(self, word: str, path: Path) -> str | None:
        """Return the digest of the bundle with the headers that the file includes, or None where it includes none of one's own."""
        try:
            bundle = pack_headers(path, self.words.include_folders)
        except OSError as error:
            raise UsageError(
                f"headers of {word}", found=f"{error.filename}: {error.strerror}", expected="readable files", remedy="Correct its mode."
            ) from error
        if bundle is None:
            return None
        self.bundles[bundle.digest] = bundle
        return bundle.digest


def _described(own_catalog: Catalog, function_name: str) -> KernelDefinition:
    """Return the definition of that name; an instance of a template takes that of the template."""
    plain_name = parse_instance_name(function_name).function_name
    if function_name not in own_catalog.kernel_names and plain_name in own_catalog.kernel_names:
        return replace(own_catalog.definition(plain_name), kernel_name=function_name, function_name="")
    return own_catalog.definition(function_name)


def _read_source(word: str, path: Path) -> KernelSource:
    try:
        return KernelSource(path.name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"kernel {word}", found=f"{path}: {error.strerror}", expected="a CUDA source file", remedy="Correct the path."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"kernel {word}", found=f"{path}, which is not text", expected="a CUDA source file") from error
