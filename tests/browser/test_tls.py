"""The dashboard under a name of its own, over TLS: what a colleague's browser meets on another machine."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Playwright, expect

from tests.browser.conftest import PATIENCE_MS
from tests.browser.dashboard import CHROMIUM_ARGUMENTS, Dashboard, chromium
from tests.certificates import CertificateFiles, make_certificate, make_certificate_for
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses, free_port

pytestmark = pytest.mark.browser

NAME: Final = "gpu-lab.example"


@dataclass(frozen=True, slots=True)
class SecureDashboard:
    port: int
    token: str
    files: CertificateFiles

    def ask(self, path: str, host: str) -> tuple[int, str]:
        """Status and text of one request that calls the dashboard `host`."""
        trusted = ssl.create_default_context(cafile=self.files.certificate)
        request = urllib.request.Request(f"https://localhost:{self.port}{path}", headers={"Host": host})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
        try:
            with opener.open(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture(scope="module")
def secure(dashboard: Dashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureDashboard]:
    """A second dashboard on the same analyzer, with a certificate and one further name."""
    directory: Path = tmp_path_factory.mktemp("tls")
    (directory / "run").mkdir(mode=0o700)
    files = make_certificate(directory, NAME)
    services, port = ServiceProcesses(directory), free_port()
    try:
        ui = services.start(
            *("ui", "--analyzer-address", dashboard.analyzer_address, "--allowed-hosts", f"{NAME}:{port}"),
            *("--certificate-file", str(files.certificate), "--key-file", str(files.key)),
            address=f"127.0.0.1:{port}",
        )
        yield SecureDashboard(port, ui.token, files)
    finally:
        services.stop_all()


@dataclass(frozen=True, slots=True)
class MutualAnalyzer:
    """An analyzer that lets in who shows the client certificate."""

    services: ServiceProcesses
    address: str
    ca_file: Path
    client: CertificateFiles

    def start_dashboard(self, *flags: str | Path) -> ServiceProcess:
        known = ("--analyzer-address", self.address, "--analyzer-ca-file", self.ca_file)
        return self.services.start("ui", *map(str, (*known, *flags)))


@pytest.fixture
def mutual() -> Iterator[MutualAnalyzer]:
    with private_directory() as directory:
        files, client = make_certificate(directory / "service"), make_certificate_for(directory / "client", "the dashboard")
        services = ServiceProcesses(directory)
        served = ("--certificate-file", files.certificate, "--key-file", files.key, "--client-ca-file", client.certificate)
        try:
            analyzer = services.start("analyzer", *map(str, served), address="127.0.0.1:0")
            yield MutualAnalyzer(services, analyzer.address, files.certificate, client)
        finally:
            services.stop_all()


@pytest.mark.slow
def test_a_dashboard_shows_its_client_certificate_and_one_without_says_what_is_missing(mutual: MutualAnalyzer, browser: Browser) -> None:
    shown = ("--analyzer-client-certificate-file", mutual.client.certificate, "--analyzer-client-key-file", mutual.client.key)
    ui = mutual.start_dashboard(*shown)
    page = browser.new_page()
    page.goto(f"http://{ui.address}/nodes?token={ui.token}")
    expect(page.locator("main")).to_contain_text("No node yet")
    stranger = mutual.start_dashboard()
    page.goto(f"http://{stranger.address}/nodes?token={stranger.token}")
    problem = page.get_by_text("no client certificate was shown")
    expect(problem.first).to_be_visible()
    expect(problem.first).to_contain_text("client_ca_file")
    page.close()


def test_only_the_names_it_was_given_are_answered_to(secure: SecureDashboard) -> None:
    assert secure.ask("/live", f"{NAME}:{secure.port}")[0] == 401
    status, text = secure.ask("/live", f"other.example:{secure.port}")
    assert status == 403
    assert "ui.allowed_hosts" in text


def test_plain_http_gets_nothing(secure: SecureDashboard) -> None:
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://localhost:{secure.port}/live?token={secure.token}", timeout=60)


def test_a_browser_gets_the_live_page_under_that_name(secure: SecureDashboard, playwright: Playwright) -> None:
    complaints: list[str] = []
    arguments = [*CHROMIUM_ARGUMENTS, f"--host-resolver-rules=MAP {NAME} 127.0.0.1"]
    browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
    context = browser.new_context(ignore_https_errors=True)  # nobody has signed the certificate
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.goto(f"https://{NAME}:{secure.port}/live?token={secure.token}")
    page.wait_for_selector("[data-ready]", timeout=PATIENCE_MS)  # so the socket is open too
    assert "token" not in page.url
    (cookie,) = [cookie for cookie in context.cookies() if cookie.get("name") == f"kernalyse_session_{secure.port}"]
    assert cookie.get("secure")
    browser.close()
    assert complaints == []
