"""Files of this machine as the archive that nodes unpack: a bundle."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

LEFT_OUT: Final = (".git", "__pycache__", ".venv")
EXECUTABLE_MODE: Final = 0o755
PLAIN_MODE: Final = 0o644


def pack(files: Mapping[str, Path]) -> bytes:
    """A tar.gz of files by their names in it, the same bytes for the same files. Raises OSError for one that cannot be read."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)  # without owner and time
            member.size = len(content)
            member.mode = EXECUTABLE_MODE if os.access(path, os.X_OK) else PLAIN_MODE
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def files_of_folder(folder: Path) -> dict[str, Path]:
    """Every file below a folder, apart from LEFT_OUT, by its path from there; of links the files that they lead to."""
    return {path.relative_to(folder).as_posix(): path for path in _paths_below(folder) if path.is_file()}


def passed_by(folder: Path) -> list[str]:
    """What `files_of_folder` does not have, by its path: links to folders, which may hold anything, or to nothing, and what is no file."""
    return [path.relative_to(folder).as_posix() for path in _paths_below(folder) if not path.is_file()]


def _paths_below(folder: Path) -> Iterator[Path]:
    """All but folders themselves."""
    for inner, folder_names, file_names in os.walk(folder):
        folder_names[:] = sorted(set(folder_names) - set(LEFT_OUT))
        links = (name for name in folder_names if Path(inner, name).is_symlink())
        yield from (Path(inner, name) for name in sorted([*file_names, *links]))
