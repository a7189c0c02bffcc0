"""Device memory of the NVCC backend: in one program at a time, and on its way from one to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from services.core.errors import InternalError, MemoryLimitError
from services.profiler.backends.base import check_copied
from services.profiler.backends.cuda_driver import PAGE_BYTES
from services.profiler.backends.measuring_program import MeasuringProgram
from services.profiler.backends.transfer_file import TransferFile


@dataclass(slots=True, eq=False)
class ProgramBuffer:
    """`size_bytes` that every program of a session can use, one after the other.

    home: the program that has the buffer on the device. waiting: contents that are newer than those in `home`, for its first
    `waiting_bytes` bytes.
    """

    number: int
    size_bytes: int
    home: MeasuringProgram | None = field(default=None, repr=False)
    waiting: TransferFile | None = field(default=None, repr=False)
    waiting_bytes: int = 0
    is_lost: bool = False  # its contents went with the program that had them

    def fill(self, values: npt.NDArray[np.generic]) -> None:
        """Set new contents. They wait for the next program that uses the buffer."""
        check_copied(values, self.size_bytes)
        if self.waiting is None:
            self.waiting = TransferFile()
        self.waiting.write(values)
        self.waiting_bytes = max(self.waiting_bytes, values.nbytes)
        self.is_lost = False

    def read(self, values: npt.NDArray[np.generic]) -> None:
        """Read the first bytes of the contents; zeros where nothing was ever written."""
        check_copied(values, self.size_bytes)
        self._check_not_lost()
        if self.home is not None and self.waiting_bytes < values.nbytes:
            contents = self._stored(self.home, values.nbytes)
            contents.read(values)
            contents.close()
            return
        if self.waiting is None:
            self.waiting = TransferFile()
        self.waiting.resize(self.size_bytes)
        self.waiting.read(values)

    def move_to(self, program: MeasuringProgram) -> None:
        """Put the buffer with its newest contents into `program`. Raises MemoryLimitError: the device has no room for it."""
        self._check_not_lost()
        if self.home is not program:
            self.recall()
            try:
                program.allocate(self.number, self.size_bytes)
            except MemoryLimitError as error:
                largest_bytes = program.free_bytes() // PAGE_BYTES * PAGE_BYTES
                raise MemoryLimitError(
                    error.subject,
                    found=f"{self.size_bytes} bytes asked for",
                    expected=f"1 to {largest_bytes} bytes, the largest that fits now",
                    remedy=error.remedy,
                ) from error
            self.home = program
        if self.waiting is not None:
            program.load(self.number, min(self.waiting_bytes, self.size_bytes), self.waiting.path)
            self._forget_waiting()

    def recall(self) -> None:
        """Take the buffer out of its program; the contents wait for another."""
        if self.home is None:
            return
        home, self.home = self.home, None
        if self.waiting_bytes < self.size_bytes:
            self.is_lost = True  # should the program be at its end
            self.waiting, self.waiting_bytes = self._stored(home, self.size_bytes), self.size_bytes
            self.is_lost = False
        home.release(self.number)

    def lose(self) -> None:
        """Forget the contents: the buffer's program has ended without a word."""
        self.home = None
        self.is_lost = self.waiting_bytes < self.size_bytes

    def release(self) -> None:
        home, self.home = self.home, None
        self._forget_waiting()
        if home is not None:
            home.release(self.number)

    def _stored(self, program: MeasuringProgram, size_bytes: int) -> TransferFile:
        """Return the first bytes of the buffer, which is in `program`."""
        if self.waiting is not None:
            program.load(self.number, self.waiting_bytes, self.waiting.path)
            self._forget_waiting()
        contents = TransferFile()
        program.store(self.number, size_bytes, contents.path)
        return contents

    def _forget_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.close()
        self.waiting, self.waiting_bytes = None, 0

    def _check_not_lost(self) -> None:
        if self.is_lost:
            raise InternalError("a buffer", found="contents that are gone with the program that had them", remedy="Upload it again.")
