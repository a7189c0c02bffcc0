"""Files that people take for traces, or have beside them: what they are, and what to do instead."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OtherKind:
    """sign: that the beginning of such a file has. found, remedy: what its error says."""

    sign: re.Pattern[bytes]
    found: str
    remedy: str


OTHER_KINDS: Final = (
    OtherKind(  # GPU-Roofline-Profiler writes one beside its reports of ncu
        re.compile(rb"(?:\xef\xbb\xbf)?(?>[^\n]*?\bpeak_(?:flops|bandwidth)\b)[^\n,]*+,"),
        "a table of a device's peaks, which is no trace",
        "Ceilings are measured with kernalyse ceilings, or set for a device of a node (UpdateHardware).",
    ),
    OtherKind(
        re.compile(rb"\x08[\x01-\x20]\x12[\x01-\x40](?:pytorch|tf2onnx|skl2onnx|onnx)"),
        "an ONNX model, which has no times",
        "Run it with profiling on (SessionOptions.enable_profiling) and give the profile.",
    ),
)


def other_kind(head: bytes) -> OtherKind | None:
    """What a file is that no reader takes, when that is known. head: its beginning."""
    return next((kind for kind in OTHER_KINDS if kind.sign.match(head)), None)
