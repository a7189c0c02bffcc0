"""A session of the NVCC backend and its programs, both for real; under the programs a stand-in for the CUDA runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from kernalyse.services.core.errors import (
    InternalError,
    InvalidParameterError,
    KernalyseError,
    LaunchLimitError,
    MemoryLimitError,
    TimeLimitError,
    WorkerCrashedError,
)
from kernalyse.services.core.model import CacheMode, Dim3, KernelResources, KernelSource, ParameterValue, TimingMethod
from kernalyse.services.profiler.backends.base import Build, DeviceBuffer, LaunchConfiguration, PreparedLaunch, Timing
from kernalyse.services.profiler.backends.cuda import nvcc_backend
from kernalyse.services.profiler.backends.cuda.nvcc_backend import NvccSession
from kernalyse.services.profiler.processes.children import SILENCE_LIMIT_VARIABLE
from tests.integration.nvcc_stand_in import (
    ABORTS,
    ACT,
    COLD_NS,
    DEVICE,
    FAULTS,
    HANGS,
    HOT_NS,
    PRINTS,
    TELLS_COOPERATION,
    TELLS_SHARED_BYTES,
    StandInBuilder,
    needs_nvcc,
)

pytestmark = needs_nvcc

COUNT = 1000
LAUNCH = LaunchConfiguration(Dim3(128), Dim3(8))
BUILD = Build(ACT, "act")
GRID_SYNC = KernelSource(
    "grid_sync.cu",
    "#include <cooperative_groups.h>\n__global__ void act(int what, int n, float alpha, const float* x, float* y) {\n"
    "  y[0] = alpha; cooperative_groups::this_grid().sync(); y[1] = y[0];\n}\n",
)
GRID_SYNC_BUILD = Build(GRID_SYNC, "act")
OTHER_BUILD = Build(ACT, "act", macros=(ParameterValue("VARIANT", 1),))
COLD = Timing(TimingMethod.SINGLE, CacheMode.COLD)
HOT = Timing(TimingMethod.SINGLE, CacheMode.HOT)

Event = TypeVar("Event")
OpenSession = Callable[[Mapping[str, str]], NvccSession]


@pytest.fixture
def open_session() -> Iterator[OpenSession]:
    """Sessions with an environment of their own, all closed in the end."""
    opened: list[NvccSession] = []

    def open_one(environment: Mapping[str, str]) -> NvccSession:
        opened.append(NvccSession(DEVICE, 0, StandInBuilder(), environment))
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()


@pytest.fixture
def session(open_session: OpenSession) -> NvccSession:
    return open_session({})


def _upload(session: NvccSession, values: npt.NDArray[np.float32]) -> DeviceBuffer:
    buffer = session.allocate(values.nbytes)
    session.upload(buffer, values)
    return buffer


def _download(session: NvccSession, buffer: DeviceBuffer, count: int = COUNT) -> npt.NDArray[np.float32]:
    values = np.full(count, np.nan, np.float32)
    session.download(buffer, values)
    return values


def _prepare(
    session: NvccSession,
    y: DeviceBuffer,
    what: int = 0,
    *,
    build: Build = BUILD,
    alpha: float = 1.0,
    launch: LaunchConfiguration = LAUNCH,
) -> PreparedLaunch:
    """y += alpha, unless `what` is something else."""
    x = _upload(session, np.ones(COUNT, np.float32))
    kernel = session.compile(build, launch.block)
    return session.prepare(kernel, [np.int32(what), np.int32(COUNT), np.float32(alpha), x, y], launch)


def _zeros(session: NvccSession) -> DeviceBuffer:
    return _upload(session, np.zeros(COUNT, np.float32))


# ---------------------------------------------------------------- launches and buffers


def test_launches_compute_on_what_was_uploaded(session: NvccSession) -> None:
    x, y = np.arange(COUNT, dtype=np.float32), np.full(COUNT, 7, np.float32)
    target = _upload(session, y)
    kernel = session.compile(BUILD, LAUNCH.block)
    launch = session.prepare(kernel, [np.int32(0), np.int32(COUNT), np.float32(3), _upload(session, x), target], LAUNCH)
    session.run(launch)
    np.testing.assert_array_equal(_download(session, target), 3 * x + 7)
    np.testing.assert_array_equal(_download(session, target, 10), (3 * x + 7)[:10])
    session.upload(target, y[:10])
    np.testing.assert_array_equal(_download(session, target), np.concatenate([y[:10], (3 * x + 7)[10:]]))
    session.run(launch)
    np.testing.assert_array_equal(_download(session, target), np.concatenate([(3 * x + 7)[:10], (6 * x + 7)[10:]]))


def test_buffers_go_with_their_contents_from_one_program_to_the_next(session: NvccSession) -> None:
    y = _zeros(session)
    first, second = _prepare(session, y), _prepare(session, y, build=OTHER_BUILD, alpha=10)
    for launch in (first, second, first, second):
        session.run(launch)
    assert (_download(session, y) == 22).all()


def test_programs_over_the_limit_are_ended_and_what_they_held_is_kept(session: NvccSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc_backend, "MAX_PROGRAM_COUNT", 1)
    y, z = _zeros(session), _zeros(session)
    session.run(_prepare(session, y))
    session.run(_prepare(session, z, build=OTHER_BUILD))
    assert len(session._programs) == 1
    assert (_download(session, y) == 1).all()
    session.run(_prepare(session, y, alpha=2))
    assert (_download(session, y) == 3).all()


def test_what_a_kernel_prints_is_no_answer(session: NvccSession, capfd: pytest.CaptureFixture[str]) -> None:
    y = _zeros(session)
    session.run(_prepare(session, y, PRINTS))
    assert (_download(session, y) == 1).all()
    assert capfd.readouterr() == ("", "a kernel prints\n")


def test_resources_are_those_of_the_runtime(session: NvccSession) -> None:
    assert session.resources(session.compile(BUILD, LAUNCH.block), LAUNCH) == KernelResources(
        register_count=24,
        static_shared_memory_bytes=1024,
        local_memory_bytes=16,
        spill_store_bytes=0,
        spill_load_bytes=0,
        constant_memory_bytes=8,
        max_threads_per_block=512,
        active_block_count=8,
        theoretical_occupancy_ratio=8 * 128 / 2048,
    )


def test_a_kernel_opts_in_to_much_shared_memory(session: NvccSession) -> None:
    y = _zeros(session)
    session.run(_prepare(session, y, TELLS_SHARED_BYTES, launch=LaunchConfiguration(Dim3(32), Dim3(1), 100_000)))
    assert _download(session, y)[0] == 100_000


@pytest.mark.slow
def test_a_kernel_whose_blocks_wait_for_each_other_is_launched_with_all_of_them(session: NvccSession) -> None:
    y = _zeros(session)
    session.run(_prepare(session, y, TELLS_COOPERATION, build=GRID_SYNC_BUILD))
    assert _download(session, y)[0] == 1
    session.run(_prepare(session, y, TELLS_COOPERATION))
    assert _download(session, y)[0] == 0
    with pytest.raises(LaunchLimitError, match="cudaErrorCooperativeLaunchTooLarge"):
        session.run(_prepare(session, y, build=GRID_SYNC_BUILD, launch=LaunchConfiguration(Dim3(128), Dim3(9))))


def test_occupancy_is_that_of_the_shared_memory_asked_for_and_takes_none_from_launches_before(session: NvccSession) -> None:
    y = _zeros(session)
    launch = _prepare(session, y, TELLS_SHARED_BYTES, launch=LaunchConfiguration(Dim3(32), Dim3(1), 100_000))
    session.run(launch)
    resources = session.resources(session.compile(BUILD, LAUNCH.block), LaunchConfiguration(Dim3(128), Dim3(1), 60_000))
    assert resources is not None
    assert resources.active_block_count == 8
    session.run(launch)
    fresh = session.resources(session.compile(OTHER_BUILD, LAUNCH.block), LaunchConfiguration(Dim3(128), Dim3(1), 60_000))
    assert fresh is not None
    assert fresh.active_block_count == 8


@pytest.mark.parametrize(
    ("launch", "limit"),
    [
        (LaunchConfiguration(Dim3(513), Dim3(1)), "513 threads per block; expected at most 512"),
        (LaunchConfiguration(Dim3(32), Dim3(1), 199_000), "200024 bytes of shared memory, static and dynamic; expected at most 200000"),
    ],
)
def test_launch_over_a_limit_of_the_kernel_is_refused(session: NvccSession, launch: LaunchConfiguration, limit: str) -> None:
    with pytest.raises(LaunchLimitError, match=limit):
        _prepare(session, session.allocate(4 * COUNT), launch=launch)


def test_arguments_that_do_not_fit_are_refused(session: NvccSession) -> None:
    kernel = session.compile(BUILD, LAUNCH.block)
    y = session.allocate(16)
    with pytest.raises(InvalidParameterError, match="argument alpha of kernel act: found a scalar of type float64"):
        session.prepare(kernel, [np.int32(0), np.int32(1), np.float64(1), y, y], LAUNCH)


def test_memory_that_the_device_has_not_is_named_with_what_is_free(session: NvccSession) -> None:
    y = session.allocate(9 * 2**20)
    with pytest.raises(MemoryLimitError, match=r"9437184 bytes asked for; expected 1 to 6291456 bytes, the largest that fits now"):
        session.run(_prepare(session, y))
    session.release(y)
    session.run(_prepare(session, _zeros(session)))


def test_other_programs_make_room_when_the_device_is_full(session: NvccSession) -> None:
    y = session.allocate(5 * 2**20)
    session.upload(y, np.zeros(COUNT, np.float32))
    session.run(_prepare(session, y))
    session.run(_prepare(session, y, build=OTHER_BUILD))
    assert (_download(session, y) == 2).all()


# ---------------------------------------------------------------- samples


@pytest.mark.parametrize(
    ("timing", "duration_ns"),
    [
        (COLD, COLD_NS),
        (HOT, HOT_NS),
        (Timing(TimingMethod.BATCHED, CacheMode.HOT, 20), HOT_NS),
        (Timing(TimingMethod.GRAPH, CacheMode.HOT, 20), HOT_NS),
    ],
)
def test_samples_have_durations_and_clocks_and_every_launch_of_them_runs(session: NvccSession, timing: Timing, duration_ns: float) -> None:
    y = _zeros(session)
    launch = _prepare(session, y)
    session.run(launch)
    session.time(launch, timing, 1)
    samples = session.time(launch, timing, 300)
    np.testing.assert_allclose(samples.duration_ns, np.full(300, duration_ns), rtol=1e-6)
    assert samples.sm_clock_hz is not None
    np.testing.assert_allclose(samples.sm_clock_hz, np.full(300, 1.5e9), rtol=1e-3)
    assert samples.is_blocked
    assert (_download(session, y) == 1 + 301 * timing.launches_per_sample).all()


def test_a_graph_that_has_never_run_is_not_put_behind_a_held_stream(session: NvccSession) -> None:
    """Nor is the graph of another launch, or of another count of launches, taken for it."""
    y, z = _zeros(session), _zeros(session)
    first, second = _prepare(session, y), _prepare(session, z)
    session.run(first)
    are_blocked = [
        session.time(launch, Timing(TimingMethod.GRAPH, CacheMode.HOT, count), 4).is_blocked
        for launch, count in ((first, 5), (first, 5), (first, 3), (second, 3), (second, 3))
    ]
    assert are_blocked == [False, True, False, False, True]
    assert (_download(session, y) == 1 + 4 * (5 + 5 + 3)).all()
    assert (_download(session, z) == 4 * (3 + 3)).all()


def test_a_launch_that_has_never_run_is_not_put_behind_a_held_stream(session: NvccSession) -> None:
    y = _zeros(session)
    launch = _prepare(session, y)
    assert not session.time(launch, COLD, 3).is_blocked
    assert session.time(launch, COLD, 3).is_blocked
    assert (_download(session, y) == 6).all()


def test_more_launches_than_a_held_stream_takes_go_without_holding_it(session: NvccSession) -> None:
    launch = _prepare(session, _zeros(session))
    session.run(launch)
    assert session.time(launch, Timing(TimingMethod.BATCHED, CacheMode.HOT, 500), 3).is_blocked
    assert not session.time(launch, Timing(TimingMethod.BATCHED, CacheMode.HOT, 1000), 3).is_blocked


def test_a_hold_that_times_out_is_given_up(session: NvccSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_HOLD", "fails")
    launch = _prepare(session, _zeros(session))
    session.run(launch)
    for _ in range(2):
        samples = session.time(launch, HOT, 10)
        assert samples.duration_ns.shape == (10,)
        assert not samples.is_blocked


@pytest.mark.parametrize("variable", ["KERNALYSE_UNDER_PROFILER", "NV_TPS_LAUNCH_TOKEN", "CUDA_LAUNCH_BLOCKING"])
def test_streams_are_not_held_under_a_profiler(open_session: OpenSession, variable: str) -> None:
    session = open_session({variable: "1"})
    launch = _prepare(session, _zeros(session))
    session.run(launch)
    assert not session.time(launch, HOT, 10).is_blocked


def test_a_timer_too_coarse_for_the_kernel_tells_no_clock(session: NvccSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_TIMER", "coarse")
    launch = _prepare(session, _zeros(session))
    assert session.time(launch, HOT, 10).sm_clock_hz is None
    long = session.time(launch, Timing(TimingMethod.BATCHED, CacheMode.HOT, 20), 10).sm_clock_hz
    assert long is not None
    np.testing.assert_allclose(long, np.full(10, 1.5e9), rtol=1e-3)


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("what", "error_class", "words"),
    [
        (FAULTS, WorkerCrashedError, r"kernel act on a stand-in: found cudaErrorIllegalAddress: .* compute-sanitizer"),
        (ABORTS, WorkerCrashedError, r"kernel act on a stand-in: found the end of the program that runs it: SIGABRT"),
        (HANGS, TimeLimitError, r"kernel act on a stand-in: found no end within 2 s"),
    ],
)
def test_a_fault_costs_its_program_alone(open_session: OpenSession, what: int, error_class: type[KernalyseError], words: str) -> None:
    session = open_session({SILENCE_LIMIT_VARIABLE: "4"})
    y = _zeros(session)
    session.run(_prepare(session, y))
    bad = _prepare(session, y, what)
    begin = time.monotonic()
    with pytest.raises(error_class, match=words):
        session.run(bad)
    assert time.monotonic() - begin < 30
    with pytest.raises(InternalError, match="gone with the program"):
        _download(session, y)
    session.upload(y, np.zeros(COUNT, np.float32))
    session.run(_prepare(session, y))
    assert (_download(session, y) == 1).all()


def test_closing_leaves_no_program_and_no_directory(open_session: OpenSession) -> None:
    session = open_session({})
    session.run(_prepare(session, _zeros(session)))
    (program,) = session._programs.values()
    directory = session._directory
    session.close()
    assert program.has_ended
    assert not directory.exists()
