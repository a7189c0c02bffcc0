"""Processes and threads of an export of Nsight Systems: their ids, and which one each event is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from services.analyzer.correlation import Indexes, Integers
from services.analyzer.readers.nsys_events import Events
from services.analyzer.readers.nsys_numbers import PROCESS_SHIFT, process_id
from services.analyzer.readers.sqlite_pages import NULL_INTEGER


@dataclass(frozen=True, slots=True)
class Processes:
    """By code: keys as events have them, and ids. NULL_INTEGER: not stated."""

    keys: tuple[int, ...]
    ids: Integers

    @classmethod
    def of(cls, named_keys: Iterable[int], of_device: Sequence[Events], of_host: Sequence[Events]) -> Self:
        """Those of all events, each of which is told the code of its process, and on the host of its thread.

        Args:
            named_keys: processes that the file names, with or without events.
        """
        coding = _Coding()
        coding.tell(of_device, "globalPid")
        coding.tell(of_host, "globalTid")
        keys = tuple(coding.codes)
        # The system's number, unless two machines of one recording have processes of the same.
        counts = Counter(process_id(key) for key in {*keys, *named_keys} if key != NULL_INTEGER)
        ids = [key if key == NULL_INTEGER or counts[process_id(key)] > 1 else process_id(key) for key in keys]
        return cls(keys, np.array(ids, dtype=np.int64))


@dataclass(slots=True)
class _Coding:
    """codes: of process keys."""

    codes: dict[int, int] = field(default_factory=dict)

    def tell(self, parts: Sequence[Events], column: str) -> None:
        threads: dict[int, int] = {}
        for part in parts:
            found = part.codes(column)
            keys = found.keys.tolist()
            part.thread = _translated(found.codes, [threads.setdefault(key, len(threads)) for key in keys])
            process_keys = [key if key == NULL_INTEGER else key >> PROCESS_SHIFT for key in keys]
            part.process = _translated(found.codes, [self.codes.setdefault(key, len(self.codes)) for key in process_keys])


def _translated(codes: Indexes, table: list[int]) -> Indexes:
    """table[code]; the codes themselves where that changes nothing."""
    return codes if all(place == code for code, place in enumerate(table)) else np.array(table, dtype=np.int32)[codes]
