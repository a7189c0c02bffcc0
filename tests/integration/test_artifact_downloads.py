"""Files of runs on their way from a node through analyzer and dashboard to a browser: never whole in any of them."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tornado.httpserver import HTTPServer
from tornado.web import Application

from kernalyse.services.core.model import ArtifactStored
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.handlers import ArtifactHandler
from tests.integration.analyzer_under_test import AnalyzerHere, eventually
from tests.integration.profiler_stand_in import ProfilerStandIn, standing_in, started

MIB: Final = 2**20
RUN: Final = "aaaa-1"
CONTENT: Final = random.Random(1).randbytes(MIB) * 96


@pytest.fixture
async def node(private_directories: Path) -> AsyncIterator[ProfilerStandIn]:
    """With a run of two files, of which one was announced."""
    async with standing_in(private_directories) as stand_in:
        stand_in.chunk_bytes = MIB
        stand_in.artifacts = {"trace.nsys-rep": CONTENT, "unannounced": CONTENT[: 3 * MIB]}
        stand_in.add_run(RUN)
        stand_in.journal(RUN, *started(), ArtifactStored("trace.nsys-rep", "sha256:1", len(CONTENT), "application/octet-stream"))
        yield stand_in


@dataclass(slots=True)
class Download:
    """One answer as it comes. headers: in lower case."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    status: int
    headers: dict[str, str]


@pytest.fixture
async def port(analyzer: AnalyzerHere, stub: Any) -> AsyncIterator[int]:
    """Of a server of such files."""
    client = AnalyzerClient(analyzer.endpoint, lambda: None)
    client.start()
    server = HTTPServer(Application([("/download/artifact", ArtifactHandler, {"client_of": lambda _request: client})]))
    server.listen(0, "127.0.0.1")

    async def is_known() -> bool:
        return any(run.run_id == RUN for run in client.nodes.overview().runs)

    await eventually(is_known)
    yield next(iter(server._sockets.values())).getsockname()[1]
    server.stop()
    await server.close_all_connections()
    await asyncio.to_thread(client.stop)


@asynccontextmanager
async def download(port: int, name: str) -> AsyncIterator[Download]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /download/artifact?run={RUN}&name={name} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    try:
        yield Download(reader, writer, int(first.split()[1]), headers)
    finally:
        writer.close()


async def test_a_file_comes_with_its_length_and_no_faster_than_it_is_taken(port: int, node: ProfilerStandIn) -> None:
    async with download(port, "trace.nsys-rep") as found:
        assert (found.status, found.headers["content-length"]) == (200, str(len(CONTENT)))
        assert found.headers["content-disposition"] == 'attachment; filename="trace.nsys-rep"'
        await asyncio.sleep(1)  # nobody reads: what is under way is what lines and buffers hold
        assert 0 < node.sent_bytes < len(CONTENT) / 2
        content = await found.reader.read(-1)
        assert hashlib.sha256(content).digest() == hashlib.sha256(CONTENT).digest()


async def test_a_browser_that_goes_away_ends_the_transfer(port: int, node: ProfilerStandIn) -> None:
    async with download(port, "trace.nsys-rep") as found:
        found.writer.transport.abort()
        sent_bytes = -1
        while sent_bytes < node.sent_bytes:
            sent_bytes = node.sent_bytes
            await asyncio.sleep(0.5)
        assert sent_bytes < len(CONTENT) / 2


async def test_a_file_without_a_known_length_is_whole_too(port: int) -> None:
    async with download(port, "unannounced") as found:
        assert (found.status, found.headers["transfer-encoding"]) == (200, "chunked")
        assert len(await found.reader.read(-1)) > 3 * MIB  # and the lengths of its parts


@pytest.mark.parametrize("name", ["trace.nsys-rep", "unannounced"])
async def test_a_transfer_that_breaks_off_is_no_whole_file(port: int, node: ProfilerStandIn, name: str) -> None:
    node.stalls = True
    async with download(port, name) as found:
        await found.reader.readexactly(1000)
        await node.stop()
        rest = await found.reader.read(-1)
        assert len(rest) < 2 * MIB
        assert not rest.endswith(b"0\r\n\r\n")  # with which a whole one ends


async def test_a_file_that_is_not_there_is_said_in_a_sentence(port: int) -> None:
    async with download(port, "other") as found:
        assert (found.status, found.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert "other" in (await found.reader.read(-1)).decode()
