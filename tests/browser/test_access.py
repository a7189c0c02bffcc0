"""Who the running dashboard lets in, over real HTTP and sockets. Needs no browser."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus

from tests.browser.dashboard import Dashboard
from tests.browser.socket_viewer import ask, in_thread, log_in, open_socket, session_token
from tests.browser.test_live import eventually

pytestmark = pytest.mark.browser


def test_seed_002_the_dashboard_opens_itself_in_the_default_browser(dashboard: Dashboard) -> None:
    opened = dashboard.opened_urls
    assert opened is not None
    eventually(opened.exists)
    assert opened.read_text().splitlines() == [f"{dashboard.url}/?token={dashboard.ui.token}"]


@pytest.mark.parametrize(
    "path", ["/live", "/roofline", "/kernels", "/static/js/bokeh.min.js", "/assets/shell.js", "/download/kernels.csv", "/live/metadata"]
)
def test_nothing_is_served_without_the_cookie(dashboard: Dashboard, path: str) -> None:
    assert ask(dashboard.url + path).status == 401
    assert ask(dashboard.url + path, Cookie="kernalyse_access=guess").status == 401


def test_the_token_is_taken_once_and_leaves_the_url(dashboard: Dashboard) -> None:
    answer = ask(f"{dashboard.url}/roofline?theme=dark&token={dashboard.ui.token}&kernel=a%26b")
    assert (answer.status, answer.headers["Location"]) == (303, "/roofline?theme=dark&kernel=a%26b")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert dashboard.ui.token not in cookie
    name_and_value = cookie.partition(";")[0]
    assert ask(f"{dashboard.url}/assets/shell.js", Cookie=name_and_value).status == 200


def test_a_wrong_token_is_refused(dashboard: Dashboard) -> None:
    for answer in (
        ask(f"{dashboard.url}/live?token=wrong"),
        ask(f"{dashboard.url}/login", data=b"token=wrong&next=%2Flive"),
    ):
        assert answer.status == 401
        assert answer.headers["Set-Cookie"] is None
        assert "not this dashboard" in answer.text


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
    token = session_token(ask(f"{dashboard.url}/live", Cookie=cookie).text)
    for wrong_cookie, origin, status in (("", dashboard.url, 401), (cookie, "http://evil.example", 403)):
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(address, wrong_cookie, token, Origin=origin)
        assert refused.value.response.status_code == status
    async with await open_socket(address, cookie, token, Origin=dashboard.url) as socket:
        assert "ACK" in str(await socket.recv())
