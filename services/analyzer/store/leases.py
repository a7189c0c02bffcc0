"""Who has a store: the lock of the analyzer that has it alone, and which of several analyzers follows which node.

The second are rows of the catalogue that end unless they are renewed. They say who is to follow a node, and keep nothing from being
stored twice: that is done by the cursors, which move in the transaction that stores the events.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from kernalyse.services.analyzer.store.database import Database, upsert
from kernalyse.services.analyzer.store.schema import analyzers, node_leases, nodes
from kernalyse.services.core.errors import StoreLockedError

RENEWAL_S: Final = 2.0
LEASE_S: Final = 8.0
"""Without a renewal for so long an analyzer counts as gone: some renewals may be late on a busy server, and others take over in time."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Who follows what, as the catalogue had it at one moment.

    analyzers: address by id, of those that live. followers: id of the analyzer by address of the node; nodes that nobody follows are not
    in it. node_addresses: of all nodes.
    """

    analyzers: Mapping[str, str]
    followers: Mapping[str, str]
    node_addresses: tuple[str, ...]

    def followed_by(self, analyzer_id: str) -> set[str]:
        """Return the addresses of the nodes that an analyzer follows."""
        return {address for address, follower in self.followers.items() if follower == analyzer_id}

    @property
    def fair_count(self) -> int:
        """Most nodes for one analyzer when all have as many as each other, or one more."""
        return -(-len(self.node_addresses) // max(1, len(self.analyzers)))


class Leases:
    """The leases of one analyzer's process. Its methods block: call them in threads.

    Args:
        database: on PostgreSQL, whose clock counts for all.
        address: at which the other analyzers reach this one.
    """

    def __init__(self, database: Database, address: str) -> None:
        self.analyzer_id = uuid4().hex
        self._database = database
        self._address = address

    def renew(self) -> Shares:
        """Tell that this analyzer lives, give up what those have that do not, and return who follows what. Raises UnavailableError."""
        with self._database.writing() as connection:
            now_unix_ns = int(connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp()) * 1e9")))
            connection.execute(sa.delete(analyzers).where(analyzers.c.end_unix_ns < now_unix_ns))
            end_unix_ns = now_unix_ns + int(LEASE_S * 1e9)
            # Longer ones are of before the server's clock was set back; of an analyzer that is gone they would last as long as that.
            connection.execute(sa.update(analyzers).where(analyzers.c.end_unix_ns > end_unix_ns).values(end_unix_ns=end_unix_ns))
            own = {"address": self._address, "analyzer_id": self.analyzer_id, "end_unix_ns": end_unix_ns}
            upsert(connection, analyzers, own)  # one of the same address that was killed has gone with it
            is_of_one_gone = node_leases.c.analyzer_id.not_in(sa.select(analyzers.c.analyzer_id))
            is_of_no_node = node_leases.c.node_address.not_in(sa.select(nodes.c.address))
            connection.execute(sa.delete(node_leases).where(sa.or_(is_of_one_gone, is_of_no_node)))
            return _shares(connection)

    def read(self) -> Shares:
        """Return who follows what. Raises UnavailableError."""
        with self._database.reading() as connection:
            return _shares(connection)

    def claim(self, node_addresses: Iterable[str], *, is_taken_over: bool = False) -> None:
        """Follow these nodes from now on, unless another analyzer does.

        Args:
            is_taken_over: even if another does, which notices at its next renewal.
        """
        with self._database.writing() as connection:
            taken = () if is_taken_over else connection.scalars(sa.select(node_leases.c.node_address)).all()
            for address in node_addresses:
                if address not in taken:
                    upsert(connection, node_leases, {"node_address": address, "analyzer_id": self.analyzer_id})

    def release(self, node_addresses: Iterable[str]) -> None:
        """Follow these nodes no longer; those of others stay theirs."""
        is_own = node_leases.c.analyzer_id == self.analyzer_id
        with self._database.writing() as connection:
            connection.execute(sa.delete(node_leases).where(is_own, node_leases.c.node_address.in_(list(node_addresses))))

    def leave(self) -> None:
        """Give up everything, so that the others need not wait for the end."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(node_leases).where(node_leases.c.analyzer_id == self.analyzer_id))
            connection.execute(sa.delete(analyzers).where(analyzers.c.analyzer_id == self.analyzer_id))


def _shares(connection: Connection) -> Shares:
    return Shares(
        {row.analyzer_id: row.address for row in connection.execute(sa.select(analyzers.c.analyzer_id, analyzers.c.address))},
        {row.node_address: row.analyzer_id for row in connection.execute(sa.select(node_leases))},
        tuple(connection.scalars(sa.select(nodes.c.address).order_by(nodes.c.address))),
    )


# ---------------------------------------------------------------- lock


class StoreLock:
    """A lock file held from construction to `release`; the operating system releases it when the process dies.

    Raises:
        StoreLockedError: another process has it; the error names its id.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(descriptor, "r+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise StoreLockedError(
                f"store {path.parent}",
                found=f"in use by process {holder}",
                expected="a store that no other analyzer has open",
                remedy=f"Use that analyzer, stop it (kill {holder}), or choose another data directory.",
            ) from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Release the lock. Does nothing the second time."""
        self._file.close()
