"""`python -m tests.gpu.make_recording FILE DATA_DIRECTORY... --run TITLE=NEW_TITLE...`: makes a recording of what nodes have journaled.

Each data directory is of one of test_whole_way.py's node-PART.tar.gz. What would tell the machine is not recorded: host and owner become
empty, paths of commands and in artifacts lose their directories, and the device's UUID becomes another one, always the same for it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sqlite3
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

from kernalyse.services.core.model import ArtifactStored, CommandProfile, LogLines, Measurement, Progress, Run, RunEvent, RunState
from kernalyse.services.core.protobuf import decode, encode_bytes
from kernalyse.services.profiler.workloads.recording import ARTIFACT_FILE, DEVICES_FILE, EVENTS_FILE, RUN_FILE, SERVICE
from kernalyse.v1 import profiler_service_pb2, run_pb2

DIRECTORIES: Final = re.compile(rb"(?<![\w.])/(?:[\w.-]+/)+(?=[\w.-]+)")
"""Of absolute paths."""


class Journal:
    """What one node has journaled, without what would tell the machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._database = sqlite3.connect(directory / "journal.sqlite")
        self.devices: list[dict[str, Any]] = json.loads((directory / "devices.json").read_text())["devices"]
        told = [device["uuid"] for device in self.devices if device["uuid"] is not None]
        self._uuids = {uuid: f"GPU-{uuid5(NAMESPACE_OID, uuid)}" for uuid in told}
        for device in self.devices:
            device["uuid"] = self._uuids.get(device["uuid"])

    def runs(self) -> Iterator[Run]:
        """Yield those that succeeded, in their order."""
        for run, spec in self._database.execute("SELECT run, spec FROM runs ORDER BY run_number"):
            message = run_pb2.Run.FromString(run)
            message.spec.MergeFromString(spec)
            found = decode(message, Run)
            if found.state is RunState.SUCCEEDED:
                yield found

    def recorded(self, run: Run, title: str) -> Run:
        """Return the run as a recording has it."""
        work = run.spec.work
        if isinstance(work, CommandProfile):
            work = replace(work, arguments=tuple(Path(argument).name for argument in work.arguments))
        return replace(run, spec=replace(run.spec, work=work, title=title), hostname="", owner="")

    def events(self, run: Run) -> list[RunEvent]:
        """Return the run's events as a recording has them."""
        found = self._database.execute("SELECT event FROM events WHERE run_id = ? ORDER BY event_index", (run.run_id,))
        events = [self._anonymous(run, decode(run_pb2.RunEvent.FromString(event), RunEvent)) for (event,) in found]
        return [event for event in events if not isinstance(event.payload, LogLines) or event.payload.source != SERVICE]

    def artifact(self, run: Run, artifact_name: str) -> bytes:
        """Return an artifact as a recording has it."""
        data = (self._directory / "runs" / run.run_id / "work" / "artifacts" / artifact_name).read_bytes()
        if artifact_name.endswith(".gz"):
            return gzip.compress(self._without_machine(gzip.decompress(data)), 9, mtime=0)
        return self._without_machine(data)

    def _without_machine(self, data: bytes) -> bytes:
        for told, other in self._uuids.items():
            data = data.replace(told.encode(), other.encode())
        return DIRECTORIES.sub(b"", data)

    def _anonymous(self, run: Run, event: RunEvent) -> RunEvent:
        match event.payload:
            case ArtifactStored(artifact_name=name) as payload:
                data = self.artifact(run, name)
                digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
                return replace(event, payload=replace(payload, digest=digest, size_bytes=len(data)))
            case Measurement(device_uuid=str(uuid)) as payload:
                return replace(event, payload=replace(payload, device_uuid=self._uuids[uuid]))
            case LogLines(lines=lines) as payload:
                told = tuple(self._without_machine(line.encode()).decode() for line in lines)
                return replace(event, payload=replace(payload, lines=told))
            case Progress(activity=activity) as payload:
                return replace(event, payload=replace(payload, activity=self._without_machine(activity.encode()).decode()))
            case _:
                return event


def write(file: Path, journals: Sequence[Journal], titles: Sequence[tuple[str, str]]) -> None:
    """Write the recording. titles: of each run, in their order: what it is, and what it becomes."""
    runs = [(journal, run) for journal in journals for run in journal.runs()]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(DEVICES_FILE, json.dumps({"devices": journals[0].devices, "notices": []}))
        for number, (title, new_title) in enumerate(titles):
            journal, run = next((journal, run) for journal, run in runs if run.spec.title == title)
            events = journal.events(run)
            messages = [run_pb2.RunEvent.FromString(encode_bytes(event)) for event in events]
            response = profiler_service_pb2.ProfilerServiceWatchRunResponse(events=messages)
            archive.writestr(RUN_FILE.format(number), encode_bytes(journal.recorded(run, new_title)))
            archive.writestr(EVENTS_FILE.format(number), response.SerializeToString())
            for event in events:
                if isinstance(event.payload, ArtifactStored):
                    name = event.payload.artifact_name
                    archive.writestr(ARTIFACT_FILE.format(number, name), journal.artifact(run, name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("data_directory", type=Path, nargs="+")
    parser.add_argument("--run", action="append", required=True, metavar="TITLE=NEW_TITLE", help="a run to record; may be repeated")
    arguments = parser.parse_args()
    titles = [(title, new_title) for title, _, new_title in (text.partition("=") for text in arguments.run)]
    write(arguments.file, [Journal(directory) for directory in arguments.data_directory], titles)


if __name__ == "__main__":
    main()
