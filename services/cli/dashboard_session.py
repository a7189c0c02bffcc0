"""An analyzer with a dashboard: those that run on this machine, or ones of a command's own for its own length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from services.cli.analyzer_client import AnalyzerClient
from services.cli.children import Child, stop_children
from services.cli.options import Server
from services.cli.session import START_TIMEOUT_S, STOP_GRACE_S, endpoint_of, named_endpoint, refuse_other_analyzers
from services.core.discovery import Announcement, find_service
from services.core.settings import AnalyzerSettings, UiSettings, data_folder

FREE_ADDRESS = "127.0.0.1:0"


@contextmanager
def dashboard_session(
    server: Server, own_settings: Mapping[str, str], port: int | None
) -> Iterator[tuple[AnalyzerClient, Announcement | None]]:
    """A client, and where the dashboard is served; None: only who runs that analyzer knows.

    What is started here is found by other commands while the block runs.

    Args:
        own_settings: flags of an analyzer of its own.
        port: of a dashboard of its own; None as the settings say, 0 for a free one.

    Raises:
        UsageError: own_settings, and there is another analyzer.
        UnavailableError: a service does not start.
    """
    if own_settings:
        refuse_other_analyzers(server, own_settings)
    if server.address is not None:
        with AnalyzerClient(named_endpoint(server)) as client:
            yield client, None
        return
    started: list[Child] = []
    try:
        analyzer = find_service(AnalyzerSettings.load().announcement_path()) or _started(
            started, "analyzer", {"address": FREE_ADDRESS, **own_settings}
        )
        running = find_service(UiSettings.load().announcement_path())
        address = {} if port is None else {"address": f"127.0.0.1:{port}"}
        ui = running or _started(started, "ui", {"analyzer-address": analyzer.address, **address})
        with AnalyzerClient(endpoint_of(analyzer, server)) as client:
            yield client, ui
    finally:
        for child in reversed(started):
            stop_children((child,), grace_s=STOP_GRACE_S)


def _started(started: list[Child], service: str, settings: Mapping[str, str]) -> Announcement:
    arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
    loaded = AnalyzerSettings.load() if service == "analyzer" else UiSettings.load()
    log_path = data_folder() / "logs" / f"{service}.log"
    child = Child(service, arguments, log_path=log_path, announcement_path=loaded.announcement_path())
    started.append(child)
    child.start()
    return child.wait_until_serving(START_TIMEOUT_S)
