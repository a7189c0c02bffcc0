"""Many tabs on one server process: each tab's updates, the server's processor time and memory, and a tab that stalls.

Twenty sessions look at one sweep with three live charts: nineteen acknowledge what they draw, the last one stops after its
first update. Memory is taken before, with all of them, and at the end of the soak.

    python -m tests.benchmarks.dashboard_sessions [--seconds 30] [--soak 600]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Final

import psutil

from tests.benchmarks.dashboard_alone import dashboard_alone
from tests.browser.dashboard import Dashboard
from tests.browser.socket_viewer import SocketViewer, all_served, log_in

SESSION_COUNT: Final = 20
MIB: Final = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of counting updates")
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS", help="of going on after that; the goal stands for 600")
    options = parser.parse_args()
    with dashboard_alone() as dashboard:
        wait_until_prepared(dashboard)
        asyncio.run(measure(dashboard, options.seconds, options.soak))


def wait_until_prepared(dashboard: Dashboard) -> None:
    """Wait for the process that renders charts after a start: the figures are of a server that has been up for a while."""
    server = psutil.Process(dashboard.ui.process.pid)
    while server.children():
        time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class Server:
    process: psutil.Process

    @property
    def memory_bytes(self) -> int:
        return int(self.process.memory_info().rss)

    @property
    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


async def measure(dashboard: Dashboard, seconds: float, soak_s: float) -> None:
    server = Server(psutil.Process(dashboard.ui.process.pid))
    run = dashboard.start_sweep("saxpy", "vector_add", seconds=1.0, sizes=tuple(range(2**18, 2**18 + 1000 * 4096, 4096)))
    cookie = log_in(dashboard.ui.address, dashboard.ui.token)
    viewers = [SocketViewer(dashboard.ui.address, cookie, acknowledges=place > 0) for place in range(SESSION_COUNT)]
    first = [asyncio.create_task(viewers[1].watch())]  # loads what the first visitor of all loads
    try:
        await all_served(viewers[1:2], first)
        before_bytes = server.memory_bytes
        watching = first + [asyncio.create_task(viewer.watch()) for place, viewer in enumerate(viewers) if place != 1]
        await all_served(viewers, watching)
        await asyncio.sleep(2)
        counts, cpu_s, start = [viewer.update_count for viewer in viewers], server.cpu_s, time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - start
        rates = [(viewer.update_count - count) / took_s for viewer, count in zip(viewers, counts, strict=True)]
        report(rates, (server.cpu_s - cpu_s) / took_s, (server.memory_bytes - before_bytes) / (SESSION_COUNT - 1))
        if soak_s:
            await soak(server, soak_s)
    finally:
        for task in [*first, *watching]:
            task.cancel()
        await asyncio.gather(*first, *watching, return_exceptions=True)
        await asyncio.to_thread(dashboard.cancel, run.run_id)


async def soak(server: Server, seconds: float) -> None:
    readings = [server.memory_bytes]
    for _ in range(10):
        await asyncio.sleep(seconds / 10)
        readings.append(server.memory_bytes)
    text = ", ".join(f"{reading / MIB:.0f}" for reading in readings)
    growth = (readings[-1] - readings[0]) / MIB / SESSION_COUNT
    print(f"soak of {seconds:.0f} s: memory of the server {text} MiB; {growth:+.2f} MiB a session")


def report(rates: list[float], cores: float, session_bytes: float) -> None:
    stalled, *others = rates
    spread = f"{min(others):.1f} to {max(others):.1f} updates/s each (goal 5)"
    print(f"{SESSION_COUNT - 1} sessions that keep up: {spread}; the stalled one {stalled:.1f}")
    print(f"server: {cores:.2f} cores (goal 0.9), {session_bytes / MIB:.1f} MiB a session (goal 8)")


if __name__ == "__main__":
    main()
