"""What a workload tells while a test runs it in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from kernalyse.services.core.model import ArtifactStored, EventPayload, LogLevel, LogLines, Progress

T = TypeVar("T")


@dataclass
class Told:
    """A sink of events."""

    payloads: list[EventPayload] = field(default_factory=list)

    def write(self, payload: EventPayload) -> None:
        self.payloads.append(payload)

    def of(self, cls: type[T]) -> list[T]:
        return [payload for payload in self.payloads if isinstance(payload, cls)]

    @property
    def artifact_names(self) -> list[str]:
        return [artifact.artifact_name for artifact in self.of(ArtifactStored)]

    @property
    def printed(self) -> list[str]:
        return [line for lines in self.of(LogLines) if lines.source == "program" for line in lines.lines]

    @property
    def warnings(self) -> str:
        return "\n".join(line for lines in self.of(LogLines) if lines.level is LogLevel.WARNING for line in lines.lines)

    @property
    def activities(self) -> list[str]:
        return [progress.activity for progress in self.of(Progress)]
