"""The three services of one machine, started together, restarted when one dies and stopped together; with the demo.

On a machine without an NVIDIA GPU a fourth one belongs to the demo: a node that replays the runs of an H200.
"""

from __future__ import annotations

import signal
import time
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import quote

from kernalyse.services.cli.analyzer_client import AnalyzerClient
from kernalyse.services.cli.options import Server
from kernalyse.services.cli.session import START_TIMEOUT_S, Child, connect_node, describe_exit, read_token, service_endpoint, stop_children
from kernalyse.services.core.demo import demo_spec
from kernalyse.services.core.errors import KernalyseError, UnavailableError
from kernalyse.services.core.model import BackendName, NodeStatus, Run
from kernalyse.services.core.rpc import Endpoint
from kernalyse.services.core.settings import AnalyzerSettings, Announcement, ProfilerSettings, UiSettings, data_directory, find_service
from kernalyse.services.profiler.workloads.recording import H200

POLL_S: Final = 0.2
STOP_GRACE_S: Final = 6.0
"""The profiler waits DRAIN_S for its run and then ends it by TERM, grace and KILL: with less time the run is killed half-way."""

DRAIN_S: Final = 1.0
FIRST_BACK_OFF_S: Final = 0.5
MAX_BACK_OFF_S: Final = 30.0
STABLE_S: Final = 60.0
"""A service that ran this long counts as recovered, and its next restart comes after the first back-off again."""

RECORDING_NAME: Final = "recording"
"""Of the node that replays, of its directory and of its log."""

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def dashboard_url(announcement: Announcement, page: str = "/") -> str:
    """Return the URL of a page of the dashboard with the token, which a browser has to present once."""
    scheme = "http" if announcement.ca_file is None else "https"
    token = quote(read_token(Path(announcement.token_file)))
    return f"{scheme}://{announcement.address}{page}{'&' if '?' in page else '?'}token={token}"


def running_dashboard_url() -> str | None:
    """Return the URL of this user's dashboard on this machine, with its token, or None when none runs."""
    found = find_service(UiSettings.load().announcement_path())
    return None if found is None else dashboard_url(found)


def open_dashboard(settings: UiSettings, say: Callable[[str], None]) -> None:
    """Open the dashboard of these settings in a browser; without a browser, show its URL by `say`."""
    found = find_service(settings.announcement_path())
    url = None if found is None else dashboard_url(found)
    if url is not None and not webbrowser.open(url):
        say(f"There is no browser to open. The dashboard: {url}")


def running_page_url(path: str) -> str | None:
    """Return the URL of a page of the dashboard on this machine without its token, or None when none runs."""
    found = find_service(UiSettings.load().announcement_path())
    return None if found is None else f"{'http' if found.ca_file is None else 'https'}://{found.address}{path}"


@dataclass(slots=True)
class _RestartState:
    """A service process with the schedule of its restart."""

    child: Child
    back_off_s: float = FIRST_BACK_OFF_S
    start_at: float | None = None  # by the monotonic clock; None: it runs
    started_at: float = 0.0


class LocalServices:
    """The three services of one machine, which run until a signal ends them.

    Args:
        port: of the dashboard; None: that of the settings; 0: free ports for all three services.
        server: has the client certificate for profiler and analyzer.
        say: shows one line to the user.
    """

    def __init__(self, *, port: int | None, server: Server, say: Callable[[str], None]) -> None:
        self._server = server
        self._say = say
        self._takes_free_ports = port == 0
        self._logs = data_directory() / "logs"
        free = ["--address", "127.0.0.1:0"] if port == 0 else []
        ui_address = [] if port is None else ["--address", f"127.0.0.1:{port}"]
        self._profiler = self._child("profiler", ["--drain-s", str(DRAIN_S), *free], ProfilerSettings.load())
        self._analyzer = self._child("analyzer", free, AnalyzerSettings.load())
        self._ui = self._child("ui", ui_address, UiSettings.load())
        self._recorded: Child | None = None
        self._recorded_endpoint: Endpoint | None = None  # once the analyzer knows it

    def _child(self, service: str, arguments: list[str], settings: ProfilerSettings | AnalyzerSettings | UiSettings) -> Child:
        return Child(service, arguments, log_path=self._logs / f"{service}.log", announcement_path=settings.announcement_path())

    @property
    def _children(self) -> tuple[Child, ...]:
        return self._ui, self._analyzer, self._profiler, *((self._recorded,) if self._recorded is not None else ())

    def run(self, *, has_demo: bool, opens_browser: bool) -> None:
        """Start the services, restart those that end, and return when a signal came and every service has stopped.

        Raises:
            UnavailableError: a service cannot start.
        """
        for number in STOP_SIGNALS:
            signal.signal(number, _raise_interrupt)
        try:
            self._start(has_demo=has_demo, opens_browser=opens_browser)
            self._restart_until_signal()
        except KeyboardInterrupt:
            self._say("Stopping…")
        finally:
            for number in STOP_SIGNALS:
                signal.signal(number, self._kill)  # the second Ctrl-C does not wait
            stop_children([child for child in self._children if child is not self._analyzer], grace_s=STOP_GRACE_S)
            self._remove_recorded()
            stop_children((self._analyzer,), grace_s=STOP_GRACE_S)  # after the profiler: the analyzer collects the last events of its run

    def _start(self, *, has_demo: bool, opens_browser: bool) -> None:
        self._say("Starting profiler, analyzer and dashboard…")
        self._profiler.start()
        self._analyzer.start()
        if not self._takes_free_ports:
            self._start_ui()
        profiler, analyzer = self._wait_until_serving(self._profiler), self._wait_until_serving(self._analyzer)
        if self._takes_free_ports:
            self._profiler.arguments += ("--address", profiler.address)  # a restarted service keeps its address
            self._analyzer.arguments += ("--address", analyzer.address)
            self._start_ui("--analyzer-address", analyzer.address)
        with AnalyzerClient(service_endpoint(analyzer, self._server)) as client:
            connect_node(client, service_endpoint(profiler, self._server))
            if has_demo and not any(_has_nvidia_device(status) for status in client.nodes()):
                self._replay(client)
            run = client.start_run(demo_spec()) if has_demo else None
        ui = self._wait_until_serving(self._ui)
        if self._takes_free_ports:
            self._ui.arguments += ("--address", ui.address)
        self._print_addresses(dashboard_url(ui), analyzer, run)
        if opens_browser:
            webbrowser.open(dashboard_url(ui))

    def _replay(self, client: AnalyzerClient) -> None:
        """Start a node that replays what an H200 has measured; it is removed at the end, and its runs stay."""
        directory = data_directory() / RECORDING_NAME
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        announcement = directory / "service.json"
        places = ("--data-directory", str(directory), "--announcement-file", str(announcement), "--address", "127.0.0.1:0")
        role = ("--node-name", RECORDING_NAME, "--replay", str(H200), "--drain-s", "0")
        not_of_it = ("--join", "", "--metrics-address", "")  # what the settings of this machine's own node may have
        self._recorded = Child(
            "profiler", [*places, *role, *not_of_it], log_path=self._logs / f"{RECORDING_NAME}.log", announcement_path=announcement
        )
        self._recorded.start()
        found = self._wait_until_serving(self._recorded)
        self._recorded.arguments += ("--address", found.address)
        self._recorded_endpoint = service_endpoint(found, self._server)
        connect_node(client, self._recorded_endpoint)
        self._say("There is no NVIDIA GPU here: beside the demo sweep, runs of an H200 are replayed from a recording.")

    def _remove_recorded(self) -> None:
        """Have the analyzer forget the node that replays: it would be missed."""
        analyzer = self._analyzer.announcement()
        if self._recorded_endpoint is not None and analyzer is not None:
            with suppress(KernalyseError), AnalyzerClient(service_endpoint(analyzer, self._server)) as client:
                client.remove_node(self._recorded_endpoint.address)

    def _start_ui(self, *arguments: str) -> None:
        self._ui.arguments += arguments
        self._ui.start()

    def _wait_until_serving(self, child: Child) -> Announcement:
        try:
            return child.wait_until_serving(START_TIMEOUT_S)
        except UnavailableError as error:
            if "listen address" not in error.found:
                raise
            raise UnavailableError(
                error.subject,
                found=error.found,
                remedy="kernalyse up --port 0 takes free ports; KERNALYSE_" + child.service.upper() + "_ADDRESS chooses another.",
            ) from error

    def _print_addresses(self, url: str, analyzer: Announcement, run: Run | None) -> None:
        if run is not None:
            self._say(f"Demo sweep submitted: run {run.run_id}")
        self._say(f"Analyzer: {analyzer.address} (token in {analyzer.token_file})")
        self._say(f"Logs: {self._logs}")
        self._say(f"\n  Dashboard: {url}\n\nCtrl-C stops everything.")

    def _restart_until_signal(self) -> None:
        now = time.monotonic()
        watched = [_RestartState(child, started_at=now) for child in self._children]
        while True:
            for item in watched:
                self._restart_if_ended(item)
            time.sleep(POLL_S)

    def _restart_if_ended(self, item: _RestartState) -> None:
        now = time.monotonic()
        if item.start_at is not None:
            if now >= item.start_at:
                item.start_at, item.started_at = None, now
                item.child.start()
            return
        status = item.child.exit_status()
        if status is None:
            return
        if now - item.started_at > STABLE_S:
            item.back_off_s = FIRST_BACK_OFF_S
        self._say(
            f"The {item.child.service} {describe_exit(status)}; starting it again in {item.back_off_s:g} s. Its log: {item.child.log_path}"
        )
        item.start_at = now + item.back_off_s
        item.back_off_s = min(item.back_off_s * 2, MAX_BACK_OFF_S)

    def _kill(self, number: int, frame: FrameType | None) -> None:
        for child in self._children:
            child.kill()


def _has_nvidia_device(status: NodeStatus) -> bool:
    devices = () if status.node is None else status.node.devices
    return any(BackendName.PYCUDA in device.backends or BackendName.NVCC in device.backends for device in devices)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
