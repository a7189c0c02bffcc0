"""`python -m services.profiler.backends.probe` prints this machine's devices as JSON.

The profiler service asks in a process of its own: a runtime that crashes while it looks for devices takes nothing down,
and none of them stays in the service's memory.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from services.core.errors import InternalError
from services.core.model import BackendName, Device, DeviceKind, Dim3


def write_probe(devices: tuple[Device, ...], notices: tuple[str, ...]) -> str:
    """Return one JSON object with both lists."""
    return json.dumps({"devices": [asdict(device) for device in devices], "notices": list(notices)})


def read_probe(text: str) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Read devices and notices of a probe's output. Raises InternalError when it is none."""
    try:
        document = json.loads(text)
        return tuple(_read_device(entry) for entry in document["devices"]), tuple(document["notices"])
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(
            "the search for devices", found=f"output that is no probe: {text[:200]!r}", remedy="Run kernalyse doctor."
        ) from error


def _read_device(entry: dict[str, Any]) -> Device:
    return Device(
        **{
            **entry,
            "kind": DeviceKind(entry["kind"]),
            "backends": tuple(BackendName(name) for name in entry["backends"]),
            "max_block": Dim3(**entry["max_block"]) if entry["max_block"] else None,
            "max_grid": Dim3(**entry["max_grid"]) if entry["max_grid"] else None,
        }
    )


def main() -> None:
    """Print the devices of this machine as JSON, and nothing else."""
    output = os.dup(1)
    os.dup2(2, 1)  # runtimes print on stdout too; that belongs to the JSON alone
    from services.profiler.backends.registry import available_devices

    os.write(output, (write_probe(*available_devices()) + "\n").encode())
    sys.stdout.flush()
    os._exit(0)  # some runtimes crash while they unload; the answer is out already


if __name__ == "__main__":
    main()
