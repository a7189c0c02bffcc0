"""The interface of backends, and the checks that all of them share."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kernalyse.services.core.errors import InvalidParameterError, LaunchLimitError
from kernalyse.services.core.model import BackendName, CacheMode, Device, Dim3, KernelResources, KernelSource, ParameterValue, TimingMethod
from kernalyse.services.profiler.kernel_sources.functions import SourceFunction, SourceParameter


@dataclass(frozen=True, slots=True)
class LaunchConfiguration:
    """Grid, block and dynamic shared memory of a launch."""

    block: Dim3
    grid: Dim3
    dynamic_shared_memory_bytes: int = 0


class DeviceBuffer(Protocol):
    """Device memory of `size_bytes` bytes."""

    @property
    def size_bytes(self) -> int:
        """Return the size of the buffer."""
        ...


@dataclass(frozen=True, slots=True)
class Build:
    """A source to compile, and the compiler's options.

    function_name may carry template arguments ("scale<float, 4>"): then that instance is built. Directories of headers are
    searched in their order, after the standard ones of the compiler.
    """

    source: KernelSource
    function_name: str
    macros: tuple[ParameterValue, ...] = ()  # -D NAME=VALUE
    options: tuple[str, ...] = ()  # as nvcc names them
    include_directories: tuple[Path, ...] = ()


class CompiledKernel(Protocol):
    """A function ready to be launched."""

    @property
    def function_name(self) -> str:
        """Return the name under which the kernel was requested, template arguments included."""
        ...

    @property
    def compile_ns(self) -> int:
        """Return the wall-clock time of the compilation; 0 when it came from a cache."""
        ...

    @property
    def compiler_options(self) -> str:
        """Return the options that the compiler was called with, joined by spaces."""
        ...

    @property
    def compiler_log(self) -> str:
        """Return warnings of the compiler; empty when it had nothing to say."""
        ...

    @property
    def listings(self) -> Mapping[str, bytes]:
        """Return compiler output by file name suffix: "cl" (translated source), "ptx", "sass", "ptxas.txt". Any of them may be missing."""
        ...


Argument = DeviceBuffer | np.generic
"""A kernel argument: device memory for a pointer, a NumPy scalar of the parameter's own type for everything else."""


class PreparedLaunch(Protocol):
    """A launch whose kernel, arguments and configuration are bound, so that it can be repeated. Only its own backend looks inside."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The method by which samples are taken. BATCHED and GRAPH are for hot samples alone."""

    method: TimingMethod  # SINGLE, BATCHED or GRAPH
    cache_mode: CacheMode  # COLD or HOT
    launches_per_sample: int = 1


@dataclass(frozen=True, slots=True)
class TimedSamples:
    """Consecutive samples.

    duration_ns: device time of one launch, shape (n,), by the runtime's own events; with several launches a sample, their
    mean. sm_clock_hz: during each sample, shape (n,), NaN where it is unknown; None: the device reports none.
    """

    duration_ns: npt.NDArray[np.float64]
    sm_clock_hz: npt.NDArray[np.float64] | None = None
    is_blocked: bool = False  # the stream was blocked while the samples were enqueued


class LaunchTimer(Protocol):
    """The part of a device session that a benchmark needs."""

    @property
    def timing_methods(self) -> frozenset[TimingMethod]:
        """Return the methods that `time` knows, of SINGLE, BATCHED and GRAPH."""
        ...

    def run(self, launch: PreparedLaunch) -> None:
        """Launch once, and wait for the end."""
        ...

    def time(self, launch: PreparedLaunch, timing: Timing, count: int) -> TimedSamples:
        """Take `count` samples.

        Cold ones have the last-level cache overwritten before each, outside the timed part.
        """
        ...


class DeviceSession(LaunchTimer, Protocol):
    """An open context on one device. Not thread-safe; lives in the worker."""

    @property
    def device(self) -> Device:
        """Return the device that the session was opened on."""
        ...

    @property
    def is_lost(self) -> bool:
        """Return whether a kernel has destroyed the session, so that no further call can succeed."""
        ...

    def compile(self, build: Build, block: Dim3) -> CompiledKernel:
        """Compile a build; the result is cached by content, options and, where the compiled code depends on it, `block`.

        Raises:
            CompileError: with the compiler's own lines.
            UnsupportedConstructError: this runtime cannot take the source; names construct, line and who could.
            UnknownKernelError: the source has no such __global__ function; names those it has.
        """
        ...

    def resources(self, kernel: CompiledKernel, configuration: LaunchConfiguration) -> KernelResources | None:
        """Return the registers, memory and occupancy of a launch; None where the runtime reports none."""
        ...

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        """Allocate device memory. Raises MemoryLimitError with the requested and the available bytes."""
        ...

    def release(self, buffer: DeviceBuffer) -> None:
        """Free the device memory of a buffer; a buffer that was freed before is ignored."""
        ...

    def upload(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copy a C-contiguous array into the buffer, and wait."""
        ...

    def download(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copy the buffer into a C-contiguous array, and wait."""
        ...

    def prepare(self, kernel: CompiledKernel, arguments: Sequence[Argument], configuration: LaunchConfiguration) -> PreparedLaunch:
        """Bind arguments in the order of the source's parameters.

        Raises:
            LaunchLimitError: the configuration is over a limit of the device or of the compiled kernel.
            InvalidParameterError: arguments do not fit the signature.
        """
        ...

    def close(self) -> None:
        """Free everything that the session holds on the device."""
        ...


@runtime_checkable
class HostCopySession(DeviceSession, Protocol):
    """A device session whose `upload` and `download` copy directly between host and device, so that their speed tells of the path."""

    def host_array(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return host memory that the device reads and writes without a copy in between, shape (size_bytes,)."""
        ...


class Backend(Protocol):
    """A way to run kernels. Creating one loads its libraries; opening a session touches the device."""

    @property
    def name(self) -> BackendName:
        """Return the name by which requests select the backend."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """Return the devices that the backend can open, its default first."""
        ...

    def open(self, device_id: str | None = None) -> DeviceSession:
        """Open `device_id`, or the first device.

        Raises DeviceNotFoundError, naming the devices there are.
        """
        ...


def check_launch(device: Device, kernel_name: str, configuration: LaunchConfiguration) -> None:
    """Raise LaunchLimitError when `configuration` is over a limit that `device` states."""
    block, grid = configuration.block, configuration.grid
    for what, found, limit in (
        ("threads per block", block.count, device.max_threads_per_block),
        ("block.x", block.x, device.max_block.x if device.max_block else None),
        ("block.y", block.y, device.max_block.y if device.max_block else None),
        ("block.z", block.z, device.max_block.z if device.max_block else None),
        ("grid.x", grid.x, device.max_grid.x if device.max_grid else None),
        ("grid.y", grid.y, device.max_grid.y if device.max_grid else None),
        ("grid.z", grid.z, device.max_grid.z if device.max_grid else None),
        ("bytes of dynamic shared memory", configuration.dynamic_shared_memory_bytes, device.max_shared_memory_bytes),
    ):
        if limit is not None and found > limit:
            raise LaunchLimitError(
                f"launch of {kernel_name} with block {block} and grid {grid}",
                found=f"{found} {what}",
                expected=f"at most {limit} on {device.name}",
                remedy="Choose a smaller block (--block) or smaller parameters.",
            )
    for what, dimension in (("block", block), ("grid", grid)):
        if min(dimension.x, dimension.y, dimension.z) < 1:
            raise LaunchLimitError(
                f"launch of {kernel_name}",
                found=f"{what} {dimension}",
                expected="at least 1 in every dimension",
                remedy=f"Check the kernel's {what} expression.",
            )


def check_kernel_limits(
    device: Device, kernel_name: str, configuration: LaunchConfiguration, *, thread_limit: int | None, static_shared_bytes: int | None
) -> None:
    """Raise LaunchLimitError when the compiled kernel's registers or static shared memory do not allow the launch.

    None: the runtime does not tell.
    """
    shared_bytes = (static_shared_bytes or 0) + configuration.dynamic_shared_memory_bytes
    for what, found, limit in (
        ("threads per block", configuration.block.count, thread_limit),
        ("bytes of shared memory, static and dynamic", shared_bytes, device.max_shared_memory_bytes),
    ):
        if limit is not None and found > limit:
            raise LaunchLimitError(
                f"launch of {kernel_name} with block {configuration.block}",
                found=f"{found} {what}",
                expected=f"at most {limit} for this kernel on {device.name}",
                remedy="Choose a smaller block (--block) or smaller parameters.",
            )


def check_copied(values: npt.NDArray[np.generic], size_bytes: int) -> None:
    """Raise InvalidParameterError for values that are not contiguous or do not fit into a buffer of that size."""
    if values.nbytes > size_bytes or not values.flags.c_contiguous:
        raise InvalidParameterError(
            "an array to copy",
            found=f"{values.nbytes} bytes" + ("" if values.flags.c_contiguous else ", not contiguous"),
            expected=f"at most {size_bytes} contiguous bytes",
        )


# ---------------------------------------------------------------- passes
# To a backend, the forward pass of an ML model is a fixed sequence of launches.


@dataclass(frozen=True, slots=True)
class PassStep:
    """One launch of a pass. range_name: of the NVTX range around it, where the runtime has ranges."""

    range_name: str
    launch: PreparedLaunch


@dataclass(frozen=True, slots=True, eq=False)
class LaunchPass:
    """A pass of at least one step. range_name: of the range around all of them."""

    range_name: str
    steps: tuple[PassStep, ...]


@runtime_checkable
class PassSession(DeviceSession, Protocol):
    """A device session that runs whole passes on one stream. COLD passes overwrite the last-level cache before each pass."""

    def run_pass(self, whole: LaunchPass) -> None:
        """Run one pass, and wait for its end."""
        ...

    def time_passes(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> TimedSamples:
        """Return the device time of `count` passes, each from the start of its first launch to the end of its last one."""
        ...

    def time_steps(self, whole: LaunchPass, cache_mode: CacheMode, count: int) -> npt.NDArray[np.float64]:
        """Return the device time of each launch in ns, shape (count, steps). Each launch has its own pair of events."""
        ...


# ---------------------------------------------------------------- arguments
# The check of kernel arguments against the source's signature is the same for every backend.


def check_arguments(kernel: SourceFunction, arguments: Sequence[Argument]) -> None:
    """Raise InvalidParameterError naming the first argument that does not fit."""
    if len(arguments) != len(kernel.parameters):
        raise InvalidParameterError(
            f"arguments of kernel {kernel.name}",
            found=str(len(arguments)),
            expected=f"{len(kernel.parameters)} ({', '.join(parameter.name for parameter in kernel.parameters)})",
            remedy="Give one per parameter of the source, in its order.",
        )
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        found, expected = _kind(argument), _expected_kind(parameter)
        if found != expected:
            raise InvalidParameterError(
                f"argument {parameter.name} of kernel {kernel.name}", found=found, expected=expected, remedy="Change its type."
            )


def _kind(argument: Argument) -> str:
    return f"a scalar of type {argument.dtype.name}" if isinstance(argument, np.generic) else "device memory"


def _expected_kind(parameter: SourceParameter) -> str:
    if parameter.is_pointer:
        return "device memory"
    if parameter.dtype is None or parameter.component_count != 1:
        return f"a value of type {parameter.type_name}, which cannot be passed"
    return f"a scalar of type {parameter.dtype.value}"


# ---------------------------------------------------------------- blocked streams
# Conditions under which a stream may be blocked while work is enqueued behind it.

UNDER_PROFILER: Final = "KERNALYSE_UNDER_PROFILER"  # set by the process that starts this one under a profiler
REPLAYING: Final = ("NV_TPS_LAUNCH_", "NV_COMPUTE_PROFILER_", "NV_NSIGHT_INJECTION_", "NV_SANITIZER_", "CUDA_INJECTION64_PATH")
"""Set by ncu, compute-sanitizer and libraries that are loaded into every CUDA program: they may run kernels one at a time,
and then a held stream waits for work that never gets to it."""


def can_block_streams(environment: Mapping[str, str]) -> bool:
    """Return whether the stream may be blocked: not under a tool or setting that makes every launch wait for the one before."""
    if any(environment.get(name, "0") not in ("", "0") for name in (UNDER_PROFILER, "CUDA_LAUNCH_BLOCKING")):
        return False
    return not any(name.startswith(REPLAYING) for name in environment)


@contextmanager
def without_garbage_collector() -> Iterator[None]:
    """Switch Python's garbage collector off within the context.

    A collection can start at any time, takes milliseconds, and waits for the device where it frees device memory.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
