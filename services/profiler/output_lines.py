"""Output of a program, cut into lines, within a limit, with its last lines kept."""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_LINE_BYTES: Final = 4096
MAX_LOG_BYTES: Final = 8 * 1024 * 1024
"""Of a run's output. A program that prints without end must not push other runs out of the journal."""

TAIL_LINE_COUNT: Final = 20
TAIL_BYTES: Final = 64 * 1024  # in which these are looked for


class OutputLines:
    """Turns the bytes of one stream into the lines to show.

    A carriage return takes back what stands before it, as on a terminal: of a progress bar the last state is shown.
    """

    def __init__(self) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINE_COUNT)
        self._rest = b""
        self._bytes_left = MAX_LOG_BYTES

    @property
    def tail(self) -> tuple[str, ...]:
        """Return the last lines so far, shown or not."""
        return tuple(self._tail)

    def take(self, data: bytes) -> tuple[str, ...]:
        """Return the lines that `data` completes, as long as the limit lets them through."""
        if self._bytes_left <= 0:  # a gigabyte more costs next to nothing: only its end will be looked at
            self._rest = (self._rest + data)[-TAIL_BYTES:]
            return ()
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            whole, self._rest = [*whole, self._rest], b""
        lines = self._kept(whole)
        self._bytes_left -= sum(map(len, whole)) + len(whole)  # with their ends: empty lines have a limit too
        return (*lines, f"Further output is left out: it has written {MAX_LOG_BYTES} bytes.") if self._bytes_left <= 0 else lines

    def end(self) -> tuple[str, ...]:
        """Return what the stream ended with: its last line without end and, where lines were left out, the last ones of them."""
        lines = self._kept(self._rest.removesuffix(b"\n").split(b"\n") if self._rest else [])
        self._rest = b""
        return ("It ended with:", *self.tail) if self._bytes_left <= 0 else lines

    def _kept(self, raw_lines: list[bytes]) -> tuple[str, ...]:
        lines = tuple(map(_text, raw_lines))
        self._tail.extend(lines)
        return lines


def _text(raw_line: bytes) -> str:
    return raw_line.rstrip(b"\r").rpartition(b"\r")[2][:MAX_LINE_BYTES].decode(errors="replace")
