"""Peaks and thresholds of the shown runs' devices: read, edited, kept for everybody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import panel as pn

from kernalyse.services.core.errors import HardwareChangedError, KernalyseError
from kernalyse.services.core.file_formats import FILE_NAME, known_ceiling
from kernalyse.services.core.model import Hardware, HardwareKey
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Text, html
from kernalyse.services.ui.components.roofline import RooflineRows
from kernalyse.services.ui.data.hardware_fields import Compute, Field, fields_of, settings_of
from kernalyse.services.ui.data.memory import Overview, RunMemory
from kernalyse.services.ui.data.question import Question

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

PLAIN_PATH: Final = "fma"
TELL_VALIDITY: Final = """
const input = Bokeh.index.find_one_by_id(cb_obj.id)?.input_el
if (input) input.ariaInvalid = String(cb_obj.css_classes.includes("invalid"))
"""
"""Colours alone do not tell that a field is wrong."""


class FormField:
    """A field with its unit, and a line below it that says what counts without it or what is wrong with it."""

    def __init__(self, field: Field) -> None:
        self.widget = pn.widgets.TextInput(
            label=f"{field.title} ({field.unit})",
            value=field.value,
            placeholder="" if field.is_required else "not set",
            max_length=40,
            sizing_mode="stretch_width",
            margin=0,
        )
        self.widget.jscallback(css_classes=TELL_VALIDITY)
        self._note = Text(classes=("note",))
        self._shown = field.value  # what the analyzer said last
        self.layout = pn.Column(self.widget, self._note, css_classes=["field"], sizing_mode="stretch_width")

    def is_typed(self, event: Any) -> bool:
        """Return whether the event is of somebody who types in this field."""
        return bool(event.obj is self.widget and event.new != self._shown)

    def show(self, field: Field, problem: str, *, keep_typed: bool) -> None:
        """Show what the analyzer says. problem: what is wrong with what was typed; keep_typed: which stays."""
        self._shown = field.value
        if not keep_typed and self.widget.value != field.value:
            self.widget.value = field.value
        self._note.show(html('<span class="problem" role="alert">{}</span>', problem) if problem else field.fallback)
        classes = ["invalid"] if problem else []
        if self.widget.css_classes != classes:
            self.widget.css_classes = classes


class HardwarePanel(Component):
    """A form that folds; what somebody types in it stays while others change the same."""

    def __init__(self, context: Context, rows: RooflineRows) -> None:
        super().__init__(context)
        self._rows = rows
        self._known: Question[Hardware] = Question(context.wake)
        self._choices: dict[HardwareKey, tuple[RunMemory, str]] = {}  # by device, a run that it is of, and what it is called
        self._key: HardwareKey | None = None
        self._fields: dict[str, FormField] = {}
        self._problems: Mapping[str, str] = {}
        self._etag: str | None = None  # of the values that were typed over; None: nothing is typed
        self._is_refused = False
        self._made: object = None
        self._device = pn.widgets.Select(label="Device", visible=False, sizing_mode="stretch_width", margin=0)
        self._device.param.watch(self._choose, "value")
        self._form = pn.Column(css_classes=["fields"], sizing_mode="stretch_width")
        self._problem = Text()
        self._note = Text(classes=("note",), styles={"flex": "1"})
        self._download = Text(sizing_mode=None)
        self._discard = pn.widgets.Button(label="Discard mine", visible=False, margin=0, on_click=lambda _: self._start_over())
        self._apply = pn.widgets.Button(label="Apply", color="primary", margin=0, on_click=lambda _: context.carry_out(self._save()))
        buttons = pn.Row(self._note, self._discard, self._download, self._apply, css_classes=["buttons"], sizing_mode="stretch_width")
        self._title = Text(html("<strong>Hardware</strong>"))
        self.layout = pn.Card(
            self._device, pn.Column(self._form, sizing_mode="stretch_width"), self._problem, buttons,
            header=self._title, collapsed=True, visible=False, css_classes=["card", "fold", "hardware"],
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip

    def close(self) -> None:
        self._known.stop()

    # ------------------------------------------------------------ what is shown

    def update(self) -> None:
        self._rows.update()
        overview = self.context.overview
        self._choices = _devices(overview, self._rows.memories)
        key = self._key if self._key in self._choices else next(iter(self._choices), None)
        if key != self._key:
            self._key = key
            self._start_over()
        if self.layout.visible != (key is not None):
            self.layout.visible = key is not None
        if key is None:
            return
        self._known.ask(key, partial(self.context.client.hardware, key), overview.revision)
        hardware = self._known.answer_to(key)
        made = (key, tuple(self._choices), id(hardware), self._known.problem, self._problems, self._rows.version)
        if made != self._made:
            self._made = made
            self._show(key, hardware)

    def _show(self, key: HardwareKey, hardware: Hardware | None) -> None:
        title = self._choices[key][1]
        names = {title: key for key, (_, title) in self._choices.items()}
        self._device.param.update(options=names, value=key, visible=len(names) > 1)
        if hardware is None:
            self._fields, self._form[:] = {}, []
            self._title.show(html('<strong>Hardware</strong> <span class="note">{}</span>', title))
            problem = html('<p class="problem block" role="alert">{}</p>', self._known.problem)
            self._problem.show(problem if self._known.problem else "Asking the analyzer what is known of this device.")
            return
        computes, has_one_peak = self._computes(key, hardware)
        self._title.show(html('<strong>Hardware</strong> <span class="note">{} · {}</span>', title, _summary(hardware, computes)))
        fields = fields_of(hardware, computes, has_one_peak=has_one_peak)
        are_new = [field.name for field in fields] != list(self._fields)
        if are_new:
            self._fields = {field.name: FormField(field) for field in fields}
        for field in fields:
            self._fields[field.name].show(field, self._problems.get(field.name, ""), keep_typed=self._etag is not None)
        if are_new:  # what is changed in the update in which it is first shown loads its styles from elsewhere
            self.context.has_new_inputs = True
            self._form[:] = [field.layout for field in self._fields.values()]
            for form_field in self._fields.values():
                form_field.widget.param.watch(self._typed, ["value", "value_input"])
        query = urlencode({"node": key.node_id, "device": key.device_id, "run": key.run_id, "dtype": computes[0][0] if computes else ""})
        self._download.show(html('<a class="button" href="/download/{0}?{1}" download="{0}">Download {0}</a>', FILE_NAME, query))
        if self._known.problem:
            self._problem.show(html('<p class="problem block" role="alert">{}</p>', self._known.problem))
        elif not self._is_refused:
            self._problem.show("")
        self._apply.label = "Save mine all the same" if self._is_refused else "Apply"
        self._discard.visible = self._is_refused or bool(self._problems)

    def _choose(self, event: Any) -> None:
        if event.new in self._choices and event.new != self._key:
            self._key = event.new
            self._start_over()
            self.context.wake()

    # ------------------------------------------------------------ what is typed

    def _typed(self, *events: Any) -> None:
        """The values that somebody types over are those that were shown with the first letter."""
        hardware = None if self._key is None else self._known.answer_to(self._key)
        if (
            self._etag is None
            and hardware is not None
            and any(field.is_typed(event) for field in self._fields.values() for event in events)
        ):
            self._etag = hardware.etag

    def _start_over(self) -> None:
        """Show what counts in the place of what was typed."""
        self._problems, self._etag, self._is_refused, self._made = {}, None, False, None
        self._problem.show("")
        self._note.show("")

    async def _save(self) -> None:
        key = self._key
        hardware = None if key is None else self._known.answer_to(key)
        if key is None or hardware is None:
            return
        computes, has_one_peak = self._computes(key, hardware)
        typed = {name: field.widget.value or "" for name, field in self._fields.items()}
        settings = settings_of(typed, hardware, computes, has_one_peak=has_one_peak)
        self._problems, self._made = settings.problems, None
        self._note.show("")
        if settings.problems:
            return
        try:
            await self.context.client.update_hardware(key, settings.ceilings, settings.thresholds, self._etag or hardware.etag)
        except HardwareChangedError as error:
            # The next attempt is of somebody who has read the other's values.
            self._etag, self._is_refused = (await self.context.client.hardware(key)).etag, True
            self._problem.show(html('<p class="problem block" role="alert">{}</p>', error.message))
        except KernalyseError as error:
            self._is_refused = False
            self._problem.show(html('<p class="problem block" role="alert">{}</p>', error.message))
        else:
            self._start_over()
            self._note.show("Applied: every open page shows it.")

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
    """Return the devices that points of the runs are held against, each with a run and what it is called."""
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
    """Return what counts now, in one line."""
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
