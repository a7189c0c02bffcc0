"""Keeps what runs and uploads leave on disk within the node's limits, beside the journal, which keeps to its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from services.profiler.bundles import BundleStore
from services.profiler.run_folder import RunFolder
from services.profiler.runs import Runs

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 600.0
"""Between looks. What arrives in ten minutes may be over the limits for as long; looking walks over every file."""


async def keep_disk(runs: Runs, bundles: BundleStore, runs_folder: Path, artifacts_max_bytes: int) -> None:
    """Look again and again, without end."""
    while True:
        for digest in await asyncio.to_thread(bundles.expire, runs.bundle_digests):
            logger.info("Bundle %s is deleted: nobody has used it for long, or others need the room.", digest)
        active = (*runs.running_run_ids, *runs.queued_run_ids)
        for run_id in await asyncio.to_thread(drop_artifacts, runs_folder, artifacts_max_bytes, active):
            logger.info("Run %s loses its artifacts: all runs' together are over their limit.", run_id)
        await asyncio.sleep(INTERVAL_S)


def drop_artifacts(runs_folder: Path, max_bytes: int, active_run_ids: Collection[str]) -> tuple[str, ...]:
    """Delete artifacts of finished runs, the oldest first, until all together are within the limit; return their ids."""
    folders = sorted((path for path in runs_folder.glob("*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    sizes = {path.name: RunFolder(runs_folder, path.name).artifacts_size_bytes() for path in folders}
    total_bytes = sum(sizes.values())
    dropped: list[str] = []
    for run_id, size_bytes in sizes.items():
        if total_bytes > max_bytes and size_bytes > 0 and run_id not in active_run_ids:
            RunFolder(runs_folder, run_id).delete_artifacts()
            total_bytes -= size_bytes
            dropped.append(run_id)
    return tuple(dropped)
