"""What `kernalyse.bench` and `kernalyse.compare` answer with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.callables.record import Record
from services.core.model import Configuration, Device, Measurement, PairedComparison
from services.core.quantities import duration, median_with_interval, percentage, rate

if TYPE_CHECKING:
    from kernalyse.client import Client
    from kernalyse.runs import Run as ClientRun


@dataclass(frozen=True, slots=True)
class Bench:
    """A measured function.

    Attributes:
        label: its name and parameters.
        timed_by: whose clock: "CUDA events on the current stream of PyTorch", or the host's.
        notice: what that clock does not tell.
        configuration, measurement: all figures, as the tables of those names have them.
    """

    configuration: Configuration
    measurement: Measurement
    device: Device
    timed_by: str
    notice: str
    _record: Record = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        return self.configuration.label

    @property
    def median_ns(self) -> float:
        return self.measurement.duration_median_ns

    @property
    def median_interval_ns(self) -> tuple[float, float]:
        """Of the median, at 95 %."""
        return self.measurement.duration_median_low_ns, self.measurement.duration_median_high_ns

    @property
    def stop_reason(self) -> str:
        return self.measurement.stop_reason.value

    @property
    def flop_per_s(self) -> float | None:
        return None if self.configuration.flop is None else self.configuration.flop / self.median_ns * 1e9

    @property
    def bytes_per_s(self) -> float | None:
        return None if self.configuration.bytes is None else self.configuration.bytes / self.median_ns * 1e9

    def samples_ns(self) -> npt.NDArray[np.float64]:
        """All samples in the order taken, shape (n,); throttled ones, which do not count, left out."""
        batches = self._record.batches(self.configuration.configuration_index)
        return np.concatenate([np.delete(batch.duration_ns, batch.discarded_positions) for batch in batches])

    def save(self, path: Path | str) -> Path:
        """Writes the results document (docs/results_json.md). Needs the extra analyzer."""
        return self._record.save(Path(path))

    def send(self, client: Client) -> ClientRun:
        """Stores it in the analyzer as a run, which the dashboard shows like any other. Needs the extra analyzer."""
        return self._record.send(client)

    def __repr__(self) -> str:
        measured = self.measurement
        per_sample = "" if measured.launches_per_sample == 1 else f" of {measured.launches_per_sample} calls"
        discarded = f", {measured.discarded_sample_count} discarded" if measured.discarded_sample_count else ""
        rates = [rate(self.flop_per_s, "FLOP/s"), rate(self.bytes_per_s, "B/s")]
        known = [text for text, value in zip(rates, (self.flop_per_s, self.bytes_per_s), strict=True) if value is not None]
        return "\n".join(
            (
                f"{self.label}: {median_with_interval(self.median_ns, *self.median_interval_ns)}{''.join(f', {text}' for text in known)}",
                f"  {measured.sample_count} samples{per_sample}{discarded}, {measured.cache_mode.lower()}, "
                f"fastest {duration(measured.duration_min_ns)}, p95 {duration(measured.duration_p95_ns)}, "
                f"noise {percentage(measured.noise_ratio)}; stopped: {_words(self.stop_reason)}",
                f"  {self.device.name}; timed by {self.timed_by}",
            )
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two functions, measured in alternating blocks. verdict: of `judged`: FASTER, SLOWER, SAME or UNDECIDED; reason: why."""

    judged: Bench
    baseline: Bench
    paired: PairedComparison
    _record: Record = field(repr=False, compare=False)

    @property
    def verdict(self) -> str:
        return self.paired.verdict.value

    @property
    def reason(self) -> str:
        return self.paired.reason

    @property
    def duration_ratio(self) -> float:
        """Of `judged` over `baseline`: the median over the pairs of blocks."""
        return self.paired.duration_ratio

    @property
    def duration_ratio_interval(self) -> tuple[float, float]:
        """Of the ratio, at 99 %."""
        return self.paired.duration_ratio_low, self.paired.duration_ratio_high

    def save(self, path: Path | str) -> Path:
        """Writes both with the verdict as one results document. Needs the extra analyzer."""
        return self._record.save(Path(path))

    def send(self, client: Client) -> ClientRun:
        """Stores both with the verdict in the analyzer as one run. Needs the extra analyzer."""
        return self._record.send(client)

    def __repr__(self) -> str:
        beside = {"FASTER": "than", "SLOWER": "than", "SAME": "as", "UNDECIDED": "against"}[self.verdict]
        return "\n".join(
            (
                f"{self.judged.label}: {self.verdict.lower()} {beside} {self.baseline.label}: {self.reason}",
                f"  {self.paired.block_count} blocks of each in turns",
                *(f"  {line}" for bench in (self.judged, self.baseline) for line in repr(bench).splitlines()),
            )
        )


def _words(name: str) -> str:
    return name.lower().replace("_", " ")
