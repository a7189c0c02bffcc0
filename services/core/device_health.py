"""What a device check measures, and what counters of errors say of a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kernalyse.services.core.model import ErrorCount

# ---------------------------------------------------------------- measurements of a check

COPY: Final = "check_copy"
HOST_TO_DEVICE: Final = "check_host_to_device"
DEVICE_TO_HOST: Final = "check_device_to_host"
SMALL_LAUNCHES: Final = "check_small_launches"
MULTIPLY_ADD: Final = "check_multiply_add"
TENSOR_CORES: Final = "check_tensor_cores"

CHECK_TITLES: Final = {
    COPY: "copy",
    HOST_TO_DEVICE: "host to device",
    DEVICE_TO_HOST: "device to host",
    SMALL_LAUNCHES: "small launches",
    MULTIPLY_ADD: "multiply-adds",
    TENSOR_CORES: "tensor cores",
}
"""What people call each measurement, by the kernel name that its rows carry."""

CHECK_NAMES: Final = tuple(CHECK_TITLES)
POWER_LIMITED: Final = frozenset({MULTIPLY_ADD, TENSOR_CORES})
"""Measurements whose rate follows the power limit, and so the leakage of each chip: sound devices of one name differ by several percent in
them, and each is compared with its own earlier checks. The others are compared with equal devices."""

# ---------------------------------------------------------------- verdicts
# Of a measurement of a device, as table fleet has them.

SLOWER: Final = "SLOWER"
FINE: Final = "FINE"
NOT_JUDGED: Final = "NOT_JUDGED"


def slower_sentence(row: Mapping[str, Any]) -> str:
    """Return what is said of a device that is slower than what it was compared with. row: of table fleet."""
    percent, least, most = (100 * (1 - row[name]) for name in ("rate_ratio", "rate_ratio_high", "rate_ratio_low"))
    reason = f", {row['reason']}" if row["reason"] else ""
    return f"{row['check']} {percent:.1f} % slower ({least:.1f} to {most:.1f} %) than {row['baseline']}{reason}"


# ---------------------------------------------------------------- counters of errors

ECC_UNCORRECTED: Final = "ECC uncorrected"
ECC_CORRECTED: Final = "ECC corrected"
REMAPPED_ROWS: Final = "remapped rows"
REMAPPING_PENDING: Final = "remapping pending"
REMAPPING_FAILED: Final = "remapping failed"
PCIE_REPLAYS: Final = "PCIe replays"
NVLINK_ERRORS: Final = "NVLink errors"
XID_ERRORS: Final = "Xid errors"

REMEDIES: Final = {
    ECC_UNCORRECTED: "reset the device, and have it replaced when they come back",
    REMAPPING_PENDING: "reset the device, so that the bad rows are replaced",
    REMAPPING_FAILED: "have the device replaced",
    XID_ERRORS: "look for Xid in the kernel's log",
}
"""What to do about counters that are zero on a sound device."""

GROWING: Final = {
    PCIE_REPLAYS: "look after the slot, the riser and the cable",
    NVLINK_ERRORS: "look after the bridge or the baseboard",
}
"""What to do about counters that a sound device may have, but that do not grow while it is being checked."""


def health_problems(counts: Iterable[ErrorCount], earlier: Sequence[ErrorCount] | None = None) -> list[str]:
    """Return a phrase with its remedy for each counter that says that the device is not sound.

    Args:
        counts: of the device now.
        earlier: before it was worked with; None: not known.
    """
    before = {} if earlier is None else {count.name: count.count for count in earlier}
    found = []
    for count in counts:
        growth = count.count - before.get(count.name, count.count)
        if count.name in REMEDIES and count.count > 0:
            grown = f", {growth} of them meanwhile" if growth > 0 else ""
            found.append(f"{count.name}: {count.count}{grown}; {REMEDIES[count.name]}")
        elif count.name in GROWING and growth > 0:
            found.append(f"{count.name}: {growth} meanwhile; {GROWING[count.name]}")
    return found
