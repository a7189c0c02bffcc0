"""What holds on every page: accessible, as wide as the screen, and no text of a user becomes anything but text."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, TimeoutError, expect

from kernalyse.services.ui.catalog import PAGES
from kernalyse.services.ui.charts.metrics import configuration_key
from tests.browser.charts import IS_DRAWN
from tests.browser.conftest import PATIENCE_MS, Visit
from tests.unit.analyzer.readers.test_kineto import call, kernel, module

pytestmark = pytest.mark.browser

HOSTILE: Final = "<img src=x onerror='window.wasRun=1'><script>window.wasRun=1</script>"
LONG: Final = "k" * 10_000
SERIOUS: Final = ("serious", "critical")
OF_TABULATOR: Final = "aria-required-children"
"""Of Tabulator's own element: its grid holds the part that scrolls, which can be focused and is no row. No setting changes that."""

AXE: Final = Axe()


@pytest.fixture
def list_id(visit: Visit, tmp_path: Path) -> str:
    """A benchmark list with names that are code or far too long, and a rate of one flop in a second."""
    plain = {"batch_size": 8, "dtype": "float16", "model": "bert", "arithmetic_intensity": 12.0, "performance": 3.5}
    rows = [
        plain | {"kernel": HOSTILE},
        plain | {"kernel": LONG, "model": HOSTILE},
        plain | {"kernel": "slow", "performance": 1e-12},
    ]
    return visit.dashboard.import_file(tmp_path / "list.json", rows)


@pytest.fixture
def trace_id(visit: Visit, tmp_path: Path) -> str:
    events = [module(HOSTILE, 0, 100), call(10, 1), call(20, 2), kernel(HOSTILE, 200, 20, 1), kernel(LONG, 230, 40, 2)]
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
    return visit.dashboard.import_file(tmp_path / "net.json", {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events})


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_no_page_has_a_serious_fault_of_accessibility_or_runs_what_is_written_in_a_name(
    visit: Visit, list_id: str, trace_id: str, name: str
) -> None:
    found = []
    run_id = trace_id if name in ("layers", "timeline") else list_id
    page = visit.open(f"/{name}?runs={run_id}")
    for theme, kernel_name in (("light", HOSTILE), ("dark", LONG)):
        chosen = configuration_key({"run_id": list_id, "configuration_index": None, "kernel_name": kernel_name})
        compared = f"baseline={list_id}&candidate={list_id}"
        page.goto(f"{visit.dashboard.url}/{name}?runs={run_id}&{compared}&theme={theme}&table=kernels&configuration={chosen}")
        page.wait_for_function(IS_DRAWN, timeout=PATIENCE_MS)
        for width in (2560, 1280, 390):
            found += [f"{name}, {width} pixels, {theme}: {fault}" for fault in faults(page, width)]
    assert not found, "\n".join(found)


def faults(page: Page, width: int) -> list[str]:
    """At this width; charts take theirs some frames after the window has."""
    page.set_viewport_size({"width": width, "height": 860})
    found = [
        f"{violation['id']}: {violation['help']}: {node['html'][:160]}: {node['failureSummary']}"
        for violation in AXE.run(page).response["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"][:3]
        if not (violation["id"] == OF_TABULATOR and 'role="grid"' in node["html"])
    ]
    if page.evaluate("window.wasRun") is not None:
        found.append("a name was run as code")
    try:
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width, timeout=PATIENCE_MS)
    except TimeoutError:
        found.append("wider than the screen")
    return found


@pytest.mark.slow
def test_runs_that_are_gone_are_said_to_be(visit: Visit, list_id: str) -> None:
    page = visit.open(f"/live?runs={list_id}")
    page.wait_for_function(IS_DRAWN, timeout=PATIENCE_MS)
    visit.dashboard.delete(list_id)
    for name in PAGES:
        page.goto(f"{visit.dashboard.url}/{name}?runs={list_id}")
        page.wait_for_function(IS_DRAWN, timeout=PATIENCE_MS)
    page.goto(f"{visit.dashboard.url}/live?runs={list_id}")
    expect(page.locator(".run-card")).to_contain_text("This run cannot be shown")
