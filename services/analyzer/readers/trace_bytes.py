"""The bytes of a trace: mapped where the file holds them plainly, unpacked in memory where it is compressed."""

from __future__ import annotations

import importlib
import importlib.util
import mmap
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

GZIP_MAGIC: Final = b"\x1f\x8b"
GZIP_WINDOW: Final = 31  # with a gzip header and its checksum
BLOCK_BYTES: Final = 16 * 1024 * 1024

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


@contextmanager
def trace_bytes(files: TraceFiles) -> Iterator[NDArray[np.uint8]]:
    """The unpacked bytes, readable until the block ends.

    Raises:
        InvalidTraceError: empty, or damaged compression; names what is wrong with it.
        LimitReachedError: it unpacks to more than is taken.
    """
    with files.path.open("rb") as file:
        if file.seek(0, 2) == 0:
            raise _damaged(files, "nothing in it")
        # Never closed by hand: that fails while something still looks at it. It goes with the last view of it.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    yield np.frombuffer(_unpacked(files, mapped) if is_packed(mapped[: len(GZIP_MAGIC)]) else mapped, dtype=np.uint8)


def _unpacked(files: TraceFiles, packed: mmap.mmap) -> bytearray:
    unpacked = bytearray()
    position = 0
    unpacking: Any = None
    try:
        while position < len(packed):
            if unpacking is None:
                if not is_packed(packed[position : position + len(GZIP_MAGIC)]):
                    break  # what follows a member and is none: padding, which gzip ignores too
                unpacking = inflating.decompressobj(GZIP_WINDOW)
            block = packed[position : position + BLOCK_BYTES]
            position += len(block)
            while block and not unpacking.eof:
                unpacked += unpacking.decompress(block, BLOCK_BYTES)
                block = unpacking.unconsumed_tail
                _check_expansion(files, len(packed), len(unpacked))
            if unpacking.eof:
                position -= len(unpacking.unused_data)
                unpacking = None
    except (zlib.error, inflating.error) as error:
        raise _damaged(files, f"gzip data that cannot be unpacked after {len(unpacked)} bytes: {error}") from error
    if unpacking is not None:
        raise _damaged(files, f"gzip data that ends after {len(unpacked)} unpacked bytes, without its checksum")
    return unpacked


def _check_expansion(files: TraceFiles, packed_bytes: int, unpacked_bytes: int) -> None:
    limit_bytes = min(MAX_UNPACKED_BYTES, max(ALWAYS_UNPACKED_BYTES, MAX_EXPANSION_RATIO * packed_bytes))
    if unpacked_bytes > limit_bytes:
        raise LimitReachedError(
            f"file {files.file_name}",
            found=f"{packed_bytes} bytes that unpack to more than {limit_bytes}",
            expected=f"at most {MAX_EXPANSION_RATIO} times their size and {MAX_UNPACKED_BYTES} bytes",
            remedy="Unpack it yourself if it is a trace, and give the unpacked file.",
        )


def _damaged(files: TraceFiles, found: str) -> InvalidTraceError:
    return InvalidTraceError(f"file {files.file_name}", found=found, expected="a whole trace", remedy="Write or copy the file again.")
