"""Renders all empty charts in the background once the dashboard serves, so that no visitor waits for one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from services.ui.empty_charts import EmptyChart
from services.ui.kept_charts import keep, take_kept
from services.ui.theme import PALETTES

PAUSE_S: Final = 0.2
"""Between two charts, and between looks at whether somebody is being served: a page comes first."""

logger = logging.getLogger(__name__)


class ChartPreparation:
    """A thread of its own; light charts first.

    Args:
        folder: where rendered charts are kept for the next server.
        is_serving: a page is on its way. Called on the thread.
    """

    def __init__(self, folder: Path, is_serving: Callable[[], bool]) -> None:
        self._folder = folder
        self._is_serving = is_serving
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chart-preparation", daemon=True)
        take_kept(folder)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the chart that is being rendered is done."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for palette in PALETTES.values():
                missing = [chart for chart in EmptyChart.known if not chart.is_rendered(palette)]
                for chart in missing:
                    if not self._may_go_on():
                        return
                    chart.rendered(palette)
                if missing:
                    keep(self._folder)
        except Exception:
            logger.exception("The charts could not be prepared; pages render them as they need them")

    def _may_go_on(self) -> bool:
        """Waits while a page is on its way. False: the dashboard stops."""
        self._stopped.wait(PAUSE_S)
        while self._is_serving() and not self._stopped.is_set():
            self._stopped.wait(PAUSE_S)
        return not self._stopped.is_set()
