"""What the first hundred bytes of an SQLite file say of it.

Source of the layout: https://www.sqlite.org/fileformat2.html, section 1.3.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, Final

from services.core.errors import InvalidTraceError

HEADER: Final = b"SQLite format 3\0"
HEADER_BYTES: Final = 100
UTF_8: Final = 1
LEAST_PAGE_SIZE: Final = 512


@dataclass(frozen=True, slots=True)
class SqliteHeader:
    """usable_size: page_size less what is reserved at the end of each page.

    is_of_log: newest pages may lie in a second file. is_full: all of the file counts, for SQLite knows no page past the stated count.
    """

    page_size: int
    usable_size: int
    is_of_log: bool
    is_utf_8: bool
    is_full: bool


def read_header(file: IO[bytes], name: str) -> SqliteHeader:
    """Raises InvalidTraceError: it is no SQLite file, or it is shorter than it says. SQLite itself notices a missing end late."""
    data = file.read(HEADER_BYTES)
    size = os.fstat(file.fileno()).st_size
    if len(data) < HEADER_BYTES or not data.startswith(HEADER):
        raise InvalidTraceError(f"file {name}", found="no header of SQLite", expected="an SQLite file", remedy="Export it again.")
    page_size = int.from_bytes(data[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    is_stated = data[24:28] == data[92:96]
    stated_size = int.from_bytes(data[28:32], "big") * page_size if is_stated else 0  # 0: by whoever wrote to it last, it is not
    if size < stated_size:
        raise InvalidTraceError(
            f"file {name}",
            found=f"{size} bytes",
            expected=f"{stated_size}, as its header says: its end is missing",
            remedy="Copy or export it again.",
        )
    return SqliteHeader(
        page_size,
        page_size - data[20],
        is_of_log=data[18] != 1,
        is_utf_8=data[56:60] == UTF_8.to_bytes(4, "big"),
        is_full=page_size >= LEAST_PAGE_SIZE and size == (stated_size or size // page_size * page_size),
    )
