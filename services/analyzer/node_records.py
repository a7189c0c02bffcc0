"""Which nodes to collect from, and how far each journal has been collected."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from services.analyzer.catalogue import Catalogue, cursors, nodes
from services.core import wire
from services.core.model import Node


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node that was added. node: what it last said of itself."""

    address: str
    node: Node
    ca_certificate: bytes | None = None
    client_certificate: bytes | None = None


class NodeRecords:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def all(self) -> list[NodeRecord]:
        with self._catalogue.reading() as connection:
            rows = connection.execute(sa.select(nodes).order_by(nodes.c.address)).all()
        return [NodeRecord(row.address, wire.decode_bytes(row.node, Node), row.ca_certificate, row.client_certificate) for row in rows]

    def put(self, record: NodeRecord) -> None:
        values = {
            "address": record.address,
            "node_id": record.node.node_id,
            "ca_certificate": record.ca_certificate,
            "client_certificate": record.client_certificate,
            "node": wire.encode_bytes(record.node),
        }
        with self._catalogue.writing() as connection:
            connection.execute(sa.insert(nodes).prefix_with("OR REPLACE"), values)

    def delete(self, address: str) -> None:
        """Its cursors stay: added again, the node is collected from where it was left."""
        with self._catalogue.writing() as connection:
            connection.execute(sa.delete(nodes).where(nodes.c.address == address))

    def next_event_index(self, node_id: str, journal_id: str) -> int:
        """The first event of the journal not collected yet. 0: none has been."""
        with self._catalogue.reading() as connection:
            return read_cursor(connection, node_id, journal_id)


def read_cursor(connection: Connection, node_id: str, journal_id: str) -> int:
    query = sa.select(cursors.c.next_event_index).where(cursors.c.node_id == node_id, cursors.c.journal_id == journal_id)
    return connection.scalar(query) or 0


def write_cursor(connection: Connection, node_id: str, journal_id: str, next_event_index: int) -> None:
    values = {"node_id": node_id, "journal_id": journal_id, "next_event_index": next_event_index}
    connection.execute(sa.insert(cursors).prefix_with("OR REPLACE"), values)
