"""Uploads whose line breaks on the way: between browser and dashboard, and because the dashboard was started anew."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import PATIENCE_MS, Visit
from tests.browser.socket_viewer import ask, log_in
from tests.service_processes import ServiceProcess, ServiceProcesses, free_port
from tests.unit.analyzer.readers.test_kineto import call, kernel

pytestmark = pytest.mark.browser

MEBIBYTE = 2**20
SLICES = "**/imports/*?file=*"


@pytest.fixture
def trace(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Three slices long, and another one for each test."""
    path = tmp_path / "long.json"
    note = request.node.name + "x" * (12 * MEBIBYTE)
    path.write_text(json.dumps({"schemaVersion": 1, "note": note, "traceEvents": [call(12, 1), kernel("gemm", 200, 2, 1)]}))
    return path


def import_of(page: Page, path: Path) -> None:
    page.get_by_label("Choose files", exact=True).set_input_files(path)


def slice_of(route: Route) -> tuple[str, int]:
    """Upload and offset."""
    url = urlsplit(route.request.url)
    return url.path, int(parse_qs(url.query)["offset"][0])


@pytest.mark.slow
def test_a_slice_that_is_lost_is_sent_again_from_where_the_server_is(visit: Visit, trace: Path) -> None:
    page = visit.open("/start?form=import")
    sent: list[tuple[str, int]] = []

    def pass_on(route: Route) -> None:
        sent.append(slice_of(route))
        if len(sent) == 2:
            route.abort("connectionreset")
        else:
            route.continue_()

    page.route(SLICES, pass_on)
    import_of(page, trace)
    expect(page.locator(".import .state").first).to_have_text("done")
    assert [offset for _, offset in sent] == [0, MEBIBYTE, MEBIBYTE, 9 * MEBIBYTE]
    visit.complaints[:] = [text for text in visit.complaints if "ERR_CONNECTION_RESET" not in text]


@pytest.mark.slow
def test_an_upload_goes_on_when_the_dashboard_is_started_anew(browser: Browser, services: ServiceProcesses, trace: Path) -> None:
    analyzer = services.start("analyzer")
    address = f"127.0.0.1:{free_port()}"
    ui = services.start("ui", "--analyzer-address", analyzer.address, address=address)
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"http://{address}/start?form=import&token={ui.token}")
    page.wait_for_selector("[data-ready]")
    page.evaluate("window.isSame = true")
    sent: list[tuple[str, int]] = []
    held: list[Route] = []

    def pass_on(route: Route) -> None:
        sent.append(slice_of(route))
        if len(sent) in (3, 5):
            held.append(route)
        else:
            route.continue_()

    page.route(SLICES, pass_on)
    import_of(page, trace)
    while not held:
        page.wait_for_timeout(20)
    ui.kill()
    held[0].abort("connectionreset")
    expect(page.locator("#lost")).to_be_visible()
    services.start("ui", "--analyzer-address", analyzer.address, address=address)
    expect(page.locator("#lost")).to_be_hidden()  # the page is there before all has been sent
    expect(page.locator(".import .state")).to_have_text("receiving")
    while len(held) < 2:
        page.wait_for_timeout(20)
    held[1].continue_()
    expect(page.locator(".import .state")).to_have_text("done")
    assert page.evaluate("window.isSame")
    assert len({upload for upload, _ in sent}) == 1  # what the analyzer has of it is not sent there again
    assert [offset for _, offset in sent] == [0, MEBIBYTE, 9 * MEBIBYTE, 0, MEBIBYTE, 9 * MEBIBYTE]
    page.locator(".import").get_by_role("link", name="Kernels").click()
    expect(page.locator(".listed .tabulator-row")).to_contain_text("gemm")
    context.close()


@pytest.mark.slow
def test_files_of_a_dashboard_that_was_killed_are_deleted_by_the_next_one(
    services: ServiceProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def given() -> list[Path]:
        return [path for path in tmp_path.glob("kernalyse-ui-*/*") if path.read_bytes() == b"a model"]

    def give(ui: ServiceProcess) -> None:
        cookie = log_in(ui.address, ui.token)
        answer = ask(f"http://{ui.address}/files?name=model.onnx", data=b"a model", Cookie=cookie, X_Kernalyse_Page="1")
        assert answer.status == 200, answer.text

    killed, alive = services.start("ui"), services.start("ui")
    give(killed)
    (left,) = given()
    give(alive)
    killed.kill()
    next_one = services.start("ui")
    (kept,) = given()
    assert kept != left
    assert not left.parent.exists()
    for ui in (alive, next_one):
        ui.stop()
    assert not list(tmp_path.glob("kernalyse-ui-*"))
