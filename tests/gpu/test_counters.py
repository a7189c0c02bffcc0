"""Counters by the real ncu: what it counts of catalogue kernels is what their formulas say, and its report is kept.

Its report is read here line by line: polars and with it the analyzer are not on a node. Where they are, one more test holds
the analyzer's table against these lines.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import (
    ArtifactStored,
    BackendName,
    BufferDefinition,
    BufferRole,
    CacheMode,
    Configuration,
    CountersStored,
    DataType,
    Device,
    EventPayload,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    LogLevel,
    LogLines,
    ParameterDefinition,
    RunEvent,
    RunSpec,
)
from kernalyse.services.core.protobuf import encode_bytes
from kernalyse.services.profiler.backends.discovery import CUDA_BACKENDS
from kernalyse.services.profiler.collectors.ncu import SASS, check_ncu, metric_names
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog
from kernalyse.services.profiler.workloads.counters import CounterFiles, MeasurementRecorder, count_launches, prepare_counting
from kernalyse.services.profiler.workloads.sweeps.launches import plan_launch
from kernalyse.services.profiler.workloads.sweeps.plan import plan_sweep
from tests.integration.devices import found_devices

EXAMPLES: Final = Path(__file__).parents[2] / "kernels" / "examples"
MAX_KEPT_BYTES: Final = 1_000_000
"""Of a report that becomes test data."""

ELEMENTWISE: Final = ("vector_add", "saxpy", "stream_copy", "stream_scale", "stream_add", "stream_triad")
PRODUCTS: Final = ("matmul_naive", "matmul_tiled")
MIN_PAST_CACHES_BYTES: Final = 128e6
"""Moved by one launch: of less, most of what is written stays in a last-level cache of some 50 MB, and out of the count."""

USES: Final = (
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
)

TENSOR_SIZE: Final = 256
TENSOR_PRODUCT: Final = KernelDefinition(
    kernel_name="matmul_tensor",
    source_file_name="tensor_kernels.cu",
    launch=LaunchDefinition(block=("32",), grid=("M / 16", "N / 16")),
    parameters=tuple(ParameterDefinition(name, (TENSOR_SIZE,)) for name in ("N", "M", "K")),
    buffers=(
        BufferDefinition("a", ("N", "K"), DataType.FLOAT16, BufferRole.INPUT),
        BufferDefinition("b", ("K", "M"), DataType.FLOAT16, BufferRole.INPUT),
        BufferDefinition("res", ("N", "M"), DataType.FLOAT32, BufferRole.OUTPUT),
    ),
    dtype=DataType.FLOAT16,
    path="tensor",
    flop="2*N*M*K",
)


@dataclass
class Told:
    payloads: list[EventPayload] = field(default_factory=list)

    def write(self, payload: EventPayload) -> None:
        self.payloads.append(payload)

    @property
    def warnings(self) -> str:
        logs = (payload for payload in self.payloads if isinstance(payload, LogLines))
        return "\n".join(line for lines in logs if lines.level is LogLevel.WARNING for line in lines.lines)


FMA_LETTERS: Final = {"float64": "d", "float32": "f", "float16": "h"}
TENSOR_METRIC: Final = r"sm__ops_path_tensor_src_([a-z0-9]+)\w*\.sum$"


@dataclass(frozen=True)
class Launch:
    """A line of the report, and the configuration that was launched. cells: by the name of their column."""

    configuration: Configuration
    cells: Mapping[str, str]

    def value(self, metric_name: str) -> float:
        return float(self.cells[metric_name].replace(",", ""))

    @property
    def flop(self) -> dict[tuple[str, str], float]:
        """By data type and path, without those that it does nothing of. A half-precision instruction is two of each."""
        counted = {(dtype, "fma"): self._fma_flop(letter) for dtype, letter in FMA_LETTERS.items()}
        for name in self.cells:
            if found := re.match(TENSOR_METRIC, name):  # sparse and dense products apart
                counted[found[1], "tensor"] = counted.get((found[1], "tensor"), 0) + self.value(name)
        return {key: flop for key, flop in counted.items() if flop}

    @property
    def main_work(self) -> tuple[str, str] | None:
        """Data type and path of most flop; None: it does none."""
        return max(self.flop, key=lambda key: self.flop[key], default=None)

    def _fma_flop(self, letter: str) -> float:
        added, multiplied, fused = (self.value(SASS.format(letter + operation)) for operation in ("add", "mul", "fma"))
        return (added + multiplied + 2 * fused) * (2 if letter == "h" else 1)


@dataclass(frozen=True)
class Counted:
    """What one call of ncu came to. launches: in the order of the configurations."""

    stored: CountersStored
    report: bytes
    launches: tuple[Launch, ...]
    warnings: str

    def of(self, *kernel_names: str) -> list[Launch]:
        return [launch for launch in self.launches if launch.configuration.kernel_name in kernel_names]


def report_lines(report: bytes) -> list[dict[str, str]]:
    """The launches of page raw, after the line of units and among what ncu says of its progress."""
    lines = report.decode().splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith('"ID",'))
    _, *launches = csv.DictReader(line for line in lines[header:] if line.startswith('"'))
    return launches


@cache
def cuda_devices() -> tuple[dict[BackendName, Device], str]:
    devices, notices = found_devices()
    found = {backend: replace(device, backends=(backend,)) for device in reversed(devices) for backend in device.backends}
    return found, " ".join(notices)


def device_of(backend: BackendName) -> Device:
    """Skips without a device, or without an ncu that may count, with the reason."""
    devices, notices = cuda_devices()
    if backend not in devices:
        pytest.skip(f"no NVIDIA device for {backend}: {notices}")
    try:
        check_ncu()
    except KernalyseError as error:
        pytest.skip(error.message)
    return devices[backend]


def count(backend: BackendName, kernels: tuple[KernelSelection, ...], directory: Path) -> Counted:
    """Launches every configuration of these kernels under ncu, as the worker does after a sweep with cold samples."""
    device, told = device_of(backend), Told()
    counting = prepare_counting(device, told)
    assert counting is not None, told.warnings
    sweep = KernelSweep(kernels, backend=backend, device_id=device.device_id, with_counters=True)
    plan = plan_sweep(sweep, load_catalog(), sys.maxsize)
    configurations = tuple(plan_launch(planned).configuration for planned in plan.configurations())
    measured = MeasurementRecorder(told, {CacheMode.COLD: [configuration.configuration_index for configuration in configurations]})
    spec_file = directory / "spec"
    spec_file.write_bytes(encode_bytes(RunSpec(sweep)))
    count_launches(counting, plan, measured, CounterFiles(spec_file, directory))
    stored = next((payload for payload in told.payloads if isinstance(payload, CountersStored)), None)
    if stored is None and any(words in told.warnings for words in ("ERR_NVGPUCTRPERM", "resource was unavailable", "LibraryNotLoaded")):
        pytest.skip(told.warnings)
    assert stored is not None, told.warnings
    assert any(isinstance(payload, ArtifactStored) for payload in told.payloads)
    report = (directory / "artifacts" / stored.artifact_name).read_bytes()
    launches = tuple(Launch(*pair) for pair in zip(configurations, report_lines(report), strict=True))
    for launch in launches:
        assert launch.configuration.kernel_name in launch.cells["Kernel Name"]
    return Counted(stored, report, launches, told.warnings)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Every configuration of the catalogue's kernels that only add, multiply and fuse; the report goes to $OUT too."""
    directory = tmp_path_factory.mktemp("catalogue")
    counted = count(BackendName.PYCUDA, tuple(KernelSelection(name) for name in (*ELEMENTWISE, *PRODUCTS)), directory)
    if os.environ.get("OUT"):
        shutil.copy(directory / "artifacts" / counted.stored.artifact_name, Path(os.environ["OUT"]) / "ncu_catalogue.csv")
    return counted


def test_every_launch_is_counted_and_every_metric_found(catalogue: Counted) -> None:
    assert catalogue.warnings == ""
    assert catalogue.stored.configuration_indexes == tuple(one.configuration.configuration_index for one in catalogue.launches)
    assert (catalogue.stored.cache_control, catalogue.stored.clock_control) == ("all", "none")
    cells = catalogue.launches[0].cells
    assert sorted(set(metric_names(cells["CC"])) - set(cells)) == []
    assert len(catalogue.report) < MAX_KEPT_BYTES


def test_elementwise_kernels_do_exactly_the_flop_of_their_formulas(catalogue: Counted) -> None:
    for launch in catalogue.of(*ELEMENTWISE):
        flop = launch.configuration.flop
        assert sum(launch.flop.values()) == flop, launch.configuration.label
        assert launch.main_work == (("float32", "fma") if flop else None)


def test_products_do_the_flop_of_their_formula(catalogue: Counted) -> None:
    """A compiler may make the first of a chain of fused multiply-adds a multiplication: one flop in 2 K.

    Half-precision instructions do not count: nvcc 13.0 sets a register to zero by one (HFMA2), once a thread.
    """
    for launch in catalogue.of(*PRODUCTS):
        assert launch.flop["float32", "fma"] == pytest.approx(launch.configuration.flop, rel=0.005), launch.configuration.label
        assert launch.main_work == ("float32", "fma")


def test_cold_launches_move_the_bytes_of_their_formulas(catalogue: Counted) -> None:
    """All they read, and of what they write what does not stay in the last-level cache."""
    large = [launch for launch in catalogue.of(*ELEMENTWISE) if (launch.configuration.bytes or 0) >= MIN_PAST_CACHES_BYTES]
    assert large
    for launch in large:
        assert launch.configuration.bytes is not None
        assert 0.5 <= launch.value("dram__bytes.sum") / launch.configuration.bytes <= 1.2, launch.configuration.label
        assert launch.value("lts__lts2xbar_cycles_active.sum") > 0
        assert any(launch.value(name) > 0 for name in launch.cells if name.startswith("l1tex__lsu_writeback_active"))


def test_time_clock_and_use_of_the_device_are_possible(catalogue: Counted) -> None:
    for launch in catalogue.launches:
        assert launch.value("gpu__time_duration.sum") > 500  # ns, the base unit of times
        assert 0.1e9 < launch.value("sm__cycles_elapsed.avg.per_second") < 4e9
        for name in USES:
            assert 0 < launch.value(name) <= 105, (launch.configuration.label, name)


def test_tensor_cores_are_told_from_others_by_their_path(tmp_path: Path) -> None:
    source = KernelSource("tensor_kernels.cu", (EXAMPLES / "tensor_kernels.cu").read_text())
    counted = count(BackendName.PYCUDA, (KernelSelection("matmul_tensor", source, TENSOR_PRODUCT),), tmp_path)
    (launch,) = counted.of("matmul_tensor")
    assert launch.main_work == ("fp16", "tensor")
    assert launch.flop["fp16", "tensor"] == pytest.approx(launch.configuration.flop, rel=0.01)
    assert ("float32", "fma") not in launch.flop


def test_the_analyzer_reads_the_report_as_it_is(catalogue: Counted) -> None:
    pytest.importorskip("polars", reason="needs polars, which nodes do not have")
    from kernalyse.services.analyzer.analysis.counters import counted_work
    from kernalyse.services.analyzer.readers.ncu.run_counters import counter_report
    from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
    from kernalyse.services.analyzer.tables.runs import CONFIGURATIONS, COUNTER_REPORTS

    read = counter_report(RunEvent(9, "j", "r", 0, catalogue.stored), catalogue.stored, catalogue.report)
    assert [note for note in read.notes if "belong" in note] == []
    rows = [
        {"run_id": "r", "event_index": 1, "configuration_index": one.configuration_index, "kernel_name": one.kernel_name}
        for one in (launch.configuration for launch in catalogue.launches)
    ]
    reports = frame_from_rows(COUNTER_REPORTS, [{"run_id": "r", "event_index": 9, "artifact_name": catalogue.stored.artifact_name}])
    work = counted_work(read.rows.lazy(), reports.lazy(), frame_from_rows(CONFIGURATIONS, rows).lazy()).collect()
    for launch, row in zip(catalogue.launches, work.sort("configuration_index").rows(named=True), strict=True):
        assert row["flop"] == sum(launch.flop.values())
        assert row["dram_bytes"] == launch.value("dram__bytes.sum")
        assert row["l2_bytes"] == 32 * launch.value("lts__lts2xbar_cycles_active.sum")
        assert row["duration_ns"] == launch.value("gpu__time_duration.sum")


@pytest.mark.parametrize("backend", CUDA_BACKENDS)
def test_a_kernel_without_formulas_is_counted_on_each_backend(backend: BackendName, tmp_path: Path) -> None:
    text = 'extern "C" __global__ void scale(const float* a, float* b, int N) {\n'
    text += "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < N) b[i] = 2.5f * a[i];\n}\n"
    definition = KernelDefinition(
        kernel_name="scale",
        source_file_name="scale.cu",
        launch=LaunchDefinition(block=("256",), grid=("ceil_div(N, block_x)",)),
        parameters=(ParameterDefinition("N", (2**22,)),),
        buffers=(
            BufferDefinition("a", ("N",), DataType.FLOAT32, BufferRole.INPUT),
            BufferDefinition("b", ("N",), DataType.FLOAT32, BufferRole.OUTPUT),
        ),
    )
    counted = count(backend, (KernelSelection("scale", KernelSource("scale.cu", text), definition),), tmp_path)
    (launch,) = counted.of("scale")
    assert (launch.configuration.flop, launch.configuration.bytes) == (None, None)
    assert sum(launch.flop.values()) == 2**22
    assert launch.main_work == ("float32", "fma")
    assert launch.value("dram__bytes.sum") > 4 * 2**22 * 0.9  # all that it reads
