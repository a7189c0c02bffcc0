"""What goes to the driver with a launch, and how samples are cut into batches: nothing here needs a device."""

from __future__ import annotations

import gc
import signal
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernalyse.services.core.errors import KernalyseError, LaunchLimitError, UnknownKernelError, UnsupportedConstructError
from kernalyse.services.core.model import Dim3, KernelSource
from kernalyse.services.profiler.backends.base import LaunchConfiguration
from kernalyse.services.profiler.backends.cuda.compiler import instance_entry, with_instance, without_variable
from kernalyse.services.profiler.backends.cuda.modules import LaunchRequirements, check_requirements, find_entry, read_requirements
from kernalyse.services.profiler.backends.cuda.pycuda_backend import NoRanges, NvtxRanges, open_ranges
from kernalyse.services.profiler.backends.cuda.timing import (
    MAX_QUEUED_COUNT,
    OPERATIONS_PER_SAMPLE,
    RELEASED,
    PackedArgument,
    SampleTimer,
    StreamBlocker,
    max_batch_count,
    pack_arguments,
)
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source


def test_arguments_lie_as_in_a_c_struct() -> None:
    """By the same rules, Python's own struct module with native alignment."""
    arguments: list[PackedArgument] = [np.int8(-1), np.float64(2.5), np.int16(3), 2**40, np.bool_(True), np.float32(0.5), np.uint64(2**63)]
    assert pack_arguments(arguments) == struct.pack("@bdhQ?fQ", -1, 2.5, 3, 2**40, True, 0.5, 2**63)


def test_sixteen_bit_floats_take_two_bytes() -> None:
    arguments = [np.float16(1), ml_dtypes.bfloat16(1), np.int32(7)]
    assert pack_arguments(arguments) == bytes.fromhex("003c803f07000000")


def test_kernel_without_parameters_has_no_arguments() -> None:
    assert pack_arguments([]) == b""


@pytest.mark.parametrize("launch_count", [1, 2, 100, 505])
def test_batch_fits_behind_a_held_stream(launch_count: int) -> None:
    count = max_batch_count(launch_count)
    assert count >= 1
    assert count * (launch_count + OPERATIONS_PER_SAMPLE) < MAX_QUEUED_COUNT
    assert (count + 1) * (launch_count + OPERATIONS_PER_SAMPLE) >= MAX_QUEUED_COUNT


def test_more_launches_than_fit_are_one_sample_at_a_time() -> None:
    assert max_batch_count(MAX_QUEUED_COUNT) == 1


class Stream:
    """Keeps what is put on it, each taking so many ms; events note when they are reached."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.log: list[str] = []

    def put(self, name: str, duration_ms: float) -> None:
        self.log.append(name)
        self.now_ms += duration_ms

    def synchronize(self) -> None:
        self.log.append("synchronize")


class Driver:
    class Event:
        def record(self, stream: Stream) -> None:
            self.at_ms = stream.now_ms

        def time_till(self, end: Driver.Event) -> float:
            return end.at_ms - self.at_ms


def test_every_step_of_a_pass_is_timed_by_events_of_its_own() -> None:
    stream = Stream()
    timer = SampleTimer(Driver, stream, partial(stream.put, "flush", 100.0), blocker=None, clock=None)
    steps = [partial(stream.put, "ln1", 0.25), partial(stream.put, "qkv", 2.0)]
    np.testing.assert_allclose(timer.take_steps(steps, 2, is_cold=True), [[250_000.0, 2_000_000.0]] * 2)
    assert stream.log == ["flush", "ln1", "qkv", "synchronize"] * 2  # the cache is flushed before a pass, outside of what is timed
    timer.take_steps(steps, 1, is_cold=False)
    assert stream.log[-3:] == ["ln1", "qkv", "synchronize"]


class PagelockedFlags(np.ndarray[Any, Any]):
    """Flags in memory that the device sees."""

    base = SimpleNamespace(get_device_pointer=lambda: 0)  # type: ignore[assignment]


class CollectedLate:
    """A part of a circle, which only the garbage collector frees: as device memory would be, with a wait for the device."""

    def __init__(self, flags: PagelockedFlags, freed_while_released: list[bool]) -> None:
        self._itself = self
        self._flags = flags
        self._freed_while_released = freed_while_released

    def __del__(self) -> None:
        self._freed_while_released.append(bool(self._flags[RELEASED]))


def test_nothing_is_collected_while_a_stream_is_held() -> None:
    """What frees device memory then waits for the stream, and the stream for the host: until the time limit of the hold."""
    flags = np.zeros(2, np.int32).view(PagelockedFlags)
    driver = SimpleNamespace(pagelocked_zeros=lambda *_, **__: flags, host_alloc_flags=SimpleNamespace(DEVICEMAP=2))
    blocker = StreamBlocker(driver, lambda *addresses: None)
    freed_while_released: list[bool] = []
    with blocker.blocked():
        for _ in range(10 * gc.get_threshold()[0]):
            CollectedLate(flags, freed_while_released)
    assert gc.isenabled()
    gc.collect()
    assert len(freed_while_released) == 10 * gc.get_threshold()[0]
    assert all(freed_while_released)


PROGRAM_WITHOUT_CLOSE = """
import atexit, os, sys
from types import SimpleNamespace

contexts = []

@atexit.register  # the first: PyCUDA looks at its stack after all functions of the program
def abort_with_contexts():
    if contexts:
        os.abort()

class Context:
    def pop(self):
        contexts.pop()
    def detach(self):
        pass

def make_context(flags):
    contexts.append(Context())
    return contexts[-1]

driver = SimpleNamespace(
    Device=lambda index: SimpleNamespace(make_context=make_context),
    Stream=object, Error=RuntimeError, MemoryError=MemoryError, ctx_flags=SimpleNamespace(MAP_HOST=8),
)
from kernalyse.services.core.model import BackendName, Device, DeviceKind
from kernalyse.services.profiler.backends.cuda.pycuda_backend import CudaSession

sessions = [CudaSession(driver, 0, Device("cuda:0", "a GPU", DeviceKind.GPU, (BackendName.PYCUDA,)), None) for _ in range(3)]
sessions.pop(1).close()
sys.exit(len(contexts))
"""


def test_a_process_that_closes_no_session_ends_as_it_would() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM_WITHOUT_CLOSE], capture_output=True, text=True, check=False)
    assert done.returncode != -signal.SIGABRT
    assert (done.returncode, done.stderr) == (2, "")


# ---------------------------------------------------------------- ranges


def test_ranges_cost_nothing_where_nobody_listens_and_a_toolkit_without_them_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(open_ranges({}), NoRanges)
    assert isinstance(open_ranges({"NVTX_INJECTION64_PATH": "/tool.so"}, tmp_path), NoRanges)
    assert "No NVTX ranges" in caplog.text


def test_ranges_end_in_the_order_in_which_they_were_nested() -> None:
    log: list[bytes] = []
    ranges = NvtxRanges(log.append, lambda: log.append(b"pop"))
    with ranges.around("gpt-nano"), ranges.around("blocks.0.ln1"):
        log.append(b"launch")
    assert log == [b"gpt-nano", b"blocks.0.ln1", b"launch", b"pop", b"pop"]


# ---------------------------------------------------------------- names in a cubin

TEXT = """
extern "C" __global__ void plain(float *y) {}
__global__ void mangled(float *y) {}
namespace a { namespace b { __global__ void nested(float *y) {} } }
__global__ void twice(float *y) {}
__global__ void twice(int *y) {}
template <typename T> __global__ void instance(T *y) {}
template <typename T> __global__ void none(T *y) {}
template <typename T> __global__ void several(T *y) {}
"""
ENTRIES = (
    "plain",
    "_Z7mangledPf",
    "_ZN1a1b6nestedEPf",
    "_Z5twicePf",
    "_Z5twicePi",
    "_Z8instanceIfEvPT_",
    "_Z7severalIfEvPT_",
    "_Z7severalIiEvPT_",
)
CUBIN = b"\x7fELF\0" + b"\0".join(b".text." + entry.encode() + b"\0.nv.info." + entry.encode() for entry in ENTRIES) + b"\0"
SOURCE = KernelSource("names.cu", TEXT)


@pytest.mark.parametrize(
    ("name", "entry"),
    [("plain", "plain"), ("mangled", "_Z7mangledPf"), ("nested", "_ZN1a1b6nestedEPf"), ("instance", "_Z8instanceIfEvPT_")],
)
def test_kernel_is_found_under_its_mangled_name(name: str, entry: str) -> None:
    assert find_entry(CUBIN, parse_kernel_source(SOURCE).kernel(name), SOURCE.file_name) == entry


@pytest.mark.parametrize(
    ("name", "error_class", "words"),
    [
        ("twice", UnknownKernelError, r"_Z5twicePf, _Z5twicePi.*exactly one twice.*extern"),
        ("several", UnknownKernelError, r"_Z7severalIfEvPT_, _Z7severalIiEvPT_.*Name the instance, for example several<float>"),
        ("none", UnsupportedConstructError, r"names\.cu, line 8: found the template kernel none<typename T> without an instance"),
    ],
)
def test_name_that_is_not_one_entry_is_refused(name: str, error_class: type[Exception], words: str) -> None:
    with pytest.raises(error_class, match=words):
        find_entry(CUBIN, parse_kernel_source(SOURCE).kernel(name), SOURCE.file_name)


PTX = """.version 9.0
.target sm_90
.visible .global .align 8 .u64 kernalyse_instance = _Z5scaleIfLi4EEvPT_;
.visible .entry _Z5scaleIfLi4EEvPT_(
"""


def test_the_variable_names_the_instance_and_can_be_taken_out() -> None:
    assert instance_entry(PTX) == "_Z5scaleIfLi4EEvPT_"
    assert instance_entry(without_variable(PTX)) is None
    assert without_variable(PTX) == PTX.replace(PTX.splitlines(keepends=True)[2], "")


def test_errors_in_the_instance_name_it_and_not_a_line_of_the_file() -> None:
    assert '#line 1 "instance scale<\\"x\\">"\n' in with_instance("text", 'scale<"x">')


# ---------------------------------------------------------------- launches that are not ordinary ones

SPECIAL_PTX = """
.version 9.0
.func (.param .b32 result) helper(.param .b64 pointer);
.visible .entry waiting(
.param .u64 y
)
{
mov.u32 %r4, %envreg2;
}
.visible .entry clustered(
.param .u64 y
)
.explicitcluster
.reqnctapercluster 2, 1, 1
{
barrier.cluster.arrive;
}
.visible .entry plain()
{
ret;
}
"""


def test_every_entry_of_a_file_has_needs_of_its_own() -> None:
    assert read_requirements(SPECIAL_PTX, "waiting") == LaunchRequirements(is_cooperative=True)
    assert read_requirements(SPECIAL_PTX, "clustered") == LaunchRequirements(uses_clusters=True, cluster=Dim3(2))
    assert (
        read_requirements(SPECIAL_PTX, "plain")
        == read_requirements(SPECIAL_PTX, "missing")
        == read_requirements("", None)
        == LaunchRequirements()
    )
    called = SPECIAL_PTX + ".func called()\n{\nmapa.u64 %rd1, %rd2, 1;\n}\n"
    assert read_requirements(called, "plain") == LaunchRequirements(uses_clusters=True)


@pytest.mark.parametrize(
    ("needs", "grid", "error", "words"),
    [
        (
            LaunchRequirements(is_cooperative=True),
            Dim3(4),
            UnsupportedConstructError,
            r"launch of k: found blocks that wait.*--backend nvcc",
        ),
        (LaunchRequirements(uses_clusters=True), Dim3(4), UnsupportedConstructError, r"cluster without a size.*__cluster_dims__"),
        (LaunchRequirements(cluster=Dim3(4, 4)), Dim3(4, 4), UnsupportedConstructError, "clusters of 16 blocks; expected at most 8"),
        (
            LaunchRequirements(cluster=Dim3(2)),
            Dim3(5),
            LaunchLimitError,
            "found grid 5x1x1; expected multiples of its clusters of 2x1x1 blocks",
        ),
    ],
)
def test_a_launch_that_a_backend_does_not_make_is_refused_by_name(
    needs: LaunchRequirements, grid: Dim3, error: type[KernalyseError], words: str
) -> None:
    with pytest.raises(error, match=words):
        check_requirements(needs, "k", LaunchConfiguration(Dim3(32), grid), is_cooperation_possible=False)


def test_whole_clusters_and_waiting_blocks_where_they_can_wait_are_launched() -> None:
    launch = LaunchConfiguration(Dim3(32), Dim3(4, 2))
    check_requirements(LaunchRequirements(is_cooperative=True), "k", launch, is_cooperation_possible=True)
    check_requirements(LaunchRequirements(uses_clusters=True, cluster=Dim3(2, 2)), "k", launch, is_cooperation_possible=False)
