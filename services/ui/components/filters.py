"""Widgets of the filters that hold on every page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui.components.base import Component, card
from kernalyse.services.ui.data import filters

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

NAME_HELP = 'In quotes it is the whole name: "saxpy" leaves saxpy_v2 out.'


class NameInput(pn.widgets.TextInput):
    """A field for a part of a name. Its parameter follows with each letter, not only when the field is left.

    Args:
        parameter: a param.String.
    """

    def __init__(self, parameter: Any, **params: Any) -> None:
        owner, name = parameter.owner, str(parameter.name)
        text = getattr(owner, name)
        shown = {"label": parameter.label, "value": text, "value_input": text, "placeholder": "part of its name", "margin": 0}
        super().__init__(**{**shown, **params})
        self.param.watch(lambda event: setattr(owner, name, event.new), "value_input")
        self._owner, self._parameter = owner, name

    def follow(self) -> None:
        """Show the parameter's text where a link, a step back or another page has changed it.

        Only an update may call it: at other times the browser may not have drawn the field, and an input without its element cannot be
        changed.
        """
        text = getattr(self._owner, self._parameter)
        if text != self.value_input:
            self.param.update(value=text, value_input=text)


class Filters(Component):
    """A field for a part of a name, a choice for each property that the rows differ in, and further widgets of the page.

    Args:
        name_title: what the names are of.
    """

    def __init__(self, context: Context, *further: Any, name_title: str = "Kernel") -> None:
        super().__init__(context)
        view = context.view
        self._name = NameInput(view.param.kernel, label=name_title, description=NAME_HELP, sizing_mode="stretch_width")
        self._choices = {
            choice.name: pn.widgets.Select(label=choice.title, options={"all": ""}, visible=False, sizing_mode="stretch_width", margin=0)
            for choice in filters.CHOICES
        }
        for name, choice in self._choices.items():
            choice.link(view, value=name)
        self.layout = card(self._name, *self._choices.values(), *further, classes=("filters",))

    def offer(self, values: Mapping[str, Sequence[str]]) -> None:
        """Offer these values, by the filter's name. A choice with nothing to choose from is not shown."""
        self._name.follow()
        for name, choice in self._choices.items():
            chosen = getattr(self.context.view, name)
            some = list(values.get(name, ()))
            if chosen and chosen not in some:
                some.append(chosen)
            options = {"all": "", **{value: value for value in some}}
            if options != choice.options or choice.value != chosen:
                choice.param.update(options=options, value=chosen, visible=len(some) > 1 or bool(chosen))
