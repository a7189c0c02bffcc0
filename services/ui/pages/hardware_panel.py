"""Peaks and thresholds of the shown runs' devices: read, edited, kept for everybody. A part of the Roofline page."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from kernalyse.services.core.errors import HardwareChangedError, KernalyseError
from kernalyse.services.core.file_formats import FILE_NAME, known_ceiling
from kernalyse.services.core.model import Hardware, HardwareKey
from kernalyse.services.ui import theme
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.hardware_fields import Compute, fields_of, settings_of
from kernalyse.services.ui.memory import Overview, RunMemory
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.question import Question

PLAIN_PATH = "fma"


class HardwarePanel:
    """Of one page. `fragment` is called at every update."""

    def __init__(self, client: AnalyzerClient, question: Question[Hardware]) -> None:
        self._client = client
        self._known = question
        self._choices: dict[HardwareKey, tuple[RunMemory, str]] = {}  # by device, a run that it is of, and what it is called
        self._chosen: HardwareKey | None = None
        self._problems: Mapping[str, str] = {}
        self._problem = ""
        self._note = ""
        self._form_number = 0  # another one makes the browser forget what was typed
        self._refused: tuple[str, str] | None = None  # etag of a form that was refused, and of the state that its sentence names

    def close(self) -> None:
        self._known.stop()

    def fragment(self, overview: Overview, memories: Sequence[RunMemory]) -> str:
        self._choices = _devices(overview, memories)
        key = self._key()
        if key is None:
            return ""
        self._known.ask(key, partial(self._client.hardware, key), overview.revision)
        hardware = self._known.answer_to(key)
        if hardware is None:
            return fragment("hardware.html", title=self._choices[key][1], problem=self._known.problem, fields=None)
        computes, has_one_peak = self._computes(key, hardware)
        return fragment(
            "hardware.html",
            title=self._choices[key][1],
            summary=_summary(hardware, computes),
            choices=[(_text(other), title) for other, (_, title) in self._choices.items()] if len(self._choices) > 1 else [],
            chosen=_text(key),
            fields=fields_of(hardware, computes, has_one_peak=has_one_peak),
            etag=hardware.etag,
            form_number=self._form_number,
            problems=self._problems,
            problem=self._problem or self._known.problem,
            is_refused=self._refused is not None,
            note=self._note,
            file_name=FILE_NAME,
            query=urlencode({"node": key.node_id, "device": key.device_id, "run": key.run_id, "dtype": computes[0][0] if computes else ""}),
        )

    def handle(self, name: str, value: str) -> Coroutine[Any, Any, None] | None:
        """Wishes whose names begin with "hardware". Raises ValueError for one that is none."""
        match name:
            case "hardware-device":
                self._chosen = next((key for key in self._choices if _text(key) == value), None)
                self._start_over()
            case "hardware-discard":
                self._start_over()
            case "hardware":
                return self._save({str(field): str(text) for field, text in dict(json.loads(value)).items()})
        return None

    async def _save(self, typed: dict[str, str]) -> None:
        key = self._key()
        hardware = self._known.answer_to(key)
        if key is None or hardware is None:
            return
        computes, has_one_peak = self._computes(key, hardware)
        settings = settings_of(typed, hardware, computes, has_one_peak=has_one_peak)
        self._problems, self._problem, self._note = settings.problems, "", ""
        if settings.problems:
            return
        etag = typed.get("etag", "")
        if self._refused is not None and self._refused[0] == etag:
            etag = self._refused[1]  # of the values that the person has read meanwhile
        try:
            await self._client.update_hardware(key, settings.ceilings, settings.thresholds, etag)
        except HardwareChangedError as error:
            self._problem, self._refused = error.message, (typed.get("etag", ""), (await self._client.hardware(key)).etag)
        except KernalyseError as error:
            self._problem = error.message
        else:
            self._start_over()
            self._note = "Applied: every open page shows it."

    def _start_over(self) -> None:
        self._form_number += 1
        self._problems, self._problem, self._note, self._refused = {}, "", "", None

    def _key(self) -> HardwareKey | None:
        """The device that is shown: the chosen one, else that of the first run."""
        return self._chosen if self._chosen in self._choices else next(iter(self._choices), None)

    def _computes(self, key: HardwareKey, hardware: Hardware) -> tuple[list[Compute], bool]:
        """Data types and paths with a peak to set: of the run's points, and set already. And whether one peak is for all of them."""
        memory = self._choices[key][0]
        run, rows = memory.run, memory.table("roofline")
        found: dict[Compute, None] = {}
        if rows is not None:
            for device_id, dtype, path in rows.select("device_id", "dtype", "path").unique(maintain_order=True).iter_rows():
                if device_id == key.device_id and dtype is not None:
                    found[dtype, "tensor" if path == "tensor" else PLAIN_PATH] = None
        for ceiling in hardware.ceilings:
            if ceiling.source == "user" and ceiling.unit == "flop_per_s":
                found[ceiling.ceiling_name, ceiling.path] = None
        has_one_peak = run is not None and run.is_imported and not run.is_trace and all(path == PLAIN_PATH for _, path in found)
        return sorted(found), has_one_peak


def _devices(overview: Overview, memories: Sequence[RunMemory]) -> dict[HardwareKey, tuple[RunMemory, str]]:
    """Those that points of the runs are held against."""
    names = {(s.node.node_id, d.device_id): f"{d.name} on {s.node.hostname}" for s in overview.nodes if s.node for d in s.node.devices}
    found: dict[HardwareKey, tuple[RunMemory, str]] = {}
    for memory in memories:
        run, rows = memory.run, memory.table("roofline")
        if run is None:
            continue
        is_own = not run.node_id or run.is_trace
        of_points = [] if rows is None else rows["device_id"].drop_nulls().unique(maintain_order=True).to_list()
        for device_id in dict.fromkeys([*of_points, *([run.device_id] if run.device_id is not None and not run.is_trace else [])]):
            key = HardwareKey("", device_id, run.run_id) if is_own else HardwareKey(run.node_id, device_id)
            title = f"{device_id} of {run.title}" if is_own else names.get((run.node_id, device_id), device_id)
            found.setdefault(key, (memory, title))
    return found


def _summary(hardware: Hardware, computes: Sequence[Compute]) -> str:
    """What counts now, in one line."""
    parts = []
    for dtype, path in computes[:2]:
        peak = known_ceiling(hardware, "flop_per_s", dtype, path)
        if peak is not None:
            parts.append(f"{dtype} {theme.flop_rate(peak.value, dtype)}")
    memory = known_ceiling(hardware, "bytes_per_s", "dram")
    parts += [] if memory is None else [f"memory {theme.byte_rate(memory.value)}"]
    limits = hardware.thresholds
    ratios = (limits.memory_inefficient_ratio, limits.compute_inefficient_ratio)
    return " · ".join([*parts, f"inefficient below {' / '.join(theme.percent(ratio) for ratio in ratios)}"])


def _text(key: HardwareKey) -> str:
    return "|".join((key.node_id, key.run_id, key.device_id))
