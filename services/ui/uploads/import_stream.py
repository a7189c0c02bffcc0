"""One call of ImportTrace, written to from the server's loop and carried out on the client's thread."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from kernalyse.v1 import analyzer_service_pb2 as messages
from services.core.errors import CancelledError
from services.ui.client import AnalyzerClient


class ImportStream:
    """Every method raises KernalyseError: what the analyzer refuses, or UnavailableError when the line breaks.

    A write returns when the message is on its way, so that a slow analyzer slows the browser and nothing piles up here.
    """

    def __init__(self, client: AnalyzerClient, call: Any) -> None:
        self._client = client
        self._call = call

    @classmethod
    async def open(cls, client: AnalyzerClient) -> Self:
        async def begin(stub: Any) -> Any:
            return stub.ImportTrace(wait_for_ready=True)

        return cls(client, await client.call(begin))

    async def write(self, request: messages.ImportTraceRequest) -> None:
        async def write(_stub: Any) -> None:
            try:
                await self._call.write(request)
            except asyncio.InvalidStateError:  # the call is over; its end says why
                await self._call
            except asyncio.CancelledError as error:
                raise _cancelled() from error

        await self._client.call(write)

    async def answer(self) -> messages.ImportTraceResponse:
        """Of the whole, once everything has been written."""

        async def end(_stub: Any) -> messages.ImportTraceResponse:
            try:
                await self._call.done_writing()
                answer: messages.ImportTraceResponse = await self._call
            except asyncio.CancelledError as error:
                raise _cancelled() from error
            return answer

        return await self._client.call(end)

    async def cancel(self) -> None:
        async def cancel(_stub: Any) -> None:
            self._call.cancel()

        await self._client.call(cancel)


def _cancelled() -> CancelledError:
    return CancelledError("import", found="cancelled")
