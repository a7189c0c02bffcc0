"""Decoding of a part of the list of events: range by range, in this process or in one of its own.

Decoding holds the interpreter's lock, so that a second core needs a second process. That one is started as a program (a fork would
take gRPC's threads along half-way, and multiprocessing would import the user's own main module), reads its part from standard input
and answers with its columns on standard output. It ends when it has answered, when its parent is gone, and when it is killed.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final

from kernalyse.services.analyzer.readers.kineto.decompress import TraceBytes
from kernalyse.services.analyzer.readers.kineto.events import EventColumns, EventDecoder

PROGRAM: Final = "kernalyse.services.analyzer.readers.kineto.workers"

RANGE_BYTES: Final = 8 * 1024 * 1024
"""Decoded at once. Its objects take four times as much memory; with less than 1 MB, what is done once for each range shows."""

MAX_RANGE_BYTES: Final = 8 * RANGE_BYTES
"""A range grows until it holds a whole event. Longer ones are left to json: a file made to exhaust memory must not do it here."""

MAX_FAILURES: Final = 3
"""A range that does not decode was cut within a text that looks like events, or is damaged. It grows so many times less one."""

EVENT_START: Final = re.compile(rb'\}(\s*,\s*)\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args)"\s*:')
"""Where one event seems to end and another one to start."""

SEARCHED_BYTES: Final = (64 * 1024, 1024 * 1024, MAX_RANGE_BYTES)
"""Of the end of a range, for the start of an event: most are some hundred bytes long, those of stacks some kilobytes."""


class EventsPart:
    """A part of the list of events that was decoded.

    decoder: has the events. decoded_bytes: up to where they go; less than the part has where something else follows.
    """

    def __init__(self, decoder: EventDecoder, decoded_bytes: int) -> None:
        self.decoder = decoder
        self.decoded_bytes = decoded_bytes


def decode_part(read: Callable[[int], bytes], byte_count: int, is_wanted: Callable[[], bool] = lambda: True) -> EventsPart:
    """Decode events and the commas between them.

    Args:
        read: returns that many of the next bytes, of which there are byte_count.
        is_wanted: asked before each range; when it says no, the rest is left.
    """
    decoder = EventDecoder()
    text = b""
    decoded_bytes = failure_count = 0
    unread_bytes = byte_count
    while is_wanted():
        block = read(min(RANGE_BYTES, unread_bytes))
        unread_bytes -= len(block)
        text = text + block if text else block
        end, next_start = cut(text) if unread_bytes > 0 else (len(text), len(text))
        if end > 0 or unread_bytes == 0:
            if decoder.decode(memoryview(text)[:end]):
                decoded_bytes += next_start
                text = text[next_start:]
                failure_count = 0
            else:
                failure_count += 1
        if unread_bytes == 0 or failure_count == MAX_FAILURES or len(text) > MAX_RANGE_BYTES:
            break
    return EventsPart(decoder, decoded_bytes)


def cut(text: bytes) -> tuple[int, int]:
    """Return where the last event but some seems to end and where the next one seems to start; (0, 0) if no event seems to."""
    for searched_bytes in SEARCHED_BYTES:
        start = max(0, len(text) - searched_bytes)
        found = EVENT_START.search(text, start)
        if found is not None:
            return found.start(1), found.end(1)
        if start == 0:
            break
    return 0, 0


class WorkerProcess:
    """A process that decodes a part of a trace. To be ended by whoever started it."""

    def __init__(self, source: TraceBytes, start: int, stop: int) -> None:
        # -P: a folder named `services` where the user stands must not hide the package.
        command = [sys.executable, "-P", "-m", PROGRAM, str(stop - start), str(os.getpid())]
        with source.stream(start, stop) as (file, feed):
            self._process = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        self._feeding = None if feed is None else Thread(target=feed, name="feed Kineto worker")
        if self._feeding is not None:
            self._feeding.start()

    def columns(self) -> EventColumns | None:
        """Return the events of the part; None where it is something else, or the process died of it."""
        assert self._process.stdout is not None
        with suppress(EOFError, pickle.UnpicklingError):
            found: EventColumns | None = pickle.load(self._process.stdout)
            return found
        return None

    @property
    def status(self) -> int | None:
        """Its exit status; less than 0: the signal that ended it. None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """At once, whatever it does."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._feeding is not None:
            self._feeding.join()


def main() -> None:
    """Decode what standard input holds; a reader's process is told how many bytes, and of which process it is."""
    byte_count, parent = int(sys.argv[1]), int(sys.argv[2])
    with suppress(BrokenPipeError):
        part = decode_part(sys.stdin.buffer.read, byte_count, lambda: os.getppid() == parent)
        pickle.dump(part.decoder.columns() if part.decoded_bytes == byte_count else None, sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
