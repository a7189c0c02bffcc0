"""The user's headers: which ones a source includes, where they are, and their expansion in its text.

Compilers that read files search directories themselves. OpenCL runtimes are given one text, so headers are expanded into it,
with #line in front and behind: what a compiler says of a header names it and its own line. Everything else of the
preprocessor is left to the runtime's own. A header with a guard or #pragma once that has been included unconditionally is
not repeated; where a condition stands before an #include, the guard itself decides, as everywhere.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from kernalyse.services.core.artifacts import DIRECTORY_LIST
from kernalyse.services.core.errors import InvalidBundleError, InvalidSourceError
from kernalyse.services.core.model import KernelSource
from kernalyse.services.profiler.kernel_sources.functions import MAX_SOURCE_BYTES
from kernalyse.services.profiler.kernel_sources.syntax import Edit, apply_edits, descendants, line_number, node_text, parse_text, remove

if TYPE_CHECKING:
    from tree_sitter import Node

CONDITIONALS: Final = frozenset({"preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif", "preproc_elifdef"})
NOT_DEFINED: Final = re.compile(r"#\s*(?:ifndef\s+|if\s+!\s*defined\s*\(?\s*)(\w+)")


@dataclass(frozen=True, slots=True)
class Include:
    """An #include as it is written."""

    node: Node
    header: str
    is_quoted: bool  # "x.h", not <x.h>
    is_conditional: bool  # within an #if other than the file's own guard


def find_includes(root: Node) -> Iterator[Include]:
    """Yield the #include lines of a text. Those that name no file (#include MACRO) are skipped."""
    guard = _guard(root)
    for node in descendants(root):
        path = node.child_by_field_name("path") if node.type == "preproc_include" else None
        if path is not None and path.type in ("string_literal", "system_lib_string"):
            is_conditional = any(one.type in CONDITIONALS and one.id != (guard and guard.id) for one in _parents(node))
            yield Include(node, node_text(path).strip('<>"'), path.type == "string_literal", is_conditional)


def find_header(include: Include, own_directory: Path | None, directories: Sequence[Path]) -> Path | None:
    """Return the file that an #include means, or None. A quoted name is searched in the including file's directory first."""
    if PurePosixPath(include.header).is_absolute():
        return None
    searched = [own_directory, *directories] if include.is_quoted and own_directory is not None else directories
    candidates = (Path(os.path.normpath(directory / include.header)) for directory in searched)
    return next((path for path in candidates if path.is_file()), None)


def expand_headers(source: KernelSource, directories: Sequence[Path], known: frozenset[str]) -> KernelSource:
    """Return the source with its headers expanded. An #include that is not found stays.

    Args:
        directories: searched in their order.
        known: system headers, <math.h>, that stay where they are.

    Raises:
        InvalidSourceError: a header is no text, includes itself without a guard, or all together are too long.
    """
    if not directories:
        return source
    return KernelSource(source.file_name, _Expansion(tuple(directories), known).expand(source.text, source.file_name, None))


@dataclass(slots=True)
class _Expansion:
    directories: tuple[Path, ...]
    known: frozenset[str]
    including: list[Path] = field(default_factory=list)  # from the source down to the header being read
    complete: set[Path] = field(default_factory=set)  # included already, whatever macros say, and not to be repeated
    numbers: dict[Path, int] = field(default_factory=dict)  # of headers with #pragma once that came behind a condition
    size_bytes: int = 0

    def expand(self, text: str, file_name: str, directory: Path | None, *, is_certain: bool = True) -> str:
        """Return the text with its headers expanded. is_certain: no condition stands before the text."""
        self._check_size(text, file_name)
        data = text.encode()
        root = parse_text(data).root_node
        edits: list[Edit] = [remove(node) for node in descendants(root) if _is_pragma_once(node)]
        for include in find_includes(root):
            path = None if include.header in self.known and not include.is_quoted else find_header(include, directory, self.directories)
            if path is not None:
                header_text = self._header(path, include, file_name, is_certain=is_certain and not include.is_conditional)
                behind = f'#line {line_number(include.node) + 1} "{_quoted(file_name)}"\n'
                edits.append(remove(include.node) if header_text is None else Edit(*_span(include.node), f"{header_text}{behind}"))
        return apply_edits(data, 0, len(data), edits)

    def _header(self, path: Path, include: Include, file_name: str, *, is_certain: bool) -> str | None:
        """Return the expanded text of one header; None: it must not come again."""
        text = _read(path, self._name(path, include))
        root = parse_text(text.encode()).root_node
        has_pragma = any(_is_pragma_once(node) for node in descendants(root))
        is_guarded = has_pragma or _guard(root) is not None
        if is_guarded and (path in self.complete or path in self.including):
            return None
        if path in self.including:
            raise InvalidSourceError(
                f"{file_name}, line {line_number(include.node)}",
                found=f"an #include of {include.header}, which is being included",
                expected="headers without a circle",
                remedy="Put #pragma once into it.",
            )
        self.including.append(path)
        if is_certain:
            self.complete.add(path)
        name = self._name(path, include)
        body = f'#line 1 "{_quoted(name)}"\n{self.expand(text, name, path.parent, is_certain=is_certain)}\n'
        self.including.pop()
        if not has_pragma or (is_certain and path not in self.numbers):
            return f"\n{body}"
        macro = f"KERNALYSE_ONCE_{self.numbers.setdefault(path, len(self.numbers))}"
        return f"\n#ifndef {macro}\n#define {macro}\n{body}#endif\n"

    def _name(self, path: Path, include: Include) -> str:
        directory = next((directory for directory in self.directories if path.is_relative_to(directory)), None)
        return include.header if directory is None else path.relative_to(directory).as_posix()

    def _check_size(self, text: str, file_name: str) -> None:
        self.size_bytes += len(text)
        if self.size_bytes > MAX_SOURCE_BYTES:
            raise InvalidSourceError(
                file_name,
                found=f"more than {MAX_SOURCE_BYTES} bytes with all its headers",
                expected=f"at most {MAX_SOURCE_BYTES}",
                remedy="Include less, or put guards into headers that come again.",
            )


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSourceError(f"header {name}", found=str(error), expected="CUDA C++ text", remedy="Correct the file.") from error


def _span(node: Node) -> tuple[int, int]:
    return node.start_byte, node.end_byte


def _quoted(file_name: str) -> str:
    return file_name.replace("\\", "/").replace('"', "'")


def _parents(node: Node) -> Iterator[Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def _is_pragma_once(node: Node) -> bool:
    return node.type == "preproc_call" and node_text(node).split() == ["#pragma", "once"]


def _guard(root: Node) -> Node | None:
    """Return the #ifndef that stands around everything in a header, if it is one: the macro it asks for is defined first thing."""
    parts = [child for child in root.children if child.type != "comment"]
    if len(parts) != 1 or parts[0].type not in ("preproc_if", "preproc_ifdef"):
        return None
    asked = NOT_DEFINED.match(node_text(parts[0]))
    if asked is None or any(child.type in ("preproc_else", "preproc_elif") for child in parts[0].children):
        return None
    defined = next((child for child in parts[0].children if child.type == "preproc_def"), None)
    name = defined.child_by_field_name("name") if defined is not None else None
    return parts[0] if name is not None and node_text(name) == asked[1] else None


# ---------------------------------------------------------------- header bundle
# The headers that a source really includes are packed into one archive, which a node unpacks and searches.
#
# Files keep their relative paths, so that `#include "../common/x.h"` means the same file there as here. Which directories of the
# archive are searched, and in which order, its own file `.kernalyse/include_folders` says.


@dataclass(frozen=True, slots=True)
class HeaderBundle:
    """Headers packed for one source. data: a reproducible tar.gz: the same files always give the same bytes."""

    data: bytes = field(repr=False)
    header_names: tuple[str, ...]  # within the bundle

    @property
    def digest(self) -> str:
        """Return the SHA-256 digest of the archive, as "sha256:…"."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"


def pack_headers(source_file: Path, include_directories: Sequence[Path]) -> HeaderBundle | None:
    """Return a bundle of all headers that the source includes from its own or these directories; None where there are none.

    What is found nowhere is left to the node: a header of its compiler, or an error there.

    Raises OSError for a header that cannot be read.
    """
    own_directory = _absolute(source_file.parent)
    directories = tuple(dict.fromkeys(_absolute(directory) for directory in include_directories))
    headers = sorted(_headers(_absolute(source_file), own_directory, directories))
    if not headers:
        return None
    # The source's own directory too: on the node its text lies elsewhere, so "x.h" from the same directory has to be searched for.
    searched = tuple(dict.fromkeys((own_directory, *directories)))
    root = Path(os.path.commonpath([*searched, *(header.parent for header in headers)]))
    listed = "".join(f"{directory.relative_to(root).as_posix()}\n" for directory in searched)
    files = {header.relative_to(root).as_posix(): header.read_bytes() for header in headers} | {DIRECTORY_LIST: listed.encode()}
    # Directories without a header too: a path through one of them, like src/../common, needs it to exist.
    names = {directory.relative_to(root).as_posix() for directory in searched} - {"."}
    return HeaderBundle(_archive(files, names), tuple(header.relative_to(root).as_posix() for header in headers))


def repack_headers(bundle: Path) -> HeaderBundle | None:
    """Return the bundle of `pack_headers`, byte for byte, from its unpacked directory; None where something else was unpacked."""
    listed = bundle / DIRECTORY_LIST
    if not listed.is_file():
        return None
    files = {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    searched = set(listed.read_text(encoding="utf-8").splitlines()) - {"."}
    return HeaderBundle(_archive(files, searched), tuple(sorted(files.keys() - {DIRECTORY_LIST})))


def bundle_directory(run_directory: Path, digest: str) -> Path:
    """Return the directory of an unpacked bundle below a run's directory."""
    return run_directory / "bundles" / digest.removeprefix("sha256:")


def bundle_include_directories(bundle: Path) -> tuple[Path, ...]:
    """Return the directories of an unpacked bundle to search: those it lists, else the bundle itself.

    Raises InvalidBundleError for a directory outside it.
    """
    listed = bundle / DIRECTORY_LIST
    if not listed.is_file():
        return (bundle,)
    names = listed.read_text(encoding="utf-8").splitlines()
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InvalidBundleError(
                f"list of include directories of bundle {bundle.name}",
                found=name,
                expected="directories of the bundle",
                remedy="Pack it anew.",
            )
    return tuple(bundle / name for name in names)


def _headers(source_file: Path, own_directory: Path, directories: Sequence[Path]) -> Iterator[Path]:
    found: set[Path] = set()
    waiting = [(source_file, own_directory)]
    while waiting:
        path, directory = waiting.pop()
        for include in find_includes(parse_text(path.read_bytes()).root_node):
            header = find_header(include, directory, (own_directory, *directories) if include.is_quoted else directories)
            if header is not None and header not in found:
                found.add(header)
                yield header
                waiting.append((header, header.parent))


def _archive(files: dict[str, bytes], directory_names: set[str]) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for name in sorted({*files, *directory_names}):
            member = tarfile.TarInfo(name)  # without owner and time
            if name in files:
                member.size = len(files[name])
                archive.addfile(member, io.BytesIO(files[name]))
            else:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
    return packed.getvalue()


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links, and move files apart from each other
