"""A real service of S3's kind on this machine, from the package moto."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pytest
from obstore.store import S3Store

from tests.service_processes import free_port

START_TIMEOUT_S: Final = 60.0
KEYS: Final = {"AWS_ACCESS_KEY_ID": "kernalyse", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True, slots=True)
class ObjectStorage:
    """A running service. endpoint: where it listens."""

    endpoint: str

    def new_bucket(self) -> str:
        """Make an empty bucket and return the URL of a prefix in it."""
        name = f"kn-{uuid4().hex[:12]}"
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")).close()
        return f"s3://{name}/store"

    def client(self, url: str) -> S3Store:
        """What tests look into the prefix with."""
        client = {"allow_http": True, "timeout": timedelta(seconds=20)}
        return S3Store.from_url(url, endpoint=self.endpoint, client_options=client, **_keys())  # type: ignore[arg-type]

    def keys(self, url: str) -> list[str]:
        """The names of all objects under the prefix."""
        return sorted(meta["path"] for page in self.client(url).list() for meta in page)

    def refuse_unknown_keys(self) -> None:
        """From now on only keys that were made by it are accepted, of which there are none."""
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}, method="POST")
        urllib.request.urlopen(request).close()

    def uploads(self, url: str) -> str:
        """The service's list of uploads in parts that have not ended."""
        bucket = url.removeprefix("s3://").partition("/")[0]
        with urllib.request.urlopen(f"{self.endpoint}/{bucket}?uploads") as answer:
            return str(answer.read().decode())


def _keys() -> dict[str, Any]:
    return {"access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"], "region": "us-east-1"}


@contextmanager
def running_object_storage(address: str = "127.0.0.1") -> Iterator[ObjectStorage]:
    """A service of its own process; what it has goes with it. address: of this machine, where it listens."""
    pytest.importorskip("moto.server", reason="needs the package moto[server]")
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", address, "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | KEYS)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with suppress(OSError), urllib.request.urlopen(f"http://{address}:{port}/moto-api/data.json") as answer:
                json.load(answer)
                break
            assert process.poll() is None, "moto.server ended"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield ObjectStorage(f"http://{address}:{port}")
    finally:
        process.kill()
        process.wait()
