"""Forms that start runs: a kernel sweep, a command, models, a measurement of ceilings; and runs that are done again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import panel as pn
import param
from markupsafe import Markup

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.formatting import duration
from kernalyse.services.core.model import KernelDefinition, KernelSweep, ModelRun, Node, Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.components.base import Component, Text, Tick, card, field, flow, html, joined
from kernalyse.services.ui.components.uploads import FilePicker
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.data.question import Question
from kernalyse.services.ui.data.runs import (
    check_run,
    further_budget_ns,
    kernels_of_node,
    kernels_of_source,
    run_card,
    start_again,
    start_rest,
    start_run,
)
from kernalyse.services.ui.forms.form import BuiltForm, Choice, Form, FormName, Group, Place, SourceKernels, Words
from kernalyse.services.ui.forms.sweep_form import PARAMETER, SOURCE_ENDING, SweepForm
from kernalyse.services.ui.uploads.given_files import GivenFile
from kernalyse.services.ui.view import View, to_query

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

MAX_SHOWN_NOTICES: Final = 6
COMMAND_LINE: Final = (
    '<span class="note">The same as a command:</span><code class="command-line" tabindex="0">{}</code>'
    '<button type="button" data-copy aria-label="Copy the command">Copy</button>'
)
NO_SOURCE: Final = html('<span class="note">Kernels of the node\'s catalogue. For one of your own drop its .cu file on the page, or</span>')
KINDS: Final = [[r"\.(cuh?|h|hpp)$", "sweep"], [r"\.onnx(_data|\.data)?$", "model"]]
KINDS_FOR_PROMPT: Final = [KINDS[0], [r"\.(onnx(_data|\.data)?|json)$", "prompt"]]
BUTTONS: Final[dict[FormName, tuple[tuple[str, str, str], ...]]] = {
    "sweep": (("Choose a .cu file", "A .cu file, and headers that it includes", ".cu,.cuh,.h,.hpp"),),
    "command": (("Choose files", "Files that go with it", ""),),
    "model": (("Choose files", "Own model", ""),),
    "prompt": (("Choose files", "Own model", ""),),
}
"""Text, label and accepted endings of the buttons that give files to the form."""


class Starter:
    """Starts one run after the other; the tab then shows it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.is_starting = False

    def start(self, work: Callable[[], Coroutine[Any, Any, Run]]) -> None:
        """Start the run that `work` queues, unless another one is just being started."""
        if not self.is_starting:
            self.is_starting = True
            self._context.wake()
            self._context.carry_out(self._start(work))

    async def _start(self, work: Callable[[], Coroutine[Any, Any, Run]]) -> None:
        try:
            run = await work()
        finally:
            self.is_starting = False
            self._context.wake()
        self._context.visit(f"/live?{to_query(View(theme=self._context.view.theme, runs=[run.run_id]))}")


class FormCard(Component):
    """One form: its fields, what is wrong with them, and what the run will be.

    Args:
        said: takes what the browser tells of files.
    """

    def __init__(self, context: Context, form: Form, starter: Starter, said: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(context)
        self.form = form
        self._starter = starter
        self._kernels: Question[tuple[KernelDefinition, ...]] = Question(context.wake)
        self._source: Question[SourceKernels] = Question(context.wake)
        self._checked: Question[Run | KernalyseError] = Question(context.wake)
        self._is_tried = False
        self._refusal: tuple[BuiltForm, KernalyseError] | None = None  # of what was to be started
        self._cells: dict[str, Cell] = {}
        self._groups: tuple[Group, ...] = ()
        self._sections: list[tuple[Text, pn.Column]] = []
        context.keep(f"start {form.key}", form, form.names())
        form.param.watch(lambda *_events: context.wake(), list(form.names()))

        buttons = [{"text": text, "label": label, "accept": accept} for text, label, accept in BUTTONS.get(form.key, ())]
        self._picker = FilePicker(said, form=form.key, buttons=buttons, kinds=KINDS_FOR_PROMPT if form.key == "prompt" else KINDS)
        self._without = Text(NO_SOURCE if form.key == "sweep" else "", sizing_mode=None)
        self._chips: dict[str, pn.widgets.Button] = {}
        self._files = flow(self._without, self._picker, classes=("chips",))
        self._source_problem = Text()
        self._fields = pn.Column(css_classes=["start-groups"], sizing_mode="stretch_width")
        self._outcome = Text(classes=("outcome",))
        self._start = pn.widgets.Button(label="Start", color="primary", margin=0, on_click=lambda _: self.start())
        self._command = Text(classes=("command",), styles={"flex": "1 1 300px"}, min_width=0)
        submit = flow(self._start, self._command, classes=("submit",))
        top = () if any("files" in group.fields for group in form.groups(Place())) else (self._files,)
        self.layout = card(*top, self._source_problem, self._fields, self._outcome, submit, classes=("start-form",))

    # ------------------------------------------------------------ one update

    def update(self) -> None:
        self._ask_for_kernels()
        place = self._place()
        self.form.settle(place)
        built = self.form.built(place)
        groups = self.form.groups(place)
        checked = self._check(built)
        problems = dict(built.problems) if self._is_touched else {}
        refusal = checked if isinstance(checked, KernalyseError) else None
        if self._refusal is not None and self._refusal[0] == built:
            refusal = self._refusal[1]
        if refusal is not None:
            named = self.form.field_of(refusal)
            problems.setdefault(named if any(named in group.fields for group in groups) else "", refusal.message)
        self._show_fields(groups, place, problems)
        self._show_files(place.files)
        self._show_outcome(built, checked, problems, place)
        labels = {self._cells[name].label: sentence for name, sentence in problems.items() if name}
        self._picker.param.update(problems=labels, numbers=[cell.label for cell in self._cells.values() if cell.is_number])

    @property
    def _is_touched(self) -> bool:
        """Nobody is told what is missing before they have begun. Choices that the place offers are made by themselves."""
        values = ((self.form.param[name], getattr(self.form, name)) for name in self.form.names())
        return self._is_tried or any(value != parameter.default for parameter, value in values if not isinstance(parameter, Choice))

    def _show_fields(self, groups: tuple[Group, ...], place: Place, problems: Mapping[str, str]) -> None:
        is_other = [(group.title, group.fields) for group in groups] != [(group.title, group.fields) for group in self._groups]
        if is_other:
            self._sections = [(Text(), self._grid(group)) for group in groups]
        self._groups = groups
        for group, (head, _) in zip(groups, self._sections, strict=True):
            note = html('<p class="note">{}</p>', group.note) if group.note else ""
            head.show(html("<h2>{}</h2>{}", group.title, note))
            for name in group.fields:
                self._cells[name].show(self.form, place, problems.get(name, ""))
        if is_other:
            self.context.has_new_inputs = True
            self._fields[:] = [pn.Column(*section, css_classes=["start-group"], sizing_mode="stretch_width") for section in self._sections]

    def _grid(self, group: Group) -> pn.Column:
        return pn.Column(*(self._cell(name).layout for name in group.fields), css_classes=["form-fields"], sizing_mode="stretch_width")

    def _cell(self, name: str) -> Cell:
        if name not in self._cells:
            self._cells[name] = Cell(self.form, name, self._files if name == "files" else None, self.start)
        return self._cells[name]

    def _show_files(self, files: tuple[GivenFile, ...]) -> None:
        if tuple(self._chips) == tuple(file.file_id for file in files):
            return
        self._chips = {
            file.file_id: pn.widgets.Button(
                label=f"Remove {file.name}", margin=0, css_classes=["chip"], on_click=partial(self._take_back, file.file_id)
            )
            for file in files
        }
        self._files[:] = [*(self._chips.values() or [self._without]), self._picker]

    def _show_outcome(self, built: BuiltForm, checked: Run | KernalyseError | None, problems: dict[str, str], place: Place) -> None:
        problem = self._source.problem if _source_of(place.files) is not None and isinstance(self.form, SweepForm) else ""
        self._source_problem.show(_problem(problem or self._kernels.problem))
        source = place.source
        notices = (*built.notices, *(source.notices if source is not None and isinstance(self.form, SweepForm) else ()))
        said = [_problem(problems.get("", "")), *(html('<p class="note">{}</p>', notice) for notice in notices[:MAX_SHOWN_NOTICES])]
        if problems:
            count = f"{len(problems)} {'field needs' if len(problems) == 1 else 'fields need'} another look."
            said.append(html('<p class="outlook problem">{}</p>', count))
        else:
            asking = "Asking the node." if built.is_checkable else ""
            said.append(
                html('<p class="outlook" aria-live="polite">{}</p>', outlook(built, checked) if isinstance(checked, Run) else asking)
            )
        self._outcome.show(joined(said))
        is_starting = self._starter.is_starting
        self._start.param.update(label="Starting…" if is_starting else "Start", disabled=is_starting)
        self._command.show(html(COMMAND_LINE, built.command_line) if built.command else "")

    def close(self) -> None:
        for question in (self._kernels, self._source, self._checked):
            question.stop()

    # ------------------------------------------------------------ what the node says

    def _place(self) -> Place:
        known = tuple(status.node for status in self.context.overview.nodes if status.node is not None)
        nodes: tuple[Node, ...] = tuple(node for node in known if not node.policy.observe_only)
        files = self.context.uploads.files.found(self.form.files)
        source_file = _source_of(files)
        return Place(
            nodes=nodes,
            node=next((node for node in nodes if node.node_id == self.form.node), nodes[0] if len(nodes) == 1 else None),
            kernels=self._kernels.answer or (),
            source=None if source_file is None else self._source.answer_to((self.form.node, source_file)),
            files=files,
            observers=tuple(node for node in known if node.policy.observe_only),
        )

    def _ask_for_kernels(self) -> None:
        if not isinstance(self.form, SweepForm):
            return
        client, node_id, reach = self.context.client, self.form.node, self.context.overview.reach
        self._kernels.ask(node_id, partial(kernels_of_node, client, node_id), reach)
        source_file = _source_of(self.context.uploads.files.found(self.form.files))
        if source_file is not None:
            self._source.ask((node_id, source_file), partial(kernels_of_source, client, node_id, source_file), reach)

    def _check(self, built: BuiltForm) -> Run | KernalyseError | None:
        """What the node says of the run. What needs files that are not there yet is only checked when it is started."""
        if built.spec is None or not built.is_checkable:
            return None
        subject = (built.spec, self.form.node)
        self._checked.ask(subject, partial(check_run, self.context.client, *subject), self.context.overview.reach)
        return self._checked.answer_to(subject)

    # ------------------------------------------------------------ what is done

    def take(self, file: GivenFile) -> None:
        """Take a file that was given to the form."""
        if file.file_id not in self.form.files:
            self.form.take(file, self.context.uploads.files.found(self.form.files))

    def _take_back(self, file_id: str, _event: Any) -> None:
        self.form.files = [kept for kept in self.form.files if kept != file_id]

    def start(self) -> None:
        """Start the run, unless something is wrong with the form, which then says so."""
        self._is_tried = True
        built = self.form.built(self._place())
        self.context.wake()
        if built.spec is not None:
            self._starter.start(partial(self._queued, built))

    async def _queued(self, built: BuiltForm) -> Run:
        assert built.spec is not None
        try:
            return await start_run(self.context.client, built.spec, built.bundle, self.form.node)
        except KernalyseError as error:
            self._refusal = (built, error)
            raise


class Cell:
    """One field with what to write into it, or what is wrong with what is there.

    Args:
        files: in the place of the field of files.
        entered: called when the key Enter is pressed in it.
    """

    def __init__(self, form: Form, name: str, files: pn.Row | None, entered: Callable[[], None]) -> None:
        self._name = name
        parameter = None if name.startswith(PARAMETER) else form.param[name]
        self.label = name.removeprefix(PARAMETER) if parameter is None else str(parameter.label)
        self.is_number = isinstance(parameter, Words) and parameter.is_number
        self._hint = Text(classes=("hint",))
        self._widget = self._made(form, parameter) if files is None else None
        if isinstance(self._widget, pn.widgets.TextInput):
            self._widget.param.watch(lambda _event: entered(), "enter_pressed")
        parts = (Text(html('<span class="label">{}</span>', self.label)), files) if files is not None else (self._widget,)
        classes = [
            "field",
            *(["wide"] if getattr(parameter, "is_wide", False) else []),
            *(["tick"] if isinstance(parameter, param.Boolean) else []),
        ]
        self.layout = pn.Column(*parts, self._hint, css_classes=classes, sizing_mode="stretch_width", min_width=0)

    def _made(self, form: Form, parameter: Any) -> Any:
        match parameter:
            case None:
                return _parameter_input(form, self.label)
            case Choice():
                return field(pn.widgets.Select, parameter)
            case param.Boolean():
                return Tick(parameter, sizing_mode="stretch_width", min_width=0)
            case Words(line_count=count) if count > 1:
                return field(pn.widgets.TextAreaInput, parameter, rows=count, max_length=parameter.max_length, onkeyup=True)
            case _:
                return field(pn.widgets.TextInput, parameter, max_length=parameter.max_length, onkeyup=True)

    def show(self, form: Form, place: Place, problem: str) -> None:
        """Show what the field is for at the place, or the problem."""
        hint = form.hint_of(self._name, place)
        self._hint.show(html('<p class="{}">{}</p>', "problem" if problem else "note", problem or hint) if problem or hint else "")
        placeholder = form.placeholder_of(self._name, place)
        if isinstance(self._widget, pn.widgets.TextInput | pn.widgets.TextAreaInput) and self._widget.placeholder != placeholder:
            self._widget.placeholder = placeholder
        classes = [name for name in self.layout.css_classes if name != "invalid"] + (["invalid"] if problem else [])
        if self.layout.css_classes != classes:
            self.layout.css_classes = classes


def _parameter_input(form: Any, name: str) -> pn.widgets.TextInput:
    """A field of a kernel's parameter; which there are only the kernel says."""
    text = str(form.parameters.get(name, ""))
    made = pn.widgets.TextInput(label=name, value=text, max_length=500, sizing_mode="stretch_width", margin=0, min_width=0)

    def typed(event: Any) -> None:
        others = {key: value for key, value in form.parameters.items() if key != name}
        form.parameters = {**others, name: event.new} if event.new else others

    def found(event: Any) -> None:
        kept = str(event.new.get(name, ""))
        if kept != made.value_input:
            made.param.update(value=kept, value_input=kept)

    made.param.watch(typed, "value_input")  # with each letter
    form.param.watch(found, "parameters")
    return made


def _source_of(files: tuple[GivenFile, ...]) -> GivenFile | None:
    """Return the kernel source among them, if any."""
    return next((file for file in files if file.name.endswith(SOURCE_ENDING)), None)


def _problem(sentence: str) -> Markup:
    return html('<p class="problem block" tabindex="0">{}</p>', sentence) if sentence else html("")


def outlook(built: BuiltForm, checked: Run) -> str:
    """Return what is to be expected, before it is started."""
    where = f" on {checked.device_id}" if checked.device_id else ""
    work = checked.spec.work
    count = checked.total_configuration_count
    if isinstance(work, KernelSweep) and count is not None:
        many = f"{theme.count(count)} configuration{'' if count == 1 else 's'}{where}"
        if work.budget_ns is not None:
            return f"{many}, at most {_seconds(work.budget_ns / 1e9)} of searching."
        longest_s = count * (built.max_duration_s or 0)
        each = "" if count == 1 else f" ({_seconds(built.max_duration_s)} each)"
        return f"{many}, at most {_seconds(longest_s)} of sampling{each}, besides compiling and checking."
    if isinstance(work, ModelRun) and built.max_duration_s is not None:
        return f"At most {_seconds(built.max_duration_s)} of sampling{where}, besides compiling and checking."
    return f"Runs{where}." if where else "Can be run."


def _seconds(value_s: float | None) -> str:
    """Of a request, which may be far below a second."""
    return theme.span(value_s) if value_s is None or value_s >= 10 else theme.duration(value_s * 1e9)


# ---------------------------------------------------------------- runs that are done again


class Repeats(Component):
    """Runs that the view names and that have ended: each once more, or what is left of it."""

    def __init__(self, context: Context, starter: Starter) -> None:
        super().__init__(context)
        self._starter = starter
        self._shown: object = None
        self._list = pn.Column(css_classes=["agains"], sizing_mode="stretch_width", visible=False)
        self.layout = self._list

    def update(self) -> None:
        chosen, overview = self.context.view.runs, self.context.overview
        runs = [run for run in overview.runs if run.run_id in chosen and run.state.is_final and not run.is_imported]
        shown = (runs, self._starter.is_starting)
        if shown == self._shown:
            return
        self._shown = shown
        self._list[:] = [self._entry(run) for run in runs]
        self._list.visible = bool(runs)

    def _entry(self, run: Run) -> pn.Column:
        told = run_card(run, self.context.overview, 0.0)
        head = '<strong>{0}</strong><span class="state {1}">{1}</span><span class="note">{2} · {3}</span>'
        buttons = [self._button("Run again", run, start_again)]
        if rest := _rest_label(run):
            buttons.append(self._button(rest, run, partial(start_rest, retries_failed=False)))
        if isinstance(run.spec.work, KernelSweep) and run.failed_configuration_count > 0:
            buttons.append(self._button("Try what failed again", run, partial(start_rest, retries_failed=True)))
        title = Text(
            html(head, told.title, told.state.lower(), told.node_name, told.create_text),
            classes=("import-head",),
            styles={"flex": "1 1 200px"},
        )
        return card(flow(title, *buttons, classes=("import-line",)), classes=("again",))

    def _button(self, label: str, run: Run, start: Callable[[AnalyzerClient, Run], Coroutine[Any, Any, Run]]) -> pn.widgets.Button:
        work = partial(start, self.context.client, run)
        return pn.widgets.Button(label=label, margin=0, disabled=self._starter.is_starting, on_click=lambda _: self._starter.start(work))


def _rest_label(run: Run) -> str:
    """Of a sweep that was stopped, or whose budget did not reach for everything; else empty."""
    if not isinstance(run.spec.work, KernelSweep) or run.completed_configuration_count == run.total_configuration_count:
        return ""
    budget_ns = further_budget_ns(run)
    return "Measure what is left" if budget_ns is None else f"Measure what is left, {duration(budget_ns)} more"
