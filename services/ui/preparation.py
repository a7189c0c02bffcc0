"""Charts that visitors would wait for: rendered by a process of its own once the dashboard serves, copied in the background.

Rendering all charts takes a core for some ten seconds. In a thread it would hold up live pages for as long.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import pandas  # noqa: F401  # HoloViews imports it at its first chart, on a thread; Bokeh's stream() meanwhile finds half of it in sys.modules

from kernalyse.services.ui.components.figure import RenderedChart
from kernalyse.services.ui.theme import PALETTES, Palette

PAUSE_S: Final = 0.02
"""Between two copies, and between looks at whether somebody is being served: a page comes first."""

IDLE_PAUSE_S: Final = 0.2
"""Between looks at what has been taken."""

COPY_SHARE: Final = 0.25
"""Of the time goes to copies; the rest is left to live pages."""

NICENESS: Final = 10
"""Of the process: whatever somebody waits for comes first."""

COMMAND: Final = (sys.executable, "-P", "-m", "kernalyse.services.ui.preparation")

logger = logging.getLogger(__name__)


class Preparation:
    """Keeps a copy of each chart for each theme, in a thread of its own: the page that is opened next takes it.

    Args:
        is_serving: a page is on its way. Called on the thread.
        command: renders charts, as `main` does; None: they are rendered when the first page asks for them.
    """

    def __init__(self, is_serving: Callable[[], bool], command: tuple[str, ...] | None = COMMAND) -> None:
        self._is_serving = is_serving
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="preparation", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Return when the chart that is being copied is done."""
        self._stopped.set()
        if self._process is not None:
            self._process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            if self._command is not None and self._may_go_on(PAUSE_S):
                self._take_rendered(self._command)
            self._keep_copies()
        except Exception:
            logger.exception("Not all charts could be prepared; pages render the rest as they need it")

    def _take_rendered(self, command: tuple[str, ...]) -> None:
        """Take over each chart as the process has rendered it, and keep a copy."""
        charts = {chart.key: chart for chart in RenderedChart.known}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            self._process = process
            assert process.stdout is not None
            for line in process.stdout:
                key, theme, rendered = json.loads(line)
                if self._stopped.is_set():
                    process.kill()
                elif key in charts:
                    charts[key].take(PALETTES[theme], rendered)
                    self._copy(charts[key], PALETTES[theme])
        if process.returncode and not self._stopped.is_set():
            logger.warning("The process that renders charts has ended with status %s; pages render the rest.", process.returncode)

    def _keep_copies(self) -> None:
        """Replace copies that pages have taken."""
        while self._may_go_on(IDLE_PAUSE_S):
            for palette in PALETTES.values():
                for chart in RenderedChart.known:
                    if chart.is_rendered(palette) and not chart.is_prepared(palette):
                        self._copy(chart, palette)

    def _copy(self, chart: RenderedChart, palette: Palette) -> None:
        if self._may_go_on(PAUSE_S):
            begin_s = time.monotonic()
            chart.prepare(palette)
            self._stopped.wait((time.monotonic() - begin_s) * (1 / COPY_SHARE - 1))

    def _may_go_on(self, pause_s: float) -> bool:
        """Wait while a page is on its way, and return whether the dashboard goes on."""
        self._stopped.wait(pause_s)
        while self._is_serving() and not self._stopped.is_set():
            self._stopped.wait(PAUSE_S)
        return not self._stopped.is_set()


def main() -> None:
    """Write each chart of the dashboard in each theme as a line of JSON: key, theme, document."""
    os.nice(NICENESS)
    from kernalyse.services.ui import pages  # noqa: F401  # has all charts made

    for theme, palette in PALETTES.items():
        for chart in RenderedChart.known:
            sys.stdout.write(json.dumps([chart.key, theme, chart.rendered(palette)]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
