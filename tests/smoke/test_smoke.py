"""What a new user does first, on whatever Python the tests run on: `make smoke PYTHON=python3.13` runs it on another one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from kernalyse.services.ui.shell import NAVIGATION
from tests.browser.charts import IS_DRAWN
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, chromium
from tests.unit.analyzer.readers.test_kineto import call, kernel, module

pytestmark = pytest.mark.browser

COMMAND: Final = (sys.executable, "-P", "-m", "kernalyse.services.cli.main")
PATIENCE_MS: Final = 90_000  # nothing waits as long unless it fails or the machine is loaded
COMMAND_TIMEOUT_S: Final = 120.0


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    if chromium() is None:
        pytest.skip("needs Chromium (package chromium) on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_ARGUMENTS))
        context = browser.new_context(viewport={"width": 1280, "height": 860})
        context.set_default_timeout(PATIENCE_MS)
        yield context
        browser.close()


@contextmanager
def kernalyse_up() -> Iterator[str]:
    """Run `kernalyse up --demo`, as `make run` does, and yield the URL that it prints."""
    with subprocess.Popen([*COMMAND, "up", "--demo", "--port", "0"], stdout=subprocess.PIPE, text=True) as up:
        try:
            yield printed_url(up.stdout)
        finally:
            up.terminate()
            assert up.wait(COMMAND_TIMEOUT_S) == 0


def printed_url(output: IO[str] | None) -> str:
    assert output is not None
    lines: list[str] = []
    while "Dashboard:" not in (line := output.readline()):
        assert line, f"up ended: {lines}"
        lines.append(line)
    return line.split()[-1]


def kernalyse(*arguments: str | Path) -> str:
    """Return what the command prints; fail when it does."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def newest_run_id() -> str:
    run_id: str = json.loads(kernalyse("runs", "--json"))[0]["run_id"]
    return run_id


def assert_recording_is_replayed() -> None:
    """The runs of an H200 are among the others, labelled and of a node of their own, and the first one has ended."""
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while True:
        runs = [run for run in json.loads(kernalyse("runs", "--json")) if "H200 recording" in run["title"]]
        assert [run["hostname"] for run in runs] == ["recording"] * 4
        if runs[-1]["state"] == "SUCCEEDED":
            break
        assert time.monotonic() < deadline, runs[-1]
        time.sleep(1)
    assert "matmul_tensor_tiled" in kernalyse("show", runs[-1]["run_id"], "roofline")


def watched_page(context: BrowserContext, complaints: list[str]) -> Page:
    """Return a page whose errors are added to complaints."""
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"{page.url}: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    return page


def see_pages(page: Page, url: str, run_id: str) -> None:
    """Open every page of a run, each anew, and wait until it is drawn; every chart must have been."""
    for name, title in NAVIGATION.items():
        page.goto(f"{url}/{name}?runs={run_id}")
        expect(page).to_have_title(f"{title} · kernalyse")
        page.wait_for_function(IS_DRAWN, timeout=PATIENCE_MS)
        assert page.evaluate("Bokeh.documents.length") == 1


def test_services_demo_pages_import_and_export_work(private_directories: Path, context: BrowserContext, tmp_path: Path) -> None:
    trace = tmp_path / "net.json"
    events = [module("net", 0, 100), call(10, 1), call(20, 2), kernel("gemm", 200, 20, 1), kernel("add", 230, 40, 2)]
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    complaints: list[str] = []
    with kernalyse_up() as url:
        page = watched_page(context, complaints)
        page.goto(url)
        expect(page.locator(".run-card .state")).to_have_text("running", timeout=PATIENCE_MS)
        demo_id = newest_run_id()
        expect(page.locator(".run-card")).to_contain_text("1 of ", timeout=PATIENCE_MS)
        root = url.partition("/?")[0]
        see_pages(page, root, demo_id)

        assert "net.json" in kernalyse("import", trace)
        imported_id = newest_run_id()
        see_pages(page, root, imported_id)
        assert "gemm" in kernalyse("show", imported_id, "kernels")
        if shutil.which("nvidia-smi") is None:
            assert_recording_is_replayed()

        kernalyse("cancel", demo_id)
        for run_id in (demo_id, imported_id):
            written = tmp_path / run_id
            kernalyse("export", run_id, "--html", f"{written}.html", "--pdf", f"{written}.pdf", "--png", written)
            assert Path(f"{written}.pdf").read_bytes().startswith(b"%PDF")
            assert "<html" in Path(f"{written}.html").read_text()
            assert list(written.glob("*.png"))
        # Before they stop: Tornado logs a traceback for a message that a stopping server was sending.
        logs = {path.name: path.read_text() for path in (private_directories / "data" / "kernalyse" / "logs").iterdir()}
    assert complaints == []
    assert {name: text for name, text in logs.items() if "Traceback" in text or "Error" in text} == {}
    assert not [entry for entry in os.scandir(private_directories / "run" / "kernalyse") if entry.name.endswith(".json")]
