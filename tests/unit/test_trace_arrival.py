"""Files on their way in: whole, compared with their digests, within limits, and gone when the block ends."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from services.analyzer import trace_arrival
from services.analyzer.trace_arrival import MAX_CHUNK_BYTES, ArrivedTrace, TracePart, received
from services.core.errors import InvalidTraceError, LimitReachedError, StorageFullError

LIMIT_BYTES = 10 * MAX_CHUNK_BYTES


def digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def parts_of(name: str, *chunks: bytes) -> list[TracePart]:
    """A file as a client sends it: the name first, the digest last."""
    end = TracePart("", b"", digest(b"".join(chunks)))
    return [TracePart(name if number == 0 else "", chunk, "") for number, chunk in enumerate(chunks)] + [end]


async def stream(parts: Sequence[TracePart]) -> AsyncIterator[TracePart]:
    for part in parts:
        yield part


async def arrived(parts: Sequence[TracePart], folder: Path, max_bytes: int = LIMIT_BYTES) -> tuple[ArrivedTrace, list[bytes]]:
    async with received(stream(parts), folder, max_bytes) as trace:
        return trace, [file.path.read_bytes() for file in trace.files]


async def test_chunks_are_joined_and_nothing_stays_behind(tmp_path: Path) -> None:
    trace, contents = await arrived(parts_of("a.json", b"ab", b"", b"cd"), tmp_path)
    assert contents == [b"abcd"]
    assert (trace.file_name, trace.digest) == ("a.json", digest(b"abcd"))
    assert trace.identity == sha256(b"abcd").hexdigest()
    assert list(tmp_path.iterdir()) == []


async def test_name_bytes_and_digest_may_come_in_one_message(tmp_path: Path) -> None:
    _, contents = await arrived([TracePart("a", b"x", digest(b"x"))], tmp_path)
    assert contents == [b"x"]


async def test_an_empty_file_arrives(tmp_path: Path) -> None:
    _, contents = await arrived([TracePart("a", b"", digest(b""))], tmp_path)
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
async def test_a_name_is_shown_without_folders_and_never_becomes_a_path(tmp_path: Path, name: str, shown: str) -> None:
    async with received(stream(parts_of(name, b"x")), tmp_path, LIMIT_BYTES) as trace:
        assert trace.file_name == shown
        assert tmp_path in trace.files[0].path.parents
        assert trace.files[0].path.name == "0"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "found no message"),
        ([TracePart("", b"x", "")], "found bytes that belong to no file"),
        (parts_of("a", b"x", b"y")[:-1], "file a: found an end without a digest; expected a digest"),
        ([*parts_of("a", b"x"), TracePart("", b"more", "")], "belong to no file"),
        ([*parts_of("a", b"x"), *parts_of("a", b"x")], "file a: found a second one of this name"),
        ([*parts_of("a", b"x")[:1], *parts_of("b", b"x")], "file b: found its beginning; expected the digest of a before it"),
        ([TracePart("a", b"x", digest(b"y"))], rf"found bytes with the digest {digest(b'x')}; expected {digest(b'y')}"),
        ([TracePart("a", b"x", "md5:0")], "expected md5:0"),
    ],
)
async def test_a_stream_that_is_not_as_the_contract_says_is_refused(tmp_path: Path, parts: list[TracePart], message: str) -> None:
    with pytest.raises(InvalidTraceError, match=message):
        await arrived(parts, tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_more_than_the_limit_is_refused_as_soon_as_it_shows(tmp_path: Path) -> None:
    taken = 0

    async def endless() -> AsyncIterator[TracePart]:
        nonlocal taken
        yield TracePart("a", b"", "")
        while True:
            taken += 1
            yield TracePart("", b"x" * 1000, "")

    with pytest.raises(LimitReachedError, match=r"more than 10000 bytes.*raise import_max_bytes"):
        async with received(endless(), tmp_path, 10_000):
            pass
    assert taken == 11


async def test_the_limit_counts_what_belongs_to_the_trace(tmp_path: Path) -> None:
    with pytest.raises(LimitReachedError, match="file b"):
        await arrived([*parts_of("a", b"x" * 6), *parts_of("b", b"x" * 6)], tmp_path, max_bytes=10)


async def test_a_chunk_over_a_mebibyte_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LimitReachedError, match=f"{MAX_CHUNK_BYTES + 1} bytes"):
        await arrived(parts_of("a", b"x" * (MAX_CHUNK_BYTES + 1)), tmp_path)


async def test_a_flood_of_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_arrival, "MAX_FILE_COUNT", 3)
    with pytest.raises(LimitReachedError, match="file 3: found 3 before it"):
        await arrived([part for number in range(4) for part in parts_of(f"{number}", b"")], tmp_path)


async def test_the_sender_going_away_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[TracePart]:
        yield TracePart("a", b"x", "")
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        async with received(broken(), tmp_path, LIMIT_BYTES):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow past 64 KiB: a disk that is full for one program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
async def test_a_disk_without_room_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError, match=r"folder of arriving traces .*Free space on that disk"):
        await arrived(parts_of("a", *[b"x" * 32_768] * 3), tmp_path)
    assert list(tmp_path.iterdir()) == []
