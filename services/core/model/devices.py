"""Nodes and devices, their telemetry, and their performance ceilings."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Dim3:
    """Sizes in three directions, of a block or a grid."""

    x: int
    y: int = 1
    z: int = 1

    @property
    def count(self) -> int:
        """Return the number of threads or blocks."""
        return self.x * self.y * self.z

    def __str__(self) -> str:
        return f"{self.x}x{self.y}x{self.z}"


class BackendName(StrEnum):
    """A way to compile and launch kernels."""

    AUTO = "AUTO"  # pycuda where an NVIDIA device answers, else opencl
    PYCUDA = "PYCUDA"
    NVCC = "NVCC"
    OPENCL = "OPENCL"


class DeviceKind(StrEnum):
    """The kind of a device."""

    GPU = "GPU"
    CPU = "CPU"
    ACCELERATOR = "ACCELERATOR"


class NodeHealth(StrEnum):
    """The state of the analyzer's connection to a node."""

    CONNECTING = "CONNECTING"
    SERVING = "SERVING"
    UNREACHABLE = "UNREACHABLE"


class NodeOrigin(StrEnum):
    """How a node has become known."""

    ADDED = "ADDED"
    JOINED = "JOINED"
    TUNNEL = "TUNNEL"
    FILE = "FILE"
    DNS = "DNS"


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a node, as its runtime describes it."""

    device_id: str  # stable on its node: "cuda:0", "opencl:intel:0", "opencl:pocl:0"
    name: str  # as the runtime reports it
    kind: DeviceKind
    backends: tuple[BackendName, ...]  # those that can drive it
    runtime: str | None = None  # OpenCL platform, or CUDA with the highest version that the driver knows: "CUDA 13.0"
    driver_version: str | None = None  # of the driver itself: "580.82.07"
    toolkit_version: str | None = None  # CUDA toolkit; None for OpenCL
    uuid: str | None = None
    compute_capability: str | None = None  # "9.0"; None off NVIDIA
    compute_unit_count: int | None = None  # streaming multiprocessors, or cores of a CPU device
    memory_bytes: int | None = None
    l2_cache_bytes: int | None = None  # the last-level cache that a cold sample must flush
    max_clock_hz: int | None = None
    max_threads_per_block: int | None = None
    max_block: Dim3 | None = None
    max_grid: Dim3 | None = None
    max_shared_memory_bytes: int | None = None  # per block
    max_buffer_bytes: int | None = None  # largest single allocation
    settings: tuple[tuple[str, str], ...] = ()  # what may differ between devices of one name; what is missing is unknown


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What a node allows its clients to run."""

    allow_inline_source: bool = True
    allow_commands: bool = True
    allow_catalog_only: bool = False
    observe_only: bool = False  # nothing is ever run there


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that runs the profiler service, with its devices and its queue."""

    node_id: str  # stable over restarts; created at first start
    hostname: str
    version: str  # of kernalyse
    journal_id: str
    start_time: datetime
    devices: tuple[Device, ...] = ()
    operating_system: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    python_version: str | None = None
    policy: NodePolicy = NodePolicy()
    running_run_ids: tuple[str, ...] = ()
    queued_run_ids: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()  # what this node lacks, and what to do about it; one sentence each
    storage_problem: str = ""  # why its journal cannot be written at present
    sandbox: str = ""  # what keeps runs from the rest of the machine; empty: it is of a version that has none


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """A counter of errors of a device, since its driver was loaded where its name says nothing else."""

    name: str  # one of core.device_health
    count: int

    def __str__(self) -> str:
        return f"{self.name}={self.count}"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """One reading of one device, or of the host when device_id is None."""

    measured_unix_ns: int
    device_id: str | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    clock_hz: int | None = None  # SM clock, or the CPU's current frequency
    memory_clock_hz: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    load_average: float | None = None  # host, 1 minute
    error_counts: tuple[ErrorCount, ...] = ()  # counters that the device does not have are left out
    other_processes: tuple[str, ...] | None = None  # "python 1234" or "pod team/train-0", the node's own left out; None: not known


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest rate that a device can reach, on one path.

    unit is ``flop_per_s`` or ``bytes_per_s``; path is "fma" or "tensor" for compute, "copy" for memory.
    """

    device_id: str
    ceiling_name: str  # "dram", "l2", "l1", "shared" for memory; the dtype for compute: "float32", "float16_accumulate16"
    unit: str
    value: float
    path: str
    source: str  # "datasheet", "clock", "measured", "user"
    confidence: str = ""  # of a datasheet value: high, medium, low
    note: str = ""
    clock_hz: int | None = None  # SM clock at which it holds; None: not known, or irrelevant
    measured_unix_ns: int | None = None  # or set by the user; None: not known, or from a datasheet
    host_busy_ratio: float | None = None  # of the host's cores, by other programs while it was measured; CPU devices only


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The efficiencies below which a kernel counts as inefficient."""

    memory_inefficient_ratio: float = 0.5
    compute_inefficient_ratio: float = 0.5


@dataclass(frozen=True, slots=True)
class HardwareKey:
    """What ceilings and thresholds belong to: a device of a node, or one that only a run mentions."""

    node_id: str  # empty with run_id
    device_id: str
    run_id: str = ""  # of an imported run or of a trace


@dataclass(frozen=True, slots=True)
class Hardware:
    """What is known of a device, from every source."""

    device: Device | None  # None: no node describes it
    ceilings: tuple[Ceiling, ...]
    thresholds: Thresholds
    etag: str  # of what the user has set


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as the analyzer sees it."""

    address: str
    health: NodeHealth
    node: Node | None = None  # as it last described itself
    problem: str = ""  # why it is unreachable
    origin: NodeOrigin = NodeOrigin.ADDED
    unreachable_since_time: datetime | None = None  # None: it answers, or has not been tried
    version_note: str = ""  # of a node whose minor version is another than the analyzer's, one sentence with the remedy

    @property
    def can_take_runs(self) -> bool:
        """Return whether runs can be started on it: it answers, and does not only observe."""
        return self.health is NodeHealth.SERVING and not self.observes_only

    @property
    def observes_only(self) -> bool:
        """Return whether nothing is ever run on it, as it last said of itself."""
        return self.node is not None and self.node.policy.observe_only

    @property
    def collecting_problem(self) -> str:
        """Return why the analyzer receives no events of the node's runs; empty: it does."""
        if self.health is NodeHealth.SERVING and self.node is not None:
            return self.node.storage_problem
        return self.problem


@dataclass(frozen=True, slots=True)
class NodeTelemetry:
    """A reading, and the node that it comes from."""

    node_id: str
    telemetry: Telemetry
