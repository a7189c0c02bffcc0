"""Transfer of arrays between this process and a program that it drives."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt


class TransferFile:
    """A file in memory that has no name, but that a program of the same user can open through this process's descriptor.

    No folder has to have room for it, and nothing is left of it once both processes are gone, however they end.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("kernalyse-transfer", os.MFD_CLOEXEC)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def write(self, values: npt.NDArray[np.generic]) -> None:
        """Write the first bytes. Raises MemoryError: this machine has no room for them."""
        data, written = _bytes_of(values), 0
        try:
            while written < len(data):  # one call writes 2 GiB at most
                written += os.pwrite(self._file, data[written:], written)
        except OSError as error:
            raise MemoryError(str(error)) from error

    def resize(self, size_bytes: int) -> None:
        """Resize the file. What is new reads as zeros."""
        os.ftruncate(self._file, size_bytes)

    def read(self, values: npt.NDArray[np.generic]) -> None:
        """Fill the array with its first bytes. Raises EOFError when there are too few."""
        data, filled = _bytes_of(values), 0
        while filled < len(data):
            count = os.preadv(self._file, [data[filled:]], filled)
            if count == 0:
                raise EOFError(f"{filled} bytes, expected {len(data)}")
            filled += count

    def close(self) -> None:
        os.close(self._file)


def _bytes_of(values: npt.NDArray[np.generic]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data  # not that of the array itself: bfloat16 knows no buffer protocol
