"""Traces on their way through the dashboard's server to a real analyzer: slices, lines that break, refusals."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from kernalyse.services.core.errors import CancelledError, InvalidRequestError, InvalidTraceError
from kernalyse.services.ui.data.client import AnalyzerClient
from kernalyse.services.ui.uploads.imports import Extent, FileToImport, Imports, ImportState, TraceImport
from kernalyse.trace_upload import CHUNK_BYTES
from tests.private_directory import DIRECTORIES, private_directory
from tests.service_processes import ServiceProcess, ServiceProcesses
from tests.unit.analyzer.readers.test_kineto import call, kernel

PATIENCE_S = 90.0


@dataclass(slots=True)
class Place:
    """An analyzer for all tests of this file."""

    services: ServiceProcesses
    analyzer: ServiceProcess


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with private_directory() as directory:
        services = ServiceProcesses(directory)
        try:
            yield Place(services, services.start("analyzer"))
        finally:
            services.stop_all()


@pytest.fixture
async def imports(place: Place) -> AsyncIterator[Imports]:
    client = AnalyzerClient(place.analyzer.endpoint, lambda: None)
    client.start()
    yield Imports(client)
    await asyncio.to_thread(client.stop)


@pytest.fixture
def trace(request: pytest.FixtureRequest) -> bytes:
    """Of PyTorch's profiler, a few messages long, and another one for each test."""
    document = {
        "schemaVersion": 1,
        "traceEvents": [call(12, 1), kernel("gemm", 200, 2, 1)],
        "note": request.node.name + "x" * (5 * CHUNK_BYTES // 2),
    }
    return json.dumps(document).encode()


def announced(*contents: bytes, names: tuple[str, ...] = ("trace.json", "beside.txt")) -> tuple[FileToImport, ...]:
    return tuple(FileToImport(name, len(content), 1) for name, content in zip(names, contents, strict=False))


async def send(
    upload: TraceImport, contents: tuple[bytes, ...], slice_bytes: int = 700_000, is_enough: Callable[[], bool] = lambda: False
) -> None:
    """As a page does: slice after slice, each from where the server says."""
    while upload.state is ImportState.RECEIVING and not is_enough():
        begin = upload.extent
        part = contents[begin.file_index][begin.offset_bytes : begin.offset_bytes + slice_bytes]
        await upload.write(upload.claim(), begin, part)


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():
            await asyncio.sleep(0.02)


async def ended(upload: TraceImport) -> TraceImport:
    await until(lambda: upload.state.is_final)
    return upload


def arriving_bytes(place: Place) -> int:
    """Of imports, at the analyzer."""
    total_bytes = 0
    for path in (place.services.directory / "data" / "kernalyse" / "store" / "arriving").rglob("*"):
        with suppress(FileNotFoundError):  # gone meanwhile
            total_bytes += path.stat().st_size if path.is_file() else 0
    return total_bytes


async def test_a_trace_in_slices_becomes_a_run_and_is_known_again(imports: Imports, trace: bytes) -> None:
    upload = imports.begin(announced(trace))
    await send(upload, (trace,), slice_bytes=random.Random(1).randrange(100_000, 1_500_000))
    await ended(upload)
    assert (upload.state, upload.problem, upload.is_known) == (ImportState.DONE, "", False)
    assert upload.run is not None
    assert upload.run.is_imported
    again = imports.begin(announced(trace))
    assert again is not upload
    await send(again, (trace,))
    assert (await ended(again)).is_known
    assert again.run is not None
    assert again.run.run_id == upload.run.run_id


async def test_after_a_silence_the_same_files_go_on_where_the_analyzer_has_them(place: Place, imports: Imports, trace: bytes) -> None:
    upload = imports.begin(announced(trace))
    await send(upload, (trace,), is_enough=lambda: upload.extent.offset_bytes > CHUNK_BYTES + 1000)
    await until(lambda: arriving_bytes(place) == CHUNK_BYTES)
    await upload.leave()
    assert upload.extent == Extent(0, CHUNK_BYTES)  # whole messages
    same = imports.begin(announced(trace))
    assert same is upload
    await send(same, (trace,))
    assert (await ended(same)).state is ImportState.DONE


@pytest.mark.slow
async def test_an_analyzer_that_was_started_anew_gets_all_of_it(
    place: Place, imports: Imports, trace: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = imports.begin(announced(trace))
    await send(upload, (trace,), is_enough=lambda: upload.extent.offset_bytes > CHUNK_BYTES + 1000)
    for variable, name in DIRECTORIES.items():  # not those of this test
        monkeypatch.setenv(variable, str(place.services.directory / name))
    place.analyzer.kill()
    again = asyncio.create_task(asyncio.to_thread(place.services.start, "analyzer", address=place.analyzer.address))
    await send(upload, (trace,))
    place.analyzer = await again
    assert (await ended(upload)).problem == ""
    assert upload.state is ImportState.DONE


async def test_a_dashboard_that_was_started_anew_goes_on_with_what_the_analyzer_has(place: Place, imports: Imports, trace: bytes) -> None:
    beside = b"beside it"
    upload = imports.begin(announced(beside, trace, names=("beside.txt", "trace.json"))[::-1])
    await send(upload, (trace, beside), is_enough=lambda: upload.extent.offset_bytes > CHUNK_BYTES + 1000)
    await until(lambda: arriving_bytes(place) == CHUNK_BYTES)
    await upload.leave()  # as its end does
    client = AnalyzerClient(place.analyzer.endpoint, lambda: None)
    client.start()
    anew = Imports(client)
    taken_up = await anew.take_up(upload.files, upload.upload_id)
    assert taken_up.extent == Extent()  # its digest is that of all its bytes
    await send(taken_up, (trace, beside), is_enough=lambda: taken_up.extent.offset_bytes >= CHUNK_BYTES - 100_000)
    assert arriving_bytes(place) == CHUNK_BYTES  # what is there was neither sent nor taken once more
    await send(taken_up, (trace, beside), is_enough=lambda: taken_up.extent.file_index == 1)
    await until(lambda: arriving_bytes(place) == len(trace))
    await taken_up.leave()
    last = await Imports(client).take_up(upload.files, upload.upload_id)
    assert last.extent == Extent(1)  # the first file is whole
    await send(last, (trace, beside))
    assert ((await ended(last)).state, last.problem) == (ImportState.DONE, "")
    assert await anew.take_up(upload.files, upload.upload_id) is taken_up  # asked for twice, it is one
    await asyncio.to_thread(client.stop)


async def test_bytes_that_changed_since_a_dashboard_ended_are_refused(place: Place, imports: Imports, trace: bytes) -> None:
    upload = imports.begin(announced(trace))
    await send(upload, (trace,), is_enough=lambda: upload.extent.offset_bytes > CHUNK_BYTES + 1000)
    await until(lambda: arriving_bytes(place) == CHUNK_BYTES)
    await upload.leave()
    other = Imports(imports._client)
    taken_up = await other.take_up(upload.files, upload.upload_id)
    with suppress(InvalidTraceError):
        await send(taken_up, (trace[:1000] + b"?" + trace[1001:],))
    assert (await ended(taken_up)).state is ImportState.FAILED
    assert "changed while it was sent" in taken_up.problem


async def test_a_file_of_the_wrong_kind_is_refused_in_the_readers_words(imports: Imports) -> None:
    content = b"# A text\n"
    upload = imports.begin(announced(content, names=("README.md",)))
    await send(upload, (content,))
    assert (await ended(upload)).state is ImportState.FAILED
    assert "README.md: found content that begins with" in upload.problem
    assert "Nsight Systems" in upload.problem


async def test_a_large_file_of_the_wrong_kind_is_refused_by_its_beginning(place: Place, imports: Imports) -> None:
    content = bytes(128 * CHUNK_BYTES)
    upload = imports.begin(announced(content, names=("disk.img",)))
    with pytest.raises(InvalidTraceError, match=r"disk\.img: found content that begins with"):
        await send(upload, (content,), slice_bytes=64 * 1024)
    assert (upload.state, arriving_bytes(place)) == (ImportState.FAILED, 0)
    assert upload.arrived_bytes < 16 * CHUNK_BYTES  # what is on its way meanwhile, of a sender without a line between


async def test_a_cancelled_import_takes_no_more_and_leaves_nothing(place: Place, imports: Imports, trace: bytes) -> None:
    upload = imports.begin(announced(trace))
    await send(upload, (trace,), is_enough=lambda: upload.extent.offset_bytes > CHUNK_BYTES)
    await upload.cancel(imports._client)
    with pytest.raises(CancelledError):
        await upload.write(upload.claim(), upload.extent, b"more")
    await until(lambda: arriving_bytes(place) == 0)
    assert imports.begin(announced(trace)) is not upload
    imports.forget(upload.upload_id)
    assert upload not in imports.newest_first()


async def test_a_slice_on_a_line_that_broke_writes_no_more(imports: Imports, trace: bytes) -> None:
    upload = imports.begin(announced(trace, b""))
    old, new = upload.claim(), upload.claim()
    with pytest.raises(InvalidRequestError, match="from byte 0 on"):
        await upload.write(old, Extent(), trace[:1000])
    await upload.write(new, Extent(), trace[:1000])
    with pytest.raises(InvalidRequestError, match=r"offset_bytes=1000"):
        await upload.write(new, Extent(), trace[:1000])
    with pytest.raises(InvalidRequestError):
        await upload.write(new, Extent(0, 1000), trace)  # more than was announced
    await send(upload, (trace, b""))  # an empty file belongs to it
    assert (await ended(upload)).state in (ImportState.DONE, ImportState.FAILED)
