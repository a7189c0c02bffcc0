"""Widgets of the filters that hold on every page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import panel as pn

from kernalyse.services.ui import filters
from kernalyse.services.ui.components.base import Component, card

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

NAME_HELP = 'In quotes it is the whole name: "saxpy" leaves saxpy_v2 out.'


class Filters(Component):
    """A field for a part of a name, a choice for each property that the rows differ in, and further widgets of the page.

    Args:
        name_title: what the names are of.
    """

    def __init__(self, context: Context, *further: Any, name_title: str = "Kernel") -> None:
        super().__init__(context)
        view = context.view
        self._name = pn.widgets.TextInput(
            label=name_title,
            value=view.kernel,
            placeholder="part of its name",
            description=NAME_HELP,
            sizing_mode="stretch_width",
            margin=0,
        )
        self._name.param.watch(self._typed, "value_input")  # with each letter; value follows when the field is left
        view.param.watch(self._named, "kernel")
        self._choices = {
            choice.name: pn.widgets.Select(label=choice.title, options={"all": ""}, visible=False, sizing_mode="stretch_width", margin=0)
            for choice in filters.CHOICES
        }
        for name, choice in self._choices.items():
            choice.link(view, value=name)
        self.layout = card(self._name, *self._choices.values(), *further, classes=("filters",))

    def _typed(self, event: Any) -> None:
        self.context.view.kernel = event.new

    def _named(self, event: Any) -> None:
        """A link, or a step back, has changed it."""
        if event.new != self._name.value_input:
            self._name.param.update(value=event.new, value_input=event.new)

    def show(self, values: Mapping[str, Sequence[str]]) -> None:
        """Offer these values, by the filter's name. A choice with nothing to choose from is not shown."""
        for name, choice in self._choices.items():
            chosen = getattr(self.context.view, name)
            some = list(values.get(name, ()))
            if chosen and chosen not in some:
                some.append(chosen)
            options = {"all": "", **{value: value for value in some}}
            if options != choice.options or choice.value != chosen:
                choice.param.update(options=options, value=chosen, visible=len(some) > 1 or bool(chosen))
