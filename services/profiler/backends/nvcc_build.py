"""Makes programs with nvcc: the measuring part once for an architecture, then one small file for each kernel."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import platformdirs

from services.core.errors import BackendUnavailableError, CompileError, UnknownKernelError
from services.profiler.backends.base import Build
from services.profiler.backends.nvcc_compiler import COMPILE_LIMIT_S, TOOLKIT, find_nvcc, toolkit_version
from services.profiler.backends.nvcc_program import MAIN_FILE, MEASURING_FOLDER, KernelProgram

MEASURING_FILE: Final = "measuring_program.cu"
MEASURING_OPTIONS: Final = ("-O2", "-std=c++17")
DEBUG_OPTIONS: Final = frozenset({"-G", "--device-debug"})
ARCHITECTURE_OPTIONS: Final = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code")
AMBIGUOUS: Final = '"kernalyse_entry_of" matches'  # in nvcc's words: no instance of it does, because the name has several overloads


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    executable: Path
    options: str  # of the kernel's own file, as nvcc got them
    log: str  # the compiler's remarks; empty when it had nothing to say


class ProgramBuilder:
    """Makes programs for one architecture.

    Args:
        architecture: e.g. "sm_90".
        cache_folder: where the compiled measuring part is kept from one process to the next, named by its content; None: the
            user's own cache.
    """

    def __init__(self, architecture: str, cache_folder: Path | None = None) -> None:
        self._architecture = architecture
        self._cache_folder = cache_folder or platformdirs.user_cache_path("kernalyse") / "nvcc"
        self._measuring_object: bytes | None = None

    def build(self, program: KernelProgram, build: Build, folder: Path) -> BuiltProgram:
        """The executable for a kernel, in a folder that nothing else uses.

        Raises:
            BackendUnavailableError: there is no nvcc.
            CompileError: with nvcc's own lines; they name the .cu file.
            UnknownKernelError: the name has several overloads.
        """
        folder.mkdir(parents=True)
        (folder / program.source_file_name).write_text(program.source.text, encoding="utf-8")
        (folder / MAIN_FILE).write_text(program.main_text, encoding="utf-8")
        (folder / "measuring_program.o").write_bytes(self._measuring_part())
        options = program_options(build, self._architecture)
        result = _run_nvcc([*options, "-o", "program", MAIN_FILE, "measuring_program.o"], folder, program.source.file_name)
        if result.is_success:
            return BuiltProgram(folder / "program", shlex.join(options), result.log)
        if AMBIGUOUS in result.log and "<" not in build.function_name:
            raise UnknownKernelError(
                f"kernel {program.signature.name} of {program.source.file_name}",
                found="several functions of that name",
                expected=f"exactly one {program.signature.name}",
                remedy="Give its overloads names of their own.",
            )
        raise CompileError(
            f"{program.source.file_name} for {self._architecture}",
            found=f"nvcc says:\n{result.log}\n",
            remedy="Correct the source; the lines are those of the .cu file.",
        )

    def _measuring_part(self) -> bytes:
        """The object file of what all programs share; made when this machine sees it for the first time."""
        if self._measuring_object is None:
            digest = hashlib.sha256("\0".join((*MEASURING_OPTIONS, self._architecture, toolkit_version() or "")).encode())
            for path in sorted(MEASURING_FOLDER.iterdir()):
                digest.update(path.read_bytes())
            kept = self._cache_folder / f"measuring-{self._architecture}-{digest.hexdigest()[:16]}.o"
            try:
                self._measuring_object = kept.read_bytes()
            except OSError:
                self._measuring_object = self._compile_measuring_part()
                _keep(kept, self._measuring_object)
        return self._measuring_object

    def _compile_measuring_part(self) -> bytes:
        with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as folder:
            source = str(MEASURING_FOLDER / MEASURING_FILE)
            options = ["-c", f"-arch={self._architecture}", *MEASURING_OPTIONS, "-o", "measuring_program.o", source]
            result = _run_nvcc(options, Path(folder), MEASURING_FILE)
            if not result.is_success:
                raise BackendUnavailableError(
                    f"backend NVCC for {self._architecture}",
                    found=f"nvcc says:\n{result.log}\n",
                    expected="CUDA 11.4 or later with a C++17 host compiler, which know this device",
                    remedy="Update the CUDA toolkit, or use --backend pycuda.",
                )
            return (Path(folder) / "measuring_program.o").read_bytes()


def program_options(build: Build, architecture: str) -> list[str]:
    """Architecture, unless the user's options name one; line numbers, unless they ask for all that a debugger wants; the rest."""
    place = PurePosixPath(build.source.file_name).parent  # within a bundle: #include "x.h" looks there first
    beside = [folder / place for folder in build.include_folders if place.parts and ".." not in place.parts]
    return [
        *([] if names_architecture(build.options) else [f"-arch={architecture}"]),
        *([] if set(build.options) & DEBUG_OPTIONS else ["-lineinfo"]),
        *(f"-D{macro.name}={macro.value}" for macro in build.macros),
        *build.options,
        *(f"-I{folder.resolve()}" for folder in (*beside, *build.include_folders)),
    ]


def names_architecture(options: Sequence[str]) -> bool:
    """Whether the user's own options say for which device to compile."""
    return any(option.partition("=")[0] in ARCHITECTURE_OPTIONS for option in options)


@dataclass(frozen=True, slots=True)
class _Result:
    is_success: bool
    log: str


def _run_nvcc(arguments: Sequence[str], folder: Path, subject: str) -> _Result:
    nvcc = find_nvcc()
    if nvcc is None:
        raise BackendUnavailableError("nvcc", found="no nvcc to compile with", remedy=TOOLKIT)
    try:
        result = subprocess.run([nvcc, *arguments], cwd=folder, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CompileError(subject, found=f"no end of nvcc within {COMPILE_LIMIT_S:.0f} s", remedy="Simplify it.") from error
    log = "\n".join(part for part in (result.stdout.strip(), result.stderr.strip()) if part)
    return _Result(result.returncode == 0, log)


def _keep(path: Path, data: bytes) -> None:
    """A cache that cannot be written only costs the next process its time."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        pass
