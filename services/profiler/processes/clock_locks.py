"""Locks of a device's clocks while a run measures, and their end, whatever has become of the run.

The driver keeps a lock when the process that asked for it is gone. So the worker writes a file before it locks, and others undo
the lock when all processes of the run have ended and the file is still there: the run's supervisor, by `python -m
kernalyse.services.profiler.processes.clock_locks FILE`; the service, should the supervisor have been killed; or the service at
its next start, should both have been. NVML does not tell which lock there was before: it is gone too.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kernalyse.services.core.model import BackendName, ClockMode, Device

AS_IT_IS: Final = "as it is"
"""What measurements say of clocks that no run has locked; after a colon, why the one that was to lock them has not."""

RESET_LIMIT_S: Final = 30.0
"""A driver that has hung must not keep the device's queue waiting; a healthy one resets in a second, a loaded host's start included."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """What a run has made of the clocks of its device.

    description: for its measurements: "SM locked to 1980 MHz, memory locked to 2619 MHz", or "as it is: no permission …".
    problem: why no clock is locked though the run asks for it; empty: one is, or it does not.
    """

    description: str
    problem: str = ""


class DeviceClocks:
    """The clocks of one NVIDIA device, through NVML.

    Args:
        nvml: the module pynvml, initialized.
        handle: of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def lock(self, mode: ClockMode) -> Clocks:
        """Lock the SM clock to the base or to the highest one, and the memory clock to its highest, as far as the driver lets us."""
        nvml, handle = self._nvml, self._handle
        try:
            if mode is ClockMode.BASE:  # of all limits the one that NVML has a name for, and no number
                nvml.nvmlDeviceSetGpuLockedClocks(handle, nvml.NVML_CLOCK_LIMIT_ID_TDP, nvml.NVML_CLOCK_LIMIT_ID_TDP)
                sm = "SM locked to its base"
            else:
                highest_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
                nvml.nvmlDeviceSetGpuLockedClocks(handle, highest_mhz, highest_mhz)
                sm = f"SM locked to {highest_mhz} MHz"
        except nvml.NVMLError as error:
            return _not_locked(self._reason(error))
        try:
            highest_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
            nvml.nvmlDeviceSetMemoryLockedClocks(handle, highest_mhz, highest_mhz)
        except nvml.NVMLError:  # GPUs before Ampere cannot
            return Clocks(f"{sm}, memory {AS_IT_IS}")
        return Clocks(f"{sm}, memory locked to {highest_mhz} MHz")

    def reset(self) -> None:
        """Undo all locks. Raises NVMLError where the driver does not let us."""
        nvml, handle = self._nvml, self._handle
        with suppress(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceResetMemoryLockedClocks(handle)
        nvml.nvmlDeviceResetGpuLockedClocks(handle)

    def _reason(self, error: Exception) -> str:
        nvml = self._nvml
        if isinstance(error, nvml.NVMLError_NoPermission):
            return "no permission to lock clocks"
        if isinstance(error, nvml.NVMLError_NotSupported):
            return "the device has no clocks that can be locked"
        return f"the driver cannot lock clocks ({error})"


def lock_clocks(mode: ClockMode, device: Device, file: Path | None) -> Clocks:
    """Lock the clocks of a device for this run, where it asks for that; what stands in the way is told, and the run goes on.

    Args:
        file: tells those who undo the lock that there is one. None: nobody would undo it, so there is none.
    """
    if mode is ClockMode.AS_IS:
        return Clocks(AS_IT_IS)
    if device.uuid is None or not {BackendName.PYCUDA, BackendName.NVCC} & set(device.backends):
        return _not_locked("only clocks of NVIDIA devices can be locked")
    if file is None:
        return _not_locked("nobody would undo the lock")
    file.write_text(device.uuid)  # first: a worker killed just after locking leaves what tells of it
    locked = _with_clocks(device.uuid, lambda clocks: clocks.lock(mode))
    if locked.problem:
        file.unlink()
    return locked


def _not_locked(problem: str) -> Clocks:
    return Clocks(f"{AS_IT_IS}: {problem}", problem)


def _with_clocks(uuid: str, lock: Callable[[DeviceClocks], Clocks]) -> Clocks:
    try:
        import pynvml
    except ImportError:
        return _not_locked("pynvml is not installed")
    try:
        pynvml.nvmlInit()
        return lock(DeviceClocks(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except pynvml.NVMLError as error:
        return _not_locked(f"the driver does not answer ({error})")


# ---------------------------------------------------------------- reset
# By processes of their own, so that the supervisor needs the standard library only, and a driver that hangs holds up neither it nor the
# service.


def reset_command(file: Path) -> tuple[str, ...]:
    """Return the command that undoes the locks that the file tells of, if it is there."""
    return (sys.executable, "-P", "-m", "kernalyse.services.profiler.processes.clock_locks", str(file))


async def reset_clocks(file: Path) -> str:
    """Undo the locks that a run's file tells of, where its supervisor has not; return the problem, empty if there is none."""
    if not file.exists():
        return ""
    process = await asyncio.create_subprocess_exec(
        *reset_command(file), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), RESET_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"Clocks locked by the run are not reset: the driver does not answer within {RESET_LIMIT_S:.0f} s."
    return errors.decode(errors="replace").strip() if process.returncode else ""


def main(arguments: Sequence[str]) -> int:
    """Reset the clocks of the device that the file names, and delete the file; it stays where that fails, for the next attempt."""
    file = Path(arguments[0])
    if not file.exists():
        return 0
    import pynvml

    uuid = file.read_text()
    try:
        pynvml.nvmlInit()
        DeviceClocks(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)).reset()
    except pynvml.NVMLError as error:
        with suppress(OSError):  # the service, which reads it, may be gone
            sys.stderr.write(
                f"Clocks of {uuid} are still locked: {error}. Reset them: nvidia-smi -i {uuid} --reset-gpu-clocks --reset-memory-clocks.\n"
            )
        return 1
    file.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
