"""One call of ImportTrace, written to from the server's loop and carried out on the client's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import grpc.aio

from kernalyse.services.core.errors import CancelledError, UnavailableError
from kernalyse.services.ui.client import AnalyzerClient
from kernalyse.v1 import analyzer_service_pb2 as messages

WRITTEN_TO_BROKEN_LINE: Final = "Internal error from Core"
"""What gRPC itself says, as INTERNAL, of a message written between a line's break and the call's end."""


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
            with _end_in_own_errors():
                try:
                    await self._call.write(request)
                except asyncio.InvalidStateError:  # the call is over; its end says why
                    await self._call

        await self._client.call(write)

    async def answer(self) -> messages.ImportTraceResponse:
        """Of the whole, once everything has been written."""

        async def end(_stub: Any) -> messages.ImportTraceResponse:
            with _end_in_own_errors():
                await self._call.done_writing()
                answer: messages.ImportTraceResponse = await self._call
            return answer

        return await self._client.call(end)

    async def cancel(self) -> None:
        async def cancel(_stub: Any) -> None:
            self._call.cancel()

        await self._client.call(cancel)


@contextmanager
def _end_in_own_errors() -> Iterator[None]:
    """A call that was cancelled is so for whoever sends; one whose line broke can go on."""
    try:
        yield
    except asyncio.CancelledError as error:
        raise CancelledError("import", found="cancelled") from error
    except grpc.aio.AioRpcError as error:
        if error.details() == WRITTEN_TO_BROKEN_LINE:
            raise UnavailableError("the analyzer", found="the line broke while a message was written") from error
        raise
