"""A file that a run left, as a download."""

from __future__ import annotations

from typing import Final

from tornado.web import RequestHandler

from services.core.errors import KernalyseError, NotFoundError
from services.ui.client import AnalyzerClient

HARMLESS: Final = "application/octet-stream"
"""Whatever the file is: a browser must never show as a page of ours what a compiler or a program wrote."""


class ArtifactHandler(RequestHandler):
    def initialize(self, client: AnalyzerClient) -> None:
        self._client = client

    async def get(self) -> None:
        run_id, name = self.get_query_argument("run", ""), self.get_query_argument("name", "")
        try:
            content = await self._client.artifact(run_id, name)
        except KernalyseError as error:
            self.set_status(404 if isinstance(error, NotFoundError) else 502)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(error.message + "\n")
            return
        self.set_header("Content-Type", HARMLESS)
        self.set_header("X-Content-Type-Options", "nosniff")
        safe_name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
        self.set_header("Content-Disposition", f'attachment; filename="{safe_name}"')
        self.finish(content)
