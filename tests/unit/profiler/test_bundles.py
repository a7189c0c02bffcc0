"""Uploaded archives: what is unpacked, and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernalyse.services.core.errors import BundleTooLargeError, InvalidBundleError
from kernalyse.services.profiler.runs.files import MAX_CHUNK_BYTES, MAX_DEPTH, Bundle, BundleLimits, BundleStore
from kernalyse.services.profiler.server import drop_artifacts

LIMITS = BundleLimits(max_bytes=1_000_000, max_unpacked_bytes=2_000_000, max_file_count=20, max_age_s=3_600.0, max_total_bytes=30_000)


@pytest.fixture
def store(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "bundles", LIMITS)


def _archive(*members: tarfile.TarInfo, content: bytes = b"") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, mode
    return member


async def _receive(store: BundleStore, data: bytes, chunk_bytes: int = 1000) -> Bundle:
    async def chunks() -> AsyncIterator[bytes]:
        for place in range(0, len(data), chunk_bytes):
            yield data[place : place + chunk_bytes]

    return await store.receive(chunks())


async def test_a_directory_is_unpacked_under_its_digest(store: BundleStore) -> None:
    data = _archive(_member("include", tarfile.DIRTYPE), _member("include/a.h"), _member("./run.sh", mode=0o755), content=b"text")
    bundle = await _receive(store, data)
    directory = store.path(bundle.digest)
    assert (bundle.file_count, bundle.size_bytes) == (2, len(data))
    assert (directory / "include" / "a.h").read_bytes() == b"text"
    assert (directory / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (directory / "include" / "a.h").stat().st_mode & 0o777 == 0o644


async def test_the_same_archive_twice_is_one_bundle(store: BundleStore, tmp_path: Path) -> None:
    data = _archive(_member("a"))
    assert await _receive(store, data) == await _receive(store, data)
    assert len(list((tmp_path / "bundles").iterdir())) == 1


@pytest.mark.parametrize(
    "member",
    [
        _member("/etc/evil"),
        _member("../evil"),
        _member("a/../../evil"),
        _member("evil", tarfile.SYMTYPE, "/etc"),
        _member("evil", tarfile.LNKTYPE, "../x"),
        _member("evil", tarfile.CHRTYPE),
        _member("evil", tarfile.FIFOTYPE),
        _member("evil" * 100),
    ],
    ids=["absolute", "parent", "parent within", "symbolic link", "hard link", "device", "pipe", "long name"],
)
async def test_a_member_that_must_not_be_unpacked_is_named(store: BundleStore, tmp_path: Path, member: tarfile.TarInfo) -> None:
    with pytest.raises(InvalidBundleError, match="evil"):
        await _receive(store, _archive(_member("good"), member))
    assert not list((tmp_path / "bundles").iterdir())
    assert not (tmp_path / "evil").exists()


async def test_two_members_of_one_name_are_refused(store: BundleStore) -> None:
    with pytest.raises(InvalidBundleError, match="member twice"):
        await _receive(store, _archive(_member("twice"), _member("twice")))
    with pytest.raises(InvalidBundleError, match="member file/below"):
        await _receive(store, _archive(_member("file"), _member("file/below")))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: gzip.compress(data)[:-20]], ids=["no gzip", "no tar", "cut off"])
async def test_what_is_no_archive_is_refused(store: BundleStore, pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(InvalidBundleError, match="tar -czf"):
        await _receive(store, pack(b"just some bytes" * 100))


async def test_an_archive_over_the_size_limit_is_refused_while_it_arrives(store: BundleStore) -> None:
    taken = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 100_000
            yield bytes(100_000)

    with pytest.raises(BundleTooLargeError, match="1000000 bytes, packed"):
        await store.receive(chunks())
    assert taken == 1_100_000


async def test_a_zip_bomb_is_refused(store: BundleStore, tmp_path: Path) -> None:
    data = _archive(_member("bomb"), content=bytes(50_000_000))
    assert len(data) < LIMITS.max_bytes
    with pytest.raises(BundleTooLargeError, match="2000000 bytes, unpacked"):
        await _receive(store, data)
    assert not list((tmp_path / "bundles").iterdir())


async def test_a_sparse_member_counts_as_large_as_it_is_written(store: BundleStore, tmp_path: Path) -> None:
    bomb = _member("bomb")
    bomb.pax_headers = {"GNU.sparse.size": "50000000", "GNU.sparse.map": "50000000,0"}
    data = _archive(bomb)
    assert len(data) < 1_000
    with pytest.raises(BundleTooLargeError, match="2000000 bytes, unpacked"):
        await _receive(store, data)
    assert not list((tmp_path / "bundles").iterdir())


async def test_a_sparse_member_within_the_limit_is_unpacked_with_its_holes(store: BundleStore) -> None:
    sparse = _member("sparse")
    sparse.pax_headers = {"GNU.sparse.size": "1000", "GNU.sparse.map": "996,4"}
    bundle = await _receive(store, _archive(sparse, content=b"text"))
    assert (store.path(bundle.digest) / "sparse").read_bytes() == bytes(996) + b"text"


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE], ids=["file", "directory"])
async def test_directories_that_a_name_implies_count_too(store: BundleStore, tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(BundleTooLargeError, match="20 files and directories"):
        await _receive(store, _archive(*(_member(f"{number}/a/b/c/d/e", kind) for number in range(4))))
    assert not list((tmp_path / "bundles").iterdir())


async def test_a_directory_that_many_names_imply_counts_once(store: BundleStore) -> None:
    bundle = await _receive(store, _archive(*(_member(f"a/b/c/d/{number}") for number in range(16))))
    assert bundle.file_count == 16


async def test_directories_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles", replace(LIMITS, max_file_count=10_000))
    with pytest.raises(InvalidBundleError, match=f"at most {MAX_DEPTH} directories"):
        await _receive(store, _archive(_member("a/" * 2_000 + "b")))
    assert not list((tmp_path / "bundles").iterdir())
    await _receive(store, _archive(_member("a/" * MAX_DEPTH + "b")))


async def test_too_many_files_are_refused(store: BundleStore) -> None:
    with pytest.raises(BundleTooLargeError, match="20 files and directories"):
        await _receive(store, _archive(*(_member(f"f{number}") for number in range(21))))


async def test_a_chunk_over_the_limit_is_refused(store: BundleStore) -> None:
    with pytest.raises(BundleTooLargeError, match="chunk"):
        await _receive(store, bytes(MAX_CHUNK_BYTES + 1), chunk_bytes=MAX_CHUNK_BYTES + 1)


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, "sha256:../../etc", "", "sha256:"])
def test_an_unknown_digest_is_refused(store: BundleStore, digest: str) -> None:
    with pytest.raises(InvalidBundleError, match="Upload it first"):
        store.path(digest)


# ---------------------------------------------------------------- what goes again


async def _stored(store: BundleStore, name: str, unused_s: float) -> str:
    """A bundle of 10 000 bytes, last used so long ago."""
    digest = (await _receive(store, _archive(_member(name), content=bytes(10_000)))).digest
    used_s = time.time() - unused_s
    os.utime(store.path(digest), (used_s, used_s))
    return digest


async def test_a_bundle_goes_when_nobody_has_used_it_for_long(store: BundleStore) -> None:
    old, young = await _stored(store, "old", 4_000), await _stored(store, "young", 3_000)
    assert store.expire(()) == (old,)
    assert store.path(young).is_dir()
    with pytest.raises(InvalidBundleError):
        store.path(old)


async def test_over_the_limit_of_size_the_least_recently_used_goes_first(store: BundleStore) -> None:
    digests = [await _stored(store, str(number), 3_000 - number) for number in range(4)]
    assert store.expire(()) == (digests[0],)
    assert store.expire(()) == ()


async def test_what_a_run_names_and_what_was_just_used_stays(store: BundleStore) -> None:
    named, used, fresh = [await _stored(store, name, 4_000) for name in ("named", "used", "fresh")]
    store.path(used)
    await _receive(store, _archive(_member("fresh"), content=bytes(10_000)))  # once more: it is wanted again
    await _stored(store, "more", 0)
    assert store.expire((named,)) == ()
    assert store.expire(()) == (named,)
    assert store.path(fresh).is_dir()


async def test_what_an_upload_cut_off_has_left_goes_too(store: BundleStore, tmp_path: Path) -> None:
    left = tmp_path / "bundles" / ".arriving-x"
    left.mkdir(parents=True)
    assert store.expire(()) == ()
    assert left.is_dir()
    os.utime(left, (0, 0))
    store.expire(())
    assert not left.exists()


def test_artifacts_of_the_oldest_finished_runs_go_until_all_are_within_the_limit(tmp_path: Path) -> None:
    for number in range(4):
        artifacts = tmp_path / f"run-{number}" / "work" / "artifacts"
        artifacts.mkdir(parents=True)
        (artifacts / "report").write_bytes(bytes(1_000))
        os.utime(tmp_path / f"run-{number}", (number, number))
    assert drop_artifacts(tmp_path, 4_000, ()) == ()
    assert drop_artifacts(tmp_path, 2_500, ("run-0",)) == ("run-1", "run-2")
    assert [(path / "work" / "artifacts" / "report").exists() for path in sorted(tmp_path.iterdir())] == [True, False, False, True]
