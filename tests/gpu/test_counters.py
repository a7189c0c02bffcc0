"""Counters by the real ncu: what it counts of catalogue kernels is what their formulas say, and its report is kept."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from services.analyzer.analyses.counted_work import counted_work
from services.analyzer.counter_reports import counter_report
from services.analyzer.counter_tables import COUNTER_REPORTS
from services.analyzer.event_rows import frame_of
from services.analyzer.schema import CONFIGURATIONS
from services.core.errors import KernalyseError
from services.core.model import (
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
from services.core.wire import encode_bytes
from services.profiler.backends.registry import CUDA_BACKENDS
from services.profiler.catalog import load_catalog
from services.profiler.collectors.ncu import check_ncu
from services.profiler.collectors.ncu_metrics import metric_names
from services.profiler.workloads.counters import CountingFiles, MeasuredLaunches, count_launches, prepare_counting
from services.profiler.workloads.launch_plan import plan_launch
from services.profiler.workloads.sweep_plan import plan_sweep
from tests.integration.devices import found_devices

EXAMPLES: Final = Path(__file__).parents[2] / "kernels" / "examples"
MAX_KEPT_BYTES: Final = 1_000_000
"""Of a report that becomes test data."""

ELEMENTWISE: Final = ("vector_add", "saxpy", "stream_copy", "stream_scale", "stream_add", "stream_triad")
PRODUCTS: Final = ("matmul_naive", "matmul_tiled")
MIN_PAST_CACHES_BYTES: Final = 128e6
"""Moved by one launch: of less, most of what is written stays in a last-level cache of some 50 MB, and out of the count."""

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


@dataclass(frozen=True)
class Counted:
    """What one call of ncu came to. work: rows of table counted_work in the order of the configurations."""

    stored: CountersStored
    report: bytes
    counters: pl.DataFrame
    work: pl.DataFrame
    configurations: tuple[Configuration, ...]
    warnings: str

    def of(self, *kernel_names: str) -> list[tuple[Configuration, dict[str, Any]]]:
        pairs = zip(self.configurations, self.work.rows(named=True), strict=True)
        return [(configuration, row) for configuration, row in pairs if configuration.kernel_name in kernel_names]


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


def count(backend: BackendName, kernels: tuple[KernelSelection, ...], folder: Path) -> Counted:
    """Launches every configuration of these kernels under ncu, as the worker does after a sweep with cold samples."""
    device, told = device_of(backend), Told()
    counting = prepare_counting(device, told)
    assert counting is not None, told.warnings
    sweep = KernelSweep(kernels, backend=backend, device_id=device.device_id, with_counters=True)
    plan = plan_sweep(sweep, load_catalog(), sys.maxsize)
    configurations = tuple(plan_launch(planned).configuration for planned in plan.configurations())
    measured = MeasuredLaunches(told, {CacheMode.COLD: [configuration.configuration_index for configuration in configurations]})
    spec_file = folder / "spec"
    spec_file.write_bytes(encode_bytes(RunSpec(sweep)))
    count_launches(counting, plan, measured, CountingFiles(spec_file, folder))
    stored = next((payload for payload in told.payloads if isinstance(payload, CountersStored)), None)
    if stored is None and any(words in told.warnings for words in ("ERR_NVGPUCTRPERM", "resource was unavailable", "LibraryNotLoaded")):
        pytest.skip(told.warnings)
    assert stored is not None, told.warnings
    assert any(isinstance(payload, ArtifactStored) for payload in told.payloads)
    data = (folder / "artifacts" / stored.artifact_name).read_bytes()
    read = counter_report(RunEvent(9, "j", "r", 0, stored), stored, data)
    assert not [note for note in read.notes if "belong" in note], read.notes
    rows = [
        {"run_id": "r", "event_index": 1, "configuration_index": one.configuration_index, "kernel_name": one.kernel_name}
        for one in configurations
    ]
    reports = frame_of(COUNTER_REPORTS, [{"run_id": "r", "event_index": 9, "artifact_name": stored.artifact_name}])
    work = counted_work(read.rows.lazy(), reports.lazy(), frame_of(CONFIGURATIONS, rows).lazy()).collect()
    return Counted(stored, data, read.rows, work.sort("configuration_index"), configurations, told.warnings)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Counted:
    """Every configuration of the catalogue's kernels that only add, multiply and fuse; the report goes to $OUT too."""
    folder = tmp_path_factory.mktemp("catalogue")
    counted = count(BackendName.PYCUDA, tuple(KernelSelection(name) for name in (*ELEMENTWISE, *PRODUCTS)), folder)
    if os.environ.get("OUT"):
        shutil.copy(folder / "artifacts" / counted.stored.artifact_name, Path(os.environ["OUT"]) / "ncu_catalogue.csv")
    return counted


def test_every_launch_is_counted_and_every_metric_found(catalogue: Counted) -> None:
    assert catalogue.warnings == ""
    assert catalogue.stored.configuration_indexes == tuple(one.configuration_index for one in catalogue.configurations)
    assert (catalogue.stored.cache_control, catalogue.stored.clock_control) == ("all", "none")
    capability = catalogue.work["compute_capability"][0]
    assert sorted(set(metric_names(capability)) - set(catalogue.counters["metric_name"])) == []
    assert len(catalogue.report) < MAX_KEPT_BYTES


def test_elementwise_kernels_do_exactly_the_flop_of_their_formulas(catalogue: Counted) -> None:
    for configuration, row in catalogue.of(*ELEMENTWISE):
        assert row["flop"] == configuration.flop, configuration.label
        assert (row["dtype"], row["path"]) == (("float32", "fma") if configuration.flop else (None, None))


def test_products_do_the_flop_of_their_formula(catalogue: Counted) -> None:
    """A compiler may make the first of a chain of fused multiply-adds a multiplication: one flop in 2 K."""
    for configuration, row in catalogue.of(*PRODUCTS):
        assert row["flop"] == pytest.approx(configuration.flop, rel=0.005), configuration.label
        assert (row["dtype"], row["path"]) == ("float32", "fma")


def test_cold_launches_move_the_bytes_of_their_formulas(catalogue: Counted) -> None:
    """All they read, and of what they write what does not stay in the last-level cache."""
    large = [pair for pair in catalogue.of(*ELEMENTWISE) if (pair[0].bytes or 0) >= MIN_PAST_CACHES_BYTES]
    assert large
    for configuration, row in large:
        assert configuration.bytes is not None
        assert 0.5 <= row["dram_bytes"] / configuration.bytes <= 1.2, configuration.label
        assert row["l2_bytes"] > 0
        assert row["l1_bytes"] > 0


def test_time_clock_and_use_of_the_device_are_possible(catalogue: Counted) -> None:
    for row in catalogue.work.rows(named=True):
        assert row["duration_ns"] > 500
        assert 0.1e9 < row["sm_clock_hz"] < 4e9
        for name in ("achieved_occupancy_ratio", "sm_active_ratio", "sm_throughput_ratio", "memory_throughput_ratio"):
            assert 0 < row[name] <= 1.05, (row["label"], name)


def test_tensor_cores_are_told_from_others_by_their_path(tmp_path: Path) -> None:
    source = KernelSource("tensor_kernels.cu", (EXAMPLES / "tensor_kernels.cu").read_text())
    counted = count(BackendName.PYCUDA, (KernelSelection("matmul_tensor", source, TENSOR_PRODUCT),), tmp_path)
    ((configuration, row),) = counted.of("matmul_tensor")
    assert (row["dtype"], row["path"]) == ("float16", "tensor")
    assert row["float16_tensor_flop"] == pytest.approx(configuration.flop, rel=0.01)
    assert row["float32_fma_flop"] == 0


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
    ((configuration, row),) = counted.of("scale")
    assert (configuration.flop, configuration.bytes) == (None, None)
    assert (row["flop"], row["dtype"]) == (2**22, "float32")
    assert row["dram_bytes"] > 4 * 2**22 * 0.9  # all that it reads
