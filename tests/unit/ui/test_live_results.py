"""The table of a run's newest results, which changes seldom while the run goes on, and at once when another run is shown."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernalyse.services.core.model import KernelSelection, KernelSweep, Run, RunSpec, RunState
from kernalyse.services.ui.components import live
from kernalyse.services.ui.components.live import LiveResults, LiveRoofline
from kernalyse.services.ui.data.memory import RunMemory
from kernalyse.services.ui.shell import Browser
from kernalyse.services.ui.tab import Context
from kernalyse.services.ui.view import LiveView, View
from tests.unit.ui.test_charts import points
from tests.unit.ui.test_live_points import arrive
from tests.unit.ui.test_ui_outage import TIME, Client

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, which Bokeh's sources still use


class Shown:
    """The part of the page Live with the table, and the clock that it goes by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *run_ids: str) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        work = RunSpec(KernelSweep((KernelSelection("saxpy"),)))
        client = Client(*(Run(run_id, "n", work, RunState.RUNNING, TIME, start_time=TIME) for run_id in run_ids))
        self.context = Context(client, View(runs=[run_ids[0]]), Browser(), lambda: None)
        chart = LiveRoofline(self.context, LiveView())
        self._chart, self._results = chart, LiveResults(self.context, chart)

    def memory(self, run_id: str) -> RunMemory:
        (memory,) = self.context.memories([run_id])
        return memory

    def labels(self) -> list[str]:
        """What the table says after an update, the newest first."""
        self.context.begin_update()
        for part in (self._chart, self._results):
            part.update()
        self.context.end_update()
        return [name.partition(">")[2].partition("<")[0] for name in self._results._results.table.value["Configuration"]]


def test_the_same_run_has_new_results_after_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, "a")
    arrive(shown.memory("a"), 0)
    assert shown.labels() == ["k N=0"]
    arrive(shown.memory("a"), 1)
    assert shown.labels() == ["k N=0"]
    shown.now_s += live.RESULTS_S
    assert shown.labels() == ["k N=1", "k N=0"]


def test_results_of_another_run_never_stand_under_a_new_ones_name(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, "a", "b", "c")
    arrive(shown.memory("a"), 0)
    arrive(shown.memory("b"), 7)
    assert shown.labels() == ["k N=0"]
    shown.context.view.runs = ["b"]
    assert shown.labels() == ["k N=7"]
    shown.context.view.runs = ["c"]  # which has none yet
    assert shown.labels() == []
    arrive(shown.memory("c"), 8)
    shown.now_s += live.RESULTS_S
    assert shown.labels() == ["k N=8"]


def test_a_run_that_is_read_anew_shows_at_once_what_it_has_then(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, "a")
    arrive(shown.memory("a"), 0)
    assert shown.labels() == ["k N=0"]
    shown.memory("a").start_over()
    shown.memory("a").receive(None, {"roofline": points({"label": "k N=5", "configuration_index": 5})}, 0)
    assert shown.labels() == ["k N=5"]
