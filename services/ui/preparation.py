"""Charts that visitors would wait for, rendered in the background once the dashboard serves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import pandas  # noqa: F401  # HoloViews imports it at its first chart, on the thread; Bokeh's stream() meanwhile finds half of it in sys.modules

from kernalyse.services.ui.components.figure import RenderedChart
from kernalyse.services.ui.theme import PALETTES

PAUSE_S: Final = 0.02
"""Between two charts, and between looks at whether somebody is being served: a page comes first."""

logger = logging.getLogger(__name__)


class Preparation:
    """Renders the charts for each theme, one after the other, in a thread of its own.

    Args:
        is_serving: a page is on its way. Called on the thread.
    """

    def __init__(self, is_serving: Callable[[], bool]) -> None:
        self._is_serving = is_serving
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="preparation", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Return when the chart that is being rendered is done."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = PAUSE_S
        try:
            for palette in PALETTES.values():
                for chart in RenderedChart.known:
                    if not self._may_go_on(pause_s):
                        return
                    begin_s = time.monotonic()
                    chart.rendered(palette)
                    pause_s = max(PAUSE_S, time.monotonic() - begin_s)  # half of the time is left to live pages
        except Exception:
            logger.exception("Not all charts could be prepared; pages render the rest as they need it")

    def _may_go_on(self, pause_s: float) -> bool:
        """Wait while a page is on its way, and return whether the dashboard goes on."""
        self._stopped.wait(pause_s)
        while self._is_serving() and not self._stopped.is_set():
            self._stopped.wait(PAUSE_S)
        return not self._stopped.is_set()
