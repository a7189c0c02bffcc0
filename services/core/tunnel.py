"""Connections within a stream: how an analyzer calls a profiler that only makes connections and takes none.

Each end has one `TunnelEnd`. The analyzer's takes connections of its own clients, gives each a number and sends their bytes;
the profiler's opens a connection to its own service for each new number, when its first bytes arrive. What travels is HTTP/2
of gRPC as it is, so that every call works as it does without a tunnel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from kernalyse.services.core.rpc import cancel_and_wait

CHUNK_BYTES: Final = 256 * 1024
WAITING_COUNT: Final = 16
"""Chunks that wait for the stream; beyond, connections are read no further."""

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class TunnelEnd:
    """One end of a tunnel.

    Args:
        connect: opens a connection for each new one of the other end; None: the other end opens none.
    """

    def __init__(self, connect: Connect | None = None) -> None:
        self._connect = connect
        self._waiting: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(WAITING_COUNT)
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: set[int] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a new connection until it ends."""
        number = len(self._known) + 1
        self._known.add(number)
        self._writers[number] = writer
        await self._read(number, reader)

    async def take(self, connection: int, data: bytes) -> None:
        """Pass on what the other end has sent; no data: it has ended the connection."""
        writer = self._writers.get(connection)
        if writer is None and data and self._connect is not None and connection not in self._known:
            writer = await self._opened(connection, self._connect)
        if writer is None:
            return  # it has ended here, and the other end is about to hear of it
        if not data:
            self._end(connection)
            return
        writer.write(data)
        with suppress(ConnectionError):
            await writer.drain()

    async def sent(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield connections and bytes for the other end, without end."""
        while True:
            yield await self._waiting.get()

    async def close(self) -> None:
        """End all connections."""
        for connection in tuple(self._writers):
            self._end(connection)
        await cancel_and_wait(*self._tasks)

    async def _opened(self, connection: int, connect: Connect) -> asyncio.StreamWriter | None:
        self._known.add(connection)
        try:
            reader, writer = await connect()
        except OSError:
            await self._waiting.put((connection, b""))
            return None
        self._writers[connection] = writer
        task = asyncio.create_task(self._read(connection, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return writer

    async def _read(self, connection: int, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await self._waiting.put((connection, data))
        if self._end(connection):
            await self._waiting.put((connection, b""))

    def _end(self, connection: int) -> bool:
        """End a connection here; False: it had ended."""
        writer = self._writers.pop(connection, None)
        if writer is not None:
            writer.close()
        return writer is not None
