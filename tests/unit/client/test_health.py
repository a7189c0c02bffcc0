"""The health check of a container finds the services of its user and asks each of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kernalyse import health
from kernalyse.services.core.settings import UiSettings, advertised


@contextmanager
def dashboard(status: int) -> Iterator[str]:
    """A dashboard that answers one request with the status; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        server.timeout = 10
        answered = pool.submit(server.handle_request)
        yield f"127.0.0.1:{server.server_port}"
        answered.result()


@pytest.mark.parametrize(("status", "expected"), [(401, 0), (200, 0), (500, 1)])
def test_a_dashboard_is_healthy_when_it_answers_and_be_it_that_it_wants_a_token(status: int, expected: int, tmp_path: Path) -> None:
    with dashboard(status) as address, advertised(UiSettings.load().announcement_path(), "ui", address, tmp_path / "token"):
        assert health.main() == expected


def test_a_service_that_does_not_answer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:  # nobody listens on it
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with advertised(UiSettings.load().announcement_path(), "ui", address, tmp_path / "token"):
            assert health.main() == 1
    assert capsys.readouterr().err == f"ui {address}: does not serve\n"


def test_without_a_service_nothing_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert health.main() == 1
    assert capsys.readouterr().err == "No service of this user runs here.\n"
