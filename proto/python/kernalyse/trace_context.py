"""The trace that calls of this context belong to, as W3C Trace Context writes it: calls of every channel carry it on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

HEADER: Final = "traceparent"
"""Key of a call's metadata, and in capitals the variable that programs are started with."""

PATTERN: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")

_traceparent: Final[ContextVar[str]] = ContextVar("traceparent", default="")


def current_traceparent() -> str:
    """Return the trace and the span around; empty: there is none."""
    return _traceparent.get()


@contextmanager
def carried(traceparent: str) -> Iterator[None]:
    """Have what the block does belong to a trace and span. What is not of the form of version 00, empty text too, means none."""
    token = _traceparent.set(traceparent if PATTERN.fullmatch(traceparent) else "")
    try:
        yield
    finally:
        _traceparent.reset(token)


def trace_ids(traceparent: str) -> tuple[str, str] | None:
    """Return the ids of trace and span; None: there are none."""
    found = PATTERN.fullmatch(traceparent)
    return None if found is None else (found[1], found[2])


def environment_traceparent(environment: Mapping[str, str] = os.environ) -> str:
    """Return what a program was started with; empty: nothing."""
    return environment.get(HEADER.upper(), "")


def trace_environment() -> dict[str, str]:
    """Return the variable for a program that is started within the span around; none without one."""
    return {HEADER.upper(): current_traceparent()} if current_traceparent() else {}
