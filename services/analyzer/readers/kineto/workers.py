"""Decoding of one chunk of the list of events, range by range, in this process or in a worker process.

Decoding holds the interpreter's lock, so using a second core needs a second process. The worker is started as a program (a fork would
copy gRPC's threads in an undefined state, and multiprocessing would import the user's own main module). It reads its chunk from
standard input and writes its columns to standard output. It ends after that, when its parent is gone, and when it is killed.
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
"""Size of the ranges that are decoded at once. Their objects take four times as much memory; below 1 MB the overhead of each range
shows."""

MAX_RANGE_BYTES: Final = 8 * RANGE_BYTES
"""A range grows until it holds a complete event. Longer events are left to json: a malicious file must not exhaust memory here."""

MAX_FAILURES: Final = 3
"""A range that does not decode was cut inside a string that looks like events, or is damaged. It is extended and tried again up to
this number of attempts."""

EVENT_START: Final = re.compile(rb'\}(\s*,\s*)\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args)"\s*:')
"""A place where one event seems to end and another one to start."""

SEARCHED_BYTES: Final = (64 * 1024, 1024 * 1024, MAX_RANGE_BYTES)
"""How far from the end of a range to search for the start of an event: most are some hundred bytes long, with stacks some
kilobytes."""


class DecodedChunk:
    """A decoded chunk of the list of events.

    decoder: holds the events. decoded_bytes: length of the decoded text, less than the chunk's if something else follows.
    """

    def __init__(self, decoder: EventDecoder, decoded_bytes: int) -> None:
        self.decoder = decoder
        self.decoded_bytes = decoded_bytes


def decode_chunk(read: Callable[[int], bytes], byte_count: int, is_wanted: Callable[[], bool] = lambda: True) -> DecodedChunk:
    """Decode events and the commas between them.

    Args:
        read: returns the requested number of next bytes, of which there are byte_count.
        byte_count: length of the chunk.
        is_wanted: called before each range; decoding stops when it returns False.
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
    return DecodedChunk(decoder, decoded_bytes)


def cut(text: bytes) -> tuple[int, int]:
    """Return where an event near the end of the text seems to end and where the next one seems to start; (0, 0) if none is found."""
    for searched_bytes in SEARCHED_BYTES:
        start = max(0, len(text) - searched_bytes)
        found = EVENT_START.search(text, start)
        if found is not None:
            return found.start(1), found.end(1)
        if start == 0:
            break
    return 0, 0


class WorkerProcess:
    """A process that decodes a chunk of a trace. The caller must end it."""

    def __init__(self, source: TraceBytes, start: int, stop: int) -> None:
        # -P: a directory named `services` in the user's current directory must not shadow the package.
        command = [sys.executable, "-P", "-m", PROGRAM, str(stop - start), str(os.getpid())]
        with source.stream(start, stop) as (file, feed):
            self._process = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        self._feeding = None if feed is None else Thread(target=feed, name="feed Kineto worker")
        if self._feeding is not None:
            self._feeding.start()

    def columns(self) -> EventColumns | None:
        """Return the events of the chunk; None if it holds something else, or if the process died."""
        assert self._process.stdout is not None
        with suppress(EOFError, pickle.UnpicklingError):
            found: EventColumns | None = pickle.load(self._process.stdout)
            return found
        return None

    @property
    def status(self) -> int | None:
        """The exit status, negative for the signal that ended the process; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Kill the process and release its resources."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._feeding is not None:
            self._feeding.join()


def main() -> None:
    """Decode standard input, whose length and the id of the parent process are the arguments."""
    byte_count, parent = int(sys.argv[1]), int(sys.argv[2])
    with suppress(BrokenPipeError):
        part = decode_chunk(sys.stdin.buffer.read, byte_count, lambda: os.getppid() == parent)
        pickle.dump(part.decoder.columns() if part.decoded_bytes == byte_count else None, sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
