"""Traces of operators and their kernels, as frames of the canonical tables, written row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kernalyse.services.analyzer.queries.registry import Frames, trace_frames

FLOAT_TYPE: Final = "float"


@dataclass(frozen=True, slots=True)
class Operator:
    """A range; parent: row of the one around it."""

    name: str
    shapes: Sequence[Any] | None = None
    parent: int | None = None
    dtype: str = FLOAT_TYPE
    flop: float | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """operator, layer: rows of ranges. One starts where the one before it ends."""

    name: str
    duration_ns: int
    operator: int | None = None
    layer: int | None = None
    device: int = 0


def worked_trace(operators: Sequence[Operator], kernels: Sequence[Kernel], devices: Sequence[dict[str, Any]] = ()) -> Frames:
    """The tables; devices: what rows of trace_devices say beside process 1 and their number."""
    names = list(dict.fromkeys([*(operator.name for operator in operators), *(kernel.name for kernel in kernels)]))
    starts = [sum(kernel.duration_ns for kernel in kernels[:index]) for index in range(len(kernels))]
    frames: dict[str, list[dict[str, Any]]] = {
        "trace_names": [{"name_index": index, "name": name} for index, name in enumerate(names)],
        "ranges": [
            {
                "range_index": index,
                "name_index": names.index(operator.name),
                "parent_range_index": operator.parent,
                "depth": _depth(operators, index),
                "flop": operator.flop,
                "input_shapes": None if operator.shapes is None else json.dumps(operator.shapes),
                "input_dtypes": None
                if operator.shapes is None
                else json.dumps([operator.dtype if part else "" for part in operator.shapes]),
            }
            for index, operator in enumerate(operators)
        ],
        "kernel_launches": [
            {
                "launch_index": index,
                "name_index": names.index(kernel.name),
                "process_id": 1,
                "device_index": kernel.device,
                "start_ns": start_ns,
                "duration_ns": kernel.duration_ns,
                "operator_index": kernel.operator,
                "range_index": kernel.layer,
                "layer_source": None if kernel.layer is None else "module",
            }
            for index, (kernel, start_ns) in enumerate(zip(kernels, starts, strict=True))
        ],
        "trace_devices": [{"process_id": 1, "device_index": index, **device} for index, device in enumerate(devices)],
    }
    return trace_frames({name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in frames.items() if rows})


def _depth(operators: Sequence[Operator], index: int) -> int:
    parent = operators[index].parent
    return 0 if parent is None else 1 + _depth(operators, parent)
