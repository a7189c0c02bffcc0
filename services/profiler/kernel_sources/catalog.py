"""The kernel catalog: a TOML file that says how each kernel is launched, fed, counted and verified.

The format, field by field, is in kernels/README.md. A user's file has the same format.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core.errors import InvalidCatalogError, KernalyseError, UnknownKernelError
from kernalyse.services.core.model import (
    ArgumentDefinition,
    BufferDefinition,
    BufferRole,
    DataType,
    KernelDefinition,
    KernelSource,
    LaunchDefinition,
    ParameterDefinition,
)
from kernalyse.services.profiler.kernel_sources.definitions import catalog_error, check_definition, derive_definition
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source

__all__ = ["Catalog", "check_definition", "derive_definition", "load_catalog", "parse_catalog"]

CATALOG_FILE_NAME: Final = "catalog.toml"
MAX_CATALOG_BYTES: Final = 1024 * 1024  # far above any catalog; a mistyped path to data is rejected at once


@dataclass(frozen=True, slots=True)
class Catalog:
    """Kernel definitions in the order of the file, and the text of their sources."""

    definitions: Mapping[str, KernelDefinition]
    sources: Mapping[str, KernelSource]  # by file name

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Return the kernel names in the order of the file."""
        return tuple(self.definitions)

    def definition(self, kernel_name: str) -> KernelDefinition:
        """Return the definition of a kernel. Raises UnknownKernelError, naming the closest there are."""
        if kernel_name not in self.definitions:
            close = get_close_matches(kernel_name, self.kernel_names, n=3)
            raise UnknownKernelError(
                f"kernel {kernel_name}",
                found="no such kernel in the catalog",
                expected=f"perhaps {' or '.join(close)}" if close else f"one of {', '.join(self.kernel_names)}",
                remedy="Check the spelling, or name a file: FILE.cu:KERNEL.",
            )
        return self.definitions[kernel_name]

    def source(self, kernel_name: str) -> KernelSource:
        """Return the source of a kernel. Raises UnknownKernelError."""
        return self.sources[self.definition(kernel_name).source_file_name]


def catalog_directory() -> Path:
    """Return the directory of the packaged kernels, in the installed wheel or in the checkout."""
    services = Path(__file__).resolve().parents[2]
    installed = services / "kernels"
    return installed if (installed / CATALOG_FILE_NAME).is_file() else services.parent / "kernels"


@lru_cache(maxsize=4)
def load_catalog(path: Path | None = None, macro_names: tuple[str, ...] = ()) -> Catalog:
    """Read a catalog; None: the packaged one. Sources lie in the file's directory. macro_names: that its expressions may use.

    Raises:
        InvalidCatalogError: names file, kernel, field, found and expected.
        InvalidSourceError: a source cannot be read as CUDA.
    """
    path = path or catalog_directory() / CATALOG_FILE_NAME
    try:
        if path.stat().st_size > MAX_CATALOG_BYTES:
            raise InvalidCatalogError(
                str(path), found=f"{path.stat().st_size} bytes", expected=f"at most {MAX_CATALOG_BYTES}", remedy="Name a catalog file."
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidCatalogError(str(path), found=found, expected="a readable TOML file", remedy="Check the path.") from error
    return parse_catalog(text, path.name, path.parent, macro_names)


def parse_catalog(text: str, file_name: str, source_directory: Path, macro_names: tuple[str, ...] = ()) -> Catalog:
    """Read the text of a catalog whose sources lie in `source_directory`. Raises as `load_catalog` does."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidCatalogError(file_name, found=str(error), expected="TOML", remedy="Correct the file there.") from error
    definitions: dict[str, KernelDefinition] = {}
    sources: dict[str, KernelSource] = {}
    for kernel_name, entry in document.items():
        if not isinstance(entry, dict):
            raise catalog_error(file_name, kernel_name, kernel_name, _shown(entry), "a table [kernel] with its fields")
        definition = _read_definition(file_name, kernel_name, entry)
        source_name = definition.source_file_name
        if source_name not in sources:
            sources[source_name] = _read_source(file_name, kernel_name, source_directory, source_name)
        check_definition(definition, sources[source_name], file_name, macro_names=macro_names)
        definitions[kernel_name] = definition
    return Catalog(definitions, sources)


def _read_source(file_name: str, kernel_name: str, directory: Path, source_name: str) -> KernelSource:
    path = (directory / source_name).resolve()
    if not path.is_relative_to(directory.resolve()):
        raise catalog_error(file_name, kernel_name, "source", source_name, "a file beside the catalog or below it")
    try:
        return KernelSource(source_name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise catalog_error(file_name, kernel_name, "source", f"{source_name} ({error})", "a readable .cu file") from error


def _read_definition(file_name: str, kernel_name: str, entry: dict[str, Any]) -> KernelDefinition:
    fields = _Fields(file_name, kernel_name, entry)
    buffers = fields.table("buffers")
    definition = KernelDefinition(
        kernel_name=kernel_name,
        source_file_name=fields.text("source"),
        function_name=fields.text("function", ""),
        description=fields.text("description", ""),
        category=fields.text("category", "other"),
        dtype=DataType(fields.choice("dtype", [dtype.value for dtype in DataType], DataType.FLOAT32.value)),
        launch=LaunchDefinition(
            block=fields.expressions("block"),
            grid=fields.expressions("grid"),
            shared_memory_bytes=fields.expression("shared_memory_bytes", "0") or "0",
            requires=fields.expression("requires", "") or "",
        ),
        parameters=_read_parameters(fields.table("parameters")),
        buffers=tuple(_read_buffer(buffers.table(name)) for name in buffers.entry),
        arguments=_read_arguments(fields.table("arguments")),
        flop=fields.expression("flop", None),
        bytes=fields.expression("bytes", None),
        reference=fields.text("reference", "") or None,
        relative_tolerance=fields.number("relative_tolerance", 1e-5),
        path=fields.text("path", ""),
    )
    fields.reject_unknown()
    return definition


def _read_parameters(fields: _Fields) -> tuple[ParameterDefinition, ...]:
    """Read parameters: `N = [1, 2]`, or `N = { values = [1, 2], min = 1 }`."""
    parameters = []
    for name, value in fields.entry.items():
        if isinstance(value, dict):
            inner = fields.table(name)
            parameters.append(ParameterDefinition(name, inner.integers("values"), inner.integer("min", 1)))
            inner.reject_unknown()
        else:
            parameters.append(ParameterDefinition(name, fields.integers(name)))
    return tuple(parameters)


def _read_arguments(fields: _Fields) -> tuple[ArgumentDefinition, ...]:
    return tuple(ArgumentDefinition(name, fields.expression(name, None) or "") for name in fields.entry)


def _read_buffer(fields: _Fields) -> BufferDefinition:
    buffer = BufferDefinition(
        name=fields.name,
        shape=fields.expressions("shape"),
        dtype=DataType(fields.choice("dtype", [dtype.value for dtype in DataType], DataType.FLOAT32.value)),
        role=BufferRole(fields.choice("role", [role.value for role in BufferRole], None)),
    )
    fields.reject_unknown()
    return buffer


@dataclass(slots=True)
class _Fields:
    """The fields of one TOML table. Each is read once and by its type; fields that nobody reads are unknown."""

    file_name: str
    kernel_name: str
    entry: dict[str, Any]
    path: str = ""  # of this table within the kernel's
    _read: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def table(self, name: str) -> _Fields:
        value = self._take(name, {})
        if not isinstance(value, dict):
            raise self._error(name, _shown(value), "a table")
        return _Fields(self.file_name, self.kernel_name, value, self._path(name))

    def text(self, name: str, default: str | None = None) -> str:
        value = self._take(name, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._error(name, _shown(value), "a text")
        return value

    def choice(self, name: str, known: list[str], default: str | None) -> str:
        value = self._take(name, default)
        if value not in known:
            raise self._error(name, _shown(value), "one of " + ", ".join(known))
        return str(value)

    def number(self, name: str, default: float) -> float:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(name, _shown(value), "a number")
        return float(value)

    def integer(self, name: str, default: int) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(name, _shown(value), "a whole number")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        value = self._take(name, None)
        if not isinstance(value, list) or not value or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
            raise self._error(name, _shown(value), "a list of whole numbers, for example [1024, 4096]")
        return tuple(value)

    def expression(self, name: str, default: str | None) -> str | None:
        value = self._take(name, default)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._error(name, _shown(value), 'an expression, for example "2*N"')
        return str(value)

    def expressions(self, name: str) -> tuple[str, ...]:
        value = self._take(name, None)
        if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in value):
            raise self._error(name, _shown(value), 'a list of expressions, for example ["M", "N"]')
        return tuple(str(one) for one in value)

    def reject_unknown(self) -> None:
        for name in self.entry:
            if name not in self._read:
                known = sorted(self._read)
                close = get_close_matches(name, known, n=1)
                raise self._error(name, "an unknown field", f"perhaps {close[0]}" if close else "one of " + ", ".join(known))

    def _take(self, name: str, default: Any) -> Any:
        self._read.add(name)
        return self.entry.get(name, default)

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _error(self, name: str, found: str, expected: str) -> InvalidCatalogError:
        return catalog_error(self.file_name, self.kernel_name, self._path(name), found, expected)


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:80]


# ---------------------------------------------------------------- source kernels
# Kernels of a source without a catalog, listed so that the user can choose among them.


@dataclass(frozen=True, slots=True)
class SourceKernels:
    """Kernels of a source. notices: assumptions, and for kernels without a definition the reason; one sentence each."""

    definitions: tuple[KernelDefinition, ...]
    notices: tuple[str, ...]


def source_kernels(source: KernelSource) -> SourceKernels:
    """Return a derived definition for every __global__ function; for a template, of its explicit instance if it has one.

    Raises:
        InvalidSourceError: the text is empty, too long or binary.
    """
    definitions: list[KernelDefinition] = []
    notices: list[str] = []
    for kernel in parse_kernel_source(source).kernels:
        try:
            definition, assumptions = derive_definition(source, kernel.qualified_name)
        except KernalyseError as error:
            notices.append(f"{kernel.qualified_name}: {error.message}")
        else:
            definitions.append(definition)
            notices.extend(f"{kernel.qualified_name}: {assumption}" for assumption in assumptions)
    return SourceKernels(tuple(definitions), tuple(notices))
