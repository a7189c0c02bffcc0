"""Bundles of programs and of ONNX models to upload to a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from kernalyse import bundle
from kernalyse.errors import RequestError
from kernalyse.services.core.errors import UsageError

# ---------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True)
class ProgramBundle:
    """Files of this machine as the archive that nodes unpack.

    Attributes:
        data: a tar.gz, the same bytes for the same files.
        file_names: paths within it, sorted.
    """

    data: bytes = field(repr=False)
    file_names: tuple[str, ...]


def pack_files(files: Mapping[str, Path]) -> ProgramBundle:
    """Pack files, which are keyed by their paths within the bundle.

    Raises:
        UsageError: the files are too large together, or one cannot be read.
    """
    with _usage_errors():
        bundle.check_size(files)
        return ProgramBundle(bundle.pack(files), tuple(sorted(files)))


def files_of_directory(directory: Path) -> dict[str, Path]:
    """Return the files below a directory by their paths within it.

    Raises:
        UsageError: there are too many, or the directory cannot be read.
    """
    with _usage_errors():
        return bundle.list_directory_files(directory)


def command_files(arguments: Sequence[str], directory: Path) -> dict[str, Path]:
    """Return the files below a directory that the words of a command name by a relative path, by that path."""
    found = {}
    for argument in arguments:
        name = PurePosixPath(argument)
        if argument and not name.is_absolute() and ".." not in name.parts and (directory / name).is_file():
            found[name.as_posix()] = directory / name
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
            expected="a file or directory that can be read",
            remedy="Correct its rights.",
        ) from error


# ---------------------------------------------------------------- ONNX models

MODEL_SUFFIX: Final = ".onnx"


def model_files(path: Path) -> dict[str, Path]:
    """Return the model's file and its companions by name: weights whose names begin with that of the model, as model.onnx_data."""
    companions = (other for other in path.parent.iterdir() if other.name.startswith(path.name) and other.is_file())
    return {other.name: other for other in sorted(companions)}


def require_onnx_file(path: Path) -> None:
    """Raise UsageError for an existing file whose name does not end with .onnx."""
    if path.is_file() and path.suffix != MODEL_SUFFIX:
        raise UsageError(
            f"model {path}",
            found="a file of another kind",
            expected=f"a file FILE{MODEL_SUFFIX}",
            remedy="Rename it, if it is an ONNX file.",
        )


def model_bundle(model_name: str, directory: Path | None) -> ProgramBundle | None:
    """Return the files that have to be uploaded, or None for a built-in model.

    Args:
        model_name: a built-in name, or a path that ends with .onnx.
        directory: a directory that is uploaded too, for weights under other names.

    Raises:
        UsageError: a path does not exist, or a directory is given for a built-in model.
    """
    if not model_name.endswith(MODEL_SUFFIX):
        require_onnx_file(Path(model_name))
        if directory is not None:
            raise UsageError(
                "option --bundle", found=f"model {model_name}, which nodes have", expected="a file FILE.onnx", remedy="Leave it out."
            )
        return None
    path = Path(model_name)
    if not path.is_file():
        found = "a directory" if path.is_dir() else "no such file"
        raise UsageError(f"model {model_name}", found=found, expected="a file", remedy="Correct the path.")
    if directory is not None and not directory.is_dir():
        raise UsageError(
            f"option --bundle {directory}", found="no such directory", expected="that of the model", remedy="Correct the path."
        )
    return pack_files({**({} if directory is None else files_of_directory(directory)), **model_files(path)})
