"""What both sides of NVBench's format share: the reader takes back what the writer has put in."""

from __future__ import annotations

from typing import Final

NO_VALUE: Final = "-"
"""In files that kernalyse wrote: of an axis that the configuration has not got, and others of its kernel have."""

INTERQUARTILE_TAGS: Final = tuple(f"nv/cold/time/gpu/{name}/{kind}" for name in ("iqr", "ir") for kind in ("absolute", "relative"))
"""They follow from median and quartiles. The name changed: NVBench's tools of 2026 read the one or the other."""
