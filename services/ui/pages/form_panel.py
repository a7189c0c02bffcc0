"""One form of the page in one tab: what stands in it, what was given to it, and how it looks."""

from __future__ import annotations

from typing import Final

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import KernelSweep, ModelRun, Run
from kernalyse.services.ui import theme
from kernalyse.services.ui.forms.form import BuiltForm, Form, Group, Place, Values
from kernalyse.services.ui.pages.shell import fragment

MAX_SHOWN_NOTICES: Final = 6


class FormPanel:
    """values: by the names of fields, empty while nobody has touched the form. file_ids: of files that were given."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.values: dict[str, str] = {}
        self.file_ids: tuple[str, ...] = ()
        self.refusal: tuple[BuiltForm, KernalyseError] | None = None  # of what was to be started
        self._key: object = None
        self._shown = ""

    @property
    def node_id(self) -> str:
        """Empty: the analyzer chooses."""
        return self.values.get("node", "")

    def built(self, place: Place) -> BuiltForm:
        return self.form.build(settled(self.form.groups(self.values, place), self.values), place)

    def rendered(self, place: Place, checked: Run | KernalyseError | None, *, is_starting: bool, source_problem: str = "") -> str:
        """checked: what the node says of the run; None: not known."""
        groups = self.form.groups(self.values, place)
        values = settled(groups, self.values)
        built = self.form.build(values, place)
        problems = dict(built.problems) if self.values else {}
        refusal = checked if isinstance(checked, KernalyseError) else None
        if self.refusal is not None and self.refusal[0] == built:
            refusal = self.refusal[1]
        if refusal is not None:
            problems.setdefault(self._field_of(refusal, groups), refusal.message)
        outlook = _outlook(built, checked) if isinstance(checked, Run) and not problems else ""
        notices = (*built.notices, *(place.source.notices if place.source is not None and self.form.name == "sweep" else ()))
        key = (
            groups,
            tuple(values.items()),
            place.files,
            place.source,
            tuple(problems.items()),
            built.command,
            outlook,
            is_starting,
            source_problem,
        )
        if key != self._key:
            self._key = key
            self._shown = fragment(
                "start_form.html",
                form=self.form,
                groups=groups,
                values=values,
                problems=problems,
                files=place.files,
                notices=notices[:MAX_SHOWN_NOTICES],
                command_line=built.command_line,
                outlook=outlook,
                is_starting=is_starting,
                is_asking=checked is None and built.is_checkable,
                source_problem=source_problem,
            )
        return self._shown

    def _field_of(self, error: KernalyseError, groups: tuple[Group, ...]) -> str:
        """Only one that is shown."""
        name = self.form.field_of(error)
        return name if any(one.name == name for group in groups for one in group.fields) else ""


def settled(groups: tuple[Group, ...], values: Values) -> dict[str, str]:
    """The values with the defaults of fields that nobody has touched, and without choices that there are no longer."""
    made = dict(values)
    for one in (one for group in groups for one in group.fields):
        if (one.kind == "select" and made.get(one.name, "") not in (value for value, _ in one.choices)) or (
            one.name not in made and one.default
        ):
            made[one.name] = one.default
    return made


def _outlook(built: BuiltForm, checked: Run) -> str:
    """What is to be expected, before it is started."""
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
