"""Rendered empty charts in the user's cache directory: a server that finds them renders none.

A file serves one version of the dashboard's code and of the libraries that it draws with. It is written whole and then put in
place, so that servers may start beside each other; one that is damaged, or not the user's own, is as good as none.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import platformdirs
from bokeh.util.dataclasses import Unspecified

from kernalyse.services.ui.empty_charts import EmptyChart
from kernalyse.services.ui.theme import PALETTES

CODE_DIRECTORY: Final = Path(__file__).parent
LIBRARIES: Final = ("bokeh", "holoviews", "numpy", "panel")
TRUSTED: Final = ("bokeh.", "numpy.", "kernalyse.services.ui.model_copies.")
"""Where what a file holds may come from."""

CONTAINERS: Final = ("dict", "list", "set", "tuple")

UNSPECIFIED: Final = "unspecified"
MAX_AGE_S: Final = 30 * 86_400.0
"""Of files of other versions."""

logger = logging.getLogger(__name__)


def chart_directory() -> Path:
    return platformdirs.user_cache_path("kernalyse") / "empty_charts"


def take_kept(directory: Path) -> None:
    """Charts that a server of this version has kept need not be rendered."""
    try:
        kept = _read(directory / _file_name())
    except FileNotFoundError:
        return
    except Exception as error:
        logger.warning("Kept charts could not be read and are made anew: %s: %s", type(error).__name__, error)
        return
    for chart in EmptyChart.known:
        for palette in PALETTES.values():
            if (chart.name, palette.name) in kept:
                chart.take(palette, kept[chart.name, palette.name])


def keep(directory: Path) -> None:
    """Those that have been rendered. A directory that cannot be written to is no fault: the next server renders them again."""
    rendered = {
        (chart.name, palette.name): chart.rendered(palette)
        for chart in EmptyChart.known
        for palette in PALETTES.values()
        if chart.is_rendered(palette)
    }
    content = io.BytesIO()
    _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(rendered)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_old(directory)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            file.write(hashlib.sha256(content.getvalue()).digest() + content.getvalue())
        Path(file.name).replace(directory / _file_name())
    except OSError as error:
        logger.info("Charts are not kept: %s", error)


def _read(path: Path) -> dict[tuple[str, str], Any]:
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"{path}: others can write to it")
        digest, content = file.read(32), file.read()
    if hashlib.sha256(content).digest() != digest:
        raise ValueError(f"{path}: damaged")
    found_charts: dict[tuple[str, str], Any] = _Unpickler(io.BytesIO(content)).load()
    return found_charts


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> str | None:
        return UNSPECIFIED if value is Unspecified else None  # Bokeh knows it by its identity


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, _identity: str) -> Any:
        return Unspecified

    def find_class(self, module: str, name: str) -> Any:
        if not f"{module}.".startswith(TRUSTED) and (module != "builtins" or name not in CONTAINERS):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a chart")
        return super().find_class(module, name)


def _file_name() -> str:
    content = hashlib.sha256(sys.version.encode())
    for library in LIBRARIES:
        content.update(f"{library} {version(library)}\n".encode())
    for path in sorted(CODE_DIRECTORY.rglob("*.py")):
        content.update(path.read_bytes())
    return f"{content.hexdigest()[:24]}.pickle"


def _forget_old(directory: Path) -> None:
    for path in directory.iterdir():
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - MAX_AGE_S:
                path.unlink()
