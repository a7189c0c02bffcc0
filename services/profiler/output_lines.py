"""What a program prints, cut into lines, within a limit, with its last words kept."""

from __future__ import annotations

from collections import deque
from typing import Final

MAX_LINE_BYTES: Final = 4096
MAX_LOG_BYTES: Final = 8 * 1024 * 1024
"""Of a run's output. A program that prints without end must not push other runs out of the journal."""

TAIL_LINE_COUNT: Final = 20


class OutputLines:
    """Turns the bytes of one stream into the lines to show.

    A carriage return takes back what stands before it, as on a terminal: of a progress bar the last state is shown.
    """

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINE_COUNT)  # of all lines, shown or not
        self._rest = b""
        self._bytes_left = MAX_LOG_BYTES

    def take(self, data: bytes) -> tuple[str, ...]:
        """The lines that `data` completes, as long as the limit lets them through."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            whole, self._rest = [*whole, self._rest], b""
        return self._shown(whole)

    def end(self) -> tuple[str, ...]:
        """What the stream ended with: its last line without end and, where lines were left out, the last ones of them."""
        was_over = self._bytes_left <= 0
        rest, self._rest = self._rest, b""
        lines = self._shown([rest] if rest else [])
        return ("It ended with:", *self.tail) if was_over else lines

    def _shown(self, raw_lines: list[bytes]) -> tuple[str, ...]:
        if self._bytes_left <= 0:
            self.tail.extend(map(_text, raw_lines[-TAIL_LINE_COUNT:]))  # the others cost nothing more
            return ()
        lines = list(map(_text, raw_lines))
        self.tail.extend(lines)
        self._bytes_left -= sum(map(len, raw_lines)) + len(raw_lines)  # with their ends: empty lines have a limit too
        if self._bytes_left <= 0:
            lines.append(f"Further output is left out: it has written {MAX_LOG_BYTES} bytes.")
        return tuple(lines)


def _text(raw_line: bytes) -> str:
    return raw_line.rstrip(b"\r").rpartition(b"\r")[2][:MAX_LINE_BYTES].decode(errors="replace")
