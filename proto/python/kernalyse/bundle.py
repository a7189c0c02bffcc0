"""Bundles: archives of local files that nodes unpack."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kernalyse.errors import RequestError, call_error

EXCLUDED_NAMES: Final = (".git", "__pycache__", ".venv")
EXECUTABLE_MODE: Final = 0o755
PLAIN_MODE: Final = 0o644
COMPRESSION_LEVEL: Final = 6  # the highest, 9, takes half as much time again for a few percent

MAX_FILE_COUNT: Final = 100_000
"""Ten times what nodes accept by default. Without a limit, a directory of samples would be read for minutes before a node rejects it."""

MAX_UNPACKED_BYTES: Final = 1024**3
"""What nodes accept by default. Bundles are packed in memory: without a limit, a directory of data sets would fill it."""


def pack(files: Mapping[str, Path]) -> bytes:
    """Return a tar.gz of files by their names in it; the same files give the same bytes.

    Raises:
        OSError: a file cannot be read.
    """
    packed = io.BytesIO()
    compressed = gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0, compresslevel=COMPRESSION_LEVEL)
    with compressed as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)  # without owner and time
            member.size = len(content)
            member.mode = EXECUTABLE_MODE if os.access(path, os.X_OK) else PLAIN_MODE
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def list_directory_files(directory: Path) -> dict[str, Path]:
    """Return every file below a directory by its relative path, except LEFT_OUT; links to files are followed.

    Raises:
        RequestError: there are more than MAX_FILE_COUNT.
        OSError: a directory in it cannot be read.
    """
    files = {}
    for path in _paths_below(directory):
        if path.is_file():
            files[path.relative_to(directory).as_posix()] = path
        if len(files) > MAX_FILE_COUNT:
            raise _too_large(f"directory {directory}", f"more than {MAX_FILE_COUNT} files", f"at most {MAX_FILE_COUNT}")
    return files


def check_size(files: Mapping[str, Path]) -> None:
    """Check the total size of the files.

    Raises:
        RequestError: they exceed MAX_UNPACKED_BYTES.
        OSError: a file does not exist.
    """
    size_bytes = sum(path.stat().st_size for path in files.values())
    if size_bytes > MAX_UNPACKED_BYTES:
        raise _too_large("files for the node", f"{size_bytes} bytes", f"at most {MAX_UNPACKED_BYTES}")


def excluded_paths(directory: Path) -> list[str]:
    """Return the relative paths that `list_directory_files` skips: links to directories or to nothing, and special files."""
    return [path.relative_to(directory).as_posix() for path in _paths_below(directory) if not path.is_file()]


def _paths_below(directory: Path) -> Iterator[Path]:
    """Yield the paths of all files and links, but not of directories themselves."""
    for inner, directory_names, file_names in os.walk(directory, onerror=_raise):
        directory_names[:] = sorted(set(directory_names) - set(EXCLUDED_NAMES))
        links = (name for name in directory_names if Path(inner, name).is_symlink())
        yield from (Path(inner, name) for name in sorted([*file_names, *links]))


def _raise(error: OSError) -> None:
    """Raise the error of a directory that cannot be read: if it were skipped silently, the program would lack it on the node."""
    raise error


def _too_large(subject: str, found: str, expected: str) -> RequestError:
    remedy = "Leave data out, and name it by its path on the node."
    return call_error(subject, found=found, expected=expected, remedy=remedy, code="RESOURCE_EXHAUSTED", reason="BUNDLE_TOO_LARGE")
