"""The two sides of `kernalyse compare`: runs of the store, or files that `bench --json`, `export` or another tool wrote."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.cli.usage import UsageError

if TYPE_CHECKING:
    from services.analyzer.analyses.compare import ComparedRun
    from services.cli.analyzer_client import AnalyzerClient
    from services.cli.session import Server

FILE_SUFFIXES = (".json",)


def compared_runs(names: Sequence[str], server: Server) -> list[ComparedRun]:
    """Each a run id, the beginning of one, "last", or a file. Services are asked for runs alone.

    Raises:
        UsageError: a file that is not there.
        InvalidTraceError: a file that no reader takes.
        RunNotFoundError: no such run.
    """
    from services.cli.session import analyzer_session

    is_file = [_is_file(name) for name in names]
    if all(is_file):
        return [_of_file(Path(name)) for name in names]
    with analyzer_session(server, with_profiler=False) as client:
        return [_of_file(Path(name)) if file else _of_run(client, name) for name, file in zip(names, is_file, strict=True)]


def _is_file(name: str) -> bool:
    path = Path(name)
    if path.is_file():
        return True
    if path.suffix in FILE_SUFFIXES or len(path.parts) > 1:
        raise UsageError(f"file {name}", found="no such file", expected="a run id, last, or a JSON file of results", remedy="Correct it.")
    return False


def _of_run(client: AnalyzerClient, name: str) -> ComparedRun:
    from services.analyzer.analyses.compare import ComparedRun
    from services.cli.export import run_results

    run = client.run(name)
    results = run_results(client, run)
    return ComparedRun(
        run_id=run.run_id,
        measurements=results.frames["measurements"],
        samples=results.frames["samples"],
        node_id=run.node_id or None,
        devices={device.device_id: device for device in results.devices},
    )


def _of_file(path: Path) -> ComparedRun:
    from kernalyse.trace_upload import COMPANION_FOLDERS
    from services.analyzer.analyses.compare import ComparedRun
    from services.analyzer.readers.registry import read_trace
    from services.analyzer.readers.trace import TraceFiles
    from services.analyzer.schema import MEASUREMENTS, SAMPLES

    folders = (path.with_name(path.name + ending) for ending in COMPANION_FOLDERS)
    companions = {str(file.relative_to(path.parent)): file for folder in folders if folder.is_dir() for file in folder.iterdir()}
    tables = read_trace(TraceFiles(path.name, path, time.time_ns(), companions))
    return ComparedRun(
        run_id=str(path),
        measurements=tables.frames[MEASUREMENTS.table_name],
        samples=tables.frames.get(SAMPLES.table_name, SAMPLES.empty()),
        node_id=tables.node_id,
        devices={device.device_id: device for device in tables.devices},
    )
