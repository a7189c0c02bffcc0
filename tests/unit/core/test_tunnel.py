"""Connections within a stream: both ends of a tunnel over a stream that delivers in order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kernalyse.services.core.tunnel import TunnelEnd

SIZE_BYTES = 3_000_000


@asynccontextmanager
async def tunnel_to(serve: Any, directory: Path) -> AsyncIterator[Path]:
    """The near end's socket; what connects there is served by `serve` behind the far end."""
    service = await asyncio.start_unix_server(serve, directory / "service")
    near, far = TunnelEnd(), TunnelEnd(lambda: asyncio.open_unix_connection(directory / "service"))
    listener = await asyncio.start_unix_server(near.accept, directory / "near")
    carrying = [asyncio.create_task(carry(near, far)), asyncio.create_task(carry(far, near))]
    try:
        yield directory / "near"
    finally:
        for task in carrying:
            task.cancel()
        listener.close()
        service.close()
        await near.close()
        await far.close()
        await asyncio.sleep(0.01)  # until what was closed is gone


async def carry(sender: TunnelEnd, receiver: TunnelEnd) -> None:
    async for connection, data in sender.sent():
        await receiver.take(connection, data)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_bytes_of_several_connections_arrive_whole_and_apart(tmp_path: Path) -> None:
    async def exchange(path: Path) -> None:
        sent = os.urandom(SIZE_BYTES)
        reader, writer = await asyncio.open_unix_connection(path)
        reading = asyncio.create_task(reader.readexactly(SIZE_BYTES))
        writer.write(sent)
        await writer.drain()
        assert await reading == sent
        writer.close()

    async with tunnel_to(echo, tmp_path) as path, asyncio.timeout(30):
        await asyncio.gather(*(exchange(path) for _ in range(4)))


async def test_an_end_of_one_side_is_the_other_s_too(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(10) == b"hello":
            writer.write(b"hello")
        ended.set()
        writer.close()

    async with tunnel_to(greet, tmp_path) as path, asyncio.timeout(30):
        for word in (b"end", b""):  # the service ends the connection, then the client does
            ended.clear()
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.write(word)
            if word:
                assert await reader.read() == b""
            writer.close()
            await ended.wait()


async def test_a_connection_that_the_far_end_cannot_open_ends(tmp_path: Path) -> None:
    async with tunnel_to(echo, tmp_path) as path, asyncio.timeout(30):
        (tmp_path / "service").unlink()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"anybody?")
        assert await reader.read() == b""
        writer.close()
