"""Downloads of runs: the analyzer's reports, with the name of a file."""

from __future__ import annotations

import re
from typing import Final

from tornado.web import RequestHandler

from kernalyse.services.core.errors import InvalidRequestError, KernalyseError, NotFoundError
from kernalyse.services.core.report import ReportFormat
from kernalyse.services.ui.client import AnalyzerClient

PATTERN: Final = rf"/export/([\w.-]+)\.({'|'.join(ReportFormat)})"
"""Run and format. With ?against=RUN the comparison, ?allow=device,… as `kernalyse export --allow`."""

CONTENT_TYPES: Final = {
    ReportFormat.TEXT: "text/plain; charset=utf-8",
    ReportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ReportFormat.HTML: "text/html; charset=utf-8",
    ReportFormat.PDF: "application/pdf",
    ReportFormat.PPTX: "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ReportFormat.PNG: "application/zip",
    ReportFormat.SVG: "application/zip",
}


class ExportHandler(RequestHandler):
    """A run, or a comparison of two, as a file."""

    def initialize(self, client: AnalyzerClient) -> None:
        self._client = client

    async def get(self, run_id: str, format_name: str) -> None:
        chosen = ReportFormat(format_name)
        baseline = self.get_query_argument("against", "")
        allowed = tuple(name for name in self.get_query_argument("allow", "").split(",") if name)
        try:
            content = await self._client.report(run_id, chosen, baseline, allowed)
        except KernalyseError as error:
            self.set_status(404 if isinstance(error, NotFoundError) else 400 if isinstance(error, InvalidRequestError) else 502)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(error.message + "\n")
            return
        self.set_header("Content-Type", CONTENT_TYPES[chosen])
        self.set_header("Content-Disposition", f'attachment; filename="{file_name(run_id, baseline, chosen)}"')
        self.finish(content)


def file_name(run_id: str, baseline: str, chosen: ReportFormat) -> str:
    """Of letters, digits, dashes and dots, whatever the runs are called."""
    pictures = f"-{chosen}" if chosen.suffix == ".zip" else ""
    stem = f"{run_id}-against-{baseline}" if baseline else run_id
    return re.sub(r"[^\w.-]", "_", f"kernalyse-{stem}{pictures}{chosen.suffix}", flags=re.ASCII)
