"""What counters of errors say of a device."""

from __future__ import annotations

from kernalyse.services.core.device_health import health_problems, slower_sentence
from kernalyse.services.core.model import ErrorCount


def test_a_sound_device_has_corrected_errors_remapped_rows_and_replays_of_long_ago() -> None:
    counts = [ErrorCount("ECC corrected", 7), ErrorCount("remapped rows", 1), ErrorCount("PCIe replays", 12), ErrorCount("Xid errors", 0)]
    assert health_problems(counts) == []
    assert health_problems(counts, counts) == []


def test_what_no_sound_device_has_is_named_with_its_remedy() -> None:
    assert health_problems([ErrorCount("ECC uncorrected", 2), ErrorCount("remapping pending", 1)]) == [
        "ECC uncorrected: 2; reset the device, and have it replaced when they come back",
        "remapping pending: 1; reset the device, so that the bad rows are replaced",
    ]


def test_links_whose_errors_grow_meanwhile_are_named_with_the_growth() -> None:
    before = [ErrorCount("PCIe replays", 12), ErrorCount("NVLink errors", 3), ErrorCount("Xid errors", 1)]
    after = [ErrorCount("PCIe replays", 40), ErrorCount("NVLink errors", 3), ErrorCount("Xid errors", 2)]
    assert health_problems(after, before) == [
        "PCIe replays: 28 meanwhile; look after the slot, the riser and the cable",
        "Xid errors: 2, 1 of them meanwhile; look for Xid in the kernel's log",
    ]


def test_a_slower_device_is_told_of_with_its_interval_and_what_it_was_compared_with() -> None:
    row = {"check": "copy", "rate_ratio": 0.939, "rate_ratio_low": 0.93, "rate_ratio_high": 0.948, "baseline": "31 equal devices"}
    said = "copy 6.1 % slower (5.2 to 7.0 %) than 31 equal devices"
    assert slower_sentence(row | {"reason": None}) == said
    assert slower_sentence(row | {"reason": "memory clock lower, 2619 instead of 3201 MHz"}).startswith(f"{said}, memory clock lower")
