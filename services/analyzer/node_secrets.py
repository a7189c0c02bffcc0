"""Tokens and client keys of nodes, in a file of their own that only its owner reads; the database may be copied and shown."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from services.core.errors import InvalidSettingError


@dataclass(frozen=True, slots=True)
class NodeSecret:
    """What one node is called with. client_key: PEM; None where it asks for no client certificate."""

    token: str
    client_key: str | None = None


class NodeSecrets:
    """Secrets by node address, in one JSON file of mode 0600."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def secret(self, address: str) -> NodeSecret:
        """An empty token when none is kept: the node then answers WRONG_TOKEN, which says more than a missing entry."""
        return self._read().get(address, NodeSecret(""))

    def keep(self, address: str, secret: NodeSecret) -> None:
        self._write(self._read() | {address: secret})

    def forget(self, address: str) -> None:
        self._write({known: secret for known, secret in self._read().items() if known != address})

    def _read(self) -> dict[str, NodeSecret]:
        try:
            kept: dict[str, str | dict[str, str]] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InvalidSettingError(
                f"file of node tokens {self._path}", found=str(error), expected="JSON", remedy="Delete it and add the nodes again."
            ) from error
        # A text is the token alone, as files of before client certificates have it.
        return {address: NodeSecret(secret) if isinstance(secret, str) else NodeSecret(**secret) for address, secret in kept.items()}

    def _write(self, secrets: dict[str, NodeSecret]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({address: asdict(secret) for address, secret in secrets.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
