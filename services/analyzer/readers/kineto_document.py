"""What a Kineto trace says beside its events: of its devices, its rank and its clock. Anything may stand there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from services.analyzer.readers.kineto_events import whole_characters

INDEX_LIMIT: Final = 2**31
COUNT_LIMIT: Final = 2**63
WHOLE_TEXT: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def device_facts(document: Mapping[str, Any], device_index: int) -> dict[str, Any]:
    """Columns of trace_devices by name; none where the device is not described."""
    properties = document.get("deviceProperties")
    for device in properties if isinstance(properties, list) else ():
        if isinstance(device, dict) and device.get("id") == device_index:
            major, minor = device.get("computeMajor"), device.get("computeMinor")
            return {
                "device_name": text(device.get("name")),
                "compute_capability": f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None,
                "sm_count": whole(device.get("numSms"), INDEX_LIMIT),
                "memory_bytes": whole(device.get("totalGlobalMem"), COUNT_LIMIT),
            }
    return {}


def distributed(document: Mapping[str, Any], name: str) -> int | None:
    """A number of the job that the process is part of: its "rank", the "world_size"."""
    info = document.get("distributedInfo")
    value = info.get(name) if isinstance(info, dict) else None
    return whole(int(value) if isinstance(value, str) and WHOLE_TEXT.fullmatch(value) else value, INDEX_LIMIT)


def host_name(document: Mapping[str, Any]) -> str | None:
    return text(document.get("host_name"))


def text(value: object) -> str | None:
    return whole_characters(value) if isinstance(value, str) else None


def whole(value: object, limit: int) -> int | None:
    """A whole number that is less than the limit, and not much less than zero either."""
    return value if isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit else None
