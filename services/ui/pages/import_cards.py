"""Imports as the page lists them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kernalyse.services.ui import theme
from kernalyse.services.ui.uploads.trace_import import ImportState, TraceImport

SILENT_S = 5.0
"""Without a byte: somebody should be told."""


@dataclass(frozen=True, slots=True)
class ImportCard:
    upload_id: str
    title: str
    state: str
    text: str
    progress_ratio: float | None
    is_under_way: bool
    run_id: str
    notes: str
    problem: str


def import_card(upload: TraceImport) -> ImportCard:
    others = len(upload.files) - 1
    return ImportCard(
        upload_id=upload.upload_id,
        title=upload.files[0].file_name.rpartition("/")[2] + (f" and {others} more" if others else ""),
        state=upload.state.value,
        text=_text(upload),
        progress_ratio=upload.arrived_bytes / max(1, upload.size_bytes) if upload.state is ImportState.RECEIVING else None,
        is_under_way=not upload.state.is_final,
        run_id="" if upload.run is None else upload.run.run_id,
        notes="" if upload.run is None else upload.run.notes,
        problem=upload.problem,
    )


def _text(upload: TraceImport) -> str:
    size = theme.memory(upload.size_bytes)
    match upload.state:
        case ImportState.RECEIVING:
            now = time.monotonic()
            arrived = f"{theme.memory(upload.arrived_bytes)} of {size}"
            if now - upload.last_arrival_s > SILENT_S:
                return f"{arrived}; nothing arrives any more. Choose the same file again, and it goes on from there."
            elapsed_s = now - upload.begin_s
            rate = theme.byte_rate(upload.arrived_bytes / elapsed_s) if elapsed_s > 1 else ""
            return f"{arrived}{', ' if rate else ''}{rate}"
        case ImportState.READING:
            progress = upload.progress
            of = f" ({progress.read_trace_count} of {progress.trace_count})" if progress.trace_count > 1 else ""
            return f"{size}, being read{of}"
        case ImportState.STORING:
            return f"{size}, being put together"
        case ImportState.DONE if upload.is_known:
            return f"{size}, imported before: delete that run to read the file anew"
        case _:
            return size
