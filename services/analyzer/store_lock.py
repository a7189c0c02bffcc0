"""Only one process opens a store."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from services.core.errors import StoreLockedError


class StoreLock:
    """Held from construction to `release`; the operating system lets go when the process dies, however it dies.

    Raises:
        StoreLockedError: another process has it; names its id.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise StoreLockedError(
                f"store {path.parent}",
                found=f"in use by process {holder}",
                expected="a store that no other analyzer has open",
                remedy=f"Use that analyzer, stop it (kill {holder}), or choose another data folder.",
            ) from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Does nothing the second time."""
        self._file.close()
