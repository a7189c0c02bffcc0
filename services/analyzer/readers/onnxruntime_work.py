"""What launches of an ONNX model have to do, from the operators and shapes of their nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from services.analyzer.trace_tables import LAUNCH_WORK
from services.core.work.kinds import MODELLED, Work
from services.core.work.onnx_call import OnnxCall
from services.core.work.onnx_models import onnx_work

PATH = "fma"


@dataclass(slots=True)
class NodeWork:
    """Adds up what the executions of each node do and how long its launches take. A key tells nodes apart."""

    _models: dict[OnnxCall, Work | None] = field(default_factory=dict)
    _executions: dict[int, list[Work | None]] = field(default_factory=lambda: defaultdict(list))

    def add_execution(self, key: int, arguments: Mapping[str, Any]) -> None:
        """arguments: of its event."""
        call = OnnxCall.recorded(arguments)
        if call is not None and call not in self._models:
            self._models[call] = onnx_work(call)
        self._executions[key].append(None if call is None else self._models[call])

    def rows(self, keys: Sequence[int | None], durations_ns: Sequence[int]) -> pl.DataFrame:
        """Table launch_work: of several launches with one key each has its part, by the times that they take.

        Args:
            keys, durations_ns: of the launches in their order; None: of no node.
        """
        totals: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for key, duration_ns in zip(keys, durations_ns, strict=True):
            if key is not None:
                totals[key][0] += duration_ns
                totals[key][1] += 1
        return LAUNCH_WORK.own_rows(self._rows(keys, durations_ns, totals))

    def _rows(self, keys: Sequence[int | None], durations_ns: Sequence[int], totals: Mapping[int, list[int]]) -> Iterator[dict[str, Any]]:
        for index, (key, duration_ns) in enumerate(zip(keys, durations_ns, strict=True)):
            parts = [] if key is None else self._executions.get(key, [])
            known = [part for part in parts if part is not None]
            if key is None or not known or len(known) < len(parts):
                continue
            total_ns, count = totals[key]
            share = duration_ns / total_ns if total_ns else 1 / count
            yield {
                "launch_index": index,
                "flop": _total([part.flop for part in known], share),
                "bytes": _total([part.bytes for part in known], share),
                "dtype": known[0].dtype,
                "path": PATH,
                "work_source": MODELLED,
            }


def _total(amounts: Sequence[float | None], share: float) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) * share if len(known) == len(amounts) else None
