"""What the dashboard sends to tabs, seen from their sockets. Needs no browser."""

from __future__ import annotations

import asyncio

import pytest

from tests.browser.dashboard import MANY_SIZES, Dashboard
from tests.browser.socket_viewer import SocketViewer, log_in

pytestmark = pytest.mark.browser


async def test_a_tab_that_stops_drawing_gets_no_more_than_two_updates(dashboard: Dashboard) -> None:
    run = dashboard.start_sweep("saxpy", seconds=0.3, sizes=MANY_SIZES)
    cookie = log_in(dashboard.ui.address, dashboard.ui.token)
    viewers = [SocketViewer(dashboard.ui.address, cookie), SocketViewer(dashboard.ui.address, cookie, acknowledges=False)]
    tasks = [asyncio.create_task(viewer.watch()) for viewer in viewers]
    try:
        async with asyncio.timeout(90):
            while viewers[0].update_count < 12:
                await asyncio.sleep(0.05)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        dashboard.cancel(run.run_id)
    assert viewers[1].update_count <= 2
