"""Makes programs with nvcc: the measuring part once for an architecture, then one small file for each kernel."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services.core.cuda_tools import find_nvcc
from services.core.errors import BackendUnavailableError, CompileError, UnknownKernelError
from services.profiler.backends.base import Build
from services.profiler.backends.code_cache import CodeCache, CompiledCode, cache_key
from services.profiler.backends.disassembly import disassemble
from services.profiler.backends.nvcc_compiler import TOOLKIT, compiler_version
from services.profiler.backends.nvcc_options import build_options, header_folders
from services.profiler.backends.nvcc_process import REPORT, build_key, build_subject, read_headers, reads_hidden_files, run_nvcc
from services.profiler.backends.nvcc_program import MAIN_FILE, MEASURING_FOLDER, KernelProgram
from services.profiler.backends.ptxas_report import split_report

MEASURING_FILE: Final = "measuring_program.cu"
MEASURING_OBJECT: Final = "measuring_program.o"
MEASURING_OPTIONS: Final = ("-O2", "-std=c++17")
PROGRAM_FILE: Final = "program"
HEADERS_FILE: Final = "headers.d"
AMBIGUOUS: Final = '"kernalyse_entry_of" matches'  # in nvcc's words: no instance of it does, because the name has several overloads


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """An executable, and how nvcc made it."""

    executable: Path
    options: str  # of the kernel's own file, as nvcc got them
    log: str  # the compiler's remarks; empty when it had nothing to say
    listings: Mapping[str, bytes] = field(repr=False)  # "ptx", "ptxas.txt", "sass"
    compile_ns: int  # wall-clock time of the compiler; 0: from the cache


class ProgramBuilder:
    """Makes programs for one architecture.

    Args:
        architecture: e.g. "sm_90".
        cache: where programs, and their measuring part, are kept from one process to the next; None: nowhere.
    """

    def __init__(self, architecture: str, cache: CodeCache | None = None) -> None:
        self._architecture = architecture
        self._cache = cache
        self._measuring_object: bytes | None = None

    def build(self, program: KernelProgram, build: Build, folder: Path) -> BuiltProgram:
        """Return the executable for a kernel, in a folder that nothing else uses.

        Raises:
            BackendUnavailableError: there is no nvcc.
            CompileError: with nvcc's own lines; they name the .cu file.
            UnknownKernelError: the name has several overloads.
        """
        nvcc = find_nvcc()
        if nvcc is None:
            raise BackendUnavailableError("nvcc", found="no nvcc to compile with", remedy=TOOLKIT)
        cache = None if reads_hidden_files(build) else self._cache
        key = build_key(build, self._architecture, self._measuring_key(nvcc), program.main_text)
        made = None if cache is None else cache.find(key, header_folders(build))
        if made is None:
            made, headers = self._compile(nvcc, program, build)
            if cache is not None:
                cache.store(key, made, headers, header_folders(build))
        folder.mkdir(parents=True)
        executable = folder / PROGRAM_FILE
        executable.write_bytes(made.code)
        executable.chmod(0o700)
        options = shlex.join(build_options(build, self._architecture))
        return BuiltProgram(executable, options, made.log, made.listings, made.compile_ns)

    def _compile(self, nvcc: str, program: KernelProgram, build: Build) -> tuple[CompiledCode, list[Path]]:
        """Return the program with the listings of its kernel, and the headers that were read for it.

        An executable takes the place of the cubin that is in it.
        """
        measuring_part = self._measuring_part(nvcc)
        options = build_options(build, self._architecture)
        files = ("-MD", "-MF", HEADERS_FILE, "--keep", "-o", PROGRAM_FILE, MAIN_FILE, MEASURING_OBJECT)
        with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as name:
            folder = Path(name)
            start_ns = time.perf_counter_ns()
            (folder / program.source_file_name).write_text(program.source.text, encoding="utf-8")
            (folder / MAIN_FILE).write_text(program.main_text, encoding="utf-8")
            (folder / MEASURING_OBJECT).write_bytes(measuring_part)
            try:
                output = run_nvcc(nvcc, (*options, *REPORT, *files), folder, build_subject(build, self._architecture))
            except CompileError as error:
                if AMBIGUOUS not in error.found or "<" in build.function_name:
                    raise
                raise UnknownKernelError(
                    f"kernel {program.signature.name} of {program.source.file_name}",
                    found="several functions of that name",
                    expected=f"exactly one {program.signature.name}",
                    remedy="Give its overloads names of their own.",
                ) from error
            compile_ns = time.perf_counter_ns() - start_ns
            report, remarks = split_report(output)
            made = CompiledCode(
                code=(folder / PROGRAM_FILE).read_bytes(),
                entry=None,
                log=remarks,
                listings=_listings(folder, report, Path(nvcc).parent),
                compile_ns=compile_ns,
            )
            return made, read_headers(folder / HEADERS_FILE, folder)

    def _measuring_part(self, nvcc: str) -> bytes:
        """Return the object file of what all programs share; made once, and kept beside them."""
        if self._measuring_object is None:
            key = self._measuring_key(nvcc)
            made = None if self._cache is None else self._cache.find(key, ())
            if made is None:
                made = CompiledCode(self._compile_measuring_part(nvcc), entry=None, log="", listings={})
                if self._cache is not None:
                    self._cache.store(key, made, (), ())
            self._measuring_object = made.code
        return self._measuring_object

    def _measuring_key(self, nvcc: str) -> str:
        texts = [path.read_text(encoding="utf-8") for path in sorted(MEASURING_FOLDER.iterdir())]
        return cache_key("measuring part", compiler_version(nvcc), self._architecture, *MEASURING_OPTIONS, *texts)

    def _compile_measuring_part(self, nvcc: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as name:
            folder = Path(name)
            source = str(MEASURING_FOLDER / MEASURING_FILE)
            options = ("-c", f"-arch={self._architecture}", *MEASURING_OPTIONS, "-o", MEASURING_OBJECT, source)
            try:
                run_nvcc(nvcc, options, folder, MEASURING_FILE)
            except CompileError as error:
                raise BackendUnavailableError(
                    f"backend NVCC for {self._architecture}",
                    found=error.found,
                    expected="CUDA 11.4 or later with a C++17 host compiler, which know this device",
                    remedy="Update the CUDA toolkit, or use --backend pycuda.",
                ) from error
            return (folder / MEASURING_OBJECT).read_bytes()


def _listings(folder: Path, report: str, toolkit_folder: Path) -> dict[str, bytes]:
    """Return what nvcc has left in the folder of what it made on the way, for the kernel's own file."""
    stem = MAIN_FILE.partition(".")[0]
    ptx = next((path.read_bytes() for path in sorted(folder.glob(f"{stem}*.ptx"))), None)
    cubin = next(iter(sorted(folder.glob(f"{stem}*.cubin"))), None)
    found = {
        "ptx": ptx,
        "ptxas.txt": report.encode(),
        "sass": None if cubin is None else disassemble(cubin, toolkit_folder),
    }
    return {suffix: listing for suffix, listing in found.items() if listing}
