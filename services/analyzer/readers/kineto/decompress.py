"""Access to the bytes of a trace, which are read from a plain file and unpacked in memory from a compressed one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kernalyse.services.analyzer.readers.base import GZIP_MAGIC, TraceFiles
from kernalyse.services.core.errors import InvalidTraceError, LimitReachedError

# isal is optional: it unpacks in two thirds of the time.
inflating: Final[Any] = zlib if importlib.util.find_spec("isal") is None else importlib.import_module("isal.isal_zlib")

GZIP_WINDOW: Final = 31  # with a gzip header and its checksum
BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Size of the blocks that are unpacked at once: smaller ones cost a call each, larger ones leave the processor's cache."""

MAX_UNPACKED_BYTES: Final = 16 * 1024**3
"""Size limit of a compressed trace, which is unpacked into memory. Traces of a minute of training are of this size."""

MAX_EXPANSION_RATIO: Final = 300
"""Unpacked over packed size. Traces have 15 to 40; a decompression bomb has a thousand."""

ALWAYS_UNPACKED_BYTES: Final = 64 * 1024 * 1024
"""Below this size the ratio is not checked: a short trace of equal events compresses better than any long one."""


def is_packed(head: bytes) -> bool:
    """Return whether a file with this beginning is compressed."""
    return head.startswith(GZIP_MAGIC)


def unpacked_head(head: bytes, byte_count: int) -> bytes:
    """Return the unpacked beginning of a file, as far as `head` goes; empty if the file is damaged."""
    if not is_packed(head):
        return head[:byte_count]
    try:
        return zlib.decompressobj(GZIP_WINDOW).decompress(head, byte_count)
    except zlib.error:
        return b""


class TraceBytes(Protocol):
    """The unpacked bytes of a trace."""

    size: int

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from start up to stop, or up to the end."""

    @contextmanager
    def stream(self, start: int, stop: int) -> Iterator[tuple[IO[bytes] | int, Callable[[], None] | None]]:
        """Open the bytes from start to stop as standard input of another process.

        Yields:
            The input, and a function that a thread has to call meanwhile to write the bytes; None if nothing has to be written.
        """


class PlainBytes:
    """The bytes of an uncompressed file. It is not mapped, since mapped pages would count as memory of the process."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from start up to stop, or up to the end."""
        blocks = []
        while start < stop and (block := os.pread(self._file.fileno(), stop - start, start)):
            blocks.append(block)
            start += len(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    @contextmanager
    def stream(self, start: int, stop: int) -> Iterator[tuple[IO[bytes] | int, Callable[[], None] | None]]:
        """Open the file itself at `start`; the other process must stop by itself at `stop`."""
        with Path(f"/proc/self/fd/{self._file.fileno()}").open("rb", buffering=0) as file:  # the same file, with a position of its own
            file.seek(start)
            yield file, None


class UnpackedBytes:
    """The bytes of a compressed file, unpacked in memory."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data
        self.size = data.size

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from start up to stop, or up to the end."""
        return self._data[start:stop].tobytes()

    @contextmanager
    def stream(self, start: int, stop: int) -> Iterator[tuple[IO[bytes] | int, Callable[[], None] | None]]:
        """Open a pipe, and return a function that writes the bytes to it."""
        reading, writing = os.pipe()

        def feed() -> None:
            with os.fdopen(writing, "wb", buffering=0) as file, suppress(BrokenPipeError):  # the process ended: its output shows why
                rest = self._data[start:stop].data
                while rest:
                    rest = rest[file.write(rest) :]

        try:
            yield reading, feed
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)


@contextmanager
def trace_bytes(files: TraceFiles) -> Iterator[TraceBytes]:
    """Yield the unpacked bytes, which are readable until the block ends.

    Raises:
        InvalidTraceError: the file is empty, or its compression is damaged.
        LimitReachedError: it unpacks to more than the limits allow.
    """
    with files.path.open("rb", buffering=0) as file:
        head = os.pread(file.fileno(), len(GZIP_MAGIC), 0)
        if not head:
            raise _damaged(files, "nothing in it")
        yield UnpackedBytes(_unpacked(files, PlainBytes(file))) if is_packed(head) else PlainBytes(file)


def _unpacked(files: TraceFiles, packed: PlainBytes) -> NDArray[np.uint8]:
    # The end of the file states the unpacked size. If it is wrong, the buffer grows.
    (expected_bytes,) = struct.unpack("<I", packed.read(packed.size - 4, packed.size).rjust(4, b"\0"))
    buffer = np.empty(max(BLOCK_BYTES, min(int(expected_bytes), _limit_bytes(packed.size))), dtype=np.uint8)
    size = 0
    for block in _blocks(files, packed):
        if size + len(block) > buffer.size:
            larger = np.empty(max(size + len(block), 2 * buffer.size), dtype=np.uint8)
            larger[:size] = buffer[:size]
            buffer = larger
        buffer[size : size + len(block)] = np.frombuffer(block, dtype=np.uint8)
        size += len(block)
        _check_expansion(files, packed.size, size)
    return buffer[:size]


def _blocks(files: TraceFiles, packed: PlainBytes) -> Iterator[bytes]:
    size = position = 0
    unpacking: Any = None
    try:
        while position < packed.size:
            rest = packed.read(position, position + BLOCK_BYTES)
            if unpacking is None:
                if not is_packed(rest):
                    break  # padding after the last member, which gzip ignores too
                unpacking = inflating.decompressobj(GZIP_WINDOW)
            position += len(rest)
            while rest and not unpacking.eof:
                block = unpacking.decompress(rest, BLOCK_BYTES)
                rest = unpacking.unconsumed_tail
                size += len(block)
                yield block
            if unpacking.eof:
                position -= len(unpacking.unused_data)
                unpacking = None
    except (zlib.error, inflating.error) as error:
        raise _damaged(files, f"gzip data that cannot be unpacked after {size} bytes: {error}") from error
    if unpacking is not None:
        raise _damaged(files, f"gzip data that ends after {size} unpacked bytes, without its checksum")


def _limit_bytes(packed_bytes: int) -> int:
    return min(MAX_UNPACKED_BYTES, max(ALWAYS_UNPACKED_BYTES, MAX_EXPANSION_RATIO * packed_bytes))


def _check_expansion(files: TraceFiles, packed_bytes: int, unpacked_bytes: int) -> None:
    limit_bytes = _limit_bytes(packed_bytes)
    if unpacked_bytes > limit_bytes:
        raise LimitReachedError(
            f"file {files.file_name}",
            found=f"{packed_bytes} bytes that unpack to more than {limit_bytes}",
            expected=f"at most {MAX_EXPANSION_RATIO} times their size and {MAX_UNPACKED_BYTES} bytes",
            remedy="Unpack it yourself if it is a trace, and give the unpacked file.",
        )


def _damaged(files: TraceFiles, found: str) -> InvalidTraceError:
    return InvalidTraceError(f"file {files.file_name}", found=found, expected="a complete trace", remedy="Write or copy the file again.")
