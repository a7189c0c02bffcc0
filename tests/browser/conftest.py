"""One set of services for all browser tests, and pages that report what went wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from tests.browser.dashboard import CHROMIUM_ARGUMENTS, Dashboard, chromium, dashboard_of
from tests.integration.recording_nsys import write_recording_nsys
from tests.private_directory import know_ceilings, private_directory
from tests.service_processes import ServiceProcesses
from tests.unit.nsys_export import kernel, write_export

PATIENCE_MS: Final = 90_000  # nothing waits as long unless it fails or the machine is loaded
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="package")
def dashboard(ceilings_file: Path) -> Iterator[Dashboard]:
    """Profiler, analyzer and dashboard in private directories; nothing may be left of them. Its nsys records one launch of a kernel."""
    with private_directory() as directory:
        know_ceilings(directory, ceilings_file)
        services = ServiceProcesses(directory)
        try:
            export = write_export(directory / "export.sqlite", kernels=[kernel(1_000, 6_000, 1)], gpus=[{}])
            nsys = write_recording_nsys(directory, export)
            profiler = services.start("profiler", "--nsys-program", str(nsys))
            with opened_urls(directory) as opened, dashboard_of(services, profiler, opened) as found:
                yield found
        finally:
            services.stop_all()


@contextmanager
def opened_urls(directory: Path) -> Iterator[Path]:
    """The file that gets what programs started meanwhile open in a browser, a line each."""
    file, program = directory / "opened_urls", directory / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" >> {file}\n')
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("BROWSER", f"{program} %s")
        yield file


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    """Its loop runs in this thread until the last browser test is over: what is asynchronous needs `in_thread`."""
    if chromium() is None:
        pytest.skip("needs Chromium (package chromium) on PATH")
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Pages of one server share a process, which keeps the libraries compiled: two seconds for every page."""
    started = playwright.chromium.launch(executable_path=chromium(), args=[*CHROMIUM_ARGUMENTS, "--process-per-site"])
    yield started
    started.close()


@pytest.fixture(scope="package")
def context(browser: Browser, dashboard: Dashboard) -> Iterator[BrowserContext]:
    """Of all tests that `visit`, 1280 pixels wide; one page stays open, and with it the process of the others."""
    made = browser.new_context(viewport={"width": 1280, "height": 860})
    made.set_default_timeout(PATIENCE_MS)
    made.new_page().goto(f"{dashboard.url}/login")
    yield made
    made.close()


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
        page.wait_for_selector("[data-ready]")
        return page

    def _check(self, url: str) -> None:
        if not url.startswith((self.dashboard.url, f"blob:{self.dashboard.url}", "data:")):
            self.complaints.append(f"request to {url}")


def see_that_it_fits(page: Page, *widths: int) -> None:
    """At each width nothing lies beyond the right edge, once figures have taken theirs: that happens after they are drawn."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width, timeout=PATIENCE_MS)


@pytest.fixture
def visit(context: BrowserContext, dashboard: Dashboard) -> Iterator[Visit]:
    """Logged in, with no other cookie. The test fails when a page had errors or asked anybody else for anything."""
    context.clear_cookies()
    assert context.request.get(f"{dashboard.url}/?token={dashboard.ui.token}", max_redirects=0).status == 303
    made = Visit(context, dashboard)
    yield made
    for page in context.pages[1:]:
        page.close()
    assert made.complaints == []
