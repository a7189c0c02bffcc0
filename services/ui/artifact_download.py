"""A file that a run left, as a download: passed on part by part, as fast as the browser takes it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler

from kernalyse.services.core.errors import KernalyseError, NotFoundError
from kernalyse.services.core.model import Filter, TableQuery
from kernalyse.services.ui.client import AnalyzerClient

HARMLESS: Final = "application/octet-stream"
"""Whatever the file is: a browser must never show as a page of ours what a compiler or a program wrote."""


class ArtifactHandler(RequestHandler):
    def initialize(self, client: AnalyzerClient) -> None:
        self._client = client

    async def get(self) -> None:
        run_id, name = self.get_query_argument("run", ""), self.get_query_argument("name", "")
        try:
            await self._pass_on(run_id, name)
        except KernalyseError as error:
            if self._headers_written:
                self.detach().close()  # what has come must not look like all of the file
                return
            self.set_status(404 if isinstance(error, NotFoundError) else 502)
            self.clear_header("Content-Disposition")
            self.clear_header("Content-Length")
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(error.message + "\n")
        except StreamClosedError:
            return  # the browser has gone

    async def _pass_on(self, run_id: str, name: str) -> None:
        """Raises KernalyseError; StreamClosedError."""
        size_bytes = await self._announced_size_bytes(run_id, name)
        self.set_header("Content-Type", HARMLESS)
        self.set_header("X-Content-Type-Options", "nosniff")
        safe_name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)
        self.set_header("Content-Disposition", f'attachment; filename="{safe_name}"')
        if size_bytes is not None:
            self.set_header("Content-Length", str(size_bytes))
        async with aclosing(self._client.artifact_parts(run_id, name)) as parts:
            async for part in parts:
                self.write(part)
                await self.flush()
        self.finish()

    async def _announced_size_bytes(self, run_id: str, name: str) -> int | None:
        """None: the run has not told of it."""
        query = TableQuery("artifacts", (run_id,), (Filter("artifact_name", name),), columns=("size_bytes",))
        rows = (await self._client.table(query)).rows
        return None if rows.is_empty() else rows["size_bytes"][-1]
