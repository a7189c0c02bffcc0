"""The description of this node, and its telemetry."""

from __future__ import annotations

import asyncio
import logging
import math
import platform
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from kernalyse.services.core import device_health
from kernalyse.services.core.errors import InternalError
from kernalyse.services.core.model import Device, ErrorCount, Node, NodePolicy, Telemetry
from kernalyse.services.profiler.backends.discovery import read_probe
from kernalyse.services.profiler.measuring.device_state import NvidiaUsers, open_nvml, read_power_watts, sees_all_processes
from kernalyse.services.profiler.pod_resources import PodDevices

PROBE_TIME_LIMIT_S: Final = 60.0
"""A driver that has hung must not keep the service from starting; a healthy one answers in seconds."""


@dataclass(frozen=True, slots=True)
class ProbedDevices:
    """The devices of this node. notices: one sentence with its remedy for everything missing."""

    devices: tuple[Device, ...]
    notices: tuple[str, ...]


async def probe_devices(command: Sequence[str] | None = None) -> ProbedDevices:
    """Find the node's devices in a separate process, so that a crashing runtime does no harm and none stays in memory."""
    process = await asyncio.create_subprocess_exec(
        *(command or (sys.executable, "-P", "-m", "kernalyse.services.profiler.backends.discovery")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), PROBE_TIME_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return ProbedDevices((), (f"The search for devices did not end within {PROBE_TIME_LIMIT_S:.0f} s; look at the drivers.",))
    if process.returncode != 0:
        last_line = (errors.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return ProbedDevices((), (f"The search for devices ended with code {process.returncode}: {last_line}",))
    try:
        return ProbedDevices(*read_probe(output.decode(errors="replace")))
    except InternalError as error:
        return ProbedDevices((), (error.message,))


def describe_node(data_directory: Path, journal_id: str, probed: ProbedDevices, policy: NodePolicy, name: str = "") -> Node:
    """Return the node without its runs and the state of its journal. name: empty: the host's."""
    return Node(
        node_id=_read_or_make_node_id(data_directory / "node_id"),
        hostname=name or socket.gethostname(),
        version=metadata.version("kernalyse"),
        journal_id=journal_id,
        start_time=datetime.now(UTC),
        devices=probed.devices,
        operating_system=f"{platform.system()} {platform.release()}",
        cpu_model=_cpu_model(),
        cpu_count=psutil.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        python_version=platform.python_version(),
        policy=policy,
        notices=probed.notices,
    )


def with_state(node: Node, running_run_ids: Sequence[str], queued_run_ids: Sequence[str], storage_problem: str) -> Node:
    """Return the node with its runs and the state of its journal."""
    return replace(node, running_run_ids=tuple(running_run_ids), queued_run_ids=tuple(queued_run_ids), storage_problem=storage_problem)


def _read_or_make_node_id(path: Path) -> str:
    if path.exists() and (node_id := path.read_text().strip()):
        return node_id
    node_id = uuid.uuid4().hex
    temporary = path.with_name(".node_id")
    temporary.write_text(node_id)
    temporary.replace(path)
    return node_id


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


# ---------------------------------------------------------------- telemetry
# Readings are journaled with the active runs; those of an idle node stay in memory, in a ring of an hour.

logger = logging.getLogger(__name__)

RING_DURATION_S: Final = 3600.0
ERROR_INTERVAL_S: Final = 5.0
"""Between two readings of a device's counters of errors, some fifty questions to its driver. Longer, and a check of ten seconds would see
none of what it has caused."""
MAX_EVENT_COUNT: Final = 100  # Xid errors counted at one reading: a driver that never stops telling them must not hold up telemetry


class TelemetryReader(Protocol):
    """A source of telemetry, the host or one device."""

    def read(self) -> Telemetry:
        """Return the readings of now."""
        ...


class HostReader:
    """The host, which is also the device of CPU runs, through psutil."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first call has nothing to compare with and answers 0

    def read(self) -> Telemetry:
        """Return the host's processor load, memory and clock."""
        memory = psutil.virtual_memory()
        frequency = psutil.cpu_freq()
        return Telemetry(
            measured_unix_ns=time.time_ns(),
            utilization_ratio=psutil.cpu_percent() / 100,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            clock_hz=int(frequency.current * 1_000_000) if frequency is not None and frequency.current else None,
            load_average=psutil.getloadavg()[0],
        )


class NvmlReader:
    """An NVIDIA device, through NVML. A metric that the device does not report is None.

    Args:
        hear_xid: is told of each Xid error: the device's id and the error's number.
        holders: returns the pods that hold the device; None: not known.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        device_id: str,
        clock_s: Callable[[], float] = time.monotonic,
        hear_xid: Callable[[str, int], None] = lambda _device_id, _number: None,
        holders: Callable[[], tuple[str, ...] | None] = lambda: None,
    ) -> None:
        self._holders = holders
        self._device_id = device_id
        self._hear_xid = hear_xid
        self._users = NvidiaUsers(nvml, handle, can_tell=sees_all_processes())
        self._nvml = nvml
        self._handle = handle
        self._clock_s = clock_s
        self._error_counts: tuple[ErrorCount, ...] = ()
        self._next_count_s = -math.inf
        self._xid_events = self._register_xid()
        self._xid_count = 0
        self._reason_names = {
            value: name.removeprefix("nvmlClocksThrottleReason").removeprefix("nvmlClocksEventReason")
            for name, value in vars(nvml).items()
            if name.startswith(("nvmlClocksThrottleReason", "nvmlClocksEventReason")) and isinstance(value, int) and value.bit_count() == 1
        }

    def read(self) -> Telemetry:
        """Return the device's load, memory, clocks, temperature and power."""
        nvml, handle = self._nvml, self._handle
        utilization = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        clock_mhz = self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
        memory_clock_mhz = self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM)
        temperature_celsius = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return Telemetry(
            measured_unix_ns=time.time_ns(),
            device_id=self._device_id,
            utilization_ratio=None if utilization is None else utilization.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            clock_hz=None if clock_mhz is None else int(clock_mhz) * 1_000_000,
            memory_clock_hz=None if memory_clock_mhz is None else int(memory_clock_mhz) * 1_000_000,
            temperature_celsius=None if temperature_celsius is None else float(temperature_celsius),
            power_watts=read_power_watts(nvml, handle),
            throttle_reasons=None if reasons is None else self._names(int(reasons)),
            error_counts=self._counted_errors(),
            other_processes=self._other_users(),
        )

    def _other_users(self) -> tuple[str, ...] | None:
        """Return pods and processes; None: NVML cannot tell, and no pod holds the device, which a program outside pods may use."""
        pods, processes = self._holders() or (), self._users.names()
        return (*pods, *(processes or ())) if pods or processes is not None else None

    def _counted_errors(self) -> tuple[ErrorCount, ...]:
        """Return the counters of errors, at most some seconds old: they are dozens of questions to the driver."""
        if self._clock_s() >= self._next_count_s:
            self._next_count_s = self._clock_s() + ERROR_INTERVAL_S
            counts = self._read_errors()
            self._error_counts = tuple(ErrorCount(name, int(count)) for name, count in counts.items() if count is not None)
        return self._error_counts

    def _read_errors(self) -> dict[str, int | None]:
        nvml, handle = self._nvml, self._handle
        uncorrected, corrected = (
            self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, nvml.NVML_VOLATILE_ECC)
            for kind in (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)
        )
        by_corrected, by_uncorrected, is_pending, has_failed = self._ask(nvml.nvmlDeviceGetRemappedRows, handle) or (None,) * 4
        return {
            device_health.ECC_UNCORRECTED: uncorrected,
            device_health.ECC_CORRECTED: corrected,
            device_health.REMAPPED_ROWS: None if by_corrected is None or by_uncorrected is None else by_corrected + by_uncorrected,
            device_health.REMAPPING_PENDING: is_pending,
            device_health.REMAPPING_FAILED: has_failed,
            device_health.PCIE_REPLAYS: self._ask(nvml.nvmlDeviceGetPcieReplayCounter, handle),
            device_health.NVLINK_ERRORS: self._nvlink_errors(),
            device_health.XID_ERRORS: self._xid_errors(),
        }

    def _nvlink_errors(self) -> int | None:
        """Return the errors of all links together; None: the device has no link that is on."""
        nvml, handle = self._nvml, self._handle
        links = [link for link in range(nvml.NVML_NVLINK_MAX_LINKS) if self._ask(nvml.nvmlDeviceGetNvLinkState, handle, link)]
        kinds = (nvml.NVML_NVLINK_ERROR_DL_REPLAY, nvml.NVML_NVLINK_ERROR_DL_RECOVERY, nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)
        counts = [self._ask(nvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind) for link in links for kind in kinds]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def _register_xid(self) -> Any:
        """Return what tells of Xid errors from now on; None: the device cannot tell."""
        nvml = self._nvml
        events = self._ask(nvml.nvmlEventSetCreate)
        with suppress(nvml.NVMLError):
            if events is not None:
                nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
                return events
        return None

    def _xid_errors(self) -> int | None:
        if self._xid_events is None:
            return None
        for _ in range(MAX_EVENT_COUNT):
            event = self._ask(self._nvml.nvmlEventSetWait_v2, self._xid_events, 0)
            if event is None:  # after 0 ms there is none
                break
            self._xid_count += 1
            self._hear_xid(self._device_id, int(event.eventData))
        return self._xid_count

    def _names(self, reasons: int) -> tuple[str, ...]:
        return tuple(sorted(name for value, name in self._reason_names.items() if value & reasons))

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None  # not supported on this device


def open_readers(
    devices: Sequence[Device],
    open_nvml: Callable[[], Any] = open_nvml,
    hear_xid: Callable[[str, int], None] = lambda _device_id, _number: None,
    pods: PodDevices | None = None,
) -> tuple[TelemetryReader, ...]:
    """Return readers for the host and for each NVIDIA device, which NVML knows by its UUID: its order is not that of CUDA.

    Args:
        hear_xid: is told, from another thread, of each Xid error: the device's id and the error's number.
        pods: tells which pods hold the devices.
    """
    host = HostReader()
    nvidia = [device for device in devices if device.device_id.startswith("cuda:") and device.uuid is not None]
    if not nvidia:
        return (host,)
    nvml = open_nvml()
    if nvml is None:
        logger.warning("No telemetry of the NVIDIA devices: NVML is missing.")
        return (host,)
    try:
        return (host, *(_open_reader(nvml, device, hear_xid, pods) for device in nvidia))
    except nvml.NVMLError as error:
        logger.warning("No telemetry of the NVIDIA devices: %s", error)
        return (host,)


def _open_reader(nvml: Any, device: Device, hear_xid: Callable[[str, int], None], pods: PodDevices | None) -> NvmlReader:
    """Return the reader of one device. Raises NVMLError."""
    handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
    holders = (lambda: None) if pods is None else partial(pods.holders, device.uuid or "")
    return NvmlReader(nvml, handle, device.device_id, hear_xid=hear_xid, holders=holders)


class TelemetrySampler:
    """The periodic reading of telemetry, journaled for active runs, else kept in a ring in memory.

    Args:
        running: tells whether any run goes on.
        record: journals readings with the runs that go on.
        notify: notifies watchers that the ring has grown.
        wall_ns: nanoseconds since the epoch; may be set forward and back.
        monotonic_ns: nanoseconds of a clock that nobody sets.
    """

    def __init__(
        self,
        readers: Sequence[TelemetryReader],
        *,
        interval_s: float,
        idle_interval_s: float,
        running: Callable[[], bool],
        record: Callable[[Sequence[Telemetry]], Awaitable[None]],
        notify: Callable[[], None],
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._last_unix_ns = self._last_monotonic_ns = 0
        self._readers = list(readers)
        self._interval_s = interval_s
        self._idle_interval_s = idle_interval_s
        self._running = running
        self._record = record
        self._notify = notify
        self._ring: deque[tuple[Telemetry, ...]] = deque(maxlen=max(1, int(RING_DURATION_S / idle_interval_s)))
        self._reading_count = 0  # ever put into the ring
        self.latest: tuple[Telemetry, ...] = ()

    async def sample(self) -> None:
        """Sample without end."""
        next_idle_time = time.monotonic()
        while True:
            started = time.monotonic()
            if self._running():
                await self._record(await self._read())
            elif started >= next_idle_time:
                next_idle_time = started + self._idle_interval_s
                self._ring.append(tuple(await self._read()))
                self._reading_count += 1
                self._notify()
            await asyncio.sleep(max(0.0, self._interval_s - (time.monotonic() - started)))

    def idle_after(self, position: int) -> tuple[list[Telemetry], int]:
        """Return the cached readings of the idle node after a position (0: all), and the position after them."""
        new_count = min(self._reading_count - position, len(self._ring))
        readings = list(self._ring)[len(self._ring) - new_count :]
        return [telemetry for reading in readings for telemetry in reading], self._reading_count

    async def _read(self) -> list[Telemetry]:
        readings = await asyncio.to_thread(lambda: [self._read_one(reader) for reader in tuple(self._readers)])
        ahead_ns = self._ahead_ns()
        # What was read before the clock was set back is not ahead of it, but ahead of now.
        self.latest = tuple(
            replace(reading, measured_unix_ns=min(reading.measured_unix_ns + ahead_ns, self._last_unix_ns))
            for reading in readings
            if reading is not None
        )
        return list(self.latest)

    def _ahead_ns(self) -> int:
        """Return what to add to the host's clock: set back, readings go on from the last one, for those before it count as known ones."""
        unix_ns, monotonic_ns = self._wall_ns(), self._monotonic_ns()
        is_set_back = unix_ns < self._last_unix_ns
        even_ns = self._last_unix_ns + monotonic_ns - self._last_monotonic_ns if is_set_back else unix_ns
        self._last_unix_ns, self._last_monotonic_ns = even_ns, monotonic_ns
        return even_ns - unix_ns

    def _read_one(self, reader: TelemetryReader) -> Telemetry | None:
        try:
            return reader.read()
        except Exception as error:  # of a driver or a container's /proc: runs matter more than telemetry
            self._readers.remove(reader)
            logger.warning("%s gives no more telemetry: %s", type(reader).__name__, error)
            return None
