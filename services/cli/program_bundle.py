"""Files of this machine that a command needs on its node, as the archive that nodes unpack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from kernalyse.bundle import files_of_folder, pack, passed_by
from services.core.words.usage import UsageError

__all__ = ["ProgramBundle", "files_of_command", "files_of_folder", "pack_files", "passed_by"]

MAX_UNPACKED_BYTES: Final = 1024**3
"""As nodes take by default. Packed in memory: without a bound the folder of somebody's data sets would fill it."""


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
    try:
        return ProgramBundle(pack(files), tuple(sorted(files)))
    except OSError as error:
        raise UsageError(
            f"file {error.filename}", found=error.strerror or "an error", expected="a file to read", remedy="Correct its rights."
        ) from error


def files_of_command(arguments: Sequence[str], folder: Path) -> dict[str, Path]:
    """The files that a command names by a path from the folder, as far as they lie in it, by that path."""
    found = {}
    for argument in arguments:
        name = PurePosixPath(argument)
        if argument and not name.is_absolute() and ".." not in name.parts and (folder / name).is_file():
            found[name.as_posix()] = folder / name
    return found
