"""Frames between worker and service."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from kernalyse.services.core.errors import InternalError, WorkerCrashedError
from kernalyse.services.core.model import EventPayload, LogLevel, LogLines, Progress, SampleBatch
from kernalyse.services.profiler.processes import event_pipe
from kernalyse.services.profiler.processes.event_pipe import EventWriter, event_data, open_pipe, read_events

PROGRESS = Progress(1, 0, 4, "measuring", "opencl:pocl:0")


async def _payload_names(data: bytes) -> list[str | None]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return [event.WhichOneof("payload") async for events in read_events(reader) for event in events]


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _written(*payloads: EventPayload) -> bytes:
    read_fd, write_fd = open_pipe()
    try:
        writer = EventWriter(write_fd)
        for payload in payloads:
            writer.write(payload)
    finally:
        os.close(write_fd)
    with os.fdopen(read_fd, "rb") as file:
        return file.read()


async def test_what_is_written_arrives_in_order() -> None:
    data = _written(PROGRESS, SampleBatch(0, 0, (1.5, 2.5), 7), LogLines(LogLevel.INFO, "worker", ("a",)))
    assert await _payload_names(data) == ["progress", "sample_batch", "log_lines"]


async def test_frames_cut_anywhere_are_put_together_again() -> None:
    data = _written(PROGRESS, PROGRESS, PROGRESS)
    reader = asyncio.StreamReader()

    async def feed() -> None:
        for place in range(len(data)):
            reader.feed_data(data[place : place + 1])
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.create_task(feed())
    count = sum([len(events) async for events in read_events(reader)])
    await feeding
    assert count == 3


async def test_a_frame_cut_off_by_the_writers_death_is_dropped() -> None:
    data = _written(PROGRESS, PROGRESS)
    assert await _payload_names(data[:-3]) == ["progress"]


@pytest.mark.parametrize(
    "data",
    [
        b"Segmentation fault (core dumped)\n",
        _frame(b"\xff\xff\xff\xff"),
        _frame(b"\x08\x01"),  # an index without payload
        (0).to_bytes(4, "big"),
        (event_pipe.MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
    ],
    ids=["text", "no message", "no payload", "empty", "too long"],
)
async def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(WorkerCrashedError, match="event pipe of the worker"):
        await _payload_names(data)


async def test_events_before_garbage_are_passed_on() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(_frame(event_data(PROGRESS)) + b"garbage!")
    events = read_events(reader)
    assert len(await anext(events)) == 1
    with pytest.raises(WorkerCrashedError):
        await anext(events)


def test_an_event_over_the_limit_is_refused_by_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_pipe, "MAX_FRAME_BYTES", 64)
    with pytest.raises(InternalError, match="SampleBatch"):
        _written(SampleBatch(0, 0, (1.0,) * 100, 0))


async def test_threads_do_not_mix_their_frames() -> None:
    read_fd, write_fd = open_pipe()
    writer = EventWriter(write_fd)
    batch = SampleBatch(0, 0, tuple(map(float, range(2000))), 0)  # 16 kB: more than a pipe takes at once

    def write_many() -> None:
        for _ in range(50):
            writer.write(batch)

    threads = [threading.Thread(target=write_many) for _ in range(4)]

    def write_all() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.close(write_fd)

    writing = threading.Thread(target=write_all)
    writing.start()
    with os.fdopen(read_fd, "rb") as file:
        data = await asyncio.to_thread(file.read)
    writing.join()
    assert await _payload_names(data) == ["sample_batch"] * 200
