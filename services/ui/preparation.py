"""Work that visitors would wait for, done in the background once the dashboard serves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pandas  # noqa: F401  # HoloViews imports it at its first chart, on the thread; Bokeh's stream() meanwhile finds half of it in sys.modules

from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.kept_charts import keep
from kernalyse.services.ui.pages.shell import environment
from kernalyse.services.ui.theme import PALETTES

PAUSE_S: Final = 0.02
"""Between two steps, and between looks at whether somebody is being served: a page comes first."""

logger = logging.getLogger(__name__)


class Preparation:
    """Compiles the templates and renders the empty charts, light ones first, step by step in a thread of its own.

    Args:
        directory: where rendered charts are kept for the next server.
        is_serving: a page is on its way. Called on the thread.
    """

    def __init__(self, directory: Path, is_serving: Callable[[], bool]) -> None:
        self._directory = directory
        self._is_serving = is_serving
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="preparation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the step that is being taken is done."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._take(_templates())
            for palette in PALETTES.values():
                missing = [partial(chart.rendered, palette) for chart in EmptyChart.known if not chart.is_rendered(palette)]
                self._take(missing)
                if missing:
                    keep(self._directory)
        except Exception:
            logger.exception("Not all could be prepared; pages do the rest as they need it")

    def _take(self, steps: Iterable[Callable[[], object]]) -> None:
        pause_s = PAUSE_S
        for step in steps:
            if self._may_go_on(pause_s):
                begin_s = time.monotonic()
                step()
                pause_s = max(PAUSE_S, time.monotonic() - begin_s)  # half of the time is left to live pages

    def _may_go_on(self, pause_s: float) -> bool:
        """Waits while a page is on its way. False: the dashboard stops."""
        self._stopped.wait(pause_s)
        while self._is_serving() and not self._stopped.is_set():
            self._stopped.wait(PAUSE_S)
        return not self._stopped.is_set()


def _templates() -> Iterator[Callable[[], object]]:
    for name in environment().list_templates():
        yield partial(environment().get_template, name)
