"""Admission of requested runs: policy, validity and placement, before a run is queued."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from kernalyse.services.core.errors import (
    BackendUnavailableError,
    DeviceNotFoundError,
    ForbiddenError,
    InvalidParameterError,
    NotBuiltYetError,
    observing_error,
)
from kernalyse.services.core.model import (
    BackendName,
    CeilingMeasurement,
    CommandProfile,
    Device,
    DeviceCheck,
    DeviceKind,
    KernelSweep,
    ModelRun,
    NodePolicy,
    RunLimits,
    RunSpec,
)
from kernalyse.services.profiler.collectors.preflight import check_command
from kernalyse.services.profiler.kernel_sources.catalog import Catalog
from kernalyse.services.profiler.runs.device_watch import DeviceWatch
from kernalyse.services.profiler.runs.files import BundleStore
from kernalyse.services.profiler.workloads.models import ModelSpec, find_model_spec
from kernalyse.services.profiler.workloads.recording import Recording
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep

CPU_QUEUE: Final = "cpu"
REPLAY_QUEUE: Final = "replay"
MIN_BLOCK_COUNT: Final = 4  # of a device's check: fewer blocks say nothing of their spread
MAX_BLOCK_COUNT: Final = 1_000  # more keep the device for an hour
BACKENDS: Final = (BackendName.PYCUDA, BackendName.NVCC, BackendName.OPENCL)  # AUTO takes the first that has a device


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """Limits that the node sets for every run."""

    run_time_limit_ns: int
    run_memory_limit_bytes: int
    max_configuration_count: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The device queue, device and limits of a run. spec: with backend, device and limits resolved, as the worker gets it."""

    queue_name: str  # of the device queue: its runs follow each other
    device_id: str | None  # None: a command on a node without devices
    spec: RunSpec
    limits: NodeLimits
    bundles: dict[str, Path]  # unpacked, by digest
    configuration_count: int | None = None  # of a sweep, once it has been checked


@dataclass(frozen=True, slots=True)
class Admission:
    """The checks of requested runs against this node."""

    policy: NodePolicy
    limits: NodeLimits
    devices: Sequence[Device]
    notices: Sequence[str]  # what the node lacks, said when a device is missing
    catalog: Catalog
    bundles: BundleStore
    allowed_commands: Sequence[str] = ()  # patterns of command lines; empty: all
    watch: DeviceWatch | None = None  # of devices that are set aside; None: none ever is
    node_name: str = "of this service"
    recording: Recording | None = None  # whose runs are replayed; None: runs are measured

    def check(self, spec: RunSpec) -> Placement:
        """Check all of a spec that can be checked without running it, and return its placement.

        Raises:
            UnmetConditionError: the node only observes.
            ForbiddenError: the node's policy does not allow it.
            InvalidRequestError: the sweep or a limit cannot be used as written.
            UnknownKernelError, UnknownModelError: not one that this node has.
            DeviceNotFoundError, BackendUnavailableError: no such device here.
            DeviceSetAsideError: the device has failed.
            NotBuiltYetError: this version cannot run it.
        """
        if self.recording is not None:
            return self._place_recorded(self.recording, spec)
        self.check_runs_anything()
        self._check_policy(spec)
        configuration_count = None
        if isinstance(spec.work, KernelSweep):
            configuration_count = plan_sweep(spec.work, self.catalog, self.limits.max_configuration_count).configuration_count
        if isinstance(spec.work, CommandProfile):
            check_command(spec.work)
        if isinstance(spec.work, ModelRun):
            find_model_spec(spec.work).check(spec.work)
        if isinstance(spec.work, DeviceCheck):
            _check_block_count(spec.work.block_count)
        return replace(self.place(spec), configuration_count=configuration_count)

    def check_runs_anything(self) -> None:
        """Raise UnmetConditionError on a node that only observes."""
        if self.policy.observe_only:
            raise observing_error(self.node_name)

    def place(self, spec: RunSpec) -> Placement:
        """Return the placement of an admitted spec on the node's present devices. Raises UnmetConditionError: it only observes."""
        if self.recording is not None:
            return self._place_recorded(self.recording, spec)
        self.check_runs_anything()  # of a run that waited when the setting was changed, too
        work = spec.work
        if isinstance(work, CommandProfile):
            return self._place_command(spec, work)
        if not isinstance(work, KernelSweep | CeilingMeasurement | DeviceCheck | ModelRun):
            raise NotBuiltYetError(
                "imports of traces", found="nothing that a node runs", remedy="`kernalyse import` gives them to the analyzer."
            )
        workload = find_model_spec(work) if isinstance(work, ModelRun) else None
        device, backend = self._device(work.backend, work.device_id, workload)
        limits = self._limits(spec.limits)
        settled = RunLimits(limits.run_time_limit_ns, limits.run_memory_limit_bytes)
        return Placement(
            queue_name=_queue_name(device),
            device_id=device.device_id,
            spec=replace(spec, work=replace(work, backend=backend, device_id=device.device_id), limits=settled),
            limits=limits,
            bundles={digest: self.bundles.path(digest) for digest in _bundle_digests(work)},
        )

    def _place_recorded(self, recording: Recording, spec: RunSpec) -> Placement:
        """Place a run that is replayed, as it was asked for. Raises UnmetConditionError: it has not been recorded."""
        run = recording.find(spec)
        return Placement(
            queue_name=REPLAY_QUEUE,
            device_id=run.device_id,
            spec=spec,
            limits=self._limits(spec.limits),
            bundles={},
            configuration_count=run.total_configuration_count or None,
        )

    def _place_command(self, spec: RunSpec, work: CommandProfile) -> Placement:
        """Place a command in the queue of the node's first device: it may use any device, and concurrent runs would disturb it."""
        devices = self._usable(self.devices)
        device = devices[0] if devices else None
        limits = self._limits(spec.limits)
        settled = RunLimits(limits.run_time_limit_ns, limits.run_memory_limit_bytes)
        return Placement(
            queue_name=CPU_QUEUE if device is None else _queue_name(device),
            device_id=None if device is None else device.device_id,
            spec=replace(spec, limits=settled),
            limits=limits,
            bundles={work.bundle_digest: self.bundles.path(work.bundle_digest)} if work.bundle_digest is not None else {},
        )

    def _check_policy(self, spec: RunSpec) -> None:
        match spec.work:
            case CommandProfile():
                if not self.policy.allow_commands or self.policy.allow_catalog_only:
                    raise _forbidden("commands", "allow_commands" if not self.policy.allow_commands else "allow_catalog_only")
                if self.allowed_commands:
                    self._check_allowed(spec.work)
            case ModelRun(bundle_digest=str()) if self.policy.allow_catalog_only:
                raise _forbidden("models of bundles", "allow_catalog_only")
            case KernelSweep(kernels=kernels):
                has_source = any(kernel.source is not None or kernel.bundle_digest is not None for kernel in kernels)
                has_definition = any(kernel.definition is not None for kernel in kernels)
                if has_source and not self.policy.allow_inline_source:
                    raise _forbidden("sources that travel with a request", "allow_inline_source")
                if (has_source or has_definition) and self.policy.allow_catalog_only:
                    raise _forbidden("kernels outside the catalog", "allow_catalog_only")
                if (spec.work.macro_axes or spec.work.compiler_options) and self.policy.allow_catalog_only:
                    raise _forbidden("macros and compiler options", "allow_catalog_only")
            case _:
                pass

    def _check_allowed(self, work: CommandProfile) -> None:
        """Raise ForbiddenError for a command line that is not allowed, or a request that changes what an allowed one does."""
        command_line = shlex.join(work.arguments)
        if not any(fnmatchcase(command_line, pattern) for pattern in self.allowed_commands):
            raise ForbiddenError(
                f"command {command_line}",
                found="not among those that this node allows (allowed_commands)",
                expected=f"a command line like {' or '.join(self.allowed_commands)}",
                remedy="Ask the node's owner to allow it, or use another node.",
            )
        if work.environment or work.bundle_digest is not None:
            raise _forbidden("variables and bundles for commands", "allowed_commands")

    def _device(self, backend: BackendName, device_id: str | None, workload: ModelSpec | None) -> tuple[Device, BackendName]:
        """Return the device and backend to use. workload: the ML model's kind, which restricts them; None for kernels."""
        backends = BACKENDS if workload is None else workload.backends
        if backend is not BackendName.AUTO and backend not in backends:
            raise BackendUnavailableError(
                f"backend {backend.lower()}",
                found="one that cannot run models",
                expected=f"one of {', '.join(name.lower() for name in backends)}",
                remedy="Choose another backend.",
            )
        if not self.devices:
            raise BackendUnavailableError(
                "this node",
                found="no device that kernels can run on",
                expected="an NVIDIA GPU with CUDA, or an OpenCL runtime",
                remedy=" ".join(self.notices) or "Run `kernalyse doctor` on it.",
            )
        if device_id is None:
            devices = [device for device in self.devices if workload is None or workload.can_use(device)]
            return self._first_device(self._usable(devices), backends if backend is BackendName.AUTO else (backend,), backend)
        device = next((device for device in self.devices if device.device_id == device_id), None)
        if device is None:
            raise DeviceNotFoundError(
                f"device {device_id}",
                found="no such device on this node",
                expected=f"one of {', '.join(device.device_id for device in self.devices)}",
                remedy="`kernalyse devices` lists them.",
            )
        self._usable((device,))
        usable = [name for name in device.backends if name in backends]
        if backend is BackendName.AUTO and usable:
            return device, usable[0]
        if backend not in usable:
            raise BackendUnavailableError(
                f"backend {backend.lower()} on device {device_id}",
                found=f"a device that {', '.join(name.lower() for name in device.backends)} drives",
                expected=f"one for {', '.join(name.lower() for name in (backends if backend is BackendName.AUTO else (backend,)))}",
                remedy="Choose another backend or device.",
            )
        return device, backend

    def _usable(self, devices: Sequence[Device]) -> Sequence[Device]:
        """Return the devices that are not set aside. Raises DeviceSetAsideError if that is none of them."""
        return devices if self.watch is None else self.watch.usable(devices)

    def _first_device(self, devices: Sequence[Device], wanted: Sequence[BackendName], backend: BackendName) -> tuple[Device, BackendName]:
        for name in wanted:
            for device in devices:
                if name in device.backends:
                    return device, name
        own_notices = [notice for notice in self.notices if backend.value in notice]
        raise BackendUnavailableError(
            f"backend {backend.lower()}",
            found="no device for it on this node",
            expected=f"one that drives {', '.join(device.device_id for device in self.devices)}",
            remedy=" ".join(own_notices or self.notices) or "`kernalyse doctor` says what it needs.",
        )

    def _limits(self, asked: RunLimits) -> NodeLimits:
        for name, value in (("time_limit_ns", asked.time_limit_ns), ("memory_limit_bytes", asked.memory_limit_bytes)):
            if value is not None and value <= 0:
                raise InvalidParameterError(
                    f"limit {name}", found=str(value), expected="more than 0", remedy="Correct it, or leave it out."
                )
        return replace(
            self.limits,
            run_time_limit_ns=min(asked.time_limit_ns or self.limits.run_time_limit_ns, self.limits.run_time_limit_ns),
            run_memory_limit_bytes=min(asked.memory_limit_bytes or self.limits.run_memory_limit_bytes, self.limits.run_memory_limit_bytes),
        )


def _check_block_count(block_count: int) -> None:
    if not MIN_BLOCK_COUNT <= block_count <= MAX_BLOCK_COUNT:
        raise InvalidParameterError(
            "block_count of a device's check",
            found=str(block_count),
            expected=f"{MIN_BLOCK_COUNT} to {MAX_BLOCK_COUNT}",
            remedy="10 are usual, of about a second each.",
        )


def _queue_name(device: Device) -> str:
    # All CPU devices are the same cores, and a GPU that two runtimes offer is one GPU: runs on them would disturb each other.
    if device.kind is DeviceKind.CPU:
        return CPU_QUEUE
    return device.uuid or device.device_id


def _bundle_digests(work: KernelSweep | CeilingMeasurement | DeviceCheck | ModelRun) -> list[str]:
    match work:
        case ModelRun(bundle_digest=str(digest)):
            return [digest]
        case KernelSweep():
            pass
        case _:
            return []
    return sorted({kernel.bundle_digest for kernel in work.kernels if kernel.bundle_digest is not None})


def _forbidden(what: str, setting: str) -> ForbiddenError:
    return ForbiddenError(
        what, found=f"switched off on this node ({setting})", remedy=f"Ask its owner to change {setting}, or use another node."
    )
