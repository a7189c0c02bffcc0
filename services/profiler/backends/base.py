"""What every backend can do, and the checks that are the same for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.core.errors import LaunchLimitError
from services.core.model import BackendName, Device, Dim3, KernelSource


@dataclass(frozen=True, slots=True)
class LaunchConfiguration:
    block: Dim3
    grid: Dim3
    dynamic_shared_memory_bytes: int = 0


class DeviceBuffer(Protocol):
    """Device memory of `size_bytes` bytes."""

    @property
    def size_bytes(self) -> int: ...


class CompiledKernel(Protocol):
    """A function ready to be launched."""

    @property
    def function_name(self) -> str: ...

    @property
    def compile_ns(self) -> int:
        """Wall-clock time of the compilation; 0 when it came from the session's cache."""
        ...

    @property
    def compiler_options(self) -> str: ...

    @property
    def compiler_log(self) -> str:
        """Warnings of the compiler; empty when it had nothing to say."""
        ...

    @property
    def generated_source(self) -> str | None:
        """What the runtime was given, when that is not the source itself."""
        ...


Argument = DeviceBuffer | np.generic
"""A kernel argument: device memory for a pointer, a NumPy scalar of the parameter's own type for everything else."""


class PreparedLaunch(Protocol):
    """A kernel with arguments and launch configuration, ready to be enqueued again and again."""

    @property
    def configuration(self) -> LaunchConfiguration: ...


class DeviceSession(Protocol):
    """An open context on one device. Not thread-safe; lives in the worker."""

    @property
    def device(self) -> Device: ...

    def compile(self, source: KernelSource, function_name: str, block: Dim3, options: Sequence[str] = ()) -> CompiledKernel:
        """Compiles `function_name` of `source`; cached by content, options and what of `block` the build depends on.

        Raises:
            CompileError: with the compiler's own lines.
            UnsupportedConstructError: this runtime cannot take the source; names construct, line and who could.
            UnknownKernelError: the source has no such __global__ function; names those it has.
        """
        ...

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        """Raises MemoryLimitError, naming what was asked for and what the device has."""
        ...

    def release(self, buffer: DeviceBuffer) -> None: ...

    def upload(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copies a C-contiguous array into the buffer, and waits."""
        ...

    def download(self, buffer: DeviceBuffer, values: npt.NDArray[np.generic]) -> None:
        """Copies the buffer into a C-contiguous array, and waits."""
        ...

    def prepare(self, kernel: CompiledKernel, arguments: Sequence[Argument], configuration: LaunchConfiguration) -> PreparedLaunch:
        """Binds arguments in the order of the source's parameters.

        Raises:
            LaunchLimitError: the configuration is over a limit of the device or of the compiled kernel.
            InvalidParameterError: arguments do not fit the signature.
        """
        ...

    def run(self, launch: PreparedLaunch) -> None:
        """One launch, and waits for its end."""
        ...

    def time(self, launch: PreparedLaunch, count: int, *, cold: bool) -> npt.NDArray[np.float64]:
        """Device time of `count` launches, in ns, shape (count,), by the runtime's own events.

        With `cold` the last-level cache is overwritten before each launch, outside the timed part.
        """
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """A way to run kernels. Creating one loads its libraries; opening a session touches the device."""

    @property
    def name(self) -> BackendName: ...

    def devices(self) -> tuple[Device, ...]: ...

    def open(self, device_id: str | None = None) -> DeviceSession:
        """Opens `device_id`, or the first device.

        Raises DeviceNotFoundError, naming the devices there are.
        """
        ...


def check_launch(device: Device, kernel_name: str, configuration: LaunchConfiguration) -> None:
    """Raises LaunchLimitError when `configuration` is over a limit that `device` states."""
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
