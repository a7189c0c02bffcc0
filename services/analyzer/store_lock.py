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
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise StoreLockedError(
                f"store {path.parent}",
                found=f"in use by process {holder}",
                expected="a store that no other analyzer has open",
                remedy=f"Use that analyzer, stop it (kill {holder}), or choose another data folder.",
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        os.close(self._descriptor)
