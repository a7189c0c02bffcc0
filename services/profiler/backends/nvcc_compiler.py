"""nvcc: where it is, and what it makes of a .cu text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services.core.errors import BackendUnavailableError, CompileError
from services.core.model import KernelSource

TOOLKIT: Final = "Install the CUDA toolkit, or set CUDA_HOME to its folder."
COMPILE_LIMIT_S: Final = 300.0  # heavy templates take a minute; a compiler that hangs must not hold the device


def find_nvcc() -> str | None:
    """nvcc of CUDA_HOME, of the path, or of the usual place."""
    folders = [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [folder / "nvcc" for folder in folders]
    on_path = shutil.which("nvcc")
    if on_path:
        candidates.append(Path(on_path))
    candidates.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((str(path) for path in candidates if path.is_file()), None)


def toolkit_version() -> str | None:
    nvcc = find_nvcc()
    if nvcc is None:
        return None
    try:
        output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"release (\d+\.\d+)", output)
    return found[1] if found else None


def compile_cubin(source: KernelSource, architecture: str, options: Sequence[str]) -> tuple[bytes, str]:
    """The cubin of a .cu text and the compiler's remarks.

    Args:
        architecture: e.g. "sm_90".

    Raises:
        BackendUnavailableError: there is no nvcc.
        CompileError: with nvcc's own lines; they name the .cu file.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise BackendUnavailableError("nvcc", found="no nvcc to compile with", remedy=TOOLKIT)
    with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as folder:
        name = Path(source.file_name).name or "kernel.cu"
        (Path(folder) / name).write_text(source.text)
        command = [nvcc, "--cubin", f"-arch={architecture}", "-lineinfo", *options, "-o", "kernel.cubin", name]
        try:
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise CompileError(source.file_name, found=f"no end of nvcc within {COMPILE_LIMIT_S:.0f} s", remedy="Simplify it.") from error
        log = "\n".join(part for part in (result.stdout.strip(), result.stderr.strip()) if part)
        if result.returncode != 0:
            raise CompileError(
                f"{source.file_name} for {architecture}",
                found=f"nvcc says:\n{log}\n",
                remedy="Correct the source; the lines are those of the .cu file.",
            )
        return (Path(folder) / "kernel.cubin").read_bytes(), log
