"""Events of a Kineto trace that are scanned while the rest of it is still being unpacked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from services.analyzer.readers.json_scan import Bytes
from services.analyzer.readers.kineto_scan import STOPPED
from services.analyzer.readers.kineto_stretch import Stretch, scan_events
from services.analyzer.readers.trace_bytes import TraceBytes

LIST_START: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A(?:\xef\xbb\xbf)?\s*\[')
SEARCHED_BYTES: Final = 1024 * 1024
"""For the list of events: what stands before it are some kilobytes."""

BLOCK_BYTES: Final = 8 * 1024 * 1024
"""Each stretch has tokens of its own, which are put together later: with smaller ones there is more of that."""

MARGIN_BYTES: Final = 256 * 1024
"""Left at the end of what is there, where an event may not be whole."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Stretches from where the list of events seems to start; whoever uses them knows whether it does. position: behind the last."""

    start: int
    stretches: tuple[Stretch, ...]

    @property
    def position(self) -> int:
        return self.stretches[-1].position if self.stretches else self.start


NOT_AHEAD: Final = Ahead(0, ())


def scanned_ahead(source: TraceBytes) -> Ahead:
    """Scans what there is, up to an event that is not whole yet when its turn comes, or that the scan leaves."""
    found = LIST_START.search(source.beyond(SEARCHED_BYTES)[:SEARCHED_BYTES].tobytes())
    if found is None:
        return NOT_AHEAD
    ahead = Ahead(found.end(), ())
    while True:
        data = read_only(source.beyond(ahead.position + BLOCK_BYTES))
        if source.is_whole:  # several threads do the rest sooner
            return ahead
        stretch = scan_events(data, ahead.position, data.size - MARGIN_BYTES)
        if stretch.status != STOPPED:
            return ahead
        ahead = Ahead(ahead.start, (*ahead.stretches, stretch))


def read_only(data: Bytes) -> Bytes:
    """Else what is compiled would be compiled once more, for arrays that may be written to."""
    data = data.view()
    data.flags.writeable = False
    return data
