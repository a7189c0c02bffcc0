"""What a user does with a node, from a naive kernel to a traced training step, on a real device.

The node's data directory comes back as $OUT/node-PART.tar.gz, with what it journaled and every artifact: an analyzer elsewhere follows it,
test data and the recording of `kernalyse up --demo` are made of it. What its tables say is tested where polars is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from kernalyse.services.core.demo import demo_spec
from kernalyse.services.core.model import (
    Axis,
    BufferDefinition,
    BufferRole,
    CeilingMeasurement,
    CommandProfile,
    Configuration,
    DataType,
    KernelDefinition,
    KernelSelection,
    KernelSource,
    KernelSweep,
    LaunchDefinition,
    MeasuringOptions,
    ModelRun,
    ParameterDefinition,
    Run,
    RunSpec,
    RunState,
    Tie,
    Work,
)
from kernalyse.services.core.protobuf import decode
from kernalyse.services.profiler.backends import discovery
from tests.gpu.conftest import RecordFigure
from tests.gpu.records import DIRECTORY, PART
from tests.integration.profiler_node import Calls, ProfilerNode, calls_to, running_node

TRAINING: Final = Path(__file__).with_name("training_step.py")
EXAMPLES: Final = Path(__file__).parents[2] / "kernels" / "examples"
MEASURING: Final = MeasuringOptions(min_duration_ns=300_000_000, max_duration_ns=2_000_000_000)
SIZES: Final = (1024, 2048, 4096)
STEP_COUNT: Final = 2
MAX_LAUNCH_COUNT: Final = 250  # of one training step there are some 150

TORCH_PYTHON: Final = os.environ.get("KERNALYSE_TORCH_PYTHON") or sys.executable

needs_torch = pytest.mark.skipif(find_spec("torch") is None and sys.executable == TORCH_PYTHON, reason="needs torch")


def tensor_product(name: str, file_name: str, launch: LaunchDefinition) -> KernelSelection:
    """A product of halves on tensor cores; its arguments are the matrices and their sizes M, N and K."""
    definition = KernelDefinition(
        kernel_name=name,
        source_file_name=file_name,
        launch=launch,
        parameters=tuple(ParameterDefinition(size, (1024,)) for size in ("M", "N", "K")),
        buffers=(
            BufferDefinition("A", ("M", "K"), DataType.FLOAT16, BufferRole.INPUT),
            BufferDefinition("B", ("K", "N"), DataType.FLOAT16, BufferRole.INPUT),
            BufferDefinition("C", ("M", "N"), DataType.FLOAT32, BufferRole.OUTPUT),
        ),
        category="matmul",
        dtype=DataType.FLOAT16,
        path="tensor",
        flop="2*M*N*K",
        bytes="2*(M*K + K*N) + 4*M*N",
        reference="matmul",
        relative_tolerance=1e-3,
    )
    return KernelSelection(name, KernelSource(file_name, (EXAMPLES / file_name).read_text()), definition)


TILES: Final = LaunchDefinition(block=("256",), grid=("N / 128", "M / 128"))
TENSOR_TILED: Final = tensor_product("matmul_tensor_tiled", "tensor_tiles.cu", TILES)
PRODUCTS: Final = (*(KernelSelection(name) for name in ("matmul_naive", "matmul_tiled", "matmul_block")), TENSOR_TILED)


def is_left_behind(name: str) -> bool:
    """Caches, and Nsight Compute's report, whose tables are in report.csv and which alone may be too large to come back."""
    return "/caches/" in name or name.endswith(".ncu-rep")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfilerNode]:
    with running_node(tmp_path_factory.mktemp("node")) as node:
        (node.data_directory / "devices.json").write_bytes(subprocess.check_output([sys.executable, "-m", discovery.__name__]))
        yield node


def keep(node: ProfilerNode) -> None:
    """Write what the node has so far to $OUT: a part that is killed later keeps the runs that have ended."""
    if DIRECTORY is not None:
        with tarfile.open(DIRECTORY / f"node-{PART or 'alone'}.tar.gz", "w:gz") as archive:
            archive.add(node.data_directory, "data", filter=lambda file: None if is_left_behind(file.name) else file)
        (DIRECTORY / f"node-{PART}.log").write_text(node.log())


@pytest.fixture
async def calls(node: ProfilerNode) -> AsyncIterator[Calls]:
    async with calls_to(node) as calls:
        yield calls


async def done(calls: Calls, title: str, work: Work, node: ProfilerNode, figure: RecordFigure) -> Run:
    """Runs it, and tells how long it took."""
    run = await calls.finished((await calls.start(RunSpec(work, title=title))).run_id)
    keep(node)
    assert run.start_time is not None, run
    assert run.end_time is not None, run
    message = "" if run.error is None else f"{run.error.reason}: {run.error.message}"
    figure("whole way", run=title, state=run.state.name, seconds=(run.end_time - run.start_time).total_seconds(), message=message[:600])
    assert run.state is RunState.SUCCEEDED, f"{message}\n{node.log()[-2000:]}"
    return run


def names(artifacts: Path) -> set[str]:
    return {path.name for path in artifacts.iterdir()}


def artifacts_of(node: ProfilerNode, run: Run) -> Path:
    return node.data_directory / "runs" / run.run_id / "work" / "artifacts"


@needs_torch
async def test_training_steps_are_traced(calls: Calls, node: ProfilerNode, figure: RecordFigure) -> None:
    work = CommandProfile((TORCH_PYTHON, str(TRAINING), "eager", "4"), "kineto", step_count=STEP_COUNT)
    run = await done(calls, "Training steps of a GPT", work, node, figure)
    assert names(artifacts_of(node, run)) == {"trace.json.gz"}


@needs_torch
async def test_steps_that_are_replayed_as_a_graph_are_traced(calls: Calls, node: ProfilerNode, figure: RecordFigure) -> None:
    work = CommandProfile((TORCH_PYTHON, str(TRAINING), "graph", "3"), "kineto")
    run = await done(calls, "Training steps of a GPT as a CUDA graph", work, node, figure)
    assert names(artifacts_of(node, run)) == {"trace.json.gz"}


@needs_torch
async def test_a_training_step_is_counted(calls: Calls, node: ProfilerNode, figure: RecordFigure) -> None:
    if shutil.which("ncu") is None:
        pytest.skip("needs ncu")
    arguments = (TORCH_PYTHON, str(TRAINING), "eager", "2")
    work = CommandProfile(arguments, "ncu", capture_range="cudaProfilerApi", max_launch_count=MAX_LAUNCH_COUNT)
    run = await done(calls, "A training step of a GPT, counted", work, node, figure)
    assert "report.csv" in names(artifacts_of(node, run))


async def test_a_product_becomes_faster_from_kernel_to_kernel(calls: Calls, node: ProfilerNode, figure: RecordFigure) -> None:
    has_counters = shutil.which("ncu") is not None
    axes, ties = (Axis("N", SIZES),), (Tie("M", "N"), Tie("K", "N"))
    sweep = KernelSweep(PRODUCTS, axes=axes, ties=ties, measuring=MEASURING, with_counters=has_counters)
    run = await done(calls, "A product: naive, tiled, on tensor cores", sweep, node, figure)
    measured, kernels, telemetry = {}, {}, []
    for event in await calls.events(run.run_id):
        match event.WhichOneof("payload"):
            case "configuration":
                kernels[event.configuration.configuration_index] = decode(event.configuration, Configuration)
            case "measurement":
                measured[event.measurement.configuration_index] = event.measurement
            case "telemetry" if event.telemetry.HasField("device_id"):
                telemetry.append(event.telemetry)
    figure(
        "telemetry",
        readings=len(telemetry),
        max_power_watts=max((one.power_watts for one in telemetry), default=None),
        max_temperature_celsius=max((one.temperature_celsius for one in telemetry), default=None),
        max_clock_hz=max((one.clock_hz for one in telemetry), default=None),
        memory_clock_hz=max((one.memory_clock_hz for one in telemetry), default=None),
        throttle_reasons=sorted({reason for one in telemetry for reason in one.throttle_reasons}),
        error_counters=sorted({count.name for one in telemetry for count in one.error_counts}),
    )
    assert telemetry
    assert all(one.has_throttle_reasons and one.power_watts > 0 and one.temperature_celsius > 0 for one in telemetry)
    assert len(measured) == len(PRODUCTS) * len(SIZES)
    medians_ns: dict[str, list[float]] = {}
    for index, one in measured.items():
        kernel = kernels[index]
        assert kernel.flop is not None
        medians_ns.setdefault(kernel.kernel_name, []).append(one.duration_median_ns)
        rate = kernel.flop / one.duration_median_ns / 1e3
        figure("product", kernel=kernel.kernel_name, label=kernel.label, median_us=one.duration_median_ns / 1e3, tflop_per_s=rate)
    largest_ns = [medians_ns[selection.kernel_name][-1] for selection in PRODUCTS]
    assert largest_ns == sorted(largest_ns, reverse=True)


async def test_the_demo_sweep_picks_the_device(calls: Calls, node: ProfilerNode, figure: RecordFigure) -> None:
    run = await done(calls, "Demo sweep", demo_spec().work, node, figure)
    assert run.device_id == "cuda:0"


async def test_a_model_is_measured(calls: Calls, node: ProfilerNode, figure: RecordFigure) -> None:
    work = ModelRun("gpt-tile-large", ("baseline", "fused"), batch_size=4, sequence_length=128, measuring=MEASURING)
    await done(calls, "GPT, baseline and fused", work, node, figure)


async def test_a_killed_service_loses_nothing_of_two_runs(tmp_path: Path, figure: RecordFigure) -> None:
    """The run that it dies in is lost with its measurements kept, the queued one is measured when it is back."""
    sweep = KernelSweep(tuple(KernelSelection(name) for name in ("saxpy", "stream_copy", "softmax")), measuring=MEASURING)
    with running_node(tmp_path) as node:
        async with calls_to(node) as calls:
            first, second = [await calls.start(RunSpec(sweep, title=title)) for title in ("first", "second")]
            async for event in calls.watch(first.run_id):
                if event.WhichOneof("payload") == "measurement":
                    break
            node.kill()
        node.start()
        async with calls_to(node) as calls:
            ended = [await calls.finished(run.run_id) for run in (first, second)]
            counts = [
                sum(event.WhichOneof("payload") == "measurement" for event in await calls.events(run.run_id)) for run in (first, second)
            ]
    figure("killed service", states=[run.state.name for run in ended], measurement_counts=counts)
    assert [run.state for run in ended] == [RunState.LOST, RunState.SUCCEEDED]
    assert counts[0] >= 1


async def test_ceilings_are_measured(calls: Calls, node: ProfilerNode, figure: RecordFigure) -> None:
    await done(calls, "Ceilings", CeilingMeasurement(), node, figure)
