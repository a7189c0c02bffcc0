"""A directory that stands for the user's own ones: no test reads or writes settings, token, store or services of whoever runs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.known_ceilings import FILE_NAME

DIRECTORIES: Final = {"XDG_CONFIG_HOME": "config", "XDG_DATA_HOME": "data", "XDG_RUNTIME_DIR": "run", "XDG_CACHE_HOME": "cache"}


@contextmanager
def private_directory() -> Iterator[Path]:
    """Holds while the block runs, for this process and those that it starts.

    It lies under the temporary directory of the machine, not of pytest: the path of a Unix socket has 107 bytes at most.
    """
    directory = Path(tempfile.mkdtemp(prefix="kn-"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        for variable, name in DIRECTORIES.items():
            (directory / name).mkdir(mode=0o700)
            monkeypatch.setenv(variable, str(directory / name))
        for variable in [name for name in os.environ if name.startswith("KERNALYSE_")]:
            monkeypatch.delenv(variable)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def know_ceilings(directory: Path, ceilings_file: Path) -> None:
    """Of this machine's devices, to profilers in this directory: else every sweep on a busy host measures them anew, for seconds."""
    caches = directory / "data" / "kernalyse" / "profiler" / "caches"
    caches.mkdir(parents=True)
    shutil.copy2(ceilings_file, caches / FILE_NAME)
