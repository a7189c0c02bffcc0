"""Runs: their specification, progress and outcome."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from kernalyse.services.core.model.devices import BackendName, Dim3
from kernalyse.services.core.model.kernels import ArgumentDefinition, KernelSelection

TITLE_KERNEL_COUNT: Final = 3
"""Most kernels that a derived title of a sweep names."""

BUILT_IN_ONNX_MODEL: Final = "bert-tiny"
"""The ONNX model that is generated on its node; others are files."""

ONNX_ENDING: Final = ".onnx"


class RunState(StrEnum):
    """The states of a run."""

    QUEUED = "QUEUED"  # accepted, waiting for its device
    RUNNING = "RUNNING"  # a worker process executes it
    SUCCEEDED = "SUCCEEDED"  # finished; some configurations may still carry an error of their own
    FAILED = "FAILED"  # ended by an error; earlier measurements are kept
    CANCELLED = "CANCELLED"  # ended on request
    LOST = "LOST"  # the profiler ended during it; earlier measurements are kept

    @property
    def is_final(self) -> bool:
        """Return whether a run in this state has ended."""
        return self not in (RunState.QUEUED, RunState.RUNNING)


class CacheMode(StrEnum):
    """The state of the last-level cache before each sample."""

    DEFAULT = "DEFAULT"  # cold on GPUs, hot on CPU devices
    COLD = "COLD"  # the last-level cache is overwritten before every sample
    HOT = "HOT"  # nothing happens between samples
    BOTH = "BOTH"  # in a request: every configuration twice


class TimingMethod(StrEnum):
    """What the two events of a sample enclose."""

    AUTO = "AUTO"  # in a request: SINGLE; for hot kernels under 10 us GRAPH where there are graphs, else BATCHED
    SINGLE = "SINGLE"  # one launch
    BATCHED = "BATCHED"  # many launches; the sample is their mean
    GRAPH = "GRAPH"  # as BATCHED, but replayed as one CUDA graph


class StoppingCriterion(StrEnum):
    """What ends sampling before the limits do."""

    CONFIDENCE = "CONFIDENCE"  # half-width of the median's 95 % interval
    NOISE = "NOISE"  # standard deviation over mean
    ENTROPY = "ENTROPY"  # of the distribution of samples
    SAMPLE_COUNT = "SAMPLE_COUNT"  # max_sample_count, whatever the samples are


class InputDistribution(StrEnum):
    """The distribution of a kernel's input values."""

    UNIFORM = "UNIFORM"  # [0, 1) for floats, 0 to 99 for integers
    NORMAL = "NORMAL"  # mean 0, standard deviation 1
    ZEROS = "ZEROS"  # draws less power: many GPUs run faster on it than on real data


class BusyPolicy(StrEnum):
    """What to do about other programs on the device."""

    RECORD = "RECORD"
    WAIT = "WAIT"
    REFUSE = "REFUSE"


class ClockMode(StrEnum):
    """What a sweep makes of the clocks of its device."""

    AS_IS = "AS_IS"
    BASE = "BASE"  # SM clock at its base, which the device holds under any load
    MAX = "MAX"  # SM clock at its highest, as far as power and temperature let it


class SearchStrategy(StrEnum):
    """Which configurations of a sweep are measured."""

    ALL = "ALL"
    RANDOM = "RANDOM"  # in random order until the budget is spent
    HALVING = "HALVING"  # the faster half continues with twice the samples


@dataclass(frozen=True, slots=True)
class Axis:
    """Values of one integer parameter, in the order given."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tie:
    """Parameter ``name`` always takes the value of ``source_name``."""

    name: str
    source_name: str


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """When to stop and how to time. None: the default of the device kind (design: stopping)."""

    cache_mode: CacheMode = CacheMode.DEFAULT
    min_sample_count: int = 10
    max_sample_count: int | None = None
    min_duration_ns: int = 500_000_000
    max_duration_ns: int = 15_000_000_000
    target_half_width_ratio: float | None = None  # of the median's 95 % interval; None: 0.005 GPU, 0.02 CPU
    warm_up_count: int = 1
    skip_verification: bool = False
    seed: int = 0  # of the input data
    timing_method: TimingMethod = TimingMethod.AUTO
    stopping_criterion: StoppingCriterion = StoppingCriterion.CONFIDENCE
    target_noise_ratio: float | None = None  # None: 0.005 GPU, 0.05 CPU
    input_distribution: InputDistribution = InputDistribution.UNIFORM
    busy_policy: BusyPolicy = BusyPolicy.RECORD


@dataclass(frozen=True, slots=True)
class Pairing:
    """Alternates the two kernels of a sweep, block by block, in one process."""

    block_count: int = 20


@dataclass(frozen=True, slots=True)
class Rival:
    """A contender: a configuration among the fastest of its problem, measured by an earlier run of the sweep."""

    configuration_index: int
    duration_median_ns: float  # as that run measured it


@dataclass(frozen=True, slots=True)
class KernelSweep:
    """Every kernel over the cartesian product of the axes, first axis slowest; macro axes after them, then blocks."""

    kernels: tuple[KernelSelection, ...]
    axes: tuple[Axis, ...] = ()  # of parameters, and of block_x, block_y, block_z
    ties: tuple[Tie, ...] = ()
    where: str = ""  # expression; configurations for which it is false are left out. Empty: all
    arguments: tuple[ArgumentDefinition, ...] = ()  # override those of the definitions
    blocks: tuple[Dim3, ...] = ()  # empty: the definition's
    backend: BackendName = BackendName.AUTO
    device_id: str | None = None  # None: the backend's first device
    measuring: MeasuringOptions = MeasuringOptions()
    macro_axes: tuple[Axis, ...] = ()  # compile-time constants, -D NAME=VALUE
    compiler_options: tuple[str, ...] = ()
    order_seed: int | None = None  # shuffles the order of measuring; None: as listed
    strategy: SearchStrategy = SearchStrategy.ALL
    budget_ns: int | None = None  # of RANDOM and HALVING; None: the run's time limit
    process_count: int = 1  # each measures every configuration, one process after the other
    pairing: Pairing | None = None
    with_counters: bool = False  # once more under ncu
    done_configuration_indexes: tuple[int, ...] = ()  # measured by an earlier run, left out here
    rivals: tuple[Rival, ...] = ()  # the fastest of these; this run's configurations are compared with them
    failed_configuration_indexes: tuple[int, ...] = ()  # in an earlier run; left out here, and counted as failed
    skip_confirmation: bool = False  # else the best of each problem is compared with its runner-up in alternating blocks
    earlier_budget_ns: int | None = None  # of earlier runs of the search; None: there was none, or it had no budget
    clock_mode: ClockMode = ClockMode.AS_IS  # where the driver permits no lock, the run goes on and says so


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """An environment variable and its value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class CommandProfile:
    """A command under a collector."""

    arguments: tuple[str, ...]  # program first
    collector: str  # "nsys", "ncu", "kineto", "proton"; empty: the node chooses
    environment: tuple[EnvironmentVariable, ...] = ()
    bundle_digest: str | None = None
    max_duration_ns: int | None = None  # after it the command is ended, and what was collected is kept
    capture_range: str = ""  # "cudaProfilerApi", "nvtx:RANGE@DOMAIN"; empty: the entire program
    with_cpu_sampling: bool = False
    kernel_filter: str = ""  # regular expression over kernel names, for ncu
    launch_skip_count: int = 0  # for ncu
    max_launch_count: int = 100  # for ncu
    step_count: int | None = None  # optimizer steps to record after the first, for kineto
    start_unix_ns: int | None = None  # by the node's clock, at which several nodes start the program; None: at once
    network: bool = False  # is left on, where the node sandboxes runs


@dataclass(frozen=True, slots=True)
class ModelRun:
    """An ML model as a whole, on the project's own kernels or from an ONNX file."""

    model_name: str
    variants: tuple[str, ...] = ()  # "baseline", "fused", or both alternately; empty: baseline
    batch_size: int = 1
    sequence_length: int = 64
    backend: BackendName = BackendName.AUTO
    device_id: str | None = None
    bundle_digest: str | None = None
    vocabulary_size: int = 1024
    seed: int = 0
    measuring: MeasuringOptions = MeasuringOptions()
    prompt: str = ""  # becomes the tokens of an ONNX model; empty: random tokens
    tokenizer_file_name: str = ""  # in the bundle; empty: the project's small vocabulary

    @property
    def is_onnx(self) -> bool:
        """Return whether ONNX Runtime executes the model; the project's own kernels execute the others."""
        return self.model_name == BUILT_IN_ONNX_MODEL or self.model_name.endswith(ONNX_ENDING)


@dataclass(frozen=True, slots=True)
class CeilingMeasurement:
    """A measurement of the rates that the device reaches on copies and fused multiply-adds."""

    backend: BackendName = BackendName.AUTO
    device_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """A short set of measurements of a device in blocks, which table fleet compares with equal devices and with earlier checks."""

    backend: BackendName = BackendName.AUTO
    device_id: str | None = None
    block_count: int = 10  # each measures everything once


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace or result file of another tool, read by the analyzer. No node executes it."""

    file_name: str
    digest: str  # "sha256:…"
    format: str  # the reader that accepted it


Work = KernelSweep | CommandProfile | ModelRun | CeilingMeasurement | DeviceCheck | ImportedTrace


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a run. None: the node's own limit, which a request may lower but not raise."""

    time_limit_ns: int | None = None
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """State of the git checkout that a run was submitted from."""

    commit: str
    is_dirty: bool


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The specification of a run: what a client submits."""

    work: Work
    title: str = ""
    limits: RunLimits = RunLimits()
    revision: Revision | None = None
    continues_run_id: str | None = None  # the stopped run whose sweep this one continues


@dataclass(frozen=True, slots=True)
class RunError:
    """An error of the work, as opposed to one of the request."""

    code: str  # name of a gRPC status code
    reason: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A run, with its state and progress."""

    run_id: str
    node_id: str
    spec: RunSpec
    state: RunState
    create_time: datetime
    start_time: datetime | None = None
    end_time: datetime | None = None
    error: RunError | None = None
    request_id: str | None = None
    device_id: str | None = None  # known once the worker has chosen
    completed_configuration_count: int = 0  # measured or failed
    failed_configuration_count: int = 0
    total_configuration_count: int | None = None  # None until the sweep is expanded
    activity: str = ""  # what the worker does now; after the run's end, what the analyzer still does for it
    tags: tuple[str, ...] = ()
    notes: str = ""
    hostname: str = ""  # of the node, when the run was submitted; empty: imported, or not known
    owner: str = ""  # name of who started it; empty: not known
    problem: str = ""  # why the analyzer receives or stores no events of it
    traceparent: str = ""  # of the call that started it, by W3C Trace Context; empty: no trace

    @property
    def node_name(self) -> str:
        """Return where the run was executed, in words."""
        return "imported" if self.is_imported else self.hostname or self.node_id[:8]

    @property
    def title(self) -> str:
        """Return the title that was given, or one derived from the work."""
        if self.spec.title:
            return self.spec.title
        match self.spec.work:
            case KernelSweep(kernels):
                names = [kernel.kernel_name for kernel in kernels]
                rest = len(names) - TITLE_KERNEL_COUNT
                return ", ".join(names[:TITLE_KERNEL_COUNT]) + (f" and {rest} more" if rest > 0 else "")
            case CommandProfile(arguments, collector):
                return f"{collector or 'profile'}: {shlex.join(arguments)}"
            case ModelRun(model_name=model_name, prompt=prompt) if prompt:
                return f"{model_name}: {prompt}"
            case ModelRun(model_name, variants):
                return f"{model_name} {' and '.join(variants)}".rstrip()
            case CeilingMeasurement():
                return f"ceilings of {self.device_id or 'the device'}"
            case DeviceCheck():
                return f"check of {self.device_id or 'the device'}"
            case ImportedTrace(file_name):
                return file_name

    @property
    def is_imported(self) -> bool:
        """Read from a file: no node ran it, and its node_id is empty."""
        return isinstance(self.spec.work, ImportedTrace)

    @property
    def is_trace(self) -> bool:
        """Return whether the run's result is what a program launched, as opposed to measurements of configurations."""
        is_model = isinstance(self.spec.work, ModelRun) and self.state.is_final  # earlier it may still report launches
        return (is_model or isinstance(self.spec.work, ImportedTrace | CommandProfile)) and not self.total_configuration_count

    @property
    def has_timeline(self) -> bool:
        """Return whether the run records, or will record, when its kernels ran: traces do, and so do ONNX models, through their profile."""
        return self.is_trace or (isinstance(self.spec.work, ModelRun) and self.spec.work.is_onnx)

    @property
    def is_settled(self) -> bool:
        """Return whether the run has ended and everything that it left has been read."""
        return self.state.is_final and not self.activity

    @property
    def imported_digest(self) -> str:
        """Return the digest of what the run was imported from; empty: it was not imported."""
        return self.spec.work.digest if isinstance(self.spec.work, ImportedTrace) else ""
