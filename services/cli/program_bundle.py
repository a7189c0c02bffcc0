"""Files of this machine that a command needs on its node, as the archive that nodes unpack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kernalyse import bundle
from kernalyse.errors import RequestError
from services.core.words.usage import UsageError


@dataclass(frozen=True, slots=True)
class ProgramBundle:
    """Packed files. data: a tar.gz, the same bytes for the same files. file_names: within it."""

    data: bytes = field(repr=False)
    file_names: tuple[str, ...]


def pack_files(files: Mapping[str, Path]) -> ProgramBundle:
    """Pack files by their names within the bundle. Raises UsageError: too much, or a file that cannot be read."""
    with _usage_errors():
        bundle.refuse_too_large(files)
        return ProgramBundle(bundle.pack(files), tuple(sorted(files)))


def files_of_folder(folder: Path) -> dict[str, Path]:
    """Return what `bundle.files_of_folder` returns. Raises UsageError: too many, or a folder that cannot be read."""
    with _usage_errors():
        return bundle.files_of_folder(folder)


def files_of_command(arguments: Sequence[str], folder: Path) -> dict[str, Path]:
    """Return the files that a command names by a path from the folder, as far as they lie in it, by that path."""
    found = {}
    for argument in arguments:
        name = PurePosixPath(argument)
        if argument and not name.is_absolute() and ".." not in name.parts and (folder / name).is_file():
            found[name.as_posix()] = folder / name
    return found


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except RequestError as error:
        raise UsageError(error.subject, found=error.found, expected=error.expected, remedy=error.remedy) from error
    except OSError as error:
        raise UsageError(
            f"path {error.filename}",
            found=error.strerror or "an error",
            expected="a file or folder that can be read",
            remedy="Correct its rights.",
        ) from error
