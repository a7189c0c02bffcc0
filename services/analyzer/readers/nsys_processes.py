"""Processes of an export of Nsight Systems: their ids, and which one each event is of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Self

import numpy as np

from services.analyzer.correlation import Integers, coded
from services.analyzer.readers.nsys_events import Events
from services.analyzer.readers.nsys_numbers import process_id, process_keys
from services.analyzer.readers.sqlite_pages import NULL_INTEGER


@dataclass(frozen=True, slots=True)
class Processes:
    """By code: keys as events have them, and ids. NULL_INTEGER: not stated."""

    keys: tuple[int, ...]
    ids: Integers

    @classmethod
    def of(cls, named_keys: set[int], of_device: tuple[Events, ...], of_host: tuple[Events, ...]) -> Self:
        """Those of all events, each of which is told its code.

        Args:
            named_keys: processes that the file names, with or without events.
        """
        parts = (*of_device, *of_host)
        columns = [process_keys(part.column("globalPid" if part in of_device else "globalTid")) for part in parts]
        found = coded(*columns)
        for part, column in zip(parts, found, strict=True):
            part.process = column.codes
        keys = max((column.keys.tolist() for column in found), key=len)
        # The system's number, unless two machines of one recording have processes of the same.
        counts = Counter(process_id(key) for key in {*keys, *named_keys} if key != NULL_INTEGER)
        ids = [key if key == NULL_INTEGER or counts[process_id(key)] > 1 else process_id(key) for key in keys]
        return cls(tuple(keys), np.array(ids, dtype=np.int64))
