"""The headers that a source really includes, as one archive that a node can unpack and search.

Files keep their places to each other, so that `#include "../common/x.h"` means the same file there as here. Which folders
of the archive are searched, and in which order, its own file `.kernalyse/include_folders` says.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from services.core.errors import InvalidBundleError
from services.core.header_layout import FOLDER_LIST
from services.profiler.backends.headers import find_header, includes_of
from services.profiler.backends.source_nodes import parse_text


@dataclass(frozen=True, slots=True)
class HeaderBundle:
    """Headers packed for one source. data: a tar.gz, the same bytes for the same files wherever and whenever it is packed."""

    data: bytes = field(repr=False)
    header_names: tuple[str, ...]  # within the bundle

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"


def pack_headers(source_file: Path, include_folders: Sequence[Path]) -> HeaderBundle | None:
    """Return the source's headers that lie beside it or in these folders, and what those include; None: there are none.

    What is found nowhere is left to the node: a header of its compiler, or an error there.

    Raises OSError for a header that cannot be read.
    """
    own_folder = _absolute(source_file.parent)
    folders = tuple(dict.fromkeys(_absolute(folder) for folder in include_folders))
    headers = sorted(_headers(_absolute(source_file), own_folder, folders))
    if not headers:
        return None
    # The source's own folder too: on the node its text lies elsewhere, and "x.h" beside it has to be searched for.
    searched = tuple(dict.fromkeys((own_folder, *folders)))
    root = Path(os.path.commonpath([*searched, *(header.parent for header in headers)]))
    listed = "".join(f"{folder.relative_to(root).as_posix()}\n" for folder in searched)
    files = {header.relative_to(root).as_posix(): header.read_bytes() for header in headers} | {FOLDER_LIST: listed.encode()}
    # Folders without a header too: a path through one of them, like src/../common, needs it to exist.
    names = {folder.relative_to(root).as_posix() for folder in searched} - {"."}
    return HeaderBundle(_archive(files, names), tuple(header.relative_to(root).as_posix() for header in headers))


def repack_headers(bundle: Path) -> HeaderBundle | None:
    """Return what `pack_headers` had made before it was unpacked, byte for byte; None: something else was unpacked here."""
    listed = bundle / FOLDER_LIST
    if not listed.is_file():
        return None
    files = {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    searched = set(listed.read_text(encoding="utf-8").splitlines()) - {"."}
    return HeaderBundle(_archive(files, searched), tuple(sorted(files.keys() - {FOLDER_LIST})))


def bundle_folder(run_folder: Path, digest: str) -> Path:
    """Return where a run finds a bundle, unpacked."""
    return run_folder / "bundles" / digest.removeprefix("sha256:")


def include_folders_of(bundle: Path) -> tuple[Path, ...]:
    """Return the folders of an unpacked bundle to search: those it lists, else the bundle itself.

    Raises InvalidBundleError for a folder outside it.
    """
    listed = bundle / FOLDER_LIST
    if not listed.is_file():
        return (bundle,)
    names = listed.read_text(encoding="utf-8").splitlines()
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InvalidBundleError(
                f"list of include folders of bundle {bundle.name}", found=name, expected="folders of the bundle", remedy="Pack it anew."
            )
    return tuple(bundle / name for name in names)


def _headers(source_file: Path, own_folder: Path, folders: Sequence[Path]) -> Iterator[Path]:
    found: set[Path] = set()
    waiting = [(source_file, own_folder)]
    while waiting:
        path, folder = waiting.pop()
        for include in includes_of(parse_text(path.read_bytes()).root_node):
            header = find_header(include, folder, (own_folder, *folders) if include.is_quoted else folders)
            if header is not None and header not in found:
                found.add(header)
                yield header
                waiting.append((header, header.parent))


def _archive(files: dict[str, bytes], folder_names: set[str]) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for name in sorted({*files, *folder_names}):
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
