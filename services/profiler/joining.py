"""Joins an analyzer: finds out that it is the right one, tells it how to call this node, and holds the tunnel where there is one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NoReturn

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kernalyse.channel import is_address
from kernalyse.services.core import protobuf
from kernalyse.services.core.errors import (
    InvalidSettingError,
    KernalyseError,
    NodeUnreachableError,
    TlsHandshakeError,
    UnauthenticatedError,
    UnavailableError,
)
from kernalyse.services.core.identity import Kind, Scope, TokenFile
from kernalyse.services.core.join_tokens import JoinToken, key_digest, server_name, shown_certificate
from kernalyse.services.core.model import Node
from kernalyse.services.core.rpc import Endpoint, is_local, open_async_channel, translated_errors
from kernalyse.services.core.settings import ProfilerSettings
from kernalyse.services.core.tunnel import TunnelEnd
from kernalyse.tls import connection_problem
from kernalyse.v1 import analyzer_service_pb2 as messages
from kernalyse.v1.analyzer_service_pb2_grpc import AnalyzerServiceStub

CONNECT_TIMEOUT_S: Final = 5.0
JOIN_TIMEOUT_S: Final = 30.0
RETRY_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
CERTIFICATE_LIFETIME: Final = timedelta(days=730)
STATE_FILE: Final = "joined.json"

logger = logging.getLogger(__name__)


# ---------------------------------------------------------------- this node's own address and certificate


def prepared(settings: ProfilerSettings) -> ProfilerSettings:
    """Return the settings of a node that joins: where it is to be called it listens beyond loopback, and serves TLS.

    Raises:
        InvalidSettingError: an address that cannot be used.
    """
    for name in ("join", "advertised_address"):
        value = getattr(settings, name)
        if (value or name == "join") and not is_address(value):
            raise InvalidSettingError(f"setting profiler.{name}", found=repr(value), expected="host:port", remedy="Correct it.")
    if settings.tunnel or is_local(settings.join):
        return settings
    changes: dict[str, Any] = {}
    if "address" not in settings.model_fields_set:
        is_v6 = ":" in _own_host(settings.join)
        changes["address"] = f"{'[::]' if is_v6 else '0.0.0.0'}:{settings.address.rpartition(':')[2]}"
    if settings.certificate_file is None:
        hosts = [_own_host(settings.join), socket.gethostname(), "localhost", "127.0.0.1"]
        if settings.advertised_address:
            hosts.insert(0, settings.advertised_address.rpartition(":")[0].strip("[]"))
        changes["certificate_file"], changes["key_file"] = own_certificate(settings.data_directory, tuple(dict.fromkeys(hosts)))
    return settings.model_copy(update=changes)


def own_certificate(directory: Path, hosts: tuple[str, ...]) -> tuple[Path, Path]:
    """Return the paths of a certificate for these hosts that signs itself, and of its key; made anew where that is due."""
    certificate_path, key_path = directory / "certificate.pem", directory / "key.pem"
    if certificate_path.exists() and key_path.exists():
        found = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
        if known >= set(hosts) and found.not_valid_after_utc - datetime.now(UTC) > CERTIFICATE_LIFETIME / 2:
            return certificate_path, key_path
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, socket.gethostname()[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of hosts differ
        .not_valid_after(now + CERTIFICATE_LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write(certificate_path, certificate.public_bytes(Encoding.PEM))
    return certificate_path, key_path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _own_host(analyzer_address: str) -> str:
    """Return this machine's address on the way to the analyzer. Nothing is sent for it."""
    host, _, port = analyzer_address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _advertised(settings: ProfilerSettings, address: str) -> str:
    """Return where the analyzer is to call this node. address: where it listens, with its port."""
    if settings.advertised_address:
        return settings.advertised_address
    host, _, port = address.rpartition(":")
    if address.startswith("unix") or host not in ("0.0.0.0", "[::]"):
        return address
    own = _own_host(settings.join)
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


# ---------------------------------------------------------------- what a node knows of the analyzer that it has joined


@dataclass(frozen=True, slots=True)
class Joined:
    """What is kept of a join, in a file of mode 0600.

    Args:
        analyzer: its address.
        node_token: with which this node joins again.
        certificates: PEM, of the analyzer; empty: it serves no TLS.
    """

    analyzer: str
    node_token: str
    certificates: str = ""


def _read_joined(path: Path, analyzer: str) -> Joined | None:
    try:
        joined = Joined(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return joined if joined.analyzer == analyzer else None


def _write(path: Path, data: bytes) -> None:
    """Write a file of mode 0600; readers see it before or after."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    temporary.replace(path)


# ---------------------------------------------------------------- joining


class Joiner:
    """Has an analyzer collect from this node.

    Args:
        settings: of the service, `prepared`.
        node: as it describes itself.
        address: where the service listens.
        local_address: where this machine alone reaches it without TLS, for the tunnel; empty: there is no tunnel.
    """

    def __init__(self, settings: ProfilerSettings, node: Node, address: str, local_address: str = "") -> None:
        self._settings = settings
        self._node = node
        self._address = address
        self._local_address = local_address
        self._state_path = settings.data_directory / STATE_FILE
        self._token_name = f"analyzer {settings.join}"
        self._token = ""  # of the analyzer at this node
        self._told = ""
        self._failure_count = 0

    async def run(self) -> None:
        """Join, and hold the tunnel where there is one. Returns once a node without tunnel has joined.

        Raises:
            KernalyseError: this node may not join; trying again would not help.
        """
        while True:
            try:
                await (self._hold_tunnel() if self._settings.tunnel else self._join())
                if not self._settings.tunnel:
                    return
                problem = f"The tunnel to the analyzer at {self._settings.join} has ended."
            except (UnavailableError, NodeUnreachableError, OSError) as error:  # of either direction
                problem = error.message if isinstance(error, KernalyseError) else self._unreachable(error)
            if problem != self._told:
                self._told = problem
                logger.warning("%s It is tried again.", problem)
            await asyncio.sleep(RETRY_S[min(self._failure_count, len(RETRY_S) - 1)])
            self._failure_count += 1

    async def _join(self) -> None:
        credential = await asyncio.to_thread(self._credential)
        channel = open_async_channel(credential.endpoint)
        try:
            stub: Any = AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
            with translated_errors():
                response = await stub.Join(self._request(_advertised(self._settings, self._address)), timeout=JOIN_TIMEOUT_S)
            self._take_in(response, credential)
        except UnauthenticatedError as error:
            await self._refused(credential, error)
        finally:
            await channel.close()

    async def _hold_tunnel(self) -> None:
        credential = await asyncio.to_thread(self._credential)
        channel = open_async_channel(credential.endpoint)
        end = TunnelEnd(self._connect)

        async def requests() -> AsyncIterator[Any]:
            yield messages.TunnelRequest(join=self._request(""))
            async for connection, data in end.sent():
                yield messages.TunnelRequest(bytes=messages.TunnelBytes(connection=connection, data=data))

        try:
            stub: Any = AnalyzerServiceStub(channel)  # type: ignore[no-untyped-call]
            with translated_errors():
                async for response in stub.Tunnel(requests()):
                    if response.HasField("joined"):
                        self._take_in(response.joined, credential)
                    else:
                        await end.take(response.bytes.connection, response.bytes.data)
        except UnauthenticatedError as error:
            await self._refused(credential, error)
        finally:
            await end.close()
            await channel.close()

    def _connect(self) -> Any:
        return asyncio.open_unix_connection(self._local_address.removeprefix("unix:"))

    def _request(self, address: str) -> Any:
        """Return what the analyzer needs to know; it gets a token of its own."""
        if not self._token:
            _, self._token = self._tokens().issue(self._token_name, Scope(self._settings.join_scope), Kind.ANALYZER)
        certificate = None if self._settings.tunnel else self._settings.contents("certificate_file")
        return messages.JoinRequest(node=protobuf.encode(self._node), address=address, token=self._token, ca_certificate=certificate or b"")

    def _tokens(self) -> TokenFile:
        return TokenFile(self._settings.tokens_path())

    def _take_in(self, response: Any, credential: _Credential) -> None:
        """Keep what the analyzer has given; the token that it had before is of no use any more."""
        file, now = self._tokens(), datetime.now(UTC).timestamp()
        issued = [entry for entry in file.read() if entry.name == self._token_name and entry.is_valid(now)]
        for entry in issued[:-1]:
            file.revoke(entry.token_id)
        joined = Joined(self._settings.join, response.node_token or credential.endpoint.token, response.certificates.decode())
        _write(self._state_path, json.dumps(asdict(joined)).encode())
        self._told, self._failure_count = "", 0
        logger.info("Joined the analyzer at %s as %s.", self._settings.join, response.node.address)

    async def _refused(self, credential: _Credential, error: UnauthenticatedError) -> None:
        """Go on with the join token where the node's own is no longer known."""
        if not credential.is_own:
            self._fail(error)
        logger.warning("The analyzer at %s no longer knows this node's token; the join token is tried.", self._settings.join)
        self._state_path.unlink(missing_ok=True)
        self._failure_count = 0
        raise UnavailableError(f"analyzer {self._settings.join}", found="a node token that it no longer knows") from error

    def _fail(self, error: UnauthenticatedError) -> NoReturn:
        raise UnauthenticatedError(
            f"join token {self._settings.join_token_file} at the analyzer {self._settings.join}",
            found=error.found,
            expected="one that it has made, with uses left",
            remedy="Make another beside it: kernalyse nodes join-token",
        ) from error

    # ------------------------------------------------------------ which analyzer

    def _credential(self) -> _Credential:
        """Return how to call the analyzer, once it is known to be the right one. Raises OSError, KernalyseError."""
        settings = self._settings
        pair = settings.certificate_pair("join_client_certificate_file", "join_client_key_file")
        joined = _read_joined(self._state_path, settings.join)
        if joined is not None:
            certificates = joined.certificates.encode() or None
            name = server_name(certificates) if certificates else ""
            own = _Credential(Endpoint(settings.join, joined.node_token, certificates, *pair, name), is_own=True)
            if (problem := connection_problem(settings.join, certificates, *pair, name)) is None:
                return own
            logger.warning("The analyzer at %s shows %s; the join token is tried.", settings.join, problem.found)
        token = self._join_token()
        if not token.key_digest:
            if not is_local(settings.join) and not settings.insecure:
                raise InvalidSettingError(
                    "setting profiler.join",
                    found=f"{settings.join}, on another machine, and a join token of an analyzer without TLS",
                    expected="an analyzer with a certificate",
                    remedy="Give it certificate_file and key_file and make another token, or say --insecure on both sides.",
                )
            return self._working(_Credential(Endpoint(settings.join, token.secret, None, *pair)))
        if settings.join.startswith("unix"):
            raise InvalidSettingError("setting profiler.join", found=settings.join, expected="host:port", remedy="It serves TLS.")
        shown = shown_certificate(settings.join, CONNECT_TIMEOUT_S)
        if (found := key_digest(shown)) != token.key_digest:
            raise TlsHandshakeError(
                f"analyzer at {settings.join}",
                found=f"a certificate whose key is {found}",
                expected=f"{token.key_digest}, as the join token {settings.join_token_file} says",
                remedy="It is another analyzer, or its key has been renewed since: make another join token beside it.",
            )
        return self._working(_Credential(Endpoint(settings.join, token.secret, shown, *pair, server_name(shown))))

    def _working(self, credential: _Credential) -> _Credential:
        """Return the credential if a connection with it works. gRPC would try for ever, without a message."""
        found = credential.endpoint
        certificates = found.ca_certificate, found.client_certificate, found.client_key
        if (problem := connection_problem(found.address, *certificates, found.server_name)) is not None:
            raise TlsHandshakeError(f"analyzer at {found.address}", found=problem.found, expected=problem.expected, remedy=problem.remedy)
        return credential

    def _join_token(self) -> JoinToken:
        path = self._settings.join_token_file
        content = self._settings.contents("join_token_file")
        if path is None or content is None:
            raise InvalidSettingError(
                "setting profiler.join_token_file",
                found="nothing, and this node has not joined before",
                expected="a file with a join token",
                remedy="Make one beside the analyzer: kernalyse nodes join-token",
            )
        return JoinToken.parse(content.decode(errors="replace"), f"join token file {path}")

    def _unreachable(self, error: Exception) -> str:
        return f"The way from this node to the analyzer at {self._settings.join} does not work: {error}."


@dataclass(frozen=True, slots=True)
class _Credential:
    """How to call the analyzer. is_own: with the token that it has given to this node."""

    endpoint: Endpoint
    is_own: bool = False
