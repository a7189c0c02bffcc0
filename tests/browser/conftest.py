"""One set of services for all browser tests, and pages that report what went wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.browser.dashboard import CHROMIUM_ARGUMENTS, Dashboard, chromium, dashboard_of
from tests.integration.recording_nsys import write_recording_nsys
from tests.private_folder import know_ceilings, private_folder
from tests.service_processes import ServiceProcesses
from tests.unit.nsys_export import kernel, write_export

PATIENCE_MS: Final = 90_000  # nothing waits as long unless it fails or the machine is loaded
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="package")
def dashboard(ceilings_file: Path) -> Iterator[Dashboard]:
    """Profiler, analyzer and dashboard in private folders; nothing may be left of them. Its nsys records one launch of a kernel."""
    with private_folder() as folder:
        know_ceilings(folder, ceilings_file)
        services = ServiceProcesses(folder)
        try:
            export = write_export(folder / "export.sqlite", kernels=[kernel(1_000, 6_000, 1)], gpus=[{}])
            nsys = write_recording_nsys(folder, export)
            profiler = services.start("profiler", "--nsys-program", str(nsys))
            with opened_urls(folder) as opened, dashboard_of(services, profiler, opened) as found:
                yield found
        finally:
            services.stop_all()


@contextmanager
def opened_urls(folder: Path) -> Iterator[Path]:
    """The file that gets what programs started meanwhile open in a browser, a line each."""
    file, program = folder / "opened_urls", folder / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" >> {file}\n')
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("BROWSER", f"{program} %s")
        yield file


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("needs Chromium (package chromium) on PATH")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_ARGUMENTS))
        yield started
        started.close()


@dataclass(slots=True)
class Visit:
    """A browser that is logged in, and what its pages complained of or asked other machines for."""

    context: BrowserContext
    dashboard: Dashboard
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._check(request.url))
        page.goto(f"{self.dashboard.url}{path}")
        page.wait_for_selector(".shell[data-ready]")
        return page

    def _check(self, url: str) -> None:
        if not url.startswith((self.dashboard.url, f"blob:{self.dashboard.url}", "data:")):
            self.complaints.append(f"request to {url}")


@pytest.fixture
def visit(browser: Browser, dashboard: Dashboard) -> Iterator[Visit]:
    """Logged in, 1280 pixels wide. The test fails when a page had errors or asked anybody else for anything."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{dashboard.url}/?token={dashboard.ui.token}")
    page.close()
    made = Visit(context, dashboard)
    yield made
    context.close()
    assert made.complaints == []
