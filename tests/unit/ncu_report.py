"""Small reports of ncu, written row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

COLUMNS: Final = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)

FFMA: Final = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
FLOP_METRICS: Final = tuple(
    f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum"
    for name in ("dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma")
)
METRICS: Final = ("gpu__time_duration.sum", "dram__bytes.sum", "sm__inst_executed_pipe_tensor.sum", *FLOP_METRICS)
CACHE_METRICS: Final = {"l2_bytes": "lts__t_bytes.sum", "l1_bytes": "l1tex__t_bytes.sum"}
"""Counted where one of the launches has some."""

UNITS: Final = {"gpu__time_duration.sum": "ns", "dram__bytes.sum": "byte", **dict.fromkeys(CACHE_METRICS.values(), "byte")}


def launch(
    name: str, *, grid: str = "(8, 1, 1)", block: str = "(256, 1, 1)", process: str = "77", host: str = "127.0.0.1", **metrics: float
) -> dict[str, object]:
    """metrics: ffma, bytes, l2_bytes, l1_bytes and duration of the launch; all others are 0. float32 multiply-adds make two flop each."""
    return {"name": name, "grid": grid, "block": block, "process": process, "host": host, **metrics}


def report_text(launches: Sequence[Mapping[str, object]], *, ids: Sequence[str] | None = None) -> str:
    """Page raw with progress of ncu around it."""
    metrics = (*METRICS, *(metric for name, metric in CACHE_METRICS.items() if any(name in row for row in launches)))
    lines = ["==PROF== Connected to process 77 (app)", _row((*COLUMNS, *metrics))]
    lines.append(_row(("",) * len(COLUMNS) + tuple(UNITS.get(name, "") for name in metrics)))
    for index, row in enumerate(launches):
        known = {"gpu__time_duration.sum": row.get("duration", 1000), "dram__bytes.sum": row.get("bytes", 0), FFMA: row.get("ffma", 0)}
        known |= {metric: row.get(name, 0) for name, metric in CACHE_METRICS.items()}
        launch_id = str(index) if ids is None else ids[index]
        identity = (launch_id, row["process"], "app", row["host"], row["name"], "1", "7", row["block"], row["grid"], "0", "9.0")
        lines.append(_row((*map(str, identity), *(f"{known.get(name, 0):,}" for name in metrics))))
    return "\n".join((*lines, "==PROF== Disconnected from process 77", ""))


def write_report(path: Path, launches: Sequence[Mapping[str, object]]) -> Path:
    path.write_text(report_text(launches))
    return path


def _row(cells: Sequence[str]) -> str:
    return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
