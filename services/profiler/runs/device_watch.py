"""The devices that have fallen over: they get no runs until they answer again, and the others go on.

A device falls over when its driver does not find it any more after a run has failed on it, when processes of a run do not end although
they were killed, for the driver holds them, or when the driver tells an Xid error after which the device needs a reset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kernalyse.services.core.errors import DeviceSetAsideError
from kernalyse.services.core.model import Device, DeviceKind, RunError

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 30.0
"""Between looks at devices that are set aside. Each opens the drivers in a process of its own, for a second."""

CODES_OF_REQUESTS: Final = frozenset({"INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"})
REASONS_OF_PROGRAMS: Final = frozenset({"COMPILE_FAILED", "VERIFICATION_FAILED", "COLLECTOR_UNAVAILABLE", "COMMAND_FAILED"})
"""Codes and reasons of errors after which nobody looks whether the device is still there."""

FATAL_XIDS: Final = {
    48: "an uncorrectable memory error",
    62: "its controller has halted",
    64: "rows of its memory could not be remapped",
    79: "it has fallen off the bus",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    140: "an unrecovered memory error",
}
"""Xid errors after which a device needs a reset, from NVIDIA's catalogue of them."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a device is set aside. has_ended: whether processes that it held have ended; None: it comes back with a restart only."""

    reason: str
    has_ended: Callable[[], Awaitable[bool]] | None


async def _at_once() -> bool:
    return True


class DeviceWatch:
    """Which devices of a node are set aside, and why.

    Args:
        devices: of the node.
        probe: finds the devices there are now, and says what is missing.
    """

    def __init__(self, devices: Sequence[Device], probe: Callable[[], Awaitable[tuple[Sequence[Device], Sequence[str]]]]) -> None:
        self._devices = devices
        self._probe = probe
        self._failures: dict[str, _Failure] = {}

    @property
    def notices(self) -> tuple[str, ...]:
        """Return a sentence for each device that is set aside."""
        return tuple(f"Device {device_id} is set aside: {failure.reason}." for device_id, failure in self._failures.items())

    def usable(self, devices: Sequence[Device]) -> list[Device]:
        """Return those of the devices that are not set aside. Raises DeviceSetAsideError if that is none of them."""
        found = [device for device in devices if device.device_id not in self._failures]
        if devices and not found:
            self.check(devices[0].device_id)
        return found

    def check(self, device_id: str | None) -> None:
        """Raise DeviceSetAsideError for a device that is set aside."""
        if device_id in self._failures:
            raise DeviceSetAsideError(
                f"device {device_id}",
                found=f"set aside: {self._failures[device_id].reason}",
                expected="a device that answers",
                remedy="Reset it (nvidia-smi --gpu-reset) or restart the machine, then the profiler; meanwhile use another one.",
            )

    def set_aside(self, device_id: str, reason: str, has_ended: Callable[[], Awaitable[bool]] | None) -> None:
        """Give a device no more runs.

        Args:
            reason: for users, as part of a sentence.
            has_ended: whether what keeps it has ended; None: the service has to be started anew.
        """
        if device_id not in self._failures:
            logger.error("Device %s is set aside: %s.", device_id, reason)
            self._failures[device_id] = _Failure(reason, has_ended)

    def hear_xid(self, device_id: str, number: int) -> None:
        """Set a device aside after an Xid error that needs a reset."""
        if number in FATAL_XIDS:
            self.set_aside(device_id, f"Xid {number}, {FATAL_XIDS[number]}", None)

    async def look_after(self, device_id: str | None, run_id: str, error: RunError | None) -> None:
        """Look whether the device of a run that has failed is still there."""
        if error is None or error.code in CODES_OF_REQUESTS or error.reason in REASONS_OF_PROGRAMS:
            return
        device = next((device for device in self._devices if device.device_id == device_id and device.kind is not DeviceKind.CPU), None)
        if device is not None and device.device_id not in self._failures:
            try:
                missing = await self._missing(device)
            except OSError as problem:  # no process could be started: that says nothing about the device
                logger.warning("Whether device %s is still there is not known: %s", device.device_id, problem)
                return
            if missing is not None:
                self.set_aside(device.device_id, f"its driver does not find it since run {run_id} has failed{missing}", _at_once)

    async def look(self, notify: Callable[[], None]) -> None:
        """Take devices back that answer again, without end. notify: is told when one does."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for device in self._devices:
                failure = self._failures.get(device.device_id)
                if failure is None or failure.has_ended is None or not await failure.has_ended():
                    continue
                try:
                    is_there = await self._missing(device) is None
                except OSError:  # no process could be started: next time
                    continue
                if is_there:
                    logger.info("Device %s answers again.", device.device_id)
                    del self._failures[device.device_id]
                    notify()

    async def _missing(self, device: Device) -> str | None:
        """Return what the search for devices says where it does not find this one; None: it is there. Raises OSError."""
        found, notices = await self._probe()
        if any(one.device_id == device.device_id and one.uuid == device.uuid for one in found):
            return None
        return "".join(f" ({notice.removesuffix('.')})" for notice in notices[:1])
