"""Reading of traces by the workers of a Dask cluster, which share the store's file system with the analyzer.

Only lines of JSON travel through the scheduler: a task names files, its result tells where its rows are.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import CancelledError as FuturesCancelledError
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from distributed import Client
from distributed.scheduler import KilledWorker

from kernalyse.services.analyzer.ingest.worker_pool import ReadingResult, ReadingTask, error_line
from kernalyse.services.core.errors import ClusterMismatchError, ClusterUnavailableError, InvalidTraceError, KernalyseError

# ---------------------------------------------------------------- analyzer's side

CONNECT_TIMEOUT_S: Final = 10.0
"""Longest wait for the scheduler. On a quiet network it answers within milliseconds; a shorter wait fails while it starts anew."""

ATTEMPTS_SUFFIX: Final = ".attempts"


@dataclass(frozen=True, slots=True)
class Versions:
    """What a worker has to agree in with the analyzer, or its rows might be others. Dask itself checks its own."""

    kernalyse: str
    python: str

    @classmethod
    def here(cls) -> Versions:
        """Return those of this process; of Python without the patch release."""
        return cls(version("kernalyse"), ".".join(platform.python_version_tuple()[:2]))

    def __str__(self) -> str:
        return f"kernalyse {self.kernalyse} on Python {self.python}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one attempt at a task. line: its result or error; directory_name: of its rows among all attempts."""

    line: str
    directory_name: str


class DaskCluster:
    """A Dask cluster that reads traces.

    Dask repeats a task whose worker has died, on another worker, while the first may still be writing: each attempt writes into a
    directory of its own. The one whose result arrives becomes the task's.

    Args:
        address: of its scheduler, as tcp://HOST:8786.
        versions: that its workers must have.
    """

    def __init__(self, address: str, versions: Versions) -> None:
        self._address = address
        self._versions = versions

    def prepare(self) -> None:
        """Do nothing: workers are started before anything arrives."""

    async def execute(self, task: ReadingTask) -> ReadingResult:
        """Have a worker execute the task, and return its result. When this is cancelled, Dask starts the task no more.

        Raises:
            InvalidTraceError: the content is damaged, or ends one worker after the other.
            ClusterUnavailableError: the scheduler does not answer, or has gone.
            ClusterMismatchError: a worker sees other files than the analyzer, or is of another version.
            KernalyseError: what reading itself raises.
        """
        attempts = task.directory.with_name(task.directory.name + ATTEMPTS_SUFFIX)
        attempts.mkdir()
        try:
            attempt = await self._attempt(task, attempts)
            result = ReadingResult.of_line(attempt.line)
            (attempts / attempt.directory_name).rename(task.directory)
            return result
        finally:
            # Without its parent no attempt begins. What one that is under way still writes is deleted when the store is opened next.
            await asyncio.to_thread(shutil.rmtree, attempts, ignore_errors=True)

    async def _attempt(self, task: ReadingTask, attempts: Path) -> Attempt:
        # A connection of its own for each task, in 3 ms: none is there to be mended, and its end withdraws the task.
        with self._translated_errors(task):
            async with Client(self._address, asynchronous=True, set_as_default=False, timeout=CONNECT_TIMEOUT_S) as client:
                attempt: Attempt = await client.submit(attempt_task, task.line(), attempts, self._versions, pure=False)
                return attempt

    @contextmanager
    def _translated_errors(self, task: ReadingTask) -> Iterator[None]:
        try:
            yield
        except KilledWorker as error:
            raise InvalidTraceError(
                task.subject,
                found=f"content that ended {error.allowed_failures + 1} workers of the Dask cluster {self._address}",
                expected="a complete trace, and room in memory for reading it",
                remedy=f"Look at the log of the last worker, {error.last_worker.address}; give workers more memory (--memory-limit), "
                "or write or copy the file again.",
            ) from error
        except (OSError, FuturesCancelledError) as error:
            raise ClusterUnavailableError(
                f"Dask cluster {self._address}",
                found=str(error),
                expected="a scheduler that answers",
                remedy="Check that it runs and that setting analyzer.dask has its address, then import again.",
            ) from error
        except Exception as error:  # of Dask: what reading raises comes as a line
            raise ClusterMismatchError(
                f"Dask cluster {self._address}",
                found=f"{type(error).__name__}: {error}",
                expected=f"{self._versions} on its scheduler and on every worker",
                remedy="Install kernalyse[analyzer,cluster] of that version there.",
            ) from error


# ---------------------------------------------------------------- worker's side


def attempt_task(line: str, attempts: Path, versions: Versions) -> Attempt:
    """Execute the task of a line on a worker, with its rows in a new directory below `attempts`."""
    task = ReadingTask.of_line(line)
    directory = attempts / secrets.token_hex(8)
    try:
        _check_versions(versions)
        _check_files(task, attempts)
    except KernalyseError as error:
        return Attempt(error_line(error), directory.name)
    from kernalyse.services.analyzer.ingest.worker import answer  # the analyzer itself loads no readers

    return Attempt(answer(replace(task, directory=directory).line()), directory.name)


def _check_versions(versions: Versions) -> None:
    """Raise ClusterMismatchError unless this worker has these versions."""
    own = Versions.here()
    if own != versions:
        raise ClusterMismatchError(
            f"Dask worker on {socket.gethostname()}",
            found=str(own),
            expected=f"{versions}, as the analyzer has",
            remedy="Install the analyzer's version there, and start the worker again.",
        )


def _check_files(task: ReadingTask, attempts: Path) -> None:
    """Raise ClusterMismatchError unless this worker sees the files of the task and may write its rows."""
    traces = [path for trace in task.traces for path in (trace.path, *trace.companions.values(), trace.op_registry_directory) if path]
    missing = [path for path in (*traces, *task.staged) if not os.access(path, os.R_OK)]
    missing += [] if os.access(attempts, os.W_OK) else [attempts]
    if missing:
        raise ClusterMismatchError(
            f"path {missing[0]} on Dask worker {socket.gethostname()}",
            found="nothing there, or no right to use it",
            expected="the analyzer's own files at the same path",
            remedy="Put data_directory of the analyzer on a file system that all workers mount, and run them as its user.",
        )
