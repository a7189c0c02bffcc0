"""Charts that visitors would wait for, rendered and copied in the background once the dashboard serves."""

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

IDLE_PAUSE_S: Final = 0.2
"""Between looks at what has been taken."""

logger = logging.getLogger(__name__)


class Preparation:
    """Keeps a copy of each chart for each theme, in a thread of its own: the page that is opened next takes it.

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
            while self._may_go_on(pause_s):
                wanted = next(
                    ((chart, palette) for palette in PALETTES.values() for chart in RenderedChart.known if not chart.is_prepared(palette)),
                    None,
                )
                begin_s = time.monotonic()
                if wanted is None:
                    pause_s = IDLE_PAUSE_S
                    continue
                chart, palette = wanted
                chart.prepare(palette)
                pause_s = max(PAUSE_S, time.monotonic() - begin_s)  # half of the time is left to live pages
        except Exception:
            logger.exception("Not all charts could be prepared; pages render the rest as they need it")

    def _may_go_on(self, pause_s: float) -> bool:
        """Wait while a page is on its way, and return whether the dashboard goes on."""
        self._stopped.wait(pause_s)
        while self._is_serving() and not self._stopped.is_set():
            self._stopped.wait(PAUSE_S)
        return not self._stopped.is_set()
