"""What every backend must do alike, on every device of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest

from kernalyse.services.core.errors import (
    CompileError,
    DeviceNotFoundError,
    InvalidParameterError,
    LaunchLimitError,
    MemoryLimitError,
    UnknownKernelError,
)
from kernalyse.services.core.expressions import parse_expression
from kernalyse.services.core.model import BackendName, BufferRole, CacheMode, DataType, Device, Dim3, KernelSource, TimingMethod
from kernalyse.services.profiler.backends.base import Argument, Backend, Build, DeviceBuffer, DeviceSession, LaunchConfiguration, Timing
from kernalyse.services.profiler.backends.discovery import open_backend
from kernalyse.services.profiler.kernel_sources.catalog import Catalog, catalog_directory, load_catalog
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.measuring.references import compute_reference
from tests.integration.devices import device_parameters

SAXPY = KernelSource(
    "saxpy.cu",
    """__global__ void saxpy(int n, float alpha, const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = alpha * x[i] + y[i];
}
""",
)
REVERSE = KernelSource(
    "reverse.cu",
    """__global__ void reverse(float* y) {
  extern __shared__ float s[];
  s[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
""",
)
COUNT = 1000
BLOCK = Dim3(256)
GRID = Dim3(4)


@pytest.fixture(scope="module", params=device_parameters())
def device(request: pytest.FixtureRequest) -> Device:
    found: Device = request.param
    return found


@pytest.fixture(scope="module")
def backend(device: Device) -> Backend:
    return open_backend(device.backends[0])


@pytest.fixture
def session(backend: Backend, device: Device) -> Iterator[DeviceSession]:
    opened = backend.open(device.device_id)
    yield opened
    opened.close()


def _upload(session: DeviceSession, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> DeviceBuffer:
    buffer = session.allocate(values.nbytes)
    session.upload(buffer, values)
    return buffer


def test_device_describes_itself(device: Device, backend: Backend) -> None:
    assert device.device_id in [one.device_id for one in backend.devices()]
    assert device.name
    assert device.runtime
    assert device.driver_version
    for number in (device.compute_unit_count, device.memory_bytes, device.l2_cache_bytes, device.max_threads_per_block):
        assert number is not None
        assert number > 0
    assert device.max_clock_hz is None or device.max_clock_hz > 100e6


def test_unknown_device_is_refused_with_those_there_are(device: Device, backend: Backend) -> None:
    with pytest.raises(DeviceNotFoundError, match=device.device_id):
        backend.open("opencl:none:7")


def test_saxpy_computes_what_numpy_does(session: DeviceSession) -> None:
    random = np.random.default_rng(0)
    x, y = random.random(COUNT, np.float32), random.random(COUNT, np.float32)
    target = _upload(session, y)
    kernel = session.compile(Build(SAXPY, "saxpy"), BLOCK)
    session.run(session.prepare(kernel, [np.int32(COUNT), np.float32(2), _upload(session, x), target], LaunchConfiguration(BLOCK, GRID)))
    result = np.empty_like(y)
    session.download(target, result)
    np.testing.assert_allclose(result, 2 * x + y, rtol=1e-6)


def test_compiling_twice_takes_time_once(session: DeviceSession) -> None:
    first = session.compile(Build(SAXPY, "saxpy"), BLOCK)
    assert first.compile_ns > 0
    assert first.function_name == "saxpy"
    assert first.compiler_log == ""
    assert session.compile(Build(SAXPY, "saxpy"), BLOCK).compile_ns == 0
    assert session.compile(Build(SAXPY, "saxpy", options=("-DUNUSED=1",)), BLOCK).compile_ns > 0


def test_wrong_source_shows_the_compilers_own_line(session: DeviceSession) -> None:
    text = SAXPY.text.replace("alpha * x[i]", "beta * x[i]")
    with pytest.raises(CompileError) as error:
        session.compile(Build(KernelSource("wrong.cu", text), "saxpy"), BLOCK)
    assert "wrong.cu" in error.value.found
    assert "3" in error.value.found
    assert "beta" in error.value.found


def test_missing_semicolon_is_told_by_the_compiler(session: DeviceSession) -> None:
    with pytest.raises(CompileError, match=r"k\.cu"):
        session.compile(Build(KernelSource("k.cu", "__global__ void k(float* y) {\n  y[0] = 1\n}\n"), "k"), BLOCK)


def test_unknown_kernel_names_those_of_the_file(session: DeviceSession) -> None:
    with pytest.raises(UnknownKernelError, match="the kernels saxpy"):
        session.compile(Build(SAXPY, "daxpy"), BLOCK)


def test_timing_gives_one_positive_duration_per_launch(session: DeviceSession) -> None:
    zeros = np.zeros(COUNT, np.float32)
    kernel = session.compile(Build(SAXPY, "saxpy"), BLOCK)
    arguments: list[Argument] = [np.int32(COUNT), np.float32(1), _upload(session, zeros), _upload(session, zeros)]
    launch = session.prepare(kernel, arguments, LaunchConfiguration(BLOCK, GRID))
    for count in (1, 7, 300):
        durations_ns = session.time(launch, Timing(TimingMethod.SINGLE, CacheMode.HOT), count).duration_ns
        assert durations_ns.shape == (count,)
        assert durations_ns.dtype == np.float64
        assert (durations_ns > 0).all()
        assert durations_ns.max() < 10e9


def test_every_timed_launch_runs_and_the_flush_leaves_its_data_alone(session: DeviceSession) -> None:
    ones = np.ones(COUNT, np.float32)
    target = _upload(session, np.zeros(COUNT, np.float32))
    kernel = session.compile(Build(SAXPY, "saxpy"), BLOCK)
    arguments: list[Argument] = [np.int32(COUNT), np.float32(1), _upload(session, ones), target]
    launch = session.prepare(kernel, arguments, LaunchConfiguration(BLOCK, GRID))
    durations_ns = session.time(launch, Timing(TimingMethod.SINGLE, CacheMode.COLD), 3).duration_ns
    assert durations_ns.shape == (3,)
    assert (durations_ns > 0).all()
    result = np.empty(COUNT, np.float32)
    session.download(target, result)
    assert (result == 3).all()


def test_every_way_of_timing_runs_every_launch(session: DeviceSession) -> None:
    target = _upload(session, np.zeros(COUNT, np.float32))
    kernel = session.compile(Build(SAXPY, "saxpy"), BLOCK)
    arguments: list[Argument] = [np.int32(COUNT), np.float32(1), _upload(session, np.ones(COUNT, np.float32)), target]
    launch = session.prepare(kernel, arguments, LaunchConfiguration(BLOCK, GRID))
    assert session.timing_methods >= {TimingMethod.SINGLE, TimingMethod.BATCHED}
    run_count = 0
    for method in sorted(session.timing_methods):
        timing = Timing(method, CacheMode.HOT, 1 if method is TimingMethod.SINGLE else 7)
        samples = session.time(launch, timing, 5)
        run_count += 5 * timing.launches_per_sample
        assert samples.duration_ns.shape == (5,)
        assert (samples.duration_ns > 0).all()
        assert samples.sm_clock_hz is None or samples.sm_clock_hz.shape == (5,)
    result = np.empty(COUNT, np.float32)
    session.download(target, result)
    assert (result == run_count).all()
    assert not session.is_lost


def test_resources_and_listings_are_told_where_the_runtime_can(session: DeviceSession) -> None:
    kernel = session.compile(Build(REVERSE, "reverse"), BLOCK)
    assert all(kernel.listings.values())
    assert kernel.listings
    resources = session.resources(kernel, LaunchConfiguration(BLOCK, GRID, BLOCK.x * 4))
    if session.device.backends == (BackendName.OPENCL,):
        return
    assert kernel.listings.keys() >= {"ptx", "ptxas.txt"}
    assert resources is not None
    assert None not in asdict(resources).values()
    assert 0 < (resources.theoretical_occupancy_ratio or 0) <= 1


def test_the_only_explicit_instance_of_a_template_goes_by_the_templates_name(session: DeviceSession) -> None:
    text = "template <class T, int N> __global__ void fill(T* y) { y[threadIdx.x] = N; }\n"
    text += "template __global__ void fill<float, 5>(float*);\n"
    buffer = _upload(session, np.zeros(BLOCK.x, np.float32))
    kernel = session.compile(Build(KernelSource("fill.cu", text), "fill"), BLOCK)
    session.run(session.prepare(kernel, [buffer], LaunchConfiguration(BLOCK, Dim3(1))))
    result = np.empty(BLOCK.x, np.float32)
    session.download(buffer, result)
    assert (result == 5).all()


def test_launches_of_one_kernel_keep_their_own_arguments(session: DeviceSession) -> None:
    ones = np.ones(COUNT, np.float32)
    kernel = session.compile(Build(SAXPY, "saxpy"), BLOCK)
    targets = [_upload(session, np.zeros(COUNT, np.float32)) for _ in range(2)]
    source = _upload(session, ones)
    launches = [
        session.prepare(kernel, [np.int32(COUNT), np.float32(factor), source, target], LaunchConfiguration(BLOCK, GRID))
        for factor, target in zip((5, 7), targets, strict=True)
    ]
    for launch in launches:
        session.run(launch)
    for factor, target in zip((5, 7), targets, strict=True):
        result = np.empty(COUNT, np.float32)
        session.download(target, result)
        assert (result == factor).all()


def test_dynamic_shared_memory_reaches_the_kernel(session: DeviceSession) -> None:
    values = np.arange(BLOCK.x, dtype=np.float32)
    buffer = _upload(session, values)
    kernel = session.compile(Build(REVERSE, "reverse"), BLOCK)
    session.run(session.prepare(kernel, [buffer], LaunchConfiguration(BLOCK, Dim3(1), values.nbytes)))
    result = np.empty_like(values)
    session.download(buffer, result)
    assert (result == values[::-1]).all()


def test_launch_over_a_limit_is_refused_with_the_limit(session: DeviceSession, device: Device) -> None:
    kernel = session.compile(Build(REVERSE, "reverse"), BLOCK)
    buffer = session.allocate(4096)
    assert device.max_threads_per_block is not None
    assert device.max_shared_memory_bytes is not None
    for configuration, limit in (
        (LaunchConfiguration(Dim3(device.max_threads_per_block, 2), Dim3(1)), device.max_threads_per_block),
        (LaunchConfiguration(BLOCK, Dim3(1), device.max_shared_memory_bytes + 1), device.max_shared_memory_bytes),
        (LaunchConfiguration(BLOCK, Dim3(0)), 1),
    ):
        with pytest.raises(LaunchLimitError, match=str(limit)):
            session.prepare(kernel, [buffer], configuration)


def test_static_and_dynamic_shared_memory_are_limited_together(session: DeviceSession, device: Device) -> None:
    assert device.max_shared_memory_bytes is not None
    text = "__global__ void k(float* y) {\n  __shared__ float a[1024];\n  extern __shared__ float b[];\n"
    text += "  a[threadIdx.x] = y[0]; b[threadIdx.x] = y[1];\n  __syncthreads();\n  y[threadIdx.x] = a[255 - threadIdx.x] + b[0];\n}\n"
    kernel = session.compile(Build(KernelSource("k.cu", text), "k"), BLOCK)
    with pytest.raises(LaunchLimitError, match="static and dynamic"):
        session.prepare(kernel, [session.allocate(4096)], LaunchConfiguration(BLOCK, Dim3(1), device.max_shared_memory_bytes - 1024))


def test_memory_that_is_not_there_is_refused_with_the_amount(session: DeviceSession) -> None:
    with pytest.raises(MemoryLimitError, match="1000000000000000 bytes asked for"):
        session.allocate(10**15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda good: good[:-1], r"found 3; expected 4 \(n, alpha, x, y\)"),
        (lambda good: [*good, np.int32(1)], "found 5; expected 4"),
        (
            lambda good: [np.int64(1), *good[1:]],
            "argument n of kernel saxpy: found a scalar of type int64; expected a scalar of type int32",
        ),
        (lambda good: [good[0], good[2], *good[2:]], "argument alpha of kernel saxpy: found device memory"),
        (lambda good: [*good[:3], np.float32(1)], "argument y of kernel saxpy: found a scalar of type float32; expected device memory"),
    ],
    ids=["too few", "too many", "other type", "memory for a scalar", "scalar for memory"],
)
def test_arguments_that_do_not_fit_are_refused_by_name(session: DeviceSession, change: object, message: str) -> None:
    assert callable(change)
    kernel = session.compile(Build(SAXPY, "saxpy"), BLOCK)
    good = [np.int32(COUNT), np.float32(1), session.allocate(4000), session.allocate(4000)]
    with pytest.raises(InvalidParameterError, match=message):
        session.prepare(kernel, change(good), LaunchConfiguration(BLOCK, GRID))


def test_copy_larger_than_the_buffer_is_refused(session: DeviceSession) -> None:
    buffer = session.allocate(16)
    with pytest.raises(InvalidParameterError, match="32 bytes"):
        session.upload(buffer, np.zeros(8, np.float32))
    with pytest.raises(InvalidParameterError, match="32 bytes"):
        session.download(buffer, np.zeros(8, np.float32))


ODD_SIZES = {"M": 37, "N": 101, "K": 53, "blocks": 7, "B": 3, "T": 17, "H": 3, "D": 32, "R": 51, "V": 101}
"""No multiple of any block, so that every edge is met; D is the head width that causal_attention is compiled for."""

CATALOGS = (load_catalog(), load_catalog(catalog_directory() / "gpt" / "catalog.toml"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("catalog", "kernel_name"), [pytest.param(catalog, name, id=name) for catalog in CATALOGS for name in catalog.kernel_names]
)
def test_catalogue_kernel_agrees_with_its_reference_at_odd_sizes(session: DeviceSession, catalog: Catalog, kernel_name: str) -> None:
    definition, source = catalog.definition(kernel_name), catalog.source(kernel_name)
    assert definition.reference is not None
    values = {parameter.name: ODD_SIZES[parameter.name] for parameter in definition.parameters}
    settled = {**parse_kernel_source(source).constants, **values}
    block = Dim3(*(parse_expression(text).evaluate_integer(settled) for text in definition.launch.block))
    names = {**settled, "block_x": block.x, "block_y": block.y, "block_z": block.z}
    configuration = LaunchConfiguration(
        block,
        Dim3(*(parse_expression(text).evaluate_integer(names) for text in definition.launch.grid)),
        parse_expression(definition.launch.shared_memory_bytes).evaluate_integer(names),
    )
    scalars = {
        **values,
        **{argument.name: float(parse_expression(argument.expression).evaluate(names)) for argument in definition.arguments},
    }
    random = np.random.default_rng(3)
    arrays = {
        buffer.name: np.full(shape, np.nan, np.float32)
        if buffer.role is BufferRole.OUTPUT
        else random.integers(0, 100, shape, np.int32)
        if buffer.dtype is DataType.INT32
        else random.random(shape, np.float32)
        for buffer in definition.buffers
        for shape in [tuple(parse_expression(text).evaluate_integer(names) for text in buffer.shape)]
    }
    expected = compute_reference(definition.reference, arrays, scalars)
    buffers = {name: _upload(session, array) for name, array in arrays.items()}
    arguments = [
        buffers[parameter.name] if parameter.is_pointer else np.dtype(parameter.dtype.value).type(scalars[parameter.name])
        for parameter in parse_kernel_source(source).kernel(definition.function).parameters
        if parameter.dtype is not None
    ]
    session.run(session.prepare(session.compile(Build(source, definition.function), block), arguments, configuration))
    for name, wanted in expected.items():
        result = np.empty_like(arrays[name])
        session.download(buffers[name], result)
        assert np.abs(result - wanted).max() <= definition.relative_tolerance * np.abs(wanted).max()
