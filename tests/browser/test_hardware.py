"""Peaks and thresholds on the Roofline page: what is typed, who sees it, and two people at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Locator, Page, expect

from kernalyse.trace_upload import OutgoingTrace, TraceUpload
from tests.browser.charts import drawn_count
from tests.browser.conftest import Visit, see_that_it_fits
from tests.browser.test_live import eventually
from tests.unit.analyzer.readers.test_commands import CONFIG, CONV, MM, MUL

pytestmark = pytest.mark.browser

BANDWIDTH: Final = "Memory bandwidth"
MEMORY_THRESHOLD: Final = "Memory inefficient threshold"
PEAK: Final = "Peak compute, every data type"
MM_BYTES_PER_S: Final = 15.8e9  # of CONFIG's 50 GB/s: 31.6 %


@pytest.fixture
def run_id(visit: Visit, tmp_path: Path) -> str:
    """Of a list of operations with a roofline_config.json beside it."""
    (tmp_path / "roofline_config.json").write_text(json.dumps(CONFIG))
    return visit.dashboard.import_file(tmp_path / "commands.json", [CONV, MUL, MM])


def opened(visit: Visit, run_id: str) -> Page:
    page = visit.open(f"/roofline?runs={run_id}")
    page.locator(".hardware").get_by_role("button", name="Hardware").click()
    expect(page.get_by_label(BANDWIDTH)).to_be_visible()
    return page


def efficiency(page: Page) -> Locator:
    return page.locator(".results .tabulator-row", has_text="ID_MM").locator(".tabulator-cell:has(.meter)")


def field(page: Page, label: str) -> Locator:
    """Return a field with what is said below it."""
    return page.locator(".hardware .field", has=page.get_by_label(label))


def apply(page: Page, typed: Mapping[str, str]) -> None:
    """Type into the fields with these labels, and apply it."""
    for label, text in typed.items():
        page.locator(".hardware").get_by_label(label).fill(text)
    page.locator(".hardware").get_by_role("button", name=re.compile("Apply|Save mine all the same")).click()


@pytest.mark.slow
def test_real_time_configuration_and_config_persistence(visit: Visit, run_id: str) -> None:
    """What is applied in one tab is seen in every other, survives a reload, and comes out as roofline_config.json."""
    first, second = opened(visit, run_id), opened(visit, run_id)
    expect(first.get_by_label(BANDWIDTH)).to_have_value("50")
    expect(efficiency(first)).to_have_text("31.6 %")

    for text in ("0", "inf"):  # what else is refused, tests of fields say
        apply(first, {BANDWIDTH: text})
        expect(field(first, BANDWIDTH)).to_contain_text(f"Found '{text}'")
        expect(first.get_by_label(BANDWIDTH)).to_have_attribute("aria-invalid", "true")
    apply(first, {MEMORY_THRESHOLD: "101"})
    expect(field(first, MEMORY_THRESHOLD)).to_contain_text("a percentage over 0 and at most 100")
    expect(efficiency(second)).to_have_text("31.6 %")  # nothing of that was applied

    apply(first, {BANDWIDTH: "0.02 TB/s", MEMORY_THRESHOLD: "80", PEAK: "64"})
    for page in (first, second):
        expect(efficiency(page)).to_have_text("79.0 %")
        expect(page.get_by_label(BANDWIDTH)).to_have_value("20")
    first.reload()
    expect(efficiency(first)).to_have_text("79.0 %")

    link = second.get_by_role("link", name="Download roofline_config.json").get_attribute("href")
    answer = visit.context.request.get(f"{visit.dashboard.url}{link}")
    assert answer.json() == {"peak_tops": 64, "mem_bw": 20, "mem_thresh": 80, "comp_thresh": CONFIG["comp_thresh"]}


@pytest.mark.slow
def test_two_people_editing_peaks_at_once(visit: Visit, run_id: str) -> None:
    """Who was second sees both values before anything of the other's is lost."""
    first, second = opened(visit, run_id), opened(visit, run_id)
    second.get_by_label(BANDWIDTH).fill("25")
    apply(first, {BANDWIDTH: "40"})
    expect(efficiency(second)).to_have_text("39.5 %")
    expect(second.get_by_label(BANDWIDTH)).to_have_value("25")  # what was typed stays

    apply(second, {})
    refusal = second.locator(".hardware .problem.block")
    expect(refusal).to_contain_text("40 GB/s")
    expect(refusal).to_contain_text("this edit has 25 GB/s")
    expect(efficiency(first)).to_have_text("39.5 %")
    apply(second, {})
    for page in (first, second):
        expect(efficiency(page)).to_have_text("63.2 %")


@pytest.mark.slow
def test_auto_reload(visit: Visit, tmp_path: Path) -> None:
    """A file that is followed changes, and so do pages that show it."""
    path = tmp_path / "commands.json"

    def send(*operations: dict[str, object]) -> str:
        path.write_text(json.dumps(operations))
        upload = TraceUpload([OutgoingTrace(path)], lambda _: None, source_id="followed by a test")
        found: str = upload.send(visit.dashboard.stub).run.run_id
        return found

    run_id = send(CONV, MUL)
    roofline, live, kernels = (visit.open(f"/{name}?runs={run_id}") for name in ("roofline", "live", "kernels"))
    for page, rows in ((roofline, ".results"), (live, ".results"), (kernels, ".listed")):
        expect(page.locator(f"{rows} .tabulator-row")).to_have_count(2)
    assert send(CONV | {"name": "renamed"}, MUL, MM) == run_id
    for page, rows in ((roofline, ".results"), (live, ".results"), (kernels, ".listed")):
        expect(page.locator(f"{rows} .tabulator-row")).to_have_count(3)
        expect(page.locator(rows)).to_contain_text("renamed")


def test_operations_without_a_place_are_told_on_the_page_with_the_reason(visit: Visit, tmp_path: Path) -> None:
    without = {name: value for name, value in MM.items() if name != "input_mat2"}
    wrong = [MUL | {"name": "<b>odd</b>", "data_type": "INT3"}, without]
    page = visit.open(f"/roofline?runs={visit.dashboard.import_file(tmp_path / 'commands.json', [CONV, *wrong])}")
    told = page.locator(".file-problems")
    expect(told).to_contain_text("Wrong or missing in the file: 2.")
    expect(told.locator("li")).to_have_count(2)
    expect(told).to_contain_text("operation 1 (<b>odd</b>, ID_MUL): data type INT3: the bytes of a number are not known")
    expect(told).to_contain_text("The field input_mat2 is missing. An ID_MM needs input_mat1, input_mat2.")
    see_that_it_fits(page, 390)
    whole = visit.open(f"/roofline?runs={visit.dashboard.import_file(tmp_path / 'whole.json', [CONV, MUL | {'data_type': 'INT4'}])}")
    eventually(lambda: drawn_count(whole, "roofline:points") == 2)
    expect(whole.locator(".file-problems")).to_be_empty()
