"""The bytes of a trace: mapped where the file holds them plainly, unpacked in memory where it is compressed."""

from __future__ import annotations

import importlib
import importlib.util
import mmap
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.analyzer.readers.trace import TraceFiles
from services.core.errors import InvalidTraceError, LimitReachedError

# isal unpacks in two thirds of the time; without it everything works the same.
inflating: Final[Any] = zlib if importlib.util.find_spec("isal") is None else importlib.import_module("isal.isal_zlib")

Bytes = NDArray[np.uint8]

GZIP_MAGIC: Final = b"\x1f\x8b"
GZIP_WINDOW: Final = 31  # with a gzip header and its checksum
BLOCK_BYTES: Final = 4 * 1024 * 1024
"""What is unpacked is scanned in blocks of this size: smaller ones cost a call each, larger ones a longer wait for the first."""

MAX_UNPACKED_BYTES: Final = 16 * 1024**3
"""Of a compressed trace, which has to be held in memory whole. Traces of a minute of training are of this size."""

MAX_EXPANSION_RATIO: Final = 300
"""Unpacked over packed. Traces have 15 to 40; a file made to exhaust memory has a thousand."""

ALWAYS_UNPACKED_BYTES: Final = 64 * 1024 * 1024
"""Up to here the ratio does not matter: a short trace of equal events compresses better than any long one."""


def is_packed(head: bytes) -> bool:
    return head.startswith(GZIP_MAGIC)


def unpacked_head(head: bytes, byte_count: int) -> bytes:
    """What a file begins with once unpacked; as much as `head` tells of it. Empty when it is damaged."""
    if not is_packed(head):
        return head[:byte_count]
    try:
        return zlib.decompressobj(GZIP_WINDOW).decompress(head, byte_count)
    except zlib.error:
        return b""


class TraceBytes:
    """The unpacked bytes of a trace. They may still arrive."""

    def __init__(self, buffer: Bytes, *, size: int, is_whole: bool) -> None:
        self._buffer = buffer
        self._size = size
        self._is_whole = is_whole
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    @property
    def is_whole(self) -> bool:
        """Whether no more comes."""
        return self._is_whole

    def beyond(self, size: int) -> Bytes:
        """As soon as there are more bytes than that, or no more come: those that are there, from the first on."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_whole or self._size > size)
            return self._buffer[: self._size]

    def whole(self) -> Bytes:
        """Waits for all of them. Raises what `trace_bytes` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_whole)
            if self._error is not None:
                raise self._error
            return self._buffer[: self._size]

    def add(self, block: bytes) -> None:
        size = self._size + len(block)
        buffer = self._buffer
        if size > buffer.size:  # those who look at the old one find the same bytes in the same places
            buffer = np.empty(max(size, 2 * buffer.size), dtype=np.uint8)
            buffer[: self._size] = self._buffer[: self._size]
        buffer[self._size : size] = np.frombuffer(block, dtype=np.uint8)
        with self._changed:
            self._buffer, self._size = buffer, size
            self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._is_whole, self._error = True, error
            self._changed.notify_all()


@contextmanager
def trace_bytes(files: TraceFiles) -> Iterator[TraceBytes]:
    """The unpacked bytes, readable until the block ends. What is compressed is unpacked meanwhile, by a thread of its own.

    Raises (the last two where the whole is asked for):
        InvalidTraceError: empty, or damaged compression; names what is wrong with it.
        LimitReachedError: it unpacks to more than is taken.
    """
    with files.path.open("rb") as file:
        if file.seek(0, 2) == 0:
            raise _damaged(files, "nothing in it")
        # Never closed by hand: that fails while something still looks at it. It goes with the last view of it.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if not is_packed(mapped[: len(GZIP_MAGIC)]):
        yield TraceBytes(np.frombuffer(mapped, dtype=np.uint8), size=len(mapped), is_whole=True)
        return
    unpacked = TraceBytes(np.empty(_expected_bytes(mapped), dtype=np.uint8), size=0, is_whole=False)
    is_left = threading.Event()
    thread = threading.Thread(target=_unpack, args=(files, mapped, unpacked, is_left), name="unpack trace")
    thread.start()
    try:
        yield unpacked
    finally:
        is_left.set()
        thread.join()


def _expected_bytes(packed: mmap.mmap) -> int:
    """As the end of the file says; it may be wrong, and then the buffer grows."""
    (said,) = struct.unpack("<I", packed[-4:].rjust(4, b"\0"))
    return max(BLOCK_BYTES, min(int(said), _limit_bytes(len(packed))))


def _unpack(files: TraceFiles, packed: mmap.mmap, unpacked: TraceBytes, is_left: threading.Event) -> None:
    """Ends with the error, if there is one: whoever waits for the whole raises it."""
    try:
        size = 0
        for block in _blocks(files, packed):
            size += len(block)
            _check_expansion(files, len(packed), size)
            unpacked.add(block)
            if is_left.is_set():
                break
        unpacked.end()
    except BaseException as error:
        unpacked.end(error)


def _blocks(files: TraceFiles, packed: mmap.mmap) -> Iterator[bytes]:
    size = position = 0
    unpacking: Any = None
    try:
        while position < len(packed):
            if unpacking is None:
                if not is_packed(packed[position : position + len(GZIP_MAGIC)]):
                    break  # what follows a member and is none: padding, which gzip ignores too
                unpacking = inflating.decompressobj(GZIP_WINDOW)
            rest = packed[position : position + BLOCK_BYTES]
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
    return InvalidTraceError(f"file {files.file_name}", found=found, expected="a whole trace", remedy="Write or copy the file again.")
