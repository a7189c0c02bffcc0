"""Programs of the NVCC backend without a device: compiled by nvcc, and linked with a stand-in for the CUDA runtime."""

from __future__ import annotations

import atexit
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from kernalyse.services.core.external_programs import find_nvcc
from kernalyse.services.core.model import BackendName, Device, DeviceKind, Dim3, KernelSource
from kernalyse.services.profiler import backends
from kernalyse.services.profiler.backends.base import Build
from kernalyse.services.profiler.backends.cuda.compiler import CodeCache, build_options, compiler_version
from kernalyse.services.profiler.backends.cuda.nvcc_programs import BuiltProgram, KernelProgram, ProgramBuilder
from tests.kept import alone_with, kept_of_sources

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc: install the CUDA toolkit, or set CUDA_HOME")

ARCHITECTURE: Final = "sm_90"
STAND_IN_FILE: Final = Path(__file__).parent / "stand_in_cudart.cpp"
DRIVER_FILE: Final = Path(__file__).parent / "stand_in_libcuda.cpp"

DEVICE: Final = Device(
    device_id="cuda:0",
    name="a stand-in",
    kind=DeviceKind.GPU,
    backends=(BackendName.NVCC,),
    compute_capability="9.0",
    memory_bytes=64 * 2**20,  # more than the stand-in has, so that it is the one to refuse
    l2_cache_bytes=2 * 2**20,
    max_threads_per_block=1024,
    max_block=Dim3(1024, 1024, 64),
    max_grid=Dim3(2**31 - 1, 65535, 65535),
    max_shared_memory_bytes=200_000,
)

ACT = KernelSource(
    "act.cu",
    "#ifndef VARIANT\n#define VARIANT 0\n#endif\n"
    "__global__ void act(int what, int n, float alpha, const float* x, float* y) { y[VARIANT] = alpha; }\n",
)
"""What it does is written in the stand-in: y = alpha * x + y, or by `what` one of these."""

FAULTS, HANGS, ABORTS, PRINTS, TELLS_SHARED_BYTES, PRINTS_MUCH, TELLS_COOPERATION = 1, 2, 3, 4, 5, 6, 7

COLD_NS, HOT_NS = 8_000.0, 5_000.0  # the stand-in's durations of a launch


@cache
def build_directory() -> Path:
    """One for all tests of a process."""
    directory = Path(tempfile.mkdtemp(prefix="kernalyse-nvcc-tests-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def real_builder() -> ProgramBuilder:
    return ProgramBuilder(ARCHITECTURE, kept_code())


@cache
def kept_code() -> CodeCache:
    """For later runs of the tests, until the code changes that makes it."""
    files = (path for path in Path(backends.__file__).parent.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return CodeCache(kept_of_sources("nvcc", *files))


@cache
def stand_in_object() -> Path:
    return kept_of_nvcc("stand_in_cudart.o", STAND_IN_FILE, "-c", "-O1", "-std=c++17")


@cache
def stand_in_driver() -> Path:
    """A directory with the driver's library."""
    return kept_of_nvcc("libcuda.so.1", DRIVER_FILE, "-shared", "-Xcompiler", "-fPIC", "-std=c++17", "-cudart", "none").parent


def kept_of_nvcc(name: str, source: Path, *options: str) -> Path:
    """What nvcc makes of a file, kept for the same text, options and compiler; beside it lies `told`, what nvcc said."""
    nvcc = find_nvcc()
    assert nvcc is not None
    digest = sha256("\0".join((compiler_version(nvcc), source.read_text(), *options)).encode()).hexdigest()
    with alone_with("nvcc") as directory:
        made = directory / digest[:16] / name
        if not made.exists():
            made.parent.mkdir(exist_ok=True)
            part = made.with_suffix(".part")
            command = [nvcc, *options, "-o", str(part), source.name]
            done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
            made.with_name("told").write_text(done.stderr)
            part.rename(made)
    return made


class StandInBuilder:
    """Links every program with the stand-in, and makes each of them once for all tests."""

    _built: dict[Build, BuiltProgram] = {}  # noqa: RUF012 - of the class on purpose

    def build(self, program: KernelProgram, build: Build, directory: Path) -> BuiltProgram:
        if build not in self._built:
            linked = replace(build, options=(*build.options, "-cudart", "none", str(stand_in_object())))
            built = real_builder().build(program, linked, build_directory() / f"program-{len(self._built)}")
            self._built[build] = replace(built, options=shlex.join(build_options(build, ARCHITECTURE)))
        return self._built[build]
