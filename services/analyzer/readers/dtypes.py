"""Data types by the names that other tools give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dtype:
    """name: as tables have it. element_bytes: of one number; two of four bits share a byte."""

    name: str
    element_bytes: float


KNOWN: Final = (
    (Dtype("float64", 8), ("fp64", "f64", "double")),
    (Dtype("float32", 4), ("fp32", "f32", "float")),
    (Dtype("tfloat32", 4), ("tf32",)),
    (Dtype("float16", 2), ("fp16", "f16", "half")),
    (Dtype("bfloat16", 2), ("bf16",)),
    (Dtype("float8", 1), ("fp8", "f8", "e4m3", "e5m2")),
    (Dtype("float4", 0.5), ("fp4", "f4", "e2m1")),
    (Dtype("int4", 0.5), ("i4", "s4")),
    (Dtype("uint4", 0.5), ("u4",)),
    (Dtype("int8", 1), ("i8", "s8")),
    (Dtype("uint8", 1), ("u8",)),
    (Dtype("int16", 2), ("i16", "s16")),
    (Dtype("uint16", 2), ("u16",)),
    (Dtype("int32", 4), ("i32", "s32")),
    (Dtype("uint32", 4), ("u32",)),
    (Dtype("int64", 8), ("i64", "s64")),
    (Dtype("uint64", 8), ("u64",)),
)
DTYPE_NAMES: Final = tuple(dtype.name for dtype, _ in KNOWN)
BY_NAME: Final = {name: dtype for dtype, others in KNOWN for name in (dtype.name, *others)}


def dtype_of(text: str | None) -> Dtype | None:
    """ "FP16", "half" and "torch.float16" are one. None: not known."""
    return None if text is None else BY_NAME.get(text.strip().lower().removeprefix("torch."))
