"""Datasheet peaks of known GPUs, derived ones of others, none of what nothing is known of."""

from __future__ import annotations

import csv
import re
from importlib import resources

import pytest

from kernalyse.services.analyzer.hardware.datasheets import device_peaks
from kernalyse.services.core.model import BackendName, DataType, Device, DeviceKind


def gpu(name: str, capability: str | None = "8.6", units: int | None = 68, clock_hz: int | None = 1_710_000_000) -> Device:
    return Device(
        "cuda:0",
        name,
        DeviceKind.GPU,
        (BackendName.PYCUDA,),
        compute_capability=capability,
        compute_unit_count=units,
        max_clock_hz=clock_hz,
    )


@pytest.mark.parametrize(
    ("name", "dram_bytes_per_s", "float32_flop_per_s"),
    [
        ("NVIDIA H200", 4.8e12, 66.9e12),
        ("NVIDIA H100 80GB HBM3", 3.35e12, 66.9e12),
        ("NVIDIA A100-SXM4-80GB", 2.039e12, 19.5e12),
        ("NVIDIA L4", 300e9, 30.3e12),
        ("NVIDIA L40S", 864e9, 91.6e12),
        ("Tesla V100-SXM2-32GB", 900e9, 15.7e12),
        ("NVIDIA GeForce RTX 4090", 1008e9, 82.6e12),
    ],
)
def test_a_known_gpu_has_the_peaks_of_its_datasheet(name: str, dram_bytes_per_s: float, float32_flop_per_s: float) -> None:
    ceilings = {(c.ceiling_name, c.path): c for c in device_peaks(gpu(name)).ceilings if c.source == "datasheet"}
    assert ceilings["dram", "copy"].value == dram_bytes_per_s
    assert ceilings["float32", "fma"].value == float32_flop_per_s
    assert all(ceiling.confidence and ceiling.note and ceiling.device_id == "cuda:0" for ceiling in ceilings.values())


def test_datasheet_and_clock_agree_where_the_datasheet_says_its_clock() -> None:
    h200 = gpu("NVIDIA H200", "9.0", 132, 1_980_000_000)
    ceilings = {(c.source, c.ceiling_name, c.path): c for c in device_peaks(h200).ceilings}
    assert ceilings["datasheet", "bfloat16", "tensor"].clock_hz == 1_830_000_000  # tensor peaks are published at another clock
    assert ceilings["datasheet", "float32", "fma"].clock_hz == 1_980_000_000
    assert ceilings["datasheet", "dram", "copy"].clock_hz is None
    for (source, name, path), published in ceilings.items():
        at_clock = ceilings.get(("clock", name, path))
        if source == "datasheet" and at_clock is not None and published.clock_hz is not None:
            assert at_clock.value * published.clock_hz / 1_980_000_000 == pytest.approx(published.value, rel=0.01), (name, path)
    assert ceilings["clock", "float16", "fma"].value == pytest.approx(133.8e12, rel=0.001)  # of the H100's whitepaper
    assert ceilings["clock", "shared", "copy"].value == pytest.approx(132 * 1.98e9 * 128)


def test_the_model_knows_every_data_type_by_its_name() -> None:
    names = {c.ceiling_name.removesuffix("_accumulate16") for c in device_peaks(gpu("NVIDIA H200", "9.0", 132)).ceilings}
    assert names - {"dram", "l1", "shared"} <= set(DataType)


def test_a_product_that_tells_too_little_of_itself_has_its_datasheet_alone() -> None:
    peaks = device_peaks(gpu("NVIDIA H200", "9.0", None))
    assert {ceiling.source for ceiling in peaks.ceilings} == {"datasheet"}
    assert peaks.explanation.endswith("alone.")


def test_a_longer_name_is_another_product() -> None:
    assert {ceiling.source for ceiling in device_peaks(gpu("NVIDIA H200 NVL", "9.0", 132)).ceilings} == {"clock"}


def test_figures_that_are_only_ranges_are_left_out() -> None:
    names = {ceiling.ceiling_name for ceiling in device_peaks(gpu("NVIDIA GB200")).ceilings if ceiling.source == "datasheet"}
    assert "float32" not in names
    assert "bfloat16" in names


def test_an_unknown_gpu_has_peaks_at_its_clock() -> None:
    ceilings = {(c.ceiling_name, c.path): c.value for c in device_peaks(gpu("NVIDIA GeForce RTX 3080")).ceilings}
    assert ceilings["float32", "fma"] == pytest.approx(68 * 1.71e9 * 128 * 2)
    assert ("dram", "copy") not in ceilings
    workstation = {(c.ceiling_name, c.path): c.value for c in device_peaks(gpu("NVIDIA RTX A6000")).ceilings}
    assert workstation["float16", "tensor"] == 2 * ceilings["float16", "tensor"]


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (gpu("Other", None), "compute capability"),
        (gpu("Other", "8.6", None), "multiprocessors"),
        (gpu("Other", "99.0"), "99.0"),
        (Device("opencl:intel:0", "Xeon", DeviceKind.CPU, (BackendName.OPENCL,)), "not a GPU"),
    ],
)
def test_without_figures_there_are_none_and_it_is_said_why(device: Device, text: str) -> None:
    peaks = device_peaks(device)
    assert peaks.ceilings == ()
    assert text in peaks.explanation


def test_the_table_holds_plain_figures_with_source_and_confidence() -> None:
    text = (resources.files("kernalyse.services.analyzer.hardware") / "peaks.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 19
    for row in rows:
        assert row["confidence"] in ("high", "medium", "low")
        assert row["source"]
        assert re.compile(row["nvml_name_pattern"])
        for name, value in row.items():
            if value and name.endswith(("_hz", "_bytes", "_bytes_per_s", "_flop_per_s", "_watts", "_count")):
                assert float(value) > 0, (row["name"], name)
