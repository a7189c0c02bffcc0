"""Processes and threads of an export of Nsight Systems: their ids, and which one each event is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from services.analyzer.correlation import Coded, Indexes, Integers
from services.analyzer.readers.nsys_events import Events
from services.analyzer.readers.nsys_numbers import PROCESS_SHIFT, process_id
from services.analyzer.readers.sqlite_pages import NULL_INTEGER


@dataclass(slots=True)
class Processes:
    """By code, in order of first mention. NULL_INTEGER: not stated.

    named_keys: processes that the file names, with or without events.
    """

    named_keys: Collection[int]
    _codes: dict[int, int] = field(default_factory=dict)
    _threads: dict[int, int] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[int, ...]:
        """As events have them."""
        return tuple(self._codes)

    @property
    def ids(self) -> Integers:
        """The system's number, unless two machines of one recording have processes of the same."""
        counts = Counter(process_id(key) for key in {*self._codes, *self.named_keys} if key != NULL_INTEGER)
        ids = [key if key == NULL_INTEGER or counts[process_id(key)] > 1 else process_id(key) for key in self._codes]
        return np.array(ids, dtype=np.int64)

    def tell_device(self, *parts: Events) -> None:
        """Tells events the code of their process."""
        for part in parts:
            found = part.codes("globalPid")
            part.process = self._coded(found)

    def tell_host(self, *parts: Events) -> None:
        """Tells events the codes of their process and thread."""
        for part in parts:
            found = part.codes("globalTid")
            part.thread = _translated(found.codes, [self._threads.setdefault(key, len(self._threads)) for key in found.keys.tolist()])
            part.process = self._coded(found)

    def _coded(self, found: Coded) -> Indexes:
        keys = (key if key == NULL_INTEGER else key >> PROCESS_SHIFT for key in found.keys.tolist())
        return _translated(found.codes, [self._codes.setdefault(key, len(self._codes)) for key in keys])


def _translated(codes: Indexes, table: list[int]) -> Indexes:
    """table[code]; the codes themselves where that changes nothing."""
    return codes if all(place == code for code, place in enumerate(table)) else np.array(table, dtype=np.int32)[codes]
