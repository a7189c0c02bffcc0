"""Tokens of nodes, in a file of their own that only its owner reads; the database may be copied and shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

from services.core.errors import InvalidSettingError


class NodeSecrets:
    """Token by node address, in one JSON file of mode 0600."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def token(self, address: str) -> str:
        """Empty when none is kept: the node then answers WRONG_TOKEN, which says more than a missing entry."""
        return self._read().get(address, "")

    def keep(self, address: str, token: str) -> None:
        self._write(self._read() | {address: token})

    def forget(self, address: str) -> None:
        self._write({known: token for known, token in self._read().items() if known != address})

    def _read(self) -> dict[str, str]:
        try:
            tokens: dict[str, str] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise InvalidSettingError(
                f"file of node tokens {self._path}", found=str(error), expected="JSON", remedy="Delete it and add the nodes again."
            ) from error
        return tokens

    def _write(self, tokens: dict[str, str]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(tokens, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
