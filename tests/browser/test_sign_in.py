"""People who sign in at a dashboard, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from kernalyse.services.core.identity import Scope, TokenFile
from kernalyse.services.core.settings import AnalyzerSettings
from tests.browser.conftest import see_that_it_fits
from tests.integration.oidc_provider import CLIENT_ID, Provider, running_provider
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

PATIENCE_MS = 60_000
pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        provider.claims = {"email": "erin@example.org", "groups": ["staff"]}
        yield provider


@pytest.fixture(scope="module")
def services() -> Iterator[ServiceProcesses]:
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            yield services
        finally:
            services.stop_all()


@pytest.fixture(scope="module")
def analyzer(services: ServiceProcesses, provider: Provider) -> ServiceProcess:
    return services.start("analyzer", "--oidc-issuer", provider.issuer, "--oidc-client-id", CLIENT_ID, "--oidc-scopes", "staff=read")


@pytest.fixture(scope="module")
def trusting(services: ServiceProcesses, analyzer: ServiceProcess, provider: Provider) -> ServiceProcess:
    """A dashboard whose people sign in at the provider."""
    known = ("--oidc-issuer", provider.issuer, "--oidc-client-id", CLIENT_ID)
    return services.start("ui", "--analyzer-address", analyzer.address, "--sign-in", "oidc", *known)


@pytest.fixture(scope="module")
def ui(services: ServiceProcesses, analyzer: ServiceProcess) -> ServiceProcess:
    """A dashboard whose people sign in by tokens."""
    return services.start("ui", "--analyzer-address", analyzer.address)


@pytest.fixture(scope="module")
def token(analyzer: ServiceProcess) -> str:
    """One that lets read alone."""
    return TokenFile(AnalyzerSettings.load().tokens_path()).issue("alice", Scope.READ)[1]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def test_at_a_provider_and_out_again(trusting: ServiceProcess, page: Page) -> None:
    page.goto(f"http://{trusting.address}/kernels?kernel=saxpy")
    page.wait_for_selector("[data-ready]")
    expect(page).to_have_url(f"http://{trusting.address}/kernels?kernel=saxpy")
    person = page.get_by_title("Signed in as erin@example.org")
    expect(person).to_be_visible()
    see_that_it_fits(page, 390, 1280)
    person.click()
    expect(page.get_by_text("You are signed out here.")).to_be_visible()
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("[data-ready]")


def test_by_a_token_that_lets_read_alone(ui: ServiceProcess, token: str, page: Page) -> None:
    page.goto(f"http://{ui.address}/nodes")
    page.wait_for_function("() => sessionStorage.getItem('asked')")  # the form is loaded twice: see login.html
    page.wait_for_load_state("networkidle")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Open the dashboard").click()
    page.wait_for_selector("[data-ready]")
    expect(page.get_by_title("Signed in as alice")).to_be_visible()
    page.get_by_label("Address").fill("127.0.0.1:1")
    page.get_by_label("Token", exact=True).fill("x")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_text("a token of alice with scope read; expected scope admin")).to_be_visible()
