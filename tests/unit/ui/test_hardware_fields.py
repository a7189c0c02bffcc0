"""What people may set of a device: units that are taken, values that are refused, and what a form leaves alone."""

from __future__ import annotations

import pytest

from kernalyse.services.core.file_formats import to_roofline_config
from kernalyse.services.core.model import Ceiling, Hardware, Thresholds
from kernalyse.services.ui.data.hardware_fields import fields_of, parse_percentage, parse_rate, settings_of

NPU = "npu"
HARDWARE = Hardware(
    None,
    (
        Ceiling(NPU, "dram", "bytes_per_s", 4.8e12, "copy", "datasheet"),
        Ceiling(NPU, "dram", "bytes_per_s", 4.3e12, "copy", "measured"),
        Ceiling(NPU, "float32", "flop_per_s", 60e12, "fma", "user"),
        Ceiling(NPU, "l2", "bytes_per_s", 9e12, "copy", "user"),
    ),
    Thresholds(0.5, 0.6),
    "etag",
)
COMPUTES = [("float16", "tensor"), ("float32", "fma")]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("3350", "bytes_per_s", 3.35e12),
        ("3.35 TB/s", "bytes_per_s", 3.35e12),
        (" 800gb/s ", "bytes_per_s", 800e9),
        ("3.35T", "bytes_per_s", 3.35e12),
        ("5e3", "bytes_per_s", 5e12),
        ("60", "flop_per_s", 60e12),
        ("60 TFLOP/s", "flop_per_s", 60e12),
        ("60 TFLOPS", "flop_per_s", 60e12),
        ("275 TOPS", "flop_per_s", 275e12),
        ("1.2 Pflop/s", "flop_per_s", 1.2e15),
        ("", "flop_per_s", None),
    ],
)
def test_rates_with_and_without_units(text: str, unit: str, value: float | None) -> None:
    assert parse_rate(text, unit) == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "1e999", "fast", "3,35", "12 parsecs", "60 TFLOP/s", "1 2", "<b>"])
def test_a_rate_that_is_none_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expected a number over zero, such as 3350 or 3\.35 TB/s"):
        parse_rate(text, "bytes_per_s")


def test_percentages() -> None:
    assert parse_percentage("40 %") == 0.4
    assert parse_percentage("100") == 1
    for text in ("0", "-3", "100.1", "nan", "half", ""):
        with pytest.raises(ValueError, match="over 0 and at most 100"):
            parse_percentage(text)


def test_fields_show_what_is_set_and_what_counts_otherwise() -> None:
    tensor, plain, memory, *thresholds = fields_of(HARDWARE, COMPUTES, has_one_peak=False)
    assert (tensor.title, tensor.value, tensor.fallback) == ("Peak compute, float16 on tensor cores", "", "not known otherwise")
    assert (plain.value, plain.unit) == ("60", "TFLOP/s")
    assert (memory.value, memory.fallback) == ("", "4.30 TB/s, measured")
    assert [field.value for field in thresholds] == ["50", "60"]
    assert fields_of(HARDWARE, COMPUTES, has_one_peak=True)[0].name == "peak"


def test_one_peak_is_for_every_data_type_and_ceilings_without_a_field_stay() -> None:
    typed = {"peak": "30", "bandwidth": "2 TB/s", "memory_threshold": "40", "compute_threshold": "70"}
    settings = settings_of(typed, HARDWARE, COMPUTES, has_one_peak=True)
    values = {(ceiling.ceiling_name, ceiling.path): ceiling.value for ceiling in settings.ceilings}
    assert values == {("float16", "tensor"): 30e12, ("float32", "fma"): 30e12, ("dram", "copy"): 2e12, ("l2", "copy"): 9e12}
    assert settings.thresholds == Thresholds(0.4, 0.7)


def test_an_emptied_field_takes_its_ceiling_away() -> None:
    settings = settings_of({"memory_threshold": "50", "compute_threshold": "60"}, HARDWARE, COMPUTES, has_one_peak=False)
    assert [ceiling.ceiling_name for ceiling in settings.ceilings] == ["l2"]


def test_every_problem_is_told_beside_its_field() -> None:
    typed = {"peak-float32-fma": "0", "bandwidth": "x", "memory_threshold": "0", "compute_threshold": "60"}
    assert set(settings_of(typed, HARDWARE, COMPUTES, has_one_peak=False).problems) == {"peak-float32-fma", "bandwidth", "memory_threshold"}


def test_the_file_says_what_counts() -> None:
    assert to_roofline_config(HARDWARE) == {"peak_tops": 60, "mem_bw": 4300, "mem_thresh": 50, "comp_thresh": 60}
    assert to_roofline_config(HARDWARE, "int8") == {"mem_bw": 4300, "mem_thresh": 50, "comp_thresh": 60}
