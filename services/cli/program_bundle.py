"""Files of this machine that a command needs on its node, as the archive that nodes unpack."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from services.cli.usage import UsageError

LEFT_OUT: Final = (".git", "__pycache__", ".venv")
MAX_UNPACKED_BYTES: Final = 1024**3
"""As nodes take by default. Packed in memory: without a bound the folder of somebody's data sets would fill it."""

EXECUTABLE_MODE: Final = 0o755
PLAIN_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class ProgramBundle:
    """data: a tar.gz, the same bytes for the same files. file_names: within it."""

    data: bytes = field(repr=False)
    file_names: tuple[str, ...]


def pack_files(files: Mapping[str, Path]) -> ProgramBundle:
    """By their names within the bundle. Raises UsageError: too much, or a file that cannot be read."""
    size_bytes = sum(path.stat().st_size for path in files.values())
    if size_bytes > MAX_UNPACKED_BYTES:
        raise UsageError(
            "files for the node",
            found=f"{size_bytes} bytes",
            expected=f"at most {MAX_UNPACKED_BYTES}",
            remedy="Leave data out, and name it by its path on the node.",
        )
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for name, path in sorted(files.items()):
            content = _content(path)
            member = tarfile.TarInfo(name)  # without owner and time
            member.size = len(content)
            member.mode = EXECUTABLE_MODE if os.access(path, os.X_OK) else PLAIN_MODE
            archive.addfile(member, io.BytesIO(content))
    return ProgramBundle(packed.getvalue(), tuple(sorted(files)))


def files_of_folder(folder: Path) -> dict[str, Path]:
    """Every file below a folder, apart from LEFT_OUT, by its path from there; of links the files that they lead to."""
    return {path.relative_to(folder).as_posix(): path for path in _files_below(folder)}


def files_of_command(arguments: Sequence[str], folder: Path) -> dict[str, Path]:
    """The files that a command names by a path from the folder, as far as they lie in it, by that path."""
    found = {}
    for argument in arguments:
        name = PurePosixPath(argument)
        if argument and not name.is_absolute() and ".." not in name.parts and (folder / name).is_file():
            found[name.as_posix()] = folder / name
    return found


def _files_below(folder: Path) -> Iterator[Path]:
    for inner, folder_names, file_names in os.walk(folder):
        folder_names[:] = sorted(set(folder_names) - set(LEFT_OUT))
        yield from (path for name in sorted(file_names) if (path := Path(inner, name)).is_file())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"file {path}", found=error.strerror or "an error", expected="a file to read", remedy="Correct its rights."
        ) from error
