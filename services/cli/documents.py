"""Documents with charts that `kernalyse export` writes: HTML, PDF and PowerPoint files, folders of PNG and SVG pictures."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from services.cli.analyzer_client import AnalyzerClient

PANEL: Final = "With charts, no browser needed"


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, rich_help_panel=PANEL, help=text)


HtmlOption = Annotated[Path | None, _option("--html", "FILE", "One file with interactive charts; needs no network.")]
PdfOption = Annotated[Path | None, _option("--pdf", "FILE", "A report on sheets of A4.")]
PptxOption = Annotated[Path | None, _option("--pptx", "FILE", "PowerPoint, a slide for each chart.")]
PngOption = Annotated[Path | None, _option("--png", "DIR", "A picture of each chart.")]
SvgOption = Annotated[Path | None, _option("--svg", "DIR", "The same as drawings.")]
AgainstOption = Annotated[str | None, _option("--against", "RUN", "Baseline: the document compares both runs.")]
AllowOption = Annotated[str, _option("--allow", "device,…", "With --against, what may differ: device, method, cache, inputs.")]
PICTURES: Final = ("png", "svg")


def write_documents(client: AnalyzerClient, run_id: str, baseline: str, allowed: str, wanted: Mapping[str, Path]) -> None:
    """Ask the analyzer for each document and write it.

    Args:
        wanted: files by format; of pictures folders.
    """
    differences = [name.strip() for name in allowed.split(",") if name.strip()]
    for name, path in wanted.items():
        content = client.report(run_id, name, baseline, differences)
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in PICTURES:
            unpack(content, path)
        else:
            path.write_bytes(content)
        typer.echo(f"{name}: {path}", err=True)


def unpack(content: bytes, folder: Path) -> None:
    """Write the files of a zip to a folder, by their names alone."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            (folder / Path(entry.filename).name).write_bytes(archive.read(entry))
