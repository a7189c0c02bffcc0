"""The files of an ONNX model of one's own, on their way to the node that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services.cli.program_bundle import ProgramBundle, files_of_folder, pack_files
from services.core.words.usage import UsageError

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
