"""What a dashboard says of the machine that its figures come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FACTS: Final = {
    "gpu_name": "Device",
    "compute_capability": "Compute capability",
    "cuda_version": "CUDA",
    "driver_version": "Driver",
    "runtime": "Runtime",
    "backend": "Backend",
    "cpu_model": "Host",
    "batch_size": "Batch size",
    "seq_len": "Sequence length",
    "variant": "Variant",
    "as_is": "AS-IS",
    "to_be": "TO-BE",
    "timestamp": "Measured",
    "not_timed": "Not timed",
    "kernalyse_version": "kernalyse",
    "run_id": "First run",
}
"""Of a document's metadata, those that the panel shows by these names; others under their own."""


def facts_of(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value, known ones first, what has no value left out."""
    names = [*(name for name in FACTS if name in metadata), *(name for name in metadata if name not in FACTS)]
    return [(FACTS.get(name, name), _text(name, metadata[name])) for name in names if _is_shown(metadata[name])]


def _is_shown(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _text(name: str, value: object) -> str:
    return str(value).replace("T", " ").split(".")[0] if name == "timestamp" else str(value)
