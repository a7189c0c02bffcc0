"""Nodes that a file lists, or that a name in DNS stands for: added when they appear there, forgotten when they go."""

from __future__ import annotations

import asyncio
import logging
import socket
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kernalyse.services.analyzer.collect.nodes import Nodes
from kernalyse.services.core.errors import InvalidSettingError, KernalyseError, NodeExistsError, NodeNotFoundError
from kernalyse.services.core.identity import read_or_create_token
from kernalyse.services.core.model import NodeOrigin
from kernalyse.services.core.rpc import Endpoint
from kernalyse.services.core.settings import AnalyzerSettings

MEMBERS: Final = ("address", "token_file", "ca_file")

logger = logging.getLogger(__name__)

Listed = Mapping[str, Endpoint]
"""Nodes by their addresses."""


def nodes_of_file(path: Path) -> dict[str, Endpoint]:
    """Return the nodes that a file lists: a table [[nodes]] for each, with address, token_file and, for TLS, ca_file.

    Raises:
        InvalidSettingError: the file, or one that it names, cannot be read or used.
    """
    try:
        listed = tomllib.loads(path.read_text()).get("nodes", [])
        return {endpoint.address: endpoint for endpoint in (_endpoint(row, path.parent) for row in listed)}
    except (OSError, tomllib.TOMLDecodeError, AttributeError, TypeError, KeyError) as error:
        raise InvalidSettingError(
            f"nodes file {path}",
            found=f"{type(error).__name__}: {error}",
            expected="TOML with a table [[nodes]] for each node: address, token_file and, for TLS, ca_file",
            remedy="Correct it; the nodes stay as they are until then.",
        ) from error


def _endpoint(row: Any, directory: Path) -> Endpoint:
    if unknown := set(row) - set(MEMBERS):
        raise KeyError(f"unknown member {min(unknown)}")
    token_file, ca_file = directory / row["token_file"], row.get("ca_file")
    if not token_file.exists():
        raise FileNotFoundError(f"token_file {token_file}")
    return Endpoint(row["address"], read_or_create_token(token_file), None if ca_file is None else (directory / ca_file).read_bytes())


@dataclass(frozen=True, slots=True)
class DnsNodes:
    """A name in DNS each of whose addresses is a node, as that of a headless service of Kubernetes.

    Args:
        address: NAME:PORT.
        token: of all of them.
        ca_certificate: PEM of the CA of their certificates, which are for NAME; None: no TLS.
    """

    address: str
    token: str
    ca_certificate: bytes | None

    def read(self) -> dict[str, Endpoint]:
        """Return the nodes that the name stands for now. Raises InvalidSettingError: it cannot be looked up."""
        name, _, port = self.address.rpartition(":")
        try:
            found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
                return {}  # a service without ready pods
            raise self._unusable(error) from error
        except ValueError as error:
            raise self._unusable(error) from error
        hosts = sorted({str(row[4][0]) for row in found})
        addresses = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
        return {address: Endpoint(address, self.token, self.ca_certificate, server_name=name) for address in addresses}

    def _unusable(self, error: Exception) -> InvalidSettingError:
        return InvalidSettingError(
            f"setting analyzer.nodes_dns {self.address}", found=str(error), expected="NAME:PORT that can be looked up", remedy="Correct it."
        )


class ListedNodes:
    """Keeps the nodes what a list says.

    Args:
        nodes: to which they belong.
        origin: of those of this list; others are left alone.
        read: returns who is listed. Raises KernalyseError: nobody knows, and all stays as it is.
    """

    def __init__(self, nodes: Nodes, origin: NodeOrigin, read: Callable[[], Listed]) -> None:
        self._nodes = nodes
        self._origin = origin
        self._read = read
        self._known: dict[str, Endpoint] = {}
        self._problems: dict[str, str] = {}

    async def follow(self, interval_s: float) -> None:
        """Look at the list again and again. Without end."""
        while True:
            await self.look()
            await asyncio.sleep(interval_s)

    async def look(self) -> None:
        """Add who is new on the list, and forget who is gone."""
        try:
            listed = await asyncio.to_thread(self._read)
        except KernalyseError as error:
            self._tell("", error.message)
            return
        self._tell("", "")
        for status in self._nodes.statuses():
            if status.origin is self._origin and status.address not in listed:
                logger.info("Node %s is forgotten: the list no longer has it.", status.address)
                await self._forget(status.address)
        for address, endpoint in listed.items():
            await self._keep(address, endpoint)

    async def _keep(self, address: str, endpoint: Endpoint) -> None:
        is_there = any(status.address == address for status in self._nodes.statuses())
        if is_there and self._known.get(address, endpoint) == endpoint:
            self._known[address] = endpoint
            return
        if is_there:
            await self._forget(address)  # its token or certificate has changed
        try:
            await self._nodes.add(endpoint, self._origin)
            self._known[address] = endpoint
            self._tell(address, "")
        except NodeExistsError as error:
            self._tell(address, error.message)
        except KernalyseError as error:
            self._tell(address, f"{error.message} It is tried again.")

    async def _forget(self, address: str) -> None:
        self._known.pop(address, None)
        with suppress(NodeNotFoundError):  # somebody was faster
            await self._nodes.remove(address)

    def _tell(self, address: str, problem: str) -> None:
        """Log a problem once."""
        if problem and problem != self._problems.get(address):
            logger.warning("%s", problem)
        self._problems[address] = problem


def lists_of(settings: AnalyzerSettings, nodes: Nodes) -> list[ListedNodes]:
    """Return the lists that the settings name. Raises InvalidSettingError: a token or certificate of theirs cannot be read."""
    lists = []
    if settings.nodes_file is not None:
        lists.append(ListedNodes(nodes, NodeOrigin.FILE, partial(nodes_of_file, settings.nodes_file)))
    if settings.nodes_dns:
        token = read_or_create_token(settings.nodes_dns_token_file or settings.token_file)
        dns = DnsNodes(settings.nodes_dns, token, settings.contents("nodes_dns_ca_file"))
        lists.append(ListedNodes(nodes, NodeOrigin.DNS, dns.read))
    return lists
