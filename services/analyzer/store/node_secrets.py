"""Tokens and keys of nodes, in a file of their own that only its owner can read, so that the catalogue may be copied and shown."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kernalyse.services.core.errors import InvalidSettingError


@dataclass(frozen=True, slots=True)
class NodeSecret:
    """The credentials for calls to one node. client_key: PEM; None where the node asks for no client certificate."""

    token: str
    client_key: str | None = None


class NodeSecrets:
    """Secrets by node address, in one JSON file of mode 0600."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # nodes come at the same time

    def secret(self, address: str) -> NodeSecret:
        """Return the node's secret; an empty token if none is stored.

        The node then answers WRONG_TOKEN, which says more than a missing entry would.
        """
        return self._read().get(address, NodeSecret(""))

    def put(self, address: str, secret: NodeSecret) -> None:
        """Store the secret of a node. Raises OSError."""
        with self._changing():
            self._write(self._read() | {address: secret})

    def delete(self, address: str) -> None:
        """Delete the secret of a node."""
        with self._changing():
            self._write({known: secret for known, secret in self._read().items() if known != address})

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep other threads, and other analyzers of the store, from changing the file meanwhile."""
        with self._lock, self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, NodeSecret]:
        try:
            stored: dict[str, str | dict[str, str]] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InvalidSettingError(
                f"file of node tokens {self._path}", found=str(error), expected="JSON", remedy="Delete it and add the nodes again."
            ) from error
        # A string is the token alone: files from before client certificates were supported have that.
        return {address: NodeSecret(secret) if isinstance(secret, str) else NodeSecret(**secret) for address, secret in stored.items()}

    def _write(self, secrets: dict[str, NodeSecret]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({address: asdict(secret) for address, secret in secrets.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
