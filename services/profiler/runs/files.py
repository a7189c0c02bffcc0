"""The directory of a run, and uploaded bundles."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gzip
import hashlib
import os
import re
import shutil
import stat
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import AsyncIterable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import ArtifactNotFoundError, BundleTooLargeError, InvalidBundleError, StorageFullError
from kernalyse.services.core.model import RunSpec

# ---------------------------------------------------------------- run directory
# A run's files: its spec for the worker, its working directory, and its artifacts.

_LOCK_INTERVAL_S: Final = 0.05
CLOCK_LOCK_NAME: Final = "clock_lock"
"""File in the directory of a run that has locked the clocks of its device, as long as they are."""


@contextlib.contextmanager
def storage_errors(subject: str) -> Iterator[None]:
    """Raise StorageFullError for an OSError of the block, which writes. subject: what it writes to, for users."""
    try:
        yield
    except OSError as error:
        raise StorageFullError(subject, found=str(error), expected="room to write", remedy="Free space on that disk.") from error


class RunDirectory:
    """The directory of one run, below the directory of all."""

    def __init__(self, runs_directory: Path, run_id: str) -> None:
        self._directory = runs_directory / run_id
        self._run_id = run_id
        self.spec_file = self._directory / "spec.pb"
        self.working_directory = self._directory / "work"
        self.temporary_directory = self.working_directory / "tmp"
        self.clock_lock_file = self._directory / CLOCK_LOCK_NAME
        self._artifacts = self.working_directory / "artifacts"

    def prepare(self, spec: RunSpec, bundles: dict[str, Path]) -> None:
        """Make the directory. bundles: unpacked bundles by digest, which appear under `bundles/` in the working directory.

        Raises StorageFullError where there is no room for it.
        """
        with storage_errors(f"directory of run {self._run_id}"):
            self._directory.mkdir(parents=True, mode=0o700)
            self.spec_file.write_bytes(protobuf.encode_bytes(spec))
            for directory in (self.temporary_directory, self._artifacts):
                directory.mkdir(parents=True)
            for digest, path in bundles.items():
                link = self.working_directory / "bundles" / digest.removeprefix("sha256:")
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(path, target_is_directory=True)

    def lock(self) -> int:
        """Return a locked descriptor for the run's processes to inherit: the lock is released when the last of them has ended.

        Raises StorageFullError where there is no room for its file.
        """
        with storage_errors(f"directory of run {self._run_id}"):
            lock_file = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        return lock_file

    async def wait_for_processes(self, time_limit_s: float) -> bool:
        """Wait until no process of the run is left; False when one still is after `time_limit_s`."""
        deadline = time.monotonic() + time_limit_s
        try:
            lock_file = os.open(self._directory / "lock", os.O_RDWR)
        except FileNotFoundError:
            return True  # it had none yet
        try:
            while True:
                try:
                    fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        return False
                    await asyncio.sleep(_LOCK_INTERVAL_S)
        finally:
            os.close(lock_file)

    def keep_artifacts_only(self) -> None:
        """Delete everything in the working directory but the artifacts."""
        if not self.working_directory.is_dir():
            return
        for path in self.working_directory.iterdir():
            if path == self._artifacts and not path.is_symlink():
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):  # a leftover does not change what the run has come to
                    path.unlink()

    def artifacts_size_bytes(self) -> int:
        """Return the size of all artifacts together."""
        return sum(file.lstat().st_size for file in self._artifact_files())

    def delete_artifacts(self) -> None:
        """Delete the artifacts."""
        shutil.rmtree(self._artifacts, ignore_errors=True)

    def delete(self) -> None:
        """Delete the directory with everything in it."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def open_artifact(self, artifact_name: str) -> IO[bytes]:
        """Open a file that the run has left. Raises ArtifactNotFoundError for anything else, in or out of the directory.

        No link is followed in any part of the path, that of the artifacts' directory included: the run may have made it, to a file
        that the service can read and the run cannot.
        """
        try:
            return _open_below(self.working_directory, (self._artifacts.name, *artifact_name.split("/")))
        except (OSError, ValueError) as error:
            names = ", ".join(sorted(str(file.relative_to(self._artifacts)) for file in self._artifact_files()))
            raise ArtifactNotFoundError(
                f"artifact {artifact_name} of run {self._run_id}",
                found="no such file",
                expected=f"one of {names}" if names else "nothing: the run has left no artifact",
                remedy="Events of type ArtifactStored name them.",
            ) from error

    def _artifact_files(self) -> Iterator[Path]:
        """Yield the files below the artifacts' directory; links are none."""
        if not self._artifacts.is_symlink():
            for directory, _, names in os.walk(self._artifacts):  # follows no links
                for path in (Path(directory) / name for name in names):
                    with contextlib.suppress(FileNotFoundError):  # the run goes on
                        if stat.S_ISREG(path.lstat().st_mode):
                            yield path


def _open_below(directory: Path, parts: Sequence[str]) -> IO[bytes]:
    """Open a file below a directory without following links. Raises OSError, and ValueError for what no file is named."""
    *directories, name = parts
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError(parts)
    inner = os.open(directory, os.O_DIRECTORY)
    try:
        for part in directories:
            outer, inner = inner, os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inner)
            os.close(outer)
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inner)  # of a pipe without a writer, none waits
    finally:
        os.close(inner)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError(parts)
    return os.fdopen(file, "rb")


# ---------------------------------------------------------------- bundles
# Uploaded directories are received in chunks, checked, unpacked once, named by their digest, and deleted when no longer used.
#
# An archive is not trusted: its entries must be files and directories, stay within the target directory, and unpack to no more than the
# limits. What is written is counted, since headers can lie about sizes, a file with holes is larger than its archived data, and a name
# implies the directories that it lies in.

MAX_CHUNK_BYTES: Final = 1024 * 1024
MAX_DEPTH: Final = 100
"""Limit of nested directories. No project has as many; past some hundreds Python can no longer delete them, which it does recursively."""

MIN_BUNDLE_AGE_S: Final = 600.0
"""After its last use: between an upload and the run that names it, or two attempts at that run, no bundle may go."""

_COPY_BYTES: Final = 256 * 1024
_NAME_ERRORS: Final = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Limits of one bundle and of all bundles together."""

    max_bytes: int  # packed
    max_unpacked_bytes: int
    max_file_count: int  # files and directories
    max_age_s: float  # since the last use of an unused one
    max_total_bytes: int  # of all of them, unpacked; above it the unused ones go, the least recently used first


@dataclass(frozen=True, slots=True)
class Bundle:
    """An uploaded archive that has been checked and unpacked."""

    digest: str  # "sha256:…" of the archive
    size_bytes: int  # of the archive
    file_count: int


class BundleStore:
    """Unpacked bundles below one directory, each in a directory of its own."""

    def __init__(self, directory: Path, limits: BundleLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._lock = threading.Lock()  # a bundle is used, or it goes: not both at once

    async def receive(self, chunks: AsyncIterable[bytes]) -> Bundle:
        """Store a tar.gz that arrives in chunks. The same archive twice is stored once.

        Raises:
            InvalidBundleError: it is no tar.gz, or a member must not be unpacked; names the member.
            BundleTooLargeError: it is over a limit; names the limit.
            StorageFullError: there is no room for it.
        """
        with storage_errors(f"directory of bundles {self._directory}"):
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(dir=self._directory, prefix=".arriving-") as name:
                archive = Path(name) / "bundle.tar.gz"
                digest, size_bytes = await self._save(chunks, archive)
                file_count = await asyncio.to_thread(self._unpack, archive, Path(name) / "content", digest)
        return Bundle(digest, size_bytes, file_count)

    def path(self, digest: str) -> Path:
        """Return the directory of an unpacked bundle. Raises InvalidBundleError when there is none."""
        path = self._path(digest) if _DIGEST.fullmatch(digest) else None
        if path is None or not self._use(path):
            raise InvalidBundleError(
                f"bundle {digest}", found="no such bundle on this node", expected="the digest of an upload", remedy="Upload it first."
            )
        return path

    def expire(self, in_use: Collection[str], now_s: Callable[[], float] = time.time) -> tuple[str, ...]:
        """Delete bundles over the limits of age and size, and the remains of interrupted uploads; return the bundles' digests.

        Args:
            in_use: digests that queued and running runs name.
        """
        with self._lock:
            stored = sorted((_StoredBundle.of(path) for path in self._directory.glob("[0-9a-f]*")), key=lambda one: one.used_s)
            total_bytes = sum(one.size_bytes for one in stored)
            to_delete: list[Path] = [path for path in self._directory.glob(".*-*") if now_s() - path.stat().st_mtime > MIN_BUNDLE_AGE_S]
            digests: list[str] = []
            for one in stored:
                digest, unused_s = f"sha256:{one.path.name}", now_s() - one.used_s
                is_over = unused_s > self._limits.max_age_s or total_bytes > self._limits.max_total_bytes
                if is_over and unused_s > MIN_BUNDLE_AGE_S and digest not in in_use:
                    total_bytes -= one.size_bytes
                    digests.append(digest)
                    to_delete.append(one.path.replace(one.path.with_name(f".leaving-{one.path.name}")))
        for path in to_delete:
            shutil.rmtree(path, ignore_errors=True)
        return tuple(digests)

    def _use(self, path: Path) -> bool:
        """Return whether the bundle exists, and mark it as used now."""
        with self._lock:
            if path.is_dir():
                os.utime(path)
            return path.is_dir()

    def _path(self, digest: str) -> Path:
        return self._directory / digest.removeprefix("sha256:")

    async def _save(self, chunks: AsyncIterable[bytes], archive: Path) -> tuple[str, int]:
        digest = hashlib.sha256()
        size_bytes = 0
        with archive.open("wb") as file:
            async for chunk in chunks:
                if len(chunk) > MAX_CHUNK_BYTES:
                    raise BundleTooLargeError(
                        "chunk of a bundle", found=f"{len(chunk)} bytes", expected=f"at most {MAX_CHUNK_BYTES}", remedy="Send smaller ones."
                    )
                size_bytes += len(chunk)
                if size_bytes > self._limits.max_bytes:
                    raise _too_large("bundle", "bytes, packed", self._limits.max_bytes, "bundle_max_bytes")
                digest.update(chunk)
                file.write(chunk)
        return f"sha256:{digest.hexdigest()}", size_bytes

    def _unpack(self, archive: Path, content: Path, digest: str) -> int:
        content.mkdir()
        count = _Unpacking(self._limits, content).unpack(archive)
        path = self._path(digest)
        if not self._use(path):
            content.replace(path)
        return count


@dataclass(frozen=True, slots=True)
class _StoredBundle:
    path: Path
    used_s: float  # Unix time
    size_bytes: int

    @classmethod
    def of(cls, path: Path) -> _StoredBundle:
        sizes = (file.stat().st_size for file in path.rglob("*") if file.is_file())
        return cls(path, path.stat().st_mtime, sum(sizes))


class _Unpacking:
    """An archive that is being unpacked into a directory."""

    def __init__(self, limits: BundleLimits, content: Path) -> None:
        self._limits = limits
        self._content = content
        self._directories: set[Path] = set()  # made so far
        self._entry_count = 0  # files and directories
        self._file_count = 0
        self._written_bytes = 0

    def unpack(self, archive: Path) -> int:
        """Unpack the archive and return the number of files in it."""
        try:
            with gzip.open(archive) as stream, tarfile.open(fileobj=cast(IO[bytes], _Counted(stream, self._limits)), mode="r|") as members:
                for member_count, member in enumerate(members, 1):
                    self._check_count(member_count)  # a directory that comes again and again is written only once
                    self._unpack_member(members, member)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
            raise InvalidBundleError(
                "bundle", found=str(error), expected="a tar archive, compressed with gzip", remedy="Pack it with: tar -czf"
            ) from error
        return self._file_count

    def _unpack_member(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _safe_parts(member.name)
        try:
            if member.isdir():
                self._make_directory(member.name, parts)
            elif member.isreg():
                self._make_directory(member.name, parts[:-1])
                self._count_entry()
                self._copy(members, member, self._content.joinpath(*parts))
            else:
                raise _invalid(member.name, _kind(member), "files and directories only")
        except OSError as error:
            if error.errno not in _NAME_ERRORS:
                raise
            raise _invalid(member.name, error.strerror or "a name that cannot be used", "a new name that a file can have") from error

    def _make_directory(self, name: str, parts: Sequence[str]) -> None:
        """Create the directory and its missing parents, and count each."""
        if len(parts) > MAX_DEPTH:
            raise _invalid(name, f"{len(parts)} directories within each other", f"at most {MAX_DEPTH} directories")
        path = self._content
        for part in parts:
            path /= part
            if path not in self._directories:
                self._count_entry()
                path.mkdir()
                self._directories.add(path)

    def _count_entry(self) -> None:
        self._entry_count += 1
        self._check_count(self._entry_count)

    def _check_count(self, count: int) -> None:
        if count > self._limits.max_file_count:
            raise _too_large("bundle", "files and directories", self._limits.max_file_count, "bundle_max_file_count")

    def _copy(self, members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        source = members.extractfile(member)
        if source is None:
            raise _invalid(member.name, "no content", "a file")
        # O_EXCL: a second member of one name must not write through what the first has left.
        mode = 0o755 if member.mode & 0o100 else 0o644  # the directory of all bundles is the service's alone; runs may be of another user
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            while data := source.read(_COPY_BYTES):
                self._written_bytes += len(data)
                _check_size(self._written_bytes, self._limits)
                file.write(data)
        self._file_count += 1


class _Counted:
    """A stream that raises an error once more than the limit has been read from it."""

    def __init__(self, stream: gzip.GzipFile, limits: BundleLimits) -> None:
        self._stream = stream
        self._limits = limits
        self._size_bytes = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._size_bytes += len(data)
        _check_size(self._size_bytes, self._limits)
        return data


def _check_size(size_bytes: int, limits: BundleLimits) -> None:
    if size_bytes > limits.max_unpacked_bytes:
        raise _too_large("bundle", "bytes, unpacked", limits.max_unpacked_bytes, "bundle_max_unpacked_bytes")


def _safe_parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise _invalid(name, "a path out of the bundle", "paths below its top directory")
    return path.parts


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"a link to {member.linkname}"
    return "a device or pipe" if member.isdev() else f"an entry of type {member.type!r}"


def _invalid(name: str, found: str, expected: str) -> InvalidBundleError:
    return InvalidBundleError(f"member {name} of the bundle", found=found, expected=expected, remedy="Pack the directory without it.")


def _too_large(subject: str, what: str, limit: int, setting: str) -> BundleTooLargeError:
    return BundleTooLargeError(
        subject, found=f"more than {limit} {what}", expected=f"at most {limit}", remedy=f"Leave files out, or raise {setting} on the node."
    )
