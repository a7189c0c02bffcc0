"""Object storage of S3's kind: files of finished runs as objects, whose keys are their paths in the store's directory.

The digests of a directory are put last: a prefix that has them is complete. What an interrupted upload has left is named by no row of
the catalogue, and deleted later.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernalyse.services.core.errors import InvalidSettingError, ObjectsUnavailableError, StoredRunDamagedError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config

DIGESTS: Final = "digests.json"
"""File with the SHA-256 of each other file of a directory, computed results left out."""

STORE_ID: Final = "store_id"
"""File, and object, with the id that the catalogue has too."""

OBJECTS: Final = "objects"
"""File with the URL of the objects whose cache a directory is: without them it does not have all files."""

PART_BYTES: Final = 5 * 2**20
"""Of one request: S3 takes no smaller parts of an upload, and a larger one may not pass a slow line within REQUEST_TIMEOUT."""

REQUESTS_AT_ONCE: Final = 8
PARTS_AT_ONCE: Final = 4
CONNECT_TIMEOUT: Final = timedelta(seconds=5)
REQUEST_TIMEOUT: Final = timedelta(seconds=60)
RETRY_TIMEOUT: Final = timedelta(seconds=10)
"""After it a failure is told: whoever waits holds a thread of the analyzer. A shorter one gives up at the restart of a server."""

MAX_RETRIES: Final = 5
PAUSE_S: Final = 3.0
"""After a failure, in which requests fail at once: a hundred questions must not wait for the same silent server one after another."""

NO_BUCKET: Final = "NoSuchBucket"
REFUSED: Final = ("401 Unauthorized", "403 Forbidden")
KEYS_AT_ONCE: Final = 1_000
FOUND_LENGTH: Final = 300  # characters of the library's message
URL: Final = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[\w!.*'()/-]*))?")
SECRET_REMEDY: Final = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, to a key that may list, read, write and delete there."
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """What the objects have of one directory. put_unix_s: when its newest file was put."""

    file_names: frozenset[str]
    put_unix_s: float

    @property
    def is_complete(self) -> bool:
        """Return whether all of its files are there."""
        return DIGESTS in self.file_names


class ObjectStore:
    """The objects of one store. Its methods block, and may be called from any thread.

    Args:
        url: s3://BUCKET/PREFIX.
        endpoint: http://HOST:PORT of another service than AWS; empty: AWS, or what AWS_ENDPOINT_URL says.

    Raises:
        InvalidSettingError: one of them cannot be used, or the package of extra s3 is missing.
    """

    def __init__(self, url: str, endpoint: str = "") -> None:
        found = URL.fullmatch(url)
        if found is None:
            raise InvalidSettingError(
                "setting objects",
                found=repr(url) if "@" not in url else "a URL with credentials",
                expected="s3://BUCKET/PREFIX, or nothing for the directory alone",
                remedy=f"Correct it. {SECRET_REMEDY}",
            )
        if endpoint and (re.fullmatch(r"https?://[^/@\s]+/?", endpoint) is None):
            raise InvalidSettingError("setting objects_endpoint", found=repr(endpoint), expected="http://HOST:PORT or https://HOST:PORT")
        try:
            import obstore.exceptions as library_errors
            from obstore.store import S3Store
        except ImportError as error:
            raise InvalidSettingError(
                "setting objects",
                found="the Python package obstore is missing",
                expected="the extra s3",
                remedy="pip install 'kernalyse[s3]'",
            ) from error
        prefix = (found["prefix"] or "").strip("/")
        self.url = f"s3://{found['bucket']}/{prefix}".rstrip("/")
        self._bucket = found["bucket"]
        client: ClientConfig = {
            "connect_timeout": CONNECT_TIMEOUT,
            "timeout": REQUEST_TIMEOUT,
            "allow_http": endpoint.startswith("http://"),
        }
        retry: RetryConfig = {
            "max_retries": MAX_RETRIES,
            "retry_timeout": RETRY_TIMEOUT,
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
        }
        config = _config_of_files(os.environ)
        if endpoint:
            config["endpoint"] = endpoint.rstrip("/")
        self._refusals = (library_errors.PermissionDeniedError, library_errors.UnauthenticatedError)
        self._library_error, self._exists_error = library_errors.BaseError, library_errors.AlreadyExistsError
        self._store = S3Store(self._bucket, prefix=prefix or None, config=config, client_options=client, retry_config=retry)
        self._pool = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="objects")
        self._outage: tuple[float, str] | None = None  # when the last request failed, and with what
        self._outage_lock = threading.Lock()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    # ------------------------------------------------------------ whose they are

    def read_store_id(self) -> str | None:
        """Return the id of the store that these objects are of; None: there is none yet.

        Raises:
            InvalidSettingError: the bucket is not there, or the credentials are refused.
            ObjectsUnavailableError: the service does not answer.
        """
        try:
            next(self._pages("", 1), None)
            return b"".join(self._chunks(STORE_ID)).decode().strip()
        except FileNotFoundError:
            return None
        except ObjectsUnavailableError as error:
            if NO_BUCKET in error.found:
                raise InvalidSettingError(
                    "setting objects",
                    found=f"no bucket {self._bucket}",
                    expected="one that is there",
                    remedy="Make it, or correct the setting.",
                ) from error
            if error.remedy != SECRET_REMEDY:
                raise
            raise InvalidSettingError(error.subject, found=error.found, expected=error.expected, remedy=error.remedy) from error

    def claim(self, store_id: str, *, has_files: bool) -> None:
        """Check that these objects are those of a store; new ones become so.

        Args:
            has_files: the store has files of runs already, which new objects have not.

        Raises:
            InvalidSettingError: they are of another store, or lack the files.
            What read_store_id raises.
        """
        found = self.read_store_id()
        if found is None and has_files:
            raise InvalidSettingError(
                "setting objects",
                found=f"nothing under {self.url}, while the catalogue names files of runs",
                expected="these files",
                remedy="Correct the setting, or put the files of the directory there with `kernalyse store migrate --objects`.",
            )
        if found is None:
            try:
                with self._request(STORE_ID):
                    self._store.put(STORE_ID, f"{store_id}\n".encode(), mode="create")
                return
            except self._exists_error:  # by another analyzer, at this moment
                found = self.read_store_id()
        if found != store_id:
            raise InvalidSettingError(
                "setting objects",
                found=f"objects of another store under {self.url}",
                expected="those that the catalogue names, or none",
                remedy="Correct the setting objects, catalogue or data_directory; a prefix is for one store.",
            )

    # ------------------------------------------------------------ directories

    def prefixes(self, root: str) -> dict[str, StoredPrefix]:
        """Return what there is of each directory in a root: "runs" or "traces"."""
        names: dict[str, set[str]] = {}
        put_unix_s: dict[str, float] = {}
        for page in self._pages(f"{root}/", KEYS_AT_ONCE):
            for meta in page:
                prefix, _, name = meta["path"].removeprefix(f"{root}/").partition("/")
                names.setdefault(prefix, set()).add(name)
                put_unix_s[prefix] = max(put_unix_s.get(prefix, 0.0), meta["last_modified"].timestamp())
        return {prefix: StoredPrefix(frozenset(found), put_unix_s[prefix]) for prefix, found in names.items()}

    def file_names(self, directory: Path) -> frozenset[str]:
        """Return the names of the files of a directory; empty: the objects do not have it."""
        key = _key(directory)
        return frozenset(meta["path"].removeprefix(key) for page in self._pages(key, KEYS_AT_ONCE) for meta in page)

    def put_directory(self, directory: Path) -> None:
        """Put the files of a local directory, its digests last. Raises ObjectsUnavailableError."""
        digests = read_digests(directory)
        if digests is None:  # written by an earlier version
            digests = write_digests(directory, sorted(directory.glob("*.parquet")))
        key = _key(directory)
        for _ in self._pool.map(lambda name: self._put(f"{key}{name}", directory / name), digests):
            pass
        self._put(f"{key}{DIGESTS}", directory / DIGESTS)

    def fetch_directory(self, directory: Path, target: Path) -> int:
        """Write the files of a directory into another one, and return their bytes.

        Raises:
            StoredRunDamagedError: a file is missing, or is not what was put.
            ObjectsUnavailableError: the service does not answer.
            OSError: there is no room.
        """
        digests = self._digests(directory)

        def fetch(name: str) -> int:
            digest = hashlib.sha256()
            with (target / name).open("wb") as file:
                for chunk in self._content(directory, name):
                    file.write(chunk)
                    digest.update(chunk)
                size_bytes = file.tell()
            if digest.hexdigest() != digests[name]:
                raise _damaged(self._name(directory, name), _differs(digest.hexdigest(), digests[name]))
            return size_bytes

        size_bytes = sum(self._pool.map(fetch, digests))
        (target / DIGESTS).write_text(json.dumps(digests))
        return size_bytes

    def damages(self, directory: Path) -> list[tuple[str, str]]:
        """Return the URL of each file of a directory with what is wrong with it; empty: nothing. Raises ObjectsUnavailableError."""
        try:
            digests = self._digests(directory)
        except StoredRunDamagedError as error:
            return [(self._name(directory, DIGESTS), error.found)]

        def check(name: str) -> tuple[str, str]:
            digest = hashlib.sha256()
            try:
                for chunk in self._content(directory, name):
                    digest.update(chunk)
            except StoredRunDamagedError as error:
                return self._name(directory, name), error.found
            is_same = digest.hexdigest() == digests[name]
            return self._name(directory, name), "" if is_same else _differs(digest.hexdigest(), digests[name])

        return list(self._pool.map(check, digests))

    def delete_directory(self, directory: Path) -> None:
        """Delete all objects of a directory. Raises ObjectsUnavailableError."""
        key = _key(directory)
        for page in list(self._pages(key, KEYS_AT_ONCE)):
            with self._request(key):
                self._store.delete([meta["path"] for meta in page])

    # ------------------------------------------------------------ requests

    def check(self, subject: str = "") -> None:
        """Raise ObjectsUnavailableError where a request has failed within PAUSE_S. subject: of the error; empty: all objects."""
        outage = self._outage
        if outage is not None and time.monotonic() - outage[0] < PAUSE_S:
            raise self._unavailable(subject or f"objects {self.url}", outage[1])

    def probe(self) -> None:
        """Ask whether an outage is over. Raises ObjectsUnavailableError: it is not."""
        if self._outage is not None:
            next(self._pages("", 1), None)

    def _name(self, directory: Path, name: str) -> str:
        return f"{self.url}/{_key(directory)}{name}"

    def _digests(self, directory: Path) -> dict[str, str]:
        text = b"".join(self._content(directory, DIGESTS))
        try:
            digests = {str(name): str(digest) for name, digest in json.loads(text).items()}
        except (ValueError, AttributeError) as error:
            raise _damaged(self._name(directory, DIGESTS), "no JSON object") from error
        if any(Path(name).name != name for name in digests):
            raise _damaged(self._name(directory, DIGESTS), "names of other directories")
        return digests

    def _content(self, directory: Path, name: str) -> Iterator[bytes]:
        try:
            yield from self._chunks(f"{_key(directory)}{name}")
        except FileNotFoundError as error:
            raise _damaged(self._name(directory, name), "no such object") from error

    def _chunks(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object, a request each: one for all would end at REQUEST_TIMEOUT. Raises FileNotFoundError."""
        with self._request(key):
            first = self._store.get(key, options={"range": (0, PART_BYTES)})
            size_bytes, chunk = first.meta["size"], bytes(first.bytes())
        yield chunk
        for start in range(PART_BYTES, size_bytes, PART_BYTES):
            with self._request(key):
                chunk = bytes(self._store.get_range(key, start=start, end=min(start + PART_BYTES, size_bytes)))
            yield chunk

    def _put(self, key: str, file: Path) -> None:
        with self._request(key):
            try:
                self._store.put(key, file, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
            except FileNotFoundError as error:
                if file.exists():
                    raise self._library_error(str(error)) from error  # the bucket has gone
                raise

    def _pages(self, prefix: str, size: int) -> Iterator[Sequence[ObjectMeta]]:
        pages = iter(self._store.list(prefix or None, chunk_size=size))  # asks nothing yet
        while True:
            with self._request(prefix):
                page = next(pages, None)
            if page is None:
                return
            yield page

    @contextmanager
    def _request(self, key: str) -> Iterator[None]:
        """Run one request, with errors that name the object. Lets FileNotFoundError and that of an object that exists pass."""
        subject = f"object {self.url}/{key}" if key else f"objects {self.url}"
        self.check(subject)
        try:
            yield
        except self._exists_error:
            raise
        except self._library_error as error:
            found = _first_line(error)
            # A list that is refused comes as the library's error for everything else.
            if isinstance(error, self._refusals) or any(status in found for status in REFUSED):
                found = f"the credentials are refused ({found})"
                raise ObjectsUnavailableError(subject, found=found, expected="a key with access", remedy=SECRET_REMEDY) from error
            with self._outage_lock:
                if self._outage is None:
                    logger.warning("Objects %s cannot be reached; what is to be put there waits: %s", self.url, found)
                self._outage = time.monotonic(), found
            raise self._unavailable(subject, found) from error
        with self._outage_lock:
            if self._outage is not None:
                self._outage = None
                logger.info("Objects %s can be reached again", self.url)

    def _unavailable(self, subject: str, found: str) -> ObjectsUnavailableError:
        return ObjectsUnavailableError(
            subject,
            found=found,
            expected="a service that answers",
            remedy="Look after the object storage and the way to it; what waits goes on by itself when it is back, and nothing is lost.",
        )


def read_digests(directory: Path) -> dict[str, str] | None:
    """Return the SHA-256 of each file of a local directory by its name; None: they are not there."""
    try:
        found = json.loads((directory / DIGESTS).read_text())
    except (OSError, ValueError):
        return None
    return {str(name): str(digest) for name, digest in found.items()}


def write_digests(directory: Path, files: Sequence[Path]) -> dict[str, str]:
    """Write the SHA-256 of each of these files of a directory, and return them by name. Raises OSError."""
    digests = {}
    for path in files:
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    (directory / DIGESTS).write_text(json.dumps(digests))
    return digests


def _key(directory: Path) -> str:
    return f"{directory.parent.name}/{directory.name}/"


def _differs(found: str, expected: str) -> str:
    return f"SHA-256 {found[:12]}…, where {expected[:12]}… was written"


def _damaged(subject: str, found: str) -> StoredRunDamagedError:
    return StoredRunDamagedError(
        f"object {subject}",
        found=found,
        expected="the file as it was put",
        remedy="Put it back from a backup, or give the run up with `kernalyse delete`.",
    )


def _first_line(error: Exception) -> str:
    """Return the first line of the library's message, with the code of S3's answer in the place of its XML."""
    text = str(error).strip() or type(error).__name__
    code = re.search(r"<Code>(\w+)</Code>", text)
    first = " ".join(text.splitlines()[0].partition("<?xml")[0].split())[:FOUND_LENGTH]
    return first if code is None else f"{first} {code[1]}"


def _config_of_files(environment: Mapping[str, str]) -> S3Config:
    """Return keys and region from the usual files of AWS, as far as the environment has none. Raises InvalidSettingError."""
    profile = environment.get("AWS_PROFILE", "default")
    credentials = _section(environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), profile)
    general = _section(environment.get("AWS_CONFIG_FILE", "~/.aws/config"), profile if profile == "default" else f"profile {profile}")
    values: S3Config = {}
    if "AWS_ACCESS_KEY_ID" not in environment and "aws_access_key_id" in credentials:
        values["access_key_id"] = credentials["aws_access_key_id"]
        values["secret_access_key"] = credentials.get("aws_secret_access_key", "")
        if "aws_session_token" in credentials:
            values["session_token"] = credentials["aws_session_token"]
    if not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(environment) and "region" in general:
        values["region"] = general["region"]
    return values


def _section(file: str, name: str) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(Path(file).expanduser())
    except (configparser.Error, UnicodeDecodeError) as error:
        raise InvalidSettingError(f"file {file}", found=_first_line(error), expected="a file of settings of AWS") from error
    return parser[name] if parser.has_section(name) else {}
