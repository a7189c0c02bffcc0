"""`kernalyse ceilings` as a user runs it, and what a device that lacks a part is told to lack."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pytest

from kernalyse.services.cli.ceilings import problem_lines
from kernalyse.services.core.model import CeilingsMeasured, EventPayload, KernelSource, LogLines, Progress
from kernalyse.services.profiler.measuring.ceilings import FMA_FILE
from kernalyse.services.profiler.workloads.ceilings import load_sources, run_ceilings
from tests.command import kernalyse
from tests.integration.quick_worker import measuring_quickly

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

T = TypeVar("T")
MAX_DURATION_S = 60.0
CPU_CEILINGS = ["dram", "l2", "l1", "float32", "float64"]


@pytest.mark.slow
def test_ceilings_are_measured_shown_and_stored_with_the_device(server: tuple[str, ...]) -> None:
    start = time.monotonic()
    done = kernalyse("ceilings", "--backend", "opencl", "--json", *server)
    assert time.monotonic() - start < MAX_DURATION_S
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["state"] == "SUCCEEDED"
    assert [row["ceiling_name"] for row in found["ceilings"]] == CPU_CEILINGS
    assert all(row["measured"] > 1e8 and row["datasheet"] is None and "Best launch" in row["note"] for row in found["ceilings"])
    assert found["problems"] == []

    stored = json.loads(kernalyse("show", "last", "ceilings", "--format", "json", *server).stdout)["ceilings"]
    assert [row["value"] for row in stored] == [row["measured"] for row in found["ceilings"]]
    # Stored with the device: the next sweep's points are held against them without measuring again.
    swept = kernalyse("bench", "saxpy", "-p", "N=4096", "--backend", "opencl", "--max-time", "0.2", "--samples", "50", *server)
    assert swept.returncode == 0, swept.stderr
    (point,) = json.loads(kernalyse("show", "last", "roofline", "--format", "json", *server).stdout)["roofline"]
    assert point["ceiling_source"] == "measured"
    assert point["compute_ceiling_flop_per_s"] >= stored[3]["value"]  # a busy host's are measured again; the higher ones stay


def test_a_device_that_is_not_there_is_refused_by_name(server: tuple[str, ...]) -> None:
    done = kernalyse("ceilings", "--device", "cuda:7", *server)
    assert done.returncode == 1
    assert "cuda:7" in done.stderr
    assert done.stdout == ""


def test_a_part_that_the_device_lacks_is_left_out_and_said(tmp_path: Path) -> None:
    """As on a device without double precision: what needs it does not compile."""
    from kernalyse.services.profiler.backends.opencl.backend import OpenCLBackend

    events = Events()
    sources = {**load_sources(), FMA_FILE: KernelSource(FMA_FILE, load_sources()[FMA_FILE].text.replace("double", "absent_type"))}
    session = OpenCLBackend().open()
    try:
        with measuring_quickly():
            run_ceilings(session, sources, events, tmp_path / "ceilings.json")
    finally:
        session.close()
    (measured,) = events.of(CeilingsMeasured)
    names = {ceiling.ceiling_name for ceiling in measured.ceilings}
    assert {"dram", "l2", "l1"} <= names
    assert "float64" not in names
    lines = [line for event in events.of(LogLines) for line in event.lines]
    problems = problem_lines(pl.DataFrame({"line": lines}))
    assert problems
    assert all("absent_type" in problem for problem in problems)
    assert events.of(Progress)[-1].completed_configuration_count == len(CPU_CEILINGS)


class Events:
    """An event sink that keeps what it is told."""

    def __init__(self) -> None:
        self._told: list[EventPayload] = []

    def write(self, payload: EventPayload) -> None:
        self._told.append(payload)

    def of(self, kind: type[T]) -> list[T]:
        return [payload for payload in self._told if isinstance(payload, kind)]
