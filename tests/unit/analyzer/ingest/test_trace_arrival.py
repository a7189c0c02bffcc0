"""Files on their way in: whole, compared with their digests, within limits, and gone when the block ends."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from kernalyse.services.analyzer.ingest import uploads
from kernalyse.services.analyzer.ingest.uploads import (
    MAX_CHUNK_BYTES,
    MAX_PAUSED_COUNT,
    PAUSED_UPLOAD_LIFETIME_S,
    UploadedTrace,
    UploadMessage,
    UploadPosition,
    UploadSessions,
)
from kernalyse.services.analyzer.readers.registry import HEAD_BYTES, select_reader_by_head
from kernalyse.services.core.errors import InvalidTraceError, LimitReachedError, StorageFullError

LIMIT_BYTES = 10 * MAX_CHUNK_BYTES


def digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def parts_of(name: str, *chunks: bytes) -> list[UploadMessage]:
    """A file as a client sends it: the name first, the digest last."""
    end = UploadMessage("", b"", digest(b"".join(chunks)))
    return [UploadMessage(name if number == 0 else "", chunk, "") for number, chunk in enumerate(chunks)] + [end]


async def stream(parts: Sequence[UploadMessage]) -> AsyncIterator[UploadMessage]:
    """Of which the last message says that it is."""
    for number, part in enumerate(parts):
        yield replace(part, is_last=number == len(parts) - 1)


async def arrived(parts: Sequence[UploadMessage], directory: Path, max_bytes: int = LIMIT_BYTES) -> tuple[UploadedTrace, list[bytes]]:
    async with UploadSessions(directory, max_bytes).receive(stream(parts)) as (trace,):
        return trace, [file.path.read_bytes() for file in trace.files]


async def test_traces_are_told_with_their_companions_when_the_next_one_begins(tmp_path: Path) -> None:
    told: list[list[int]] = []
    first, companion = parts_of("a", b"1"), parts_of("b", b"2")
    second, third = ([replace(part, is_further_trace=bool(part.file_name)) for part in parts_of("a", data)] for data in (b"3", b"4"))
    sessions = UploadSessions(tmp_path, LIMIT_BYTES)
    async with sessions.receive(
        stream([*first, *companion, *second, *third]), lambda traces: told.append([len(trace.files) for trace in traces])
    ) as traces:
        assert [len(trace.files) for trace in traces] == [2, 1, 1]
    assert told == [[2], [2, 1]]


async def test_chunks_are_joined_and_nothing_stays_behind(tmp_path: Path) -> None:
    trace, contents = await arrived(parts_of("a.json", b"ab", b"", b"cd"), tmp_path)
    assert contents == [b"abcd"]
    assert (trace.file_name, trace.digest) == ("a.json", digest(b"abcd"))
    assert trace.identity == sha256(b"abcd").hexdigest()
    assert list(tmp_path.iterdir()) == []


async def test_name_bytes_and_digest_may_come_in_one_message(tmp_path: Path) -> None:
    _, contents = await arrived([UploadMessage("a", b"x", digest(b"x"))], tmp_path)
    assert contents == [b"x"]


async def test_an_empty_file_arrives(tmp_path: Path) -> None:
    _, contents = await arrived([UploadMessage("a", b"", digest(b""))], tmp_path)
    assert contents == [b""]


async def test_files_that_belong_to_it_keep_their_names_and_change_its_identity(tmp_path: Path) -> None:
    alone, _ = await arrived(parts_of("a.json", b"x"), tmp_path)
    beside = [*parts_of("a.json", b"x"), *parts_of("a.json-bin/0.bin", b"1"), *parts_of("a.json-bin/1.bin", b"2")]
    whole, contents = await arrived(beside, tmp_path)
    assert [file.file_name for file in whole.files] == ["a.json", "a.json-bin/0.bin", "a.json-bin/1.bin"]
    assert contents == [b"x", b"1", b"2"]
    other_order, _ = await arrived([*beside[:2], *beside[4:], *beside[2:4]], tmp_path)
    other_content, _ = await arrived([*beside[:4], *parts_of("a.json-bin/1.bin", b"3")], tmp_path)
    assert whole.identity == other_order.identity
    assert len({alone.identity, whole.identity, other_content.identity}) == 3
    assert whole.digest == alone.digest


@pytest.mark.parametrize(
    ("name", "shown"),
    [("../../etc/passwd", "passwd"), ("/etc/passwd", "passwd"), ("C:\\traces\\a.json", "a.json"), ("x" * 5000, "x" * 255)],
)
async def test_a_name_is_shown_without_directories_and_never_becomes_a_path(tmp_path: Path, name: str, shown: str) -> None:
    async with UploadSessions(tmp_path, LIMIT_BYTES).receive(stream(parts_of(name, b"x"))) as (trace,):
        assert trace.file_name == shown
        assert tmp_path in trace.files[0].path.parents
        assert trace.files[0].path.name == "0"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "found an end before its last message; expected is_last"),
        ([UploadMessage("", b"", "")], "found no file"),
        ([UploadMessage("", b"x", "")], "found bytes that belong to no file"),
        (parts_of("a", b"x", b"y")[:-1], "file a: found an end without a digest; expected a digest"),
        ([*parts_of("a", b"x"), UploadMessage("", b"more", "")], "belong to no file"),
        ([*parts_of("a", b"x"), *parts_of("a", b"x")], "file a: found a second one of this name"),
        ([*parts_of("a", b"x")[:1], *parts_of("b", b"x")], "file b: found its beginning; expected the digest of a before it"),
        ([UploadMessage("a", b"x", digest(b"y"))], rf"found bytes with the digest {digest(b'x')}; expected {digest(b'y')}"),
        ([UploadMessage("a", b"x", "md5:0")], "expected md5:0"),
    ],
)
async def test_a_stream_that_is_not_as_the_contract_says_is_refused(tmp_path: Path, parts: list[UploadMessage], message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        await arrived(parts, tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_more_than_the_limit_is_refused_as_soon_as_it_shows(tmp_path: Path) -> None:
    taken = 0

    async def endless() -> AsyncIterator[UploadMessage]:
        nonlocal taken
        yield UploadMessage("a", b"", "")
        while True:
            taken += 1
            yield UploadMessage("", b"x" * 1000, "")

    with pytest.raises(LimitReachedError, match=r"more than 10000 bytes.*raise import_max_bytes"):
        async with UploadSessions(tmp_path, 10_000).receive(endless()):
            pass
    assert taken == 11


async def test_a_trace_is_recognized_as_soon_as_its_beginning_is_there(tmp_path: Path) -> None:
    taken = 0

    async def endless() -> AsyncIterator[UploadMessage]:
        nonlocal taken
        while True:
            taken += 1
            yield UploadMessage("holiday.avi" if taken == 1 else "", b"x" * (HEAD_BYTES // 4), "")

    with pytest.raises(InvalidTraceError, match=r"file holiday\.avi: found content that begins with b'xxxx.*Nsight Systems"):
        async with UploadSessions(tmp_path, LIMIT_BYTES, select_reader_by_head).receive(endless()):
            pass
    assert taken == 4
    assert list(tmp_path.iterdir()) == []


async def test_each_trace_is_recognized_once_and_what_belongs_to_it_is_not(tmp_path: Path) -> None:
    recognized: list[tuple[str, bytes]] = []
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES, lambda name, head: recognized.append((name, head)))
    further = replace(parts_of("c", b"3")[0], is_further_trace=True)
    long = b"a" * (HEAD_BYTES - 1)
    await broken_off(arrivals, "u", [UploadMessage("a", long, "")])
    assert recognized == []
    rest = [
        *(UploadMessage("a", b"bc", "", "u", len(long)), UploadMessage("", b"d", digest(long + b"bcd"))),
        *(*parts_of("b", b"2"), further, *parts_of("c", b"3")[1:]),
    ]
    async with arrivals.receive(stream(rest)) as traces:
        assert len(traces) == 2
    assert recognized == [("a", long + b"b"), ("c", b"3")]


@pytest.mark.parametrize(
    "part", [b" ", b"\n", b"[", b'{"', b'"ID",', b"peak_flops ", b'[{"a":', b"a,", b'"cat" ', b"\x1f\x8b", b"=="], ids=str
)
def test_what_is_at_the_beginning_never_takes_long_to_look_at(part: bytes) -> None:
    begin_s = time.process_time()
    with suppress(InvalidTraceError):
        select_reader_by_head("a", (part * HEAD_BYTES)[:HEAD_BYTES])
    assert time.process_time() - begin_s < 2.0  # tenths of a second; with its square it would be many


async def test_the_limit_counts_what_belongs_to_the_trace(tmp_path: Path) -> None:
    with pytest.raises(LimitReachedError, match="file b"):
        await arrived([*parts_of("a", b"x" * 6), *parts_of("b", b"x" * 6)], tmp_path, max_bytes=10)


async def test_a_chunk_over_a_mebibyte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LimitReachedError, match=f"{MAX_CHUNK_BYTES + 1} bytes"):
        await arrived(parts_of("a", b"x" * (MAX_CHUNK_BYTES + 1)), tmp_path)


async def test_a_flood_of_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_FILE_COUNT", 3)
    with pytest.raises(LimitReachedError, match="file 3: found 3 before it"):
        await arrived([part for number in range(4) for part in parts_of(f"{number}", b"")], tmp_path)


async def test_the_sender_going_away_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[UploadMessage]:
        yield UploadMessage("a", b"x", "")
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        async with UploadSessions(tmp_path, LIMIT_BYTES).receive(broken()):
            pass
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- resumed


async def cut(parts: Sequence[UploadMessage]) -> AsyncIterator[UploadMessage]:
    """A stream that breaks off after these."""
    for part in parts:
        yield part
    raise ConnectionResetError


def begun(upload_id: str, parts: Sequence[UploadMessage], offset_bytes: int = 0) -> list[UploadMessage]:
    first, *others = parts
    return [replace(first, upload_id=upload_id, offset_bytes=offset_bytes), *others]


async def broken_off(arrivals: UploadSessions, upload_id: str, parts: Sequence[UploadMessage]) -> None:
    with pytest.raises(ConnectionResetError):
        async with arrivals.receive(cut(begun(upload_id, parts))):
            pass


async def test_an_upload_goes_on_where_it_broke_off_as_often_as_it_takes(tmp_path: Path) -> None:
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES)
    await broken_off(arrivals, "u", [*parts_of("a", b"1"), UploadMessage("b", b"23", "")])
    assert arrivals.resume_position("u") == UploadPosition(1, 2)
    with pytest.raises(ConnectionResetError):
        async with arrivals.receive(cut([UploadMessage("b", b"45", "", "u", 2)])):
            pass
    assert arrivals.resume_position("u") == UploadPosition(1, 4)
    rest = [UploadMessage("b", b"6", "", "u", 4), UploadMessage("", b"", digest(b"23456"))]
    async with arrivals.receive(stream(rest)) as (trace,):
        assert [(file.file_name, file.path.read_bytes()) for file in trace.files] == [("a", b"1"), ("b", b"23456")]
    assert arrivals.resume_position("u") == UploadPosition()
    assert list(tmp_path.iterdir()) == []


async def test_an_upload_that_broke_off_after_its_last_file_needs_only_its_name(tmp_path: Path) -> None:
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES)
    await broken_off(arrivals, "u", parts_of("a", b"1"))
    assert arrivals.resume_position("u") == UploadPosition(1, 0)
    async with arrivals.receive(stream([UploadMessage("", b"", "", "u")])) as (trace,):
        assert trace.identity == sha256(b"1").hexdigest()


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ([UploadMessage("b", b"4", "", "u", 1)], r"file b: found its part from byte 1 on; expected .*: 2 bytes of b"),
        ([UploadMessage("c", b"4", "", "u", 2)], r"file c: found its part from byte 2 on; expected .*: 2 bytes of b"),
        ([UploadMessage("", b"", "", "u")], r"file b: found its first 2 bytes alone"),
        ([UploadMessage("b", b"4", digest(b"234x"), "u", 2)], r"file b: found bytes with the digest"),
        ([UploadMessage("b", b"4", "", "other", 2)], r"file b: found its part from byte 2 on; expected .*: nothing of it"),
    ],
)
async def test_a_part_that_does_not_follow_is_refused_and_its_upload_forgotten(
    tmp_path: Path, rest: list[UploadMessage], message: str
) -> None:
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES)
    await broken_off(arrivals, "u", [*parts_of("a", b"1"), UploadMessage("b", b"23", "")])
    with pytest.raises(InvalidTraceError, match=message):
        async with arrivals.receive(stream(rest)):
            pass
    assert (arrivals.resume_position("u") == UploadPosition()) is (rest[0].upload_id == "u")


async def test_a_resumed_upload_counts_what_was_there_against_the_limit(tmp_path: Path) -> None:
    arrivals = UploadSessions(tmp_path, max_bytes=10)
    await broken_off(arrivals, "u", [UploadMessage("a", b"x" * 8, "")])
    with pytest.raises(LimitReachedError, match="file a: found more than 10 bytes"):
        async with arrivals.receive(stream([UploadMessage("a", b"x" * 3, "", "u", 8)])):
            pass
    assert list(tmp_path.iterdir()) == []


async def test_who_comes_back_before_the_old_stream_is_noticed_to_be_dead_goes_on_too(tmp_path: Path) -> None:
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES)
    has_begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def half_open() -> AsyncIterator[UploadMessage]:
        yield UploadMessage("a", b"12", "", "u")
        has_begun.set()
        await may_go_on.wait()
        yield UploadMessage("", b"late", "")

    async def receive(parts: AsyncIterator[UploadMessage]) -> bytes:
        async with arrivals.receive(parts) as (trace,):
            return trace.files[0].path.read_bytes()

    old = asyncio.ensure_future(receive(half_open()))
    await has_begun.wait()
    assert arrivals.resume_position("u") == UploadPosition(0, 2)
    assert await receive(stream([UploadMessage("a", b"3", digest(b"123"), "u", 2)])) == b"123"
    may_go_on.set()
    with pytest.raises(InvalidTraceError, match="found another stream that continues the same upload"):
        await old
    assert list(tmp_path.iterdir()) == []


async def test_uploads_that_nobody_resumes_are_forgotten_by_age_and_number(tmp_path: Path) -> None:
    now_s = 0.0
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES, clock=lambda: now_s)
    for number in range(MAX_PAUSED_COUNT + 1):
        await broken_off(arrivals, f"{number}", [UploadMessage("a", b"x", "")])
    assert [arrivals.resume_position(f"{number}").offset_bytes for number in range(MAX_PAUSED_COUNT + 1)] == [0] + [1] * MAX_PAUSED_COUNT
    assert len(list(tmp_path.iterdir())) == MAX_PAUSED_COUNT
    now_s = PAUSED_UPLOAD_LIFETIME_S + 1
    assert arrivals.resume_position("1") == UploadPosition()
    assert list(tmp_path.iterdir()) == []


async def test_messages_that_just_end_are_a_line_that_broke(tmp_path: Path) -> None:
    """As gRPC shows it at times; between two files nothing else would tell that one is missing."""
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES)

    async def ending() -> AsyncIterator[UploadMessage]:
        for part in begun("u", parts_of("a", b"1")):
            yield part

    with pytest.raises(InvalidTraceError, match="found an end before its last message"):
        async with arrivals.receive(ending()):
            pass
    assert arrivals.resume_position("u") == UploadPosition(1, 0)


async def test_a_message_after_the_last_is_refused(tmp_path: Path) -> None:
    async def going_on() -> AsyncIterator[UploadMessage]:
        yield UploadMessage("a", b"1", digest(b"1"), is_last=True)
        yield UploadMessage("b", b"", "")

    with pytest.raises(InvalidTraceError, match="found a message after the one with is_last"):
        async with UploadSessions(tmp_path, LIMIT_BYTES).receive(going_on()):
            pass
    assert list(tmp_path.iterdir()) == []


async def test_without_a_name_for_it_an_upload_that_breaks_off_is_thrown_away(tmp_path: Path) -> None:
    arrivals = UploadSessions(tmp_path, LIMIT_BYTES)
    await broken_off(arrivals, "", [UploadMessage("a", b"x", "")])
    assert arrivals.resume_position("") == UploadPosition()
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- no room


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow past 64 KiB: a disk that is full for one program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
async def test_a_disk_without_room_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match=r"directory of uploads .*Free space on that disk"):
        await arrived(parts_of("a", *[b"x" * 32_768] * 3), tmp_path)
    assert list(tmp_path.iterdir()) == []
