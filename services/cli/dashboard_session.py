"""An analyzer with a dashboard: those that run on this machine, or ones of a command's own for its own length."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from services.cli.analyzer_client import AnalyzerClient
from services.cli.children import Child, stop_children
from services.cli.options import Server
from services.cli.session import START_TIMEOUT_S, STOP_GRACE_S, endpoint_of, named_endpoint
from services.core.discovery import Announcement, find_service
from services.core.settings import AnalyzerSettings, UiSettings, data_folder

HOST = "127.0.0.1"
FREE_ADDRESS = f"{HOST}:0"


@contextmanager
def dashboard_session(server: Server, port: int | None) -> Iterator[tuple[AnalyzerClient, Announcement | None]]:
    """Yield a client, and where the dashboard is served; None: only who runs that analyzer knows.

    Args:
        port: that the dashboard is wanted on. Where it is free and no dashboard is there, one is started on it, beside one that runs
            elsewhere too. Where something else is there, and with 0 or None, the dashboard that runs is taken; without any one is
            started on a free port, or with None as the settings say.

    Raises:
        UnavailableError: a service does not start.
    """
    if server.address is not None:
        with AnalyzerClient(named_endpoint(server)) as client:
            yield client, None
        return
    with ExitStack() as started:
        analyzer_announcements = AnalyzerSettings.load().announcement_path()
        analyzer = find_service(analyzer_announcements) or _started(started, "analyzer", analyzer_announcements, {"address": FREE_ADDRESS})
        ui = _dashboard(started, analyzer, port)
        with AnalyzerClient(endpoint_of(analyzer, server)) as client:
            yield client, ui


def _dashboard(started: ExitStack, analyzer: Announcement, port: int | None) -> Announcement:
    announcements = UiSettings.load().announcement_path()
    running = find_service(announcements)
    is_wanted = bool(port) and _is_free(port or 0)
    if running is not None and not is_wanted:
        return running
    if running is not None:  # other commands go on finding that one
        announcements = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="kernalyse-"))) / "ui.json"
    address = {} if port is None else {"address": f"{HOST}:{port if is_wanted else 0}"}
    own_announcement = {} if running is None else {"announcement-file": str(announcements)}
    return _started(started, "ui", announcements, {"analyzer-address": analyzer.address, **address, **own_announcement})


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was served a moment ago is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _started(started: ExitStack, service: str, announcement_path: Path, settings: Mapping[str, str]) -> Announcement:
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    child = Child(service, arguments, log_path=data_folder() / "logs" / f"{service}.log", announcement_path=announcement_path)
    started.callback(stop_children, (child,), grace_s=STOP_GRACE_S)
    child.start()
    return child.wait_until_serving(START_TIMEOUT_S)
