"""Checks of certificates and TLS connections; without them gRPC would retry endlessly and without a message."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

CONNECT_TIMEOUT_S: Final = 3.0
"""For connecting and for each response: ten round trips of a slow network. If longer, a host that drops packets would delay calls."""

HTTP2_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    (0, 0, 0, 4, 0, 0, 0, 0, 0)
)  # with empty settings, as every client begins
MISMATCH_REASONS: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")  # OpenSSL on a key and a certificate
NAME_MISMATCH_CODES: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
DATE_CODES: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True, slots=True)
class TlsProblem:
    """The reason why TLS cannot work, in the fields of an error."""

    found: str
    expected: str
    remedy: str


def ca_problem(ca_certificate: bytes) -> str | None:
    """Return why the data are no PEM certificate; None: they are one."""
    try:
        _context().load_verify_locations(cadata=ca_certificate.decode("ascii"))
    except (ssl.SSLError, ValueError):
        return "no PEM certificate"
    return None


def pair_problem(certificate: bytes | None, key: bytes | None) -> str | None:
    """Return why a PEM certificate and a PEM key cannot be used together; None: they can, or neither is given."""
    if certificate is None or key is None:
        return None if certificate is key else "a certificate without its key" if key is None else "a key without its certificate"
    if ca_problem(certificate) is not None:
        return "no PEM certificate in the file of the certificate"
    try:
        _load_pair(_context(), certificate, key)
    except ssl.SSLError as error:
        return "a key that is not the certificate's" if error.reason in MISMATCH_REASONS else "no PEM key, or one with a password"
    return None


def connection_problem(
    address: str, ca_certificate: bytes | None, client_certificate: bytes | None, client_key: bytes | None, server_name: str = ""
) -> TlsProblem | None:
    """Connect once, and return why calls on such a connection would fail; None: TLS, or its absence, is in order.

    Args:
        address: "host:port" or "unix:PATH".
        ca_certificate, client_certificate, client_key: PEM. Without ca_certificate no TLS is intended.
        server_name: that the service's certificate is for; empty: the address.

    Raises:
        OSError: nothing responds at the address.
    """
    if ca_certificate is None:
        return None if address.startswith("unix") else _plain_problem(address)
    if (found := ca_problem(ca_certificate)) is not None:
        return TlsProblem(f"{found} as the CA's", "a PEM certificate", "Pass the certificate of the CA that signed the service's.")
    if (found := pair_problem(client_certificate, client_key)) is not None:
        return TlsProblem(f"{found}, for the client", "a PEM certificate and its key, without password", "Pass both files of one pair.")
    context = _context()
    context.load_verify_locations(cadata=ca_certificate.decode("ascii"))
    if client_certificate is not None and client_key is not None:
        _load_pair(context, client_certificate, client_key)
    try:
        is_kept_open = _is_kept_open(address, context, server_name or _host(address))
    except ssl.SSLCertVerificationError as error:
        return _certificate_problem(server_name or _host(address), error)
    except ssl.SSLError as error:
        if error.reason != "WRONG_VERSION_NUMBER":
            return None  # gRPC reports this one itself
        return TlsProblem(
            "a service without TLS",
            "one that serves TLS, as a CA certificate was given",
            "Start it with certificate_file and key_file, or leave the CA certificate out.",
        )
    if is_kept_open:
        return None
    shown = "no client certificate was shown" if client_certificate is None else "the client certificate was shown"
    return TlsProblem(
        f"a connection that the service ends after the handshake, in which {shown}",
        "a valid client certificate, signed by the CA in the service's client_ca_file",
        "Pass such a certificate and its key: services with client_ca_file reject every other client.",
    )


def _certificate_problem(server_name: str, error: ssl.SSLCertVerificationError) -> TlsProblem:
    reason = error.verify_message.rstrip(".")
    if error.verify_code in NAME_MISMATCH_CODES:
        return TlsProblem(
            f"a certificate for another name ({reason})",
            f"one for {server_name}",
            "Use a name of the certificate as the address, or give the service a certificate for this name (subjectAltName).",
        )
    if error.verify_code in DATE_CODES:
        return TlsProblem(
            f"a certificate that is out of date ({reason})",
            "one that is valid now",
            "Give the service a new certificate, and look at the clocks of both machines.",
        )
    return TlsProblem(
        f"a certificate that is not trusted ({reason})",
        "one that the given CA certificate has signed",
        "Pass the certificate of the CA that signed the service's; where that signed itself, the service's own.",
    )


def _plain_problem(address: str) -> TlsProblem | None:
    with _connected(address) as connection:
        if _is_answered(connection):
            return None
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # this only tests the handshake; nothing is sent
    try:
        with _connected(address) as connection, context.wrap_socket(connection):
            return TlsProblem(
                "a service with TLS",
                "one without, as no CA certificate was given",
                "Pass the certificate of the CA that signed the service's.",
            )
    except ssl.SSLError:
        return None


def _is_kept_open(address: str, context: ssl.SSLContext, server_name: str) -> bool:
    """Return whether the service keeps the connection after the handshake; it checks the client certificate only at its end."""
    with _connected(address) as connection, context.wrap_socket(connection, server_hostname=server_name) as tls:
        return _is_answered(tls)


def _is_answered(connection: socket.socket) -> bool:
    """Return whether the peer answers HTTP/2, or at least stays connected; False: it ends the connection."""
    try:
        with suppress(ConnectionError):
            connection.sendall(HTTP2_PREFACE)
        return bool(connection.recv(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def _connected(address: str) -> socket.socket:
    if not address.startswith("unix"):
        return socket.create_connection((_host(address), int(address.rpartition(":")[2])), timeout=CONNECT_TIMEOUT_S)
    kind, _, path = address.partition(":")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(CONNECT_TIMEOUT_S)
        connection.connect(f"\0{path}" if kind == "unix-abstract" else path)
    except BaseException:
        connection.close()
        raise
    return connection


def _host(address: str) -> str:
    """Return the name that a certificate must have; for a Unix socket it is localhost (kernalyse.channel)."""
    return "localhost" if address.startswith("unix") else address.rpartition(":")[0].strip("[]")


def _context() -> ssl.SSLContext:
    """Return a context that accepts what gRPC accepts: gRPC decides, this only explains."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.set_alpn_protocols(["h2"])
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    with _memory_file(certificate) as certificate_path, _memory_file(key) as key_path:
        context.load_cert_chain(certificate_path, key_path, password=lambda: "")  # else OpenSSL would prompt on the terminal


@contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory: the ssl module loads keys from files only, and a key must not be written to disk."""
    with os.fdopen(os.memfd_create("pem"), "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
