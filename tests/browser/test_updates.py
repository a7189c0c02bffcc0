"""What the dashboard sends to tabs, seen from their sockets. Needs no browser."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.browser.dashboard import MANY_SIZES, Dashboard
from tests.browser.socket_viewer import SocketViewer, ask, in_thread, log_in

pytestmark = pytest.mark.browser


@pytest.mark.slow
def test_a_tab_that_stops_drawing_gets_no_more_than_two_updates(dashboard: Dashboard) -> None:
    run = dashboard.start_sweep("saxpy", seconds=0.3, sizes=MANY_SIZES)
    try:
        drawing, stopped = in_thread(watched(dashboard))
    finally:
        dashboard.cancel(run.run_id)
    assert drawing.update_count >= 12
    assert stopped.update_count <= 2


@pytest.mark.slow
def test_a_page_that_is_left_before_it_is_loaded_holds_nobody_else_up(dashboard: Dashboard) -> None:
    run = dashboard.start_sweep("saxpy", seconds=0.3, sizes=MANY_SIZES)
    try:
        # It is the first that asks for the run's rows, and its socket never opens.
        left = ask(f"{dashboard.url}/live?runs={run.run_id}", Cookie=log_in(dashboard.ui.address, dashboard.ui.token))
        drawing, _ = in_thread(watched(dashboard))
    finally:
        dashboard.cancel(run.run_id)
    assert left.status == 200
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(drawing.update_times_s)]
    assert max(pauses_s) < 8  # the server's own look at the clock comes each second; a session that nobody opens lasts for 15


async def watched(dashboard: Dashboard) -> tuple[SocketViewer, SocketViewer]:
    """Two viewers, when the one that draws has had its updates; the other one has stopped drawing."""
    cookie = log_in(dashboard.ui.address, dashboard.ui.token)
    viewers = SocketViewer(dashboard.ui.address, cookie), SocketViewer(dashboard.ui.address, cookie, acknowledges=False)
    tasks = [asyncio.create_task(viewer.watch()) for viewer in viewers]
    try:
        async with asyncio.timeout(90):
            while viewers[0].update_count < 12 or viewers[1].update_count == 0:
                await asyncio.sleep(0.05)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
    return viewers
