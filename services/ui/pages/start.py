"""The page Run / Import: forms that start runs on nodes, and traces that are dropped on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import panel as pn

from kernalyse.services.ui.components.base import Component, card
from kernalyse.services.ui.components.start import KINDS, FormCard, Repeats, Starter
from kernalyse.services.ui.components.text import Text, html
from kernalyse.services.ui.components.uploads import FilePicker, ImportList
from kernalyse.services.ui.forms.ceilings_form import CeilingsForm
from kernalyse.services.ui.forms.command_form import CommandForm
from kernalyse.services.ui.forms.model_form import ModelForm, PromptForm
from kernalyse.services.ui.forms.sweep_form import SweepForm
from kernalyse.services.ui.view import StartView

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

FORMS: Final = (SweepForm, CommandForm, ModelForm, PromptForm, CeilingsForm)
DROP: Final = html("<p><strong>Drop a trace anywhere on this page</strong>, or choose one or several files:</p>")
READABLE: Final = html(
    '<p class="note">Nsight Systems (.sqlite, .nsys-rep, parquetdir), Nsight Compute (.ncu-rep, CSV), '
    "PyTorch's profiler (.json, .json.gz), Triton's Proton, ONNX Runtime, NVBench, kernalyse's own results. "
    "The reader is chosen by the content.</p>"
)
TOGETHER: Final = {
    "runs of their own": "apart",
    "traces of one job's processes: one run": "job",
    "one trace and what belongs to it": "trace",
}
IMPORT_BUTTONS: Final = [
    {"text": "Choose files", "label": "Choose files", "accept": "", "of_directories": False},
    {"text": "Choose a folder", "label": "Choose a folder", "accept": "", "of_directories": True},
]


class StartPage(Component):
    """Lays out what the page shows; only the form of the chosen tab is brought up to date."""

    def __init__(self, context: Context, view: StartView) -> None:
        super().__init__(context)
        self._view = view
        starter = Starter(context)
        self._repeats = Repeats(context, starter)
        self._imports = ImportList(context)
        self._forms = {form.key: FormCard(context, form(), starter, self._said) for form in FORMS}
        titles = [form.heading for form in FORMS]
        layouts = [self._forms[form.key].layout for form in FORMS]
        self._names = [*self._forms, "import"]
        self._tabs = pn.Tabs(
            *zip(titles, layouts, strict=True),
            ("Import a trace", self._import_card()),
            dynamic=True,
            active=self._names.index(view.form),
            css_classes=["start-tabs"],
            sizing_mode="stretch_width",
        )
        self._tabs.param.watch(self._turned, "active")
        self.parts = (self._repeats, *self._forms.values(), self._imports)
        self.layout = pn.Column(self._repeats, self._tabs, self._imports, css_classes=["stage"], sizing_mode="stretch_width")

    def _import_card(self) -> pn.Column:
        picker = FilePicker(self._said, form="import", kinds=KINDS, buttons=IMPORT_BUTTONS)
        together = pn.widgets.RadioBoxGroup(options=TOGETHER, value="apart", inline=True, margin=0, css_classes=["radios"])
        together.jslink(picker, value="together")  # before files can be dropped
        zone = pn.Column(Text(DROP), picker, Text(READABLE), css_classes=["drop-zone"], sizing_mode="stretch_width")
        return card(zone, Text(html("<h2>Several files are</h2>")), together)

    def update(self) -> None:
        self._repeats.update()
        if self._view.form in self._forms:
            self._forms[self._view.form].update()
        self._imports.update()
        active = self._names.index(self._view.form)
        if self._tabs.active != active:
            self.context.has_new_inputs = True
            self._tabs.active = active  # last: what is changed in the update in which it is first shown loads its styles from elsewhere

    def _turned(self, event: Any) -> None:
        self._view.form = self._names[event.new]

    def _said(self, message: dict[str, Any]) -> None:
        """The browser tells of files."""
        form = str(message.get("form", ""))
        if message.get("show") in self._names:
            self._view.form = message["show"]
        if "problem" in message:
            self._imports.tell(str(message["problem"]))
        file = self.context.uploads.files.find(str(message.get("file_id", "")))
        if file is not None and form in self._forms:
            self._forms[form].take(file)
        self.context.wake()
