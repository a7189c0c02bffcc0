"""The compiler nvcc: where it is, and how it compiles a .cu text."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from services.core.cuda_tools import find_nvcc
from services.core.errors import BackendUnavailableError, CompileError
from services.profiler.backends.base import Build
from services.profiler.backends.code_cache import CodeCache, CompiledCode
from services.profiler.backends.disassembly import disassemble
from services.profiler.backends.instance_entry import instance_entry, with_instance, without_variable
from services.profiler.backends.kernel_source import parse_kernel_source
from services.profiler.backends.nvcc_options import build_options, header_folders
from services.profiler.backends.nvcc_process import REPORT, build_key, build_subject, read_headers, reads_hidden_files, run_nvcc
from services.profiler.backends.ptxas_report import split_report
from services.profiler.backends.template_instances import compiled_name, parse_instance_name

TOOLKIT: Final = "Install the CUDA toolkit, or set CUDA_HOME to its folder."
CUBIN_FILE: Final = "kernel.cubin"
HEADERS_FILE: Final = "headers.d"


def toolkit_version() -> str | None:
    """Return the version of nvcc's toolkit, such as 12.4; None: there is no nvcc, or it does not answer."""
    nvcc = find_nvcc()
    found = re.search(r"release (\d+\.\d+)", compiler_version(nvcc)) if nvcc is not None else None
    return found[1] if found else None


@lru_cache(maxsize=4)
def compiler_version(nvcc: str) -> str:
    """Return all that nvcc says of its version, its build included; empty when it does not answer."""
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


class NvccCompiler:
    """Args: cache: where cubins are kept between processes; None: nowhere."""

    def __init__(self, cache: CodeCache | None = None) -> None:
        self._cache = cache

    def compile(self, build: Build, architecture: str) -> CompiledCode:
        """Return the cubin of a build, with the compiler's remarks and listings.

        Args:
            architecture: of the device, e.g. "sm_90"; one that the options name counts instead.

        Raises:
            BackendUnavailableError: there is no nvcc.
            CompileError: with nvcc's own lines; they name the .cu file.
            UnknownKernelError, InvalidSourceError: a template instance is asked for whose template is not there.
        """
        nvcc = find_nvcc()
        if nvcc is None:
            raise BackendUnavailableError("nvcc", found="no nvcc to compile with", remedy=TOOLKIT)
        job = _Job(nvcc, build, architecture)
        if self._cache is None or reads_hidden_files(build):
            return job.run()[0]
        key = job.key()
        found = self._cache.find(key, header_folders(build))
        if found is not None:
            return found
        compiled, headers = job.run()
        self._cache.store(key, compiled, headers, header_folders(build))
        return compiled


class _Job:
    """A compilation, in a folder of its own that is gone afterwards."""

    def __init__(self, nvcc: str, build: Build, architecture: str) -> None:
        self._nvcc = nvcc
        self._build = build
        self._architecture = architecture
        self._options = build_options(build, architecture)
        self._file_name = Path(build.source.file_name).name or "kernel.cu"
        self._instance = _qualified_instance(build)

    def key(self) -> str:
        return build_key(self._build, self._architecture, "cubin", compiler_version(self._nvcc), self._instance or "")

    def run(self) -> tuple[CompiledCode, list[Path]]:
        """Return what it makes, and the headers that were read for it."""
        with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as name:
            folder = Path(name)
            start_ns = time.perf_counter_ns()
            entry = None
            text = self._build.source.text
            source = folder / self._file_name
            source.write_text(text if self._instance is None else with_instance(text, self._instance), encoding="utf-8")
            output = self._call(folder, "-MD", "-MF", HEADERS_FILE, "--keep", self._file_name)
            ptx = next((path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ptx"))), None)
            if self._instance is not None:
                entry, ptx, report = self._without_variable(folder, ptx)
                remarks = split_report(output)[1]
            else:
                report, remarks = split_report(output)
            compile_ns = time.perf_counter_ns() - start_ns
            cubin_file = folder / CUBIN_FILE
            machine_code = disassemble(cubin_file, Path(self._nvcc).parent)
            listings = {"ptx": ptx, "ptxas.txt": report, "sass": None if machine_code is None else machine_code.decode(errors="replace")}
            compiled = CompiledCode(
                code=cubin_file.read_bytes(),
                entry=entry,
                log=remarks,
                listings={suffix: listing.encode() for suffix, listing in listings.items() if listing},
                compile_ns=compile_ns,
            )
            return compiled, read_headers(folder / HEADERS_FILE, folder)

    def _without_variable(self, folder: Path, ptx: str | None) -> tuple[str, str, str]:
        """Return the instance's entry, and PTX and report of a cubin in which only it is left of what was added to find it."""
        entry = instance_entry(ptx or "")
        if ptx is None or entry is None:
            template = parse_instance_name(self._build.function_name).function_name
            raise CompileError(
                build_subject(self._build, self._architecture),
                found=f"nothing in nvcc's output that names the entry of {self._instance}",
                remedy=f"Add an explicit instance to the file, and name the kernel {template}.",
            )
        ptx = without_variable(ptx)
        (folder / "instance.ptx").write_text(ptx, encoding="utf-8")
        report, _ = split_report(self._call(folder, "instance.ptx"))
        return entry, ptx, report

    def _call(self, folder: Path, *arguments: str) -> str:
        """Make CUBIN_FILE; what nvcc prints meanwhile. Raises CompileError."""
        arguments = ("--cubin", *self._options, *REPORT, "-o", CUBIN_FILE, *arguments)
        return run_nvcc(self._nvcc, arguments, folder, build_subject(self._build, self._architecture))


def _qualified_instance(build: Build) -> str | None:
    """Return the template instance with the namespaces that its kernel lies in; None: the function name has no template arguments."""
    if parse_instance_name(build.function_name).arguments is None:
        return None
    return str(compiled_name(parse_kernel_source(build.source).kernel(build.function_name)))
