"""Every chart of a document as a picture of its own, in one zip."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from kernalyse.services.ui.report.chart_figures import PictureFormat, picture
from kernalyse.services.ui.report.document import Document

MAX_STEM_LENGTH = 60


def write_pictures(path: Path, document: Document, picture_format: PictureFormat) -> None:
    """Files are named after their charts, numbered in their order."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, chart in enumerate(document.charts, start=1):
            archive.writestr(f"{number:02d}-{file_stem(chart.title)}.{picture_format}", picture(chart, picture_format))


def file_stem(title: str) -> str:
    """For a file's name: letters, digits and dashes alone."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:MAX_STEM_LENGTH] or "chart"
