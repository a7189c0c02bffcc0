"""Bundles of programs and of models, made for an upload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from kernalyse import bundle
from kernalyse.errors import RequestError
from kernalyse.services.core.errors import UsageError

# ---------------------------------------------------------------- program bundle
# Files of this machine that a command needs on its node, as the archive that nodes unpack.


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


# ---------------------------------------------------------------- model bundle
# The files of an ONNX model of one's own, on their way to the node that runs it.

ENDING: Final = ".onnx"


def files_of_model(path: Path) -> dict[str, Path]:
    """Return by name the file, and the weights that lie beside it under names that begin with its own, as model.onnx_data."""
    beside = (other for other in path.parent.iterdir() if other.name.startswith(path.name) and other.is_file())
    return {other.name: other for other in sorted(beside)}


def refuse_other_file(path: Path) -> None:
    """Raise UsageError for a file under a name that tells no ONNX model."""
    if path.is_file() and path.suffix != ENDING:
        raise UsageError(
            f"model {path}", found="a file of another kind", expected=f"a file FILE{ENDING}", remedy="Rename it, if it is an ONNX file."
        )


def bundle_of_model(model_name: str, folder: Path | None) -> ProgramBundle | None:
    """Return what has to be sent, or None for a model that nodes have.

    Args:
        model_name: as it was written: a path where it ends with .onnx.
        folder: goes along, with weights of other names.

    Raises UsageError.
    """
    if not model_name.endswith(ENDING):
        refuse_other_file(Path(model_name))
        if folder is not None:
            raise UsageError(
                "option --bundle", found=f"model {model_name}, which nodes have", expected="a file FILE.onnx", remedy="Leave it out."
            )
        return None
    path = Path(model_name)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise UsageError(f"model {model_name}", found=found, expected="a file", remedy="Correct the path.")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"option --bundle {folder}", found="no such folder", expected="that of the model", remedy="Correct the path.")
    return pack_files({**({} if folder is None else files_of_folder(folder)), **files_of_model(path)})
