"""Measured ceilings of an NVIDIA device beside the best library call of the same run, and beside what its clock allows."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from kernalyse.services.analyzer.hardware.datasheets import device_peaks
from kernalyse.services.core.model import BackendName, Ceiling, Device
from kernalyse.services.profiler.backends.discovery import open_backend_for
from kernalyse.services.profiler.measuring.ceilings import MeasuredCeilings, measure_ceilings
from kernalyse.services.profiler.measuring.device_state import open_clock_meter
from kernalyse.services.profiler.workloads.ceilings import load_sources
from tests.integration.devices import found_devices

MAX_DURATION_S: Final = 60.0
LIBRARY_RATIO: Final = 0.97
CLOCK_RATIO: Final = 0.95
MIN_CALL_COUNT: Final = 10
MIN_LIBRARY_S: Final = 0.15  # of each call again and again: beyond the first ones, which see a clock that is still rising
SIZES: Final = (4096, 8192)
ARRAY_BYTES: Final = 2**30
NEAR_ARRAY_BYTES: Final = 8 * 2**20  # two of them lie within an L2
NEAR_COPY_COUNT: Final = 100  # in one graph: each takes less time than its launch

Key = tuple[str, str]
LIBRARY_KEYS: Final[tuple[Key, ...]] = (
    *(("dram", "copy"), ("l2", "copy"), ("float32", "fma"), ("float16", "tensor"), ("bfloat16", "tensor")),
    *(("tfloat32", "tensor"), ("float8", "tensor"), ("int8", "tensor"), ("float64", "tensor")),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates in the ceiling's unit. library: of the best call; None: torch has none here. clock_ratio: measured over what the
    rates of the compute capability allow at the clock of the measurement; None: not known."""

    ceiling_name: str
    path: str
    measured: float
    library: float | None
    clock_ratio: float | None
    note: str

    @property
    def library_ratio(self) -> float | None:
        return None if self.library is None else self.measured / self.library


@dataclass(frozen=True, slots=True)
class Found:
    device: Device
    comparisons: dict[Key, Comparison]
    problems: tuple[str, ...]
    duration_s: float
    missing_library: dict[Key, str]  # why there is no library call for a ceiling


@pytest.fixture(scope="module")
def device() -> Device:
    devices, notices = found_devices()
    for found in devices:
        for name in (BackendName.PYCUDA, BackendName.NVCC):
            if name in found.backends:
                return replace(found, backends=(name,))
    pytest.skip(f"no NVIDIA device: {' '.join(notices)}")


@pytest.fixture(scope="module")
def found(device: Device, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Found:
    start_s = time.monotonic()
    measured, opened = _measure(device, tmp_path_factory.mktemp("cache"))
    duration_s = time.monotonic() - start_s
    library, missing = _library_rates()
    comparisons = _compare(opened, measured.ceilings, library)
    made = Found(opened, comparisons, measured.problems, duration_s, missing)
    capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # whatever the outcome: the figures are what one runs this for
        _tell(made)
    return made


def _measure(device: Device, cache_directory: Path) -> tuple[MeasuredCeilings, Device]:
    """Nothing is compiled beforehand: the time is that of the first use."""
    session = open_backend_for(device.backends[0], device.device_id, cache_directory).open(device.device_id)
    try:
        return measure_ceilings(session, load_sources(), open_clock_meter(session.device), lambda index, plan: None), session.device
    finally:
        session.close()


def _compare(device: Device, measured: tuple[Ceiling, ...], library: dict[Key, float]) -> dict[Key, Comparison]:
    at_clock = {(one.ceiling_name, one.path): one for one in device_peaks(device).ceilings if one.source == "clock"}
    return {
        (one.ceiling_name, one.path): Comparison(
            one.ceiling_name,
            one.path,
            one.value,
            library.get((one.ceiling_name, one.path)),
            _clock_ratio(one, at_clock.get((one.ceiling_name, one.path))),
            one.note,
        )
        for one in measured
    }


def _clock_ratio(measured: Ceiling, at_clock: Ceiling | None) -> float | None:
    if at_clock is None or at_clock.clock_hz is None:
        return None
    return measured.value / at_clock.value * at_clock.clock_hz / (measured.clock_hz or at_clock.clock_hz)


def _tell(found: Found) -> None:
    """On standard output, and as JSON into the directory that the environment calls OUT."""
    _say(f"\n{found.device.name}, {found.device.backends[0]}: ceilings in {found.duration_s:.1f} s")
    for one in found.comparisons.values():
        library = "-" if one.library is None else f"{one.library / 1e12:9.3f}T {one.measured / one.library:7.1%}"
        clock = "-" if one.clock_ratio is None else f"{one.clock_ratio:.1%}"
        _say(f"{one.ceiling_name:22} {one.path:7} {one.measured / 1e12:9.3f}T  library {library:>19}  of its clock {clock:>7}  {one.note}")
    for problem in found.problems:
        _say(f"not measured: {problem}")
    if directory := os.environ.get("OUT"):
        document = {
            "device": found.device.name,
            "driver_version": found.device.driver_version,
            "backend": str(found.device.backends[0]),
            "duration_s": found.duration_s,
            "ceilings": [{**asdict(one), "library_ratio": one.library_ratio} for one in found.comparisons.values()],
            "problems": found.problems,
            "missing_library": {" ".join(key): reason for key, reason in found.missing_library.items()},
        }
        Path(directory, "ceilings.json").write_text(json.dumps(document, indent=1))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


# ---------------------------------------------------------------- the library


def _library_rates() -> tuple[dict[Key, float], dict[Key, str]]:
    """By ceiling: the best rate of PyTorch's calls, or why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, of calls that it plans to rename
        torch, problem = _torch()
        if problem:
            return {}, dict.fromkeys(LIBRARY_KEYS, problem)
        torch.manual_seed(0)
        rates: dict[Key, float] = {}
        reasons: dict[Key, str] = {}
        for key, measure in _library_calls(torch).items():
            try:
                rates[key] = measure()
            except RuntimeError as error:  # a type that this device or this PyTorch has not
                reasons[key] = f"PyTorch: {error}"
            torch.cuda.empty_cache()
        return rates, reasons


def _torch() -> tuple[Any, str]:
    """The module, and what is wrong with it; empty: nothing."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        return None, f"needs PyTorch with CUDA: {error}"
    return torch, "" if torch.cuda.is_available() else "needs PyTorch with CUDA: it sees no device"


def _library_calls(torch: Any) -> dict[Key, Callable[[], float]]:
    return {
        ("dram", "copy"): lambda: _copy_rate(torch),
        ("l2", "copy"): lambda: _near_copy_rate(torch),
        ("float16", "tensor"): lambda: _matmul_rate(torch, torch.float16),
        ("bfloat16", "tensor"): lambda: _matmul_rate(torch, torch.bfloat16),
        ("tfloat32", "tensor"): lambda: _matmul_rate(torch, torch.float32, "high"),
        ("float32", "fma"): lambda: _matmul_rate(torch, torch.float32, "highest"),
        ("float64", "tensor"): lambda: _matmul_rate(torch, torch.float64),
        ("float8", "tensor"): lambda: max(_float8_rate(torch, is_fast) for is_fast in (False, True)),
        ("int8", "tensor"): lambda: _int8_rate(torch),
    }


def _best_s(torch: Any, call: Callable[[], object]) -> float:
    """Device seconds of the shortest call."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    best_s, total_s, count = math.inf, 0.0, 0
    while total_s < MIN_LIBRARY_S or count < MIN_CALL_COUNT:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken_s = begin.elapsed_time(end) / 1e3
        best_s, total_s, count = min(best_s, taken_s), total_s + taken_s, count + 1
    return best_s


def _copy_rate(torch: Any) -> float:
    source = torch.rand(ARRAY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * ARRAY_BYTES / _best_s(torch, lambda: target.copy_(source))


def _near_copy_rate(torch: Any) -> float:
    source = torch.rand(NEAR_ARRAY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NEAR_COPY_COUNT):
            target.copy_(source)
    return 2 * NEAR_ARRAY_BYTES * NEAR_COPY_COUNT / _best_s(torch, graph.replay)


def _matmul_rate(torch: Any, dtype: Any, precision: str = "highest") -> float:
    torch.set_float32_matmul_precision(precision)

    def rate(size: int) -> float:
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.float32).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device="cuda", dtype=dtype)
        return max(
            _flop_rate(torch, size, lambda: torch.matmul(a, b, out=out)),
            _flop_rate(torch, size, lambda: torch.matmul(a, b.t(), out=out)),  # by columns: libraries prefer one or the other
        )

    return max(rate(size) for size in SIZES)


def _float8_rate(torch: Any, is_fast: bool) -> float:
    one = torch.ones((), device="cuda")

    def rate(size: int) -> float:
        a, b = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": is_fast}
        return _flop_rate(torch, size, lambda: torch._scaled_mm(a, b.t(), **options))

    return max(rate(size) for size in SIZES)


def _int8_rate(torch: Any) -> float:
    def rate(size: int) -> float:
        a, b = (torch.randint(-128, 128, (size, size), device="cuda", dtype=torch.int8) for _ in range(2))
        return _flop_rate(torch, size, lambda: torch._int_mm(a, b.t()))

    return max(rate(size) for size in SIZES)


def _flop_rate(torch: Any, size: int, call: Callable[[], object]) -> float:
    return 2 * float(size) ** 3 / _best_s(torch, call)


# ---------------------------------------------------------------- what has to hold


def test_everything_is_measured_within_a_minute(found: Found) -> None:
    assert found.duration_s < MAX_DURATION_S
    assert found.problems == ()


@pytest.mark.parametrize("key", LIBRARY_KEYS, ids=" ".join)
def test_a_ceiling_is_as_high_as_the_best_library_call(found: Found, key: Key) -> None:
    if key in found.missing_library:
        pytest.skip(found.missing_library[key])
    if key not in found.comparisons:
        pytest.skip(f"{found.device.name} has no ceiling {' '.join(key)}: {' '.join(found.problems)}")
    ratio = found.comparisons[key].library_ratio
    assert ratio is not None
    assert ratio >= LIBRARY_RATIO


@pytest.mark.parametrize("key", [("shared", "copy"), ("float32", "fma"), ("float64", "fma"), ("float16", "fma")], ids=" ".join)
def test_a_ceiling_is_close_to_what_the_clock_allows(found: Found, key: Key) -> None:
    """Of L2 no rate per clock is published: it is held against the library's copy alone."""
    if key not in found.comparisons:
        pytest.skip(f"{found.device.name} has no ceiling {' '.join(key)}: {' '.join(found.problems)}")
    ratio = found.comparisons[key].clock_ratio
    if ratio is None:
        pytest.skip(f"no rates are known of compute capability {found.device.compute_capability}")
    assert CLOCK_RATIO <= ratio < 1.05
