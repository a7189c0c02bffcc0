"""Compilation with nvcc: options, the cache, and the reports of ptxas and the disassembler."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Final

from kernalyse.services.core.errors import BackendUnavailableError, CompileError
from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.profiler.backends.base import Build
from kernalyse.services.profiler.kernel_sources.functions import compiled_name, parse_instance_name, parse_kernel_source

# ---------------------------------------------------------------- nvcc compiler

TOOLKIT: Final = "Install the CUDA toolkit, or set CUDA_HOME to its directory."
CUBIN_FILE: Final = "kernel.cubin"
HEADERS_FILE: Final = "headers.d"


def toolkit_version() -> str | None:
    """Return the version of nvcc's toolkit, such as 12.4; None where nvcc is missing or does not answer."""
    nvcc = find_nvcc()
    found = re.search(r"release (\d+\.\d+)", compiler_version(nvcc)) if nvcc is not None else None
    return found[1] if found else None


@lru_cache(maxsize=4)
def compiler_version(nvcc: str) -> str:
    """Return the full version text of nvcc, build included; empty when nvcc does not answer."""
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


class NvccCompiler:
    """The compiler nvcc, with a cache for its results.

    Args:
        cache: where cubins are stored between processes; None: nowhere.
    """

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
        found = self._cache.find(key, header_directories(build))
        if found is not None:
            return found
        compiled, headers = job.run()
        self._cache.store(key, compiled, headers, header_directories(build))
        return compiled


class _Job:
    """One compilation, in a temporary directory of its own."""

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
        """Compile, and return the result with the headers that were read."""
        with tempfile.TemporaryDirectory(prefix="kernalyse-nvcc-") as name:
            directory = Path(name)
            start_ns = time.perf_counter_ns()
            entry = None
            text = self._build.source.text
            source = directory / self._file_name
            source.write_text(text if self._instance is None else with_instance(text, self._instance), encoding="utf-8")
            output = self._call(directory, "-MD", "-MF", HEADERS_FILE, "--keep", self._file_name)
            ptx = next((path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.ptx"))), None)
            if self._instance is not None:
                entry, ptx, report = self._without_variable(directory, ptx)
                remarks = split_report(output)[1]
            else:
                report, remarks = split_report(output)
            compile_ns = time.perf_counter_ns() - start_ns
            cubin_file = directory / CUBIN_FILE
            machine_code = disassemble(cubin_file, Path(self._nvcc).parent)
            listings = {"ptx": ptx, "ptxas.txt": report, "sass": None if machine_code is None else machine_code.decode(errors="replace")}
            compiled = CompiledCode(
                code=cubin_file.read_bytes(),
                entry=entry,
                log=remarks,
                listings={suffix: listing.encode() for suffix, listing in listings.items() if listing},
                compile_ns=compile_ns,
            )
            return compiled, read_headers(directory / HEADERS_FILE, directory)

    def _without_variable(self, directory: Path, ptx: str | None) -> tuple[str, str, str]:
        """Compile once more without the helper variable; return the instance's entry, and the PTX and report of that cubin."""
        entry = instance_entry(ptx or "")
        if ptx is None or entry is None:
            template = parse_instance_name(self._build.function_name).function_name
            raise CompileError(
                build_subject(self._build, self._architecture),
                found=f"nothing in nvcc's output that names the entry of {self._instance}",
                remedy=f"Add an explicit instance to the file, and name the kernel {template}.",
            )
        ptx = without_variable(ptx)
        (directory / "instance.ptx").write_text(ptx, encoding="utf-8")
        report, _ = split_report(self._call(directory, "instance.ptx"))
        return entry, ptx, report

    def _call(self, directory: Path, *arguments: str) -> str:
        """Run nvcc to make CUBIN_FILE, and return its output. Raises CompileError."""
        arguments = ("--cubin", *self._options, *REPORT, "-o", CUBIN_FILE, *arguments)
        return run_nvcc(self._nvcc, arguments, directory, build_subject(self._build, self._architecture))


def _qualified_instance(build: Build) -> str | None:
    """Return the template instance with the namespaces that its kernel lies in; None: the function name has no template arguments."""
    if parse_instance_name(build.function_name).arguments is None:
        return None
    return str(compiled_name(parse_kernel_source(build.source).kernel(build.function_name)))


# ---------------------------------------------------------------- nvcc calls
# Calls of nvcc, the headers that a compilation has read, and its cache key.

COMPILE_LIMIT_S: Final = 300.0  # heavy templates take a minute; a compiler that hangs must not hold the device
REPORT: Final = ("-Xptxas", "-v")
ENVIRONMENT: Final = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")  # nvcc reads them; they change what it makes
OPTION_FILES: Final = ("-optf", "--options-file")  # files of options: their content is unknown here, so the result is not cached


def run_nvcc(nvcc: str, arguments: Sequence[str], directory: Path, subject: str) -> str:
    """Run nvcc and return its output. Raises CompileError with nvcc's own lines, which name the .cu file."""
    try:
        done = subprocess.run(
            [nvcc, *arguments], cwd=directory, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(subject, found=f"no end of nvcc within {COMPILE_LIMIT_S:.0f} s", remedy="Simplify it.") from error
    output = "\n".join(part for part in (done.stdout.rstrip(), done.stderr.rstrip()) if part)
    if done.returncode != 0:
        raise CompileError(
            subject,
            found=f"nvcc says:\n{split_report(output)[1]}\n",
            remedy="Correct the source; the lines are those of the .cu file.",
        )
    return output


def build_subject(build: Build, architecture: str) -> str:
    """Return a build as errors name it: with its configuration, as far as that is compiled in."""
    macros = "".join(f" {macro.name}={macro.value}" for macro in build.macros)
    return f"kernel {build.function_name}{macros} of {build.source.file_name} for {architecture}"


def reads_hidden_files(build: Build) -> bool:
    """Return whether an option makes nvcc read files that are missing from its list of headers."""
    return any(option.split("=", maxsplit=1)[0] in OPTION_FILES for option in build.options)


def build_key(build: Build, architecture: str, *parts: str) -> str:
    """Return the cache key of a build without its headers.

    Header directories have other paths in every run, so only their number is part of the key.

    Args:
        parts: what else goes into the compilation: the compiler, and the text around the source.
    """
    directories = header_directories(build)
    options = [option for option in build_options(build, architecture) if option not in {f"-I{directory}" for directory in directories}]
    environment = [os.environ.get(name, "") for name in ENVIRONMENT]
    return cache_key(*parts, build.source.file_name, build.source.text, *environment, str(len(directories)), *options)


def read_headers(listed: Path, directory: Path) -> list[Path]:
    """Return the headers listed in a make rule of nvcc -MD.

    Files in the directory that nvcc ran in, and names from #line directives, are skipped.
    """
    names = re.findall(r"(?:\\ |[^\s\\])+", listed.read_text(encoding="utf-8").partition(" : ")[2])
    paths = [Path(os.path.normpath(directory / name.replace("\\ ", " "))) for name in names]
    return [path for path in dict.fromkeys(paths) if path.parent != directory and path.is_file()]


# ---------------------------------------------------------------- nvcc options

ARCHITECTURE_OPTIONS: Final = ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code")
DEBUG_OPTIONS: Final = ("-G", "--device-debug")


def build_options(build: Build, architecture: str) -> list[str]:
    """Return architecture, line numbers, macros, the request's own options, directories of headers: in this order.

    Args:
        architecture: of the device, e.g. "sm_90"; one that the request's options name counts instead.
    """
    return [
        *([] if names_architecture(build.options) else [f"-arch={architecture}"]),
        *([] if any(option in DEBUG_OPTIONS for option in build.options) else ["-lineinfo"]),  # full debug information has them
        *(f"-D{macro.name}={macro.value}" for macro in build.macros),
        *build.options,
        *(f"-I{directory}" for directory in header_directories(build)),
    ]


def names_architecture(options: Sequence[str]) -> bool:
    """Return whether options choose an architecture by themselves."""
    return any(option.split("=", maxsplit=1)[0] in ARCHITECTURE_OPTIONS for option in options)


def header_directories(build: Build) -> tuple[Path, ...]:
    """Return the build's directories, and before them those in which the source itself lies: #include "x.h" looks there first."""
    place = PurePosixPath(build.source.file_name).parent
    beside = [directory / place for directory in build.include_directories] if place.parts and ".." not in place.parts else []
    return (*(directory for directory in beside if directory.is_dir()), *build.include_directories)


# ---------------------------------------------------------------- code cache
# Compiled kernels are cached on disk by their input. The key has everything that is known before a compilation: source, options,
# architecture, compiler. Which headers were read is known only afterwards, so an entry lists them with their digests and is valid only
# while they are unchanged.

MAX_CACHE_BYTES: Final = 2**30  # a cubin with its listings takes 20 KB to a few MB: thousands of builds, and no disk is full of them

UNFINISHED: Final = ".unfinished"
MAX_WRITING_S: Final = 600.0  # an entry that is still being written after that was left by a process that is gone


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """The result of compiling a .cu text."""

    code: bytes  # a cubin, an object file or a program
    entry: str | None  # of the template instance that was asked for; None: a function without template arguments
    log: str  # warnings; empty: none
    listings: Mapping[str, bytes] = field(repr=False)  # "ptx", "ptxas.txt", "sass"
    compile_ns: int = 0  # wall-clock time of the compiler; 0: from the cache


class CodeCache:
    """Compiled code in one directory, which several processes may share: an entry is written to a temporary file and then renamed.

    Args:
        max_bytes: of all entries; those that were used longest ago go first.
    """

    def __init__(self, directory: Path, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes

    def find(self, key: str, header_directories: Sequence[Path]) -> CompiledCode | None:
        """Return a cached result whose headers are unchanged, or None. An entry that cannot be read is skipped."""
        for path in sorted(self._directory.glob(f"{key}-*.zip")):
            try:
                compiled = _read(path, header_directories)
            except (OSError, zipfile.BadZipFile, KeyError, ValueError):  # torn by a crash, or of another version: ignored
                with contextlib.suppress(OSError):
                    path.unlink()
                continue
            if compiled is not None:
                with contextlib.suppress(OSError):
                    os.utime(path)  # used now
                return compiled
        return None

    def store(self, key: str, compiled: CompiledCode, headers: Sequence[Path], header_directories: Sequence[Path]) -> None:
        """Store an entry. A failed write is ignored: it only makes the next compilation slower."""
        with contextlib.suppress(OSError):
            listed = [(*_place(header, header_directories), _digest(header)) for header in headers]
            name = f"{key}-{hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]}.zip"
            self._directory.mkdir(parents=True, exist_ok=True)
            file, unfinished = tempfile.mkstemp(dir=self._directory, suffix=UNFINISHED)
            try:
                with os.fdopen(file, "wb") as target:
                    _write(target, compiled, listed)
                Path(unfinished).replace(self._directory / name)
            except BaseException:
                Path(unfinished).unlink(missing_ok=True)
                raise
            self._shrink()

    def _shrink(self) -> None:
        for path in self._directory.glob(f"*{UNFINISHED}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > MAX_WRITING_S:
                    path.unlink()
        entries = []
        for path in self._directory.glob("*.zip"):
            with contextlib.suppress(OSError):  # another process was faster
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        excess_bytes = sum(size_bytes for _, size_bytes, _ in entries) - self._max_bytes
        for _, size_bytes, path in sorted(entries):
            if excess_bytes <= 0:
                return
            path.unlink(missing_ok=True)
            excess_bytes -= size_bytes


def cache_key(*parts: str) -> str:
    """Return a digest of all parts, their boundaries included."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _place(header: Path, header_directories: Sequence[Path]) -> tuple[int | None, str]:
    """Return a header's path relative to its directory, with the position of that directory.

    The directory of a run's bundle has another path in every run, so the path itself would never match.
    """
    for index, directory in enumerate(header_directories):
        if header.is_relative_to(directory):
            return index, str(header.relative_to(directory))
    return None, str(header)


def _digest(header: Path) -> str:
    return hashlib.sha256(header.read_bytes()).hexdigest()


def _write(target: IO[bytes], compiled: CompiledCode, headers: Sequence[tuple[int | None, str, str]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("about.json", json.dumps({"entry": compiled.entry, "log": compiled.log, "headers": headers}))
        archive.writestr("code", compiled.code)
        for suffix, data in compiled.listings.items():
            archive.writestr(f"listing/{suffix}", data)


def _read(path: Path, header_directories: Sequence[Path]) -> CompiledCode | None:
    """Read an entry. None: a header has changed since."""
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("about.json"))
        if any(digest != found for digest, found in _compared(about["headers"], header_directories)):
            return None
        listings = {name.removeprefix("listing/"): archive.read(name) for name in archive.namelist() if name.startswith("listing/")}
        return CompiledCode(archive.read("code"), about["entry"], about["log"], listings)


def _compared(headers: Sequence[tuple[int | None, str, str]], header_directories: Sequence[Path]) -> Iterator[tuple[str, str | None]]:
    for index, name, digest in headers:
        if index is not None and index >= len(header_directories):
            yield digest, None
            continue
        header = Path(name) if index is None else header_directories[index] / name
        yield digest, _digest(header) if header.is_file() else None


# ---------------------------------------------------------------- template instances
# To find the entry of a template instance, the source gets a variable that holds its address. The compiler then makes the instance,
# and the PTX names it in the variable's initial value, whatever aliases or constant expressions the request used.

VARIABLE: Final = "kernalyse_instance"
VARIABLE_LINE: Final = re.compile(rf"^.*\.global\b.*\b{VARIABLE}\b\s*=\s*([\w$.]+)\s*;.*$\n?", re.MULTILINE)


def with_instance(text: str, instance: str) -> str:
    """Return the source with a variable added that holds the address of `instance`; errors in it name the instance, not a line."""
    escaped = instance.replace("\\", "\\\\").replace('"', '\\"')
    return f'{text}\n#line 1 "instance {escaped}"\nextern "C" __device__ const void *const {VARIABLE} = (const void *)&{instance};\n'


def instance_entry(ptx: str) -> str | None:
    """Return the entry whose address the variable holds; None: the PTX has no such variable."""
    found = VARIABLE_LINE.search(ptx)
    return found[1] if found else None


def without_variable(ptx: str) -> str:
    """Return the PTX without the variable that `with_instance` adds."""
    return VARIABLE_LINE.sub("", ptx)


# ---------------------------------------------------------------- disassembly
# SASS is available where the toolkit's disassembler is installed.

DISASSEMBLERS: Final = (("cuobjdump", "-sass"), ("nvdisasm", "-c"))
TIME_LIMIT_S: Final = 60.0  # megabytes of machine code take seconds; a listing is not worth a longer wait


def disassemble(cubin_file: Path, toolkit_directory: Path) -> bytes | None:
    """Return the SASS of a cubin; None where no disassembler is found or it failed."""
    for program, option in DISASSEMBLERS:
        found = find_disassembler(program, toolkit_directory)
        if found is None:
            continue
        try:
            done = subprocess.run([found, option, str(cubin_file)], capture_output=True, timeout=TIME_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout:
            return done.stdout
    return None


def find_disassembler(program: str, toolkit_directory: Path) -> str | None:
    """Find a disassembler. toolkit_directory: where nvcc is."""
    beside = toolkit_directory / program
    return str(beside) if beside.is_file() else shutil.which(program)


# ---------------------------------------------------------------- ptxas reports
# ptxas -v reports registers, spills, shared and constant memory of each kernel.

ENTRY: Final = re.compile(r"ptxas info\s*: Compiling entry function '([^']+)'")
PROPERTIES: Final = re.compile(r"ptxas info\s*: Function properties for (\S+)")
SPILLS: Final = re.compile(r"\s*(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED: Final = re.compile(r"ptxas info\s*: Used (\d+) registers")
MEMORY: Final = re.compile(r"(\d+) bytes (smem|cmem\[\d+\])")


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """Registers and memory of one kernel as ptxas reports them. None: not reported."""

    register_count: int | None = None  # per thread
    stack_bytes: int | None = None  # per thread, spills included
    spill_store_bytes: int | None = None  # per thread
    spill_load_bytes: int | None = None
    shared_memory_bytes: int | None = None  # per block, static
    constant_memory_bytes: int | None = None  # all banks together


NOTHING: Final = KernelUsage()


def split_report(output: str) -> tuple[str, str]:
    """Return nvcc's output in two parts: the report of ptxas -v, and the rest, which are warnings."""
    report, remarks = list[str](), list[str]()
    for line in output.splitlines():
        is_report = line.startswith("ptxas info") or SPILLS.fullmatch(line) is not None
        (report if is_report else remarks).append(line)
    return "\n".join(report), "\n".join(remarks).strip()


def read_report(report: str) -> Mapping[str, KernelUsage]:
    """Read usage by entry name, as in the cubin. Stack and spills of device functions that were not inlined are included."""
    usages: dict[str, KernelUsage] = {}
    entry = function = ""
    for line in report.splitlines():
        if found := ENTRY.match(line):
            entry = found[1]
        elif found := PROPERTIES.match(line):
            function = found[1]
        elif found := SPILLS.match(line):
            stack, stores, loads = (int(number) for number in found.groups())
            usages[function] = replace(usages.get(function, NOTHING), stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads)
        elif found := USED.match(line):
            amounts = MEMORY.findall(line)
            constant_bytes = [int(number) for number, where in amounts if where != "smem"]
            usages[entry] = replace(
                usages.get(entry, NOTHING),
                register_count=int(found[1]),
                shared_memory_bytes=sum(int(number) for number, where in amounts if where == "smem"),  # without any it names none
                constant_memory_bytes=sum(constant_bytes) if constant_bytes else None,  # for new devices it names no bank at all
            )
    return usages
