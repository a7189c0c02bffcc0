"""What a reader is given and what it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # to load these takes longer than many traces do
    import polars as pl

    from services.core.model import Device, Revision


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """A trace as it arrived.

    companions: files that belong to it, by their paths from the folder of the trace at its sender ("a.json-bin/0.bin").
    They lie elsewhere here, each under the path that it is mapped to.
    op_registry_folder: of op_registry.py, from the settings of the analyzer or its own command line and never from the sender,
    for it holds code; None: none.
    """

    file_name: str
    path: Path
    arrived_unix_ns: int
    companions: Mapping[str, Path] = field(default_factory=dict)
    op_registry_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class ImportedTables:
    """A trace as rows of the canonical tables.

    frames: by table name, with the columns of the table; run_id and event_index are set when the rows are stored.
    """

    frames: Mapping[str, pl.DataFrame]
    title: str = ""  # empty: the name of the file
    notes: str = ""  # for people: where it comes from, and what of it no table holds
    device_id: str | None = None  # when all of it is of one device
    start_time: datetime | None = None
    end_time: datetime | None = None
    revision: Revision | None = None
    tags: tuple[str, ...] = ()
    node_id: str | None = None  # where it was measured, if that is told
    devices: tuple[Device, ...] = ()  # that it was measured on, with what is told of them


class Reader(Protocol):
    """Reads one format."""

    @property
    def format(self) -> str:
        """Its name, kept with the run: "nvbench"."""

    @property
    def description(self) -> str:
        """Its name for people who gave a file that no reader takes."""

    def matches(self, head: bytes) -> bool:
        """Whether a file that begins so is of this format. head: the first HEAD_BYTES of it, or all."""

    def read(self, files: TraceFiles) -> ImportedTables:
        """Raises InvalidTraceError when the content is not what the beginning promised; names record, found and expected."""
