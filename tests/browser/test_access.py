"""Who the running dashboard lets in, over real HTTP and sockets, and what browsers make of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect
from websockets.exceptions import InvalidStatus

from tests.browser.dashboard import Dashboard
from tests.browser.socket_viewer import ask, in_thread, log_in, open_socket, session_token
from tests.browser.test_live import eventually
from tests.private_directory import private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_seed_002_the_dashboard_opens_itself_in_the_default_browser(dashboard: Dashboard) -> None:
    opened = dashboard.opened_urls
    assert opened is not None
    eventually(opened.exists)
    assert opened.read_text().splitlines() == [f"{dashboard.url}/?token={dashboard.ui.token}"]


@pytest.mark.parametrize(
    "path", ["/live", "/roofline", "/kernels", "/static/js/bokeh.min.js", "/assets/tokens.css", "/download/kernels.csv", "/live/metadata"]
)
def test_nothing_is_served_without_the_cookie(dashboard: Dashboard, path: str) -> None:
    assert ask(dashboard.url + path).status == 401
    assert ask(dashboard.url + path, Cookie=f"kernalyse_session_{dashboard.ui.address.rpartition(':')[2]}=guess").status == 401


def test_the_token_is_taken_once_and_leaves_the_url(dashboard: Dashboard) -> None:
    answer = ask(f"{dashboard.url}/roofline?theme=dark&token={dashboard.ui.token}&kernel=a%26b")
    assert (answer.status, answer.headers["Location"]) == (303, "/roofline?theme=dark&kernel=a%26b")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert dashboard.ui.token not in cookie
    name_and_value = cookie.partition(";")[0]
    assert ask(f"{dashboard.url}/assets/tokens.css", Cookie=name_and_value).status == 200


def test_a_wrong_token_is_refused(dashboard: Dashboard) -> None:
    for answer in (
        ask(f"{dashboard.url}/live?token=wrong"),
        ask(f"{dashboard.url}/login", data=b"token=wrong&next=%2Flive"),
    ):
        assert answer.status == 401
        assert answer.headers["Set-Cookie"] is None
        assert "not known here" in answer.text


def test_the_login_form_never_leads_elsewhere(dashboard: Dashboard) -> None:
    for target in ("//evil.example", "https://evil.example", "/%5Cevil.example"):
        answer = ask(f"{dashboard.url}/login", data=f"token={dashboard.ui.token}&next={target}".encode())
        assert (answer.status, answer.headers["Location"]) == (303, "/live")


def test_foreign_hosts_and_origins_are_refused_even_with_the_cookie(dashboard: Dashboard) -> None:
    cookie = log_in(dashboard.ui.address, dashboard.ui.token)
    assert ask(f"{dashboard.url}/live", Cookie=cookie, Host="evil.example").status == 403
    assert ask(f"{dashboard.url}/live", Cookie=cookie, Origin="http://evil.example").status == 403
    assert ask(f"{dashboard.url}/live?token={dashboard.ui.token}", Host="evil.example").status == 403


def test_a_socket_needs_cookie_and_origin(dashboard: Dashboard) -> None:
    in_thread(sockets_need_cookie_and_origin(dashboard))


async def sockets_need_cookie_and_origin(dashboard: Dashboard) -> None:
    address = dashboard.ui.address
    cookie = log_in(address, dashboard.ui.token)
    token = session_token(ask(f"{dashboard.url}/live/", Cookie=cookie).text)
    for wrong_cookie, origin, status in (("", dashboard.url, 401), (cookie, "http://evil.example", 403)):
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(address, wrong_cookie, token, Origin=origin)
        assert refused.value.response.status_code == status
    async with await open_socket(address, cookie, token, Origin=dashboard.url) as socket:
        assert "ACK" in str(await socket.recv())


@contextmanager
def page_around(*urls: str) -> Iterator[int]:
    """A page on another port of the same host that frames the URLs; its port."""

    class Framing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            frames = "".join(f'<iframe src="{url}" width="900" height="600"></iframe>' for url in urls)
            self.wfile.write(f"<!doctype html><title>other</title>{frames}".encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Framing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.slow
def test_pages_cannot_be_framed_by_another_port_of_the_same_host_and_the_frame_says_so(dashboard: Dashboard, browser: Browser) -> None:
    cookie = log_in(dashboard.ui.address, dashboard.ui.token)
    for page_name in ("live", "roofline", "nodes"):
        assert ask(f"{dashboard.url}/{page_name}", Cookie=cookie).headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    page = browser.new_page()
    page.goto(f"{dashboard.url}/live?token={dashboard.ui.token}")
    expect(page.locator("[data-ready]")).to_be_attached()
    with page_around(f"{dashboard.url}/live") as port:
        page.goto(f"http://127.0.0.1:{port}/")
        refusal = f"Pages of http://127.0.0.1:{port} may not show this dashboard. Add it to the setting ui.allowed_frame_ancestors."
        expect(page.frame_locator("iframe").locator("body")).to_have_text(refusal)
    page.close()


@contextmanager
def dashboard_framed_by(port: int, dashboard: Dashboard, token_file: Path) -> Iterator[ServiceProcess]:
    """A dashboard whose charts may be shown by pages of localhost at the port; its own pages are those of 127.0.0.1, another site."""
    token_file.write_text(dashboard.ui.token)
    token_file.chmod(0o600)
    origin = f"http://localhost:{port}"
    arguments = ("--analyzer-token-file", str(token_file), "--allowed-frame-ancestors", origin)
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            yield services.start("ui", "--analyzer-address", dashboard.analyzer_address, *arguments)
        finally:
            services.stop_all()


@pytest.mark.slow
def test_pages_of_a_site_that_is_allowed_show_a_chart_by_its_link_and_nothing_else(
    dashboard: Dashboard, browser: Browser, tmp_path: Path
) -> None:
    run = dashboard.start_sweep("saxpy", seconds=0.1)
    eventually(lambda: dashboard.run(run.run_id).state.is_final)
    page = browser.new_page()
    with page_around() as port, dashboard_framed_by(port, dashboard, tmp_path / "analyzer-token") as ui:
        url, address = f"http://{ui.address}", f"/charts/samples?runs={run.run_id}"
        cookie = log_in(ui.address, ui.token)
        said = json.loads(ask(f"{url}/link?{urlencode({'address': address})}", Cookie=cookie).text)
        page.goto(f"http://localhost:{port}/")
        # One frame after another: the link's frame leaves a cookie with which the same address is shown without the link.
        for one, words in (
            (f"{url}{address}", "has not been opened by a link"),
            (f"{url}{address}&link=changed", "This link has ended"),
        ):
            page.set_content(f'<iframe src="{one}" width="900" height="500"></iframe>')
            expect(page.frame_locator("iframe").locator("body")).to_contain_text(words)
        page.set_content(f'<iframe src="{said["link"]}" width="900" height="500"></iframe>')
        expect(page.frame_locator("iframe").get_by_role("heading", name="Samples")).to_be_visible()
        kept = ask(said["link"]).headers["Set-Cookie"].partition(";")[0]
        found = {path: ask(url + path, Cookie=kept).status for path in (address, "/static/js/bokeh.min.js", "/assets/tokens.css")}
        assert set(found.values()) == {200}
        for path in (
            "/live",
            "/charts/samples",
            f"/charts/roofline?runs={run.run_id}",
            "/link?address=/charts/samples",
            "/download/kernels.csv",
        ):
            assert ask(url + path, Cookie=kept).status == 401
        assert ask(f"{url}/link?address=/live", Cookie=cookie).status == 400
    page.close()


@pytest.fixture
def second_ui(dashboard: Dashboard, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A dashboard on another port of the same host, with a token of its own."""
    token_file = tmp_path / "analyzer-token"
    token_file.write_text(dashboard.ui.token)
    token_file.chmod(0o600)
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            yield services.start("ui", "--analyzer-address", dashboard.analyzer_address, "--analyzer-token-file", str(token_file))
        finally:
            services.stop_all()


@pytest.mark.slow
def test_two_dashboards_of_one_host_are_both_left_open(dashboard: Dashboard, second_ui: ServiceProcess, browser: Browser) -> None:
    assert second_ui.token != dashboard.ui.token
    page = browser.new_page()
    for ui in (dashboard.ui, second_ui):
        page.goto(f"http://{ui.address}/nodes?token={ui.token}")
        expect(page.locator("[data-ready]")).to_be_attached()
    for ui in (dashboard.ui, second_ui):
        page.goto(f"http://{ui.address}/nodes")
        expect(page.locator("[data-ready]")).to_be_attached()
    names = {cookie.get("name") for cookie in page.context.cookies()}
    assert names == {f"kernalyse_session_{ui.address.rpartition(':')[2]}" for ui in (dashboard.ui, second_ui)}
    page.close()
