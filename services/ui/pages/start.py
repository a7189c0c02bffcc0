"""The Run / Import page: forms that start runs on nodes, and traces that are dropped on it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.formatting import duration
from kernalyse.services.core.model import KernelDefinition, KernelSweep, Node, Run
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.services.ui.forms.ceilings_form import CeilingsForm
from kernalyse.services.ui.forms.command_form import CommandForm
from kernalyse.services.ui.forms.form import BuiltForm, FormName, Place, SourceKernels
from kernalyse.services.ui.forms.model_form import ModelForm, PromptForm
from kernalyse.services.ui.forms.sweep_form import SOURCE_ENDING, SweepForm
from kernalyse.services.ui.memory import Overview
from kernalyse.services.ui.pages.form_panel import FormPanel
from kernalyse.services.ui.pages.import_cards import import_card
from kernalyse.services.ui.pages.shell import PageBase, fragment, run_card
from kernalyse.services.ui.question import Question
from kernalyse.services.ui.run_starting import (
    check_run,
    further_budget_ns,
    kernels_of_node,
    kernels_of_source,
    start_again,
    start_rest,
    start_run,
)
from kernalyse.services.ui.state import Page, StartTab, ViewState
from kernalyse.services.ui.uploads.given_files import GivenFile
from kernalyse.services.ui.uploads.uploads import Uploads

FORMS: Final = (SweepForm(), CommandForm(), ModelForm(), PromptForm(), CeilingsForm())
TABS: Final[dict[StartTab, str]] = {**{form.name: form.title for form in FORMS}, "import": "Import a trace"}
MAX_VALUE_LENGTH: Final = 20_000


class StartPage(PageBase):
    page: Page = "start"

    def __init__(self, client: AnalyzerClient, state: ViewState, uploads: Uploads) -> None:
        super().__init__(client, state)
        self._uploads = uploads
        self._unwatch = uploads.imports.watch(self.wake)
        self._panels: dict[FormName, FormPanel] = {form.name: FormPanel(form) for form in FORMS}
        self._fragments: dict[str, str] = {}
        self._kernels: Question[tuple[KernelDefinition, ...]] = Question(self.wake)
        self._source: Question[SourceKernels] = Question(self.wake)
        self._checked: Question[Run | KernalyseError] = Question(self.wake)
        self._is_starting = False
        self._started: Run | None = None

    def close(self) -> None:
        self._unwatch()
        for question in (self._kernels, self._source, self._checked):
            question.stop()
        super().close()

    # ------------------------------------------------------------ wishes

    def handle(self, name: str, value: str) -> Any:
        match name:
            case "form":
                self._fill(json.loads(value))
            case "start-run":
                self._fill(json.loads(value))
                return self._start()
            case "give":
                said = json.loads(value)
                self._give(said["form"], str(said["file_id"]))
            case "take-back":
                form_name, _, file_id = value.partition("=")
                panel = self._panels[_form_name(form_name)]
                panel.file_ids = tuple(kept for kept in panel.file_ids if kept != file_id)
            case "again":
                return self._start_again(value, start_again)
            case "continue" | "retry":
                return self._start_again(value, partial(start_rest, retries_failed=name == "retry"))
            case "cancel-import":
                return self._uploads.imports.find(value).cancel()
            case "forget-import":
                self._uploads.imports.forget(value)
            case _:
                return super().handle(name, value)
        return None

    def _fill(self, said: dict[str, Any]) -> None:
        panel = self._panels[_form_name(said["form"])]
        panel.values = {str(name)[:200]: str(text)[:MAX_VALUE_LENGTH] for name, text in said["values"].items()}

    def _give(self, form_name: str, file_id: str) -> None:
        """A file for a form. A second kernel source takes the place of the first."""
        panel, file = self._panels[_form_name(form_name)], self._uploads.files.find(file_id)
        if file is None or file_id in panel.file_ids:
            return
        kept = self._uploads.files.found(panel.file_ids)
        is_source = form_name == "sweep" and file.name.endswith(SOURCE_ENDING)
        panel.file_ids = (*(one.file_id for one in kept if not (is_source and one.name.endswith(SOURCE_ENDING))), file_id)

    async def _start(self) -> None:
        panel = self._panel
        if panel is None or self._is_starting:
            return
        place = self._place(panel, self._nodes())
        built = panel.built(place)
        if built.spec is None:
            return
        self._is_starting = True
        self.wake()
        try:
            self._started = await start_run(self.client, built.spec, built.bundle, panel.node_id)
        except KernalyseError as error:
            panel.refusal = (built, error)
        finally:
            self._is_starting = False

    async def _start_again(self, run_id: str, start: Callable[[AnalyzerClient, Run], Awaitable[Run]]) -> None:
        run = next((run for run in self.client.nodes.overview().runs if run.run_id == run_id), None)
        if run is not None and not self._is_starting:
            self._is_starting = True
            self.wake()
            try:
                self._started = await start(self.client, run)
            finally:
                self._is_starting = False

    # ------------------------------------------------------------ one update

    def own_fragments(self, overview: Overview) -> dict[str, str]:
        nodes = self._nodes()
        for name, panel in self._panels.items():
            if panel is self._panel or not self._fragments.get(f"form_{name}"):
                self._fragments[f"form_{name}"] = self._rendered(panel, nodes, overview)
        imports = [import_card(upload) for upload in self._uploads.imports.newest_first()]
        return {
            **self._fragments,
            "tabs": fragment("start_tabs.html", tabs=TABS, chosen=self.state.form),
            "again": self._again(overview),
            "imports": fragment("imports.html", imports=imports),
            "started": "" if self._started is None else fragment("started.html", run_id=self._started.run_id),
        }

    @property
    def _panel(self) -> FormPanel | None:
        """That of the form which is shown."""
        return None if self.state.form == "import" else self._panels[self.state.form]

    def _again(self, overview: Overview) -> str:
        """What can be done again of the runs that the view names."""
        named = [run for run in overview.runs if run.run_id in self.state.runs and run.state.is_final and not run.is_imported]
        entries = [{"card": run_card(run, overview, 0.0), "rest_label": _rest_label(run), "has_failed": _has_failed(run)} for run in named]
        return fragment("again.html", entries=entries, is_starting=self._is_starting)

    def _nodes(self) -> tuple[Node, ...]:
        return tuple(status.node for status in self.client.nodes.overview().nodes if status.node is not None)

    def _rendered(self, panel: FormPanel, nodes: tuple[Node, ...], overview: Overview) -> str:
        self._ask_for_kernels(panel, overview)
        place = self._place(panel, nodes)
        built = panel.built(place)
        checked = self._check(panel, built, overview) if panel is self._panel else None
        problem = self._source.problem if self._source_file(panel) is not None else ""
        return panel.rendered(place, checked, is_starting=self._is_starting, source_problem=problem or self._kernels.problem)

    def _place(self, panel: FormPanel, nodes: tuple[Node, ...]) -> Place:
        node = next((node for node in nodes if node.node_id == panel.node_id), nodes[0] if len(nodes) == 1 else None)
        source_file = self._source_file(panel)
        return Place(
            nodes=nodes,
            node=node,
            kernels=self._kernels.answer or (),
            source=None if source_file is None else self._source.answer_to((panel.node_id, source_file)),
            files=self._uploads.files.found(panel.file_ids),
        )

    def _ask_for_kernels(self, panel: FormPanel, overview: Overview) -> None:
        if panel.form.name != "sweep":
            return
        self._kernels.ask(panel.node_id, partial(kernels_of_node, self.client, panel.node_id), overview.reach)
        source_file = self._source_file(panel)
        if source_file is not None:
            call = partial(kernels_of_source, self.client, panel.node_id, source_file)
            self._source.ask((panel.node_id, source_file), call, overview.reach)

    def _source_file(self, panel: FormPanel) -> GivenFile | None:
        """The kernel source that was given to the form, if any."""
        if panel.form.name != "sweep":
            return None
        return next((file for file in self._uploads.files.found(panel.file_ids) if file.name.endswith(SOURCE_ENDING)), None)

    def _check(self, panel: FormPanel, built: BuiltForm, overview: Overview) -> Run | KernalyseError | None:
        """What the node says of the run. What needs files that are not there yet is only checked when it is started."""
        if built.spec is None or not built.is_checkable:
            return None
        subject = (built.spec, panel.node_id)
        self._checked.ask(subject, partial(check_run, self.client, built.spec, panel.node_id), overview.reach)
        return self._checked.answer_to(subject)


def _form_name(name: str) -> FormName:
    """Raises KeyError for none that there is."""
    return {form.name: form.name for form in FORMS}[name]  # type: ignore[index]


def _rest_label(run: Run) -> str:
    """Of a sweep that was stopped, or whose budget did not reach for everything; else empty."""
    if not isinstance(run.spec.work, KernelSweep) or run.completed_configuration_count == run.total_configuration_count:
        return ""
    budget_ns = further_budget_ns(run)
    return "Measure what is left" if budget_ns is None else f"Measure what is left, {duration(budget_ns)} more"


def _has_failed(run: Run) -> bool:
    return isinstance(run.spec.work, KernelSweep) and run.failed_configuration_count > 0
