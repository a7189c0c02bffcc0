"""Every address of the dashboard is drawn without a word on the console, and pages that share a chart do not meddle with each other's."""

from __future__ import annotations

from itertools import permutations
from typing import Final

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from kernalyse.services.core.model import RunState
from kernalyse.services.ui.catalog import PAGES
from kernalyse.services.ui.shell import PLACES
from tests.browser.charts import drawn_count
from tests.browser.conftest import Visit
from tests.browser.dashboard import Dashboard
from tests.browser.test_legends import see_that_entries_hide
from tests.browser.test_live import eventually
from tests.browser.test_page_to_page import shows
from tests.unit.nsys_export import kernel, write_export

pytestmark = pytest.mark.browser

WITH_ROOFLINE: Final = {"live": ("Roofline", "live_roofline"), "roofline": ("Roofline", "roofline"),
                        "compare": ("Roofline, before and after", "compared_roofline")}  # fmt: skip
"""Pages with a chart of one form: the card and the figure of each."""

COLLAPSED_FIGURES: Final = """() => {
  const viewed = (view) => [view, ...[...view.children()].flatMap(viewed)]
  const figures = Bokeh.index.roots.flatMap(viewed).filter(({model}) => model.type === "Figure")
  const shown = figures.filter(({el}) => el.checkVisibility() && el.offsetWidth > 0)
  return shown.filter(({model, el}) => !(model.inner_width > 0.3 * el.offsetWidth)).map(({model}) => [model.id, model.inner_width])
}"""
"""Charts whose frame takes less than 0.3 of their width, with its width in pixels."""

WRONG_MODELS: Final = """() => {
  const [shown] = Bokeh.documents
  const viewed = (view) => [view.model, ...[...view.children()].flatMap(viewed)]
  const models = new Set([...shown.roots().flatMap((root) => [...root.references()]), ...Bokeh.index.roots.flatMap(viewed)])
  const sent = [...models].filter(({id}) => /^p\\d+$/.test(id)) // the browser makes some of its own
  const ids = sent.map(({id}) => id)
  const twice = ids.filter((id, place) => ids.indexOf(id) !== place)
  return [...twice, ...sent.filter((model) => shown.get_model_by_id(model.id) !== model).map(({id, type}) => `${type} ${id}`)]
}"""
"""Ids that two models have, and models that are shown but not found by their id, so that no patch would reach them."""


@pytest.fixture(scope="module")
def run_ids(dashboard: Dashboard) -> tuple[str, str]:
    """Two runs of two kernels that were measured."""
    runs = [dashboard.start_sweep("saxpy", "reduce_sum", title=title, seconds=0.05, sizes=(65_536,)) for title in ("crawled", "again")]
    eventually(lambda: all(dashboard.run(run.run_id).state is RunState.SUCCEEDED for run in runs))
    return runs[0].run_id, runs[1].run_id


def query_of(run_ids: tuple[str, str]) -> str:
    baseline, candidate = run_ids
    return f"runs={candidate}&configuration={candidate}.0&baseline={baseline}&candidate={candidate}&allow=method"


@pytest.fixture(scope="module")
def trace_id(dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("crawl") / "trace.sqlite"
    return dashboard.import_file(write_export(path, kernels=[kernel(1_000, 6_000, 1), kernel(9_000, 12_000, 2)], gpus=[{}]))


@pytest.mark.parametrize("place", PLACES)
def test_every_page_and_every_chart_is_drawn_without_a_word_on_the_console(
    visit: Visit, run_ids: tuple[str, str], trace_id: str, place: str
) -> None:
    said: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type not in ("log", "info"):  # in which Bokeh tells that it works
            said.append(message.text)

    page = visit.context.new_page()
    page.on("console", hear)
    page.on("pageerror", lambda error: said.append(str(error)))
    query = f"runs={trace_id}" if place.endswith("timeline") else query_of(run_ids)
    page.goto(f"{visit.dashboard.url}/{place}?{query}")
    page.wait_for_selector("[data-ready]")
    if place in PAGES:
        expect(page.locator("nav [aria-current]")).to_have_text(PAGES[place].title)
        expect(page.locator("main .card").first).to_be_visible()
    else:
        expect(page.locator("nav")).to_have_count(0)
        expect(page.locator("main .bk-Figure").first).to_be_attached()
        page.wait_for_function("() => Bokeh.index.roots.every((view) => view.has_finished())")
    expect(page.locator(".banner")).to_be_hidden()
    page.wait_for_timeout(300)  # what is wrong may be told by the next update
    eventually(lambda: page.evaluate(COLLAPSED_FIGURES) == [])
    assert said == []


@pytest.mark.slow
def test_pages_that_share_a_chart_have_one_of_their_own_each(visit: Visit, run_ids: tuple[str, str]) -> None:
    page = visit.open("/nodes")
    for name in (name for names in permutations(WITH_ROOFLINE, 2) for name in names):
        follow(page, f"/{name}?{query_of(run_ids)}")
        shows(page, name)
        title, figure = WITH_ROOFLINE[name]
        wait_for_points(page, figure)
        see_that_entries_hide(page, title, figure)
        assert page.evaluate(WRONG_MODELS) == []


def wait_for_points(page: Page, figure: str) -> None:
    """Of both kernels."""
    eventually(lambda: drawn_count(page, f"{figure}:points") >= 2)


def follow(page: Page, address: str) -> None:
    """Go where a link on the page would lead."""
    page.evaluate(
        """address => {
          const link = Object.assign(document.createElement("a"), {href: address})
          document.body.append(link)
          link.click()
          link.remove()
        }""",
        address,
    )


def test_a_heatmap_whose_height_never_changes_has_its_frame(visit: Visit) -> None:
    run = visit.dashboard.start_sweep("saxpy", seconds=0.05, sizes=(4_096, 8_192, 16_384, 32_768, 65_536))
    eventually(lambda: visit.dashboard.run(run.run_id).state is RunState.SUCCEEDED)
    page = visit.open(f"/kernels?runs={run.run_id}&heat_x=kernel&heat_y=N")
    wait_for_cells = "(count) => Bokeh.documents[0].get_model_by_name('heatmap:cells')?.length === count"
    page.wait_for_function(wait_for_cells, arg=5)
    page.wait_for_timeout(1000)
    assert page.evaluate(COLLAPSED_FIGURES) == []


def test_the_focus_stays_on_its_row_while_rows_arrive(visit: Visit) -> None:
    sizes = (4_096, 8_192, 16_384, 32_768)
    run = visit.dashboard.start_sweep("saxpy", seconds=1.5, sizes=sizes)
    page = visit.open(f"/roofline?runs={run.run_id}")
    rows = page.locator(".results .tabulator-row a.choose")
    rows.first.focus()
    name = rows.first.inner_text()
    expect(rows).to_have_count(len(sizes))
    expect(rows.get_by_text(name, exact=True)).to_be_focused()
