"""What a sweep in this process tells, kept as it comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from services.compat.benchmarking.call_progress import CallProgress
from services.compat.benchmarking.notices import LOGGER, tell_once
from services.core.model import (
    Configuration,
    ConfigurationFailed,
    EventPayload,
    LogLevel,
    LogLines,
    Measurement,
    Progress,
    VerificationState,
)

TOLD_LEVELS: Final = (LogLevel.WARNING, LogLevel.ERROR)


@dataclass(slots=True)
class CollectedEvents:
    """An event sink; single samples and artifacts are not kept."""

    configurations: dict[int, Configuration] = field(default_factory=dict)
    measurements: dict[int, Measurement] = field(default_factory=dict)
    failures: list[ConfigurationFailed] = field(default_factory=list)
    call_progress: CallProgress | None = None

    def write(self, payload: EventPayload) -> None:
        if self.call_progress is not None:
            self.call_progress.tick()
        match payload:
            case Configuration():
                self.configurations[payload.configuration_index] = payload
            case Measurement():
                self.measurements[payload.configuration_index] = payload
            case ConfigurationFailed():
                self.failures.append(payload)
            case LogLines(level=level) if level in TOLD_LEVELS:
                tell_once(f"{payload.source}: " + "\n".join(payload.lines))
            case Progress(activity=activity):
                if self.call_progress is not None:
                    self.call_progress.update(payload.completed_configuration_count, activity)
                if activity:
                    LOGGER.info("%d of %d: %s", payload.completed_configuration_count + 1, payload.total_configuration_count, activity)
            case _:
                pass

    def notices(self) -> list[str]:
        """What went wrong with single configurations. Where not one was measured the sweep's own error says it."""
        return [*self._failures(), *self._wrong_results()] if self.measurements else []

    def _failures(self) -> list[str]:
        """One sentence for each message: the first configuration it befell, and how many more."""
        indexes_by_message: dict[str, list[int]] = {}
        for failure in self.failures:
            indexes_by_message.setdefault(failure.error.message, []).append(failure.configuration_index)
        return [
            f"Not measured: {self._label(indexes[0])}{f' and {len(indexes) - 1} more' if len(indexes) > 1 else ''}: {message}"
            for message, indexes in indexes_by_message.items()
        ]

    def _wrong_results(self) -> list[str]:
        return [
            f"WRONG RESULTS: {self._label(index)}: {measurement.verification.message}"
            for index, measurement in self.measurements.items()
            if measurement.verification.state is VerificationState.FAILED
        ]

    def _label(self, index: int) -> str:
        """A configuration that could not even be worked out was never announced."""
        return self.configurations[index].label if index in self.configurations else f"configuration {index}"
