"""What an empty page says: what it will show, and buttons that load an example trace or start the demo sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import panel as pn

from kernalyse.services.ui.components.base import Component, Text, card, flow, html
from kernalyse.services.ui.data.runs import is_active_demo, start_demo

if TYPE_CHECKING:
    from kernalyse.services.ui.tab import Context

EXAMPLES: Final = Path(__file__).parents[1] / "examples"
WRITTEN_OUT: Final = EXAMPLES / "example_attention_written_out.json.gz"
FUSED: Final = EXAMPLES / "example_attention_fused.json.gz"
"""Of one model, see the README there."""

RUNNING: Final = '<p class="note">The demo sweep runs: <a href="/live?runs={}">look at it</a>.</p>'
NO_NODE: Final = html('<p class="note">The demo sweep needs a node, and <a href="/nodes">none serves</a>.</p>')
DEMO_RUNS: Final = "The demo sweep was running already, so no second one was started: this is it."
OWN: Final = (
    '<p class="note">Or begin with something of your own: on the page <a href="/start?form={form}">Run / Import</a>, '
    "or in a terminal:</p><pre><code>{commands}</code></pre>"
)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one page says and offers while it has nothing to show.

    Args:
        traces: what the button loads.
        form: of the page Run / Import.
        has_demo: the demo sweep gives the page something to show.
    """

    title: str
    text: str
    commands: str = "kernalyse bench saxpy"
    form: str = "sweep"
    traces: tuple[Path, ...] = (FUSED,)
    has_demo: bool = True


OFFERS: Final = {
    "live": Offer(
        "Nothing has been measured yet",
        "Here a run is seen while it goes on: every sample as it is taken, its kernels under the roofline, "
        "clocks and temperature of the machine, and its log.",
    ),
    "roofline": Offer(
        "No run has points yet",
        "Here each kernel or layer is a point under what its device can do: how far it is from that, what limits it, and what would help.",
    ),
    "kernels": Offer(
        "Nothing has been measured yet",
        "Here kernels stand beside each other over their parameters, as a heatmap, as bars and as a table; "
        "of each its samples, and what its compiler made of it.",
    ),
    "layers": Offer(
        "What a model shows here",
        "The tree of its layers, each as wide as its time, and of each layer the kernels it launches, their work and their memory, "
        "beside what the device could do.",
        "kernalyse profile -- python train.py\nkernalyse import trace.json",
        "command",
        has_demo=False,
    ),
    "timeline": Offer(
        "What a trace shows here",
        "A row for each stream of a device and for each thread with its ranges and API calls: what ran when, from the whole trace down to "
        "one launch. Gaps in which a device was idle, and why. Of a launch its grid, its layer, the call that launched it and how long it "
        "waited. Of any stretch how busy the devices were, and with what.",
        "kernalyse profile -- python train.py\nkernalyse import trace.sqlite\nkernalyse import trace.json",
        "command",
        has_demo=False,
    ),
    "compare": Offer(
        "No two runs to compare yet",
        "Here a run stands beside an earlier one: each configuration's speed-up with its interval and verdict, both runs on one roofline, "
        "and how their sources differ. Of two traces: which kernels and layers take more time, and which less. "
        "The examples are of one model, with its attention written out and with PyTorch's fused one.",
        "kernalyse bench saxpy --processes 5",
        traces=(WRITTEN_OUT, FUSED),
        has_demo=False,
    ),
    "history": Offer(
        "Nothing has a history yet",
        "Here each configuration, model, layer and kernel has a point for each of its runs, with its interval, the level that the runs "
        "keep to, and where a regression or an improvement began.",
    ),
}
"""By the path of the page."""


def has_no_runs(context: Context) -> bool:
    """Return whether the analyzer has no run at all, and none is asked for."""
    return context.overview.is_known and not context.overview.runs and not context.view.runs


class FirstVisit(Component):
    """Stands where a page has nothing to show; what was loaded or started is what all pages show.

    Args:
        page: key of OFFERS.
        is_wanted: whether the page has nothing to show; None: it shows something as soon as there is a run.
    """

    def __init__(self, context: Context, page: str, is_wanted: Callable[[], bool] | None = None) -> None:
        super().__init__(context)
        self._offer = OFFERS[page]
        self._is_wanted = is_wanted or (lambda: has_no_runs(context))
        self._is_loading = self._is_starting = False
        self._started_run_id = ""  # until the list of runs has it
        self._unwatch = context.uploads.imports.watch(context.wake)
        offer = self._offer
        self._load = pn.widgets.Button(margin=0, color="default" if offer.has_demo else "primary", on_click=self._begin_loading)
        self._start = pn.widgets.Button(margin=0, color="primary", on_click=self._begin_starting)
        self._note = Text()
        buttons = flow(*((self._start,) if offer.has_demo else ()), self._load, classes=("offers",))
        self.layout = card(
            Text(html("<h1>{}</h1><p>{}</p>", offer.title, offer.text), classes=("offer",)),
            buttons,
            self._note,
            Text(html(OWN, form=offer.form, commands=offer.commands), classes=("offer",)),
            classes=("first-visit",),
        )

    @property
    def is_shown(self) -> bool:
        return bool(self.layout.visible)

    def update(self) -> None:
        if any(run.run_id == self._started_run_id for run in self.context.overview.runs):
            self._started_run_id = ""
        is_wanted = self._is_wanted()
        if self.layout.visible != is_wanted:
            self.layout.visible = is_wanted
        if is_wanted:
            self._show_buttons()

    def _show_buttons(self) -> None:
        offer, overview, imports = self._offer, self.context.overview, self.context.uploads.imports
        is_loading = self._is_loading or any(imports.is_sending(path) for path in offer.traces)
        what = "an example trace" if len(offer.traces) == 1 else "two example traces"
        self._load.param.update(label=f"Loading {what}…" if is_loading else f"Load {what}", disabled=is_loading)
        running = next(filter(is_active_demo, overview.runs), None)
        is_running = self._is_running()
        label = "Starting the demo sweep…" if self._is_starting else "The demo sweep runs" if is_running else "Start the demo sweep"
        is_served = any(status.can_take_runs for status in overview.nodes)
        self._start.param.update(label=label, disabled=self._is_starting or is_running, visible=is_served)
        note = "" if not offer.has_demo else NO_NODE if not is_served else html(RUNNING, running.run_id) if running is not None else ""
        self._note.show(note)

    def _is_running(self) -> bool:
        """Whether the demo sweep runs or waits, which the list of runs tells a little later than its start."""
        return bool(self._started_run_id) or any(map(is_active_demo, self.context.overview.runs))

    def _begin_loading(self, _event: Any) -> None:
        if not self._is_loading:
            self._is_loading = True
            self.context.wake()
            self.context.carry_out(self._loaded())

    async def _loaded(self) -> None:
        try:
            runs = await asyncio.gather(*(self.context.uploads.imports.send(path, self.context.client) for path in self._offer.traces))
        finally:
            self._is_loading = False
        self.context.view.runs = [run.run_id for run in runs]

    def _begin_starting(self, _event: Any) -> None:
        if not self._is_starting and not self._is_running():
            self._is_starting = True
            self.context.wake()
            self.context.carry_out(self._started())

    async def _started(self) -> None:
        try:
            run, is_of_another = await start_demo(self.context.client)
        finally:
            self._is_starting = False
        if is_of_another:
            self.context.problem = DEMO_RUNS
        self._started_run_id = run.run_id
        self.context.view.runs = [run.run_id]

    def close(self) -> None:
        self._unwatch()
