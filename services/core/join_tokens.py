"""Join tokens: what a profiler is given so that it can come to an analyzer by itself, and know that it is the right one.

As kubeadm's they carry the SHA-256 of the public key of the analyzer's certificate: the profiler trusts nothing before it
has found that key at the address. Renewing the certificate for the same key leaves them valid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import ssl
import time
from dataclasses import asdict, dataclass, field
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from kernalyse.services.core.errors import InvalidSettingError, UnauthenticatedError

PREFIX: Final = "kernalyse-join-1."
"""Tells what a token is, and the version of its format."""


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token.

    Args:
        secret: what the analyzer knows by its SHA-256.
        key_digest: of the analyzer's certificate, see `key_digest`; empty: it serves no TLS.
        end_unix_s: when it ends; None: never.
        use_count: how many profilers may join with it; 0: any number.
    """

    secret: str = field(repr=False)
    key_digest: str = ""
    end_unix_s: float | None = None
    use_count: int = 0

    def __str__(self) -> str:
        return PREFIX + base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, subject: str) -> Self:
        """Return the token of a text.

        Args:
            subject: where the text is from, for the message.

        Raises:
            InvalidSettingError: it is no join token.
            UnauthenticatedError: it has ended.
        """
        encoded = text.strip().removeprefix(PREFIX)
        try:
            if not text.strip().startswith(PREFIX):
                raise ValueError("another beginning")
            token = cls(**json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))))
        except (ValueError, TypeError, binascii.Error) as error:
            raise InvalidSettingError(
                subject,
                found=f"{len(text.strip())} letters that are no join token",
                expected=f"one line that begins with {PREFIX}",
                remedy="Make one beside the analyzer: kernalyse nodes join-token",
            ) from error
        if token.end_unix_s is not None and time.time() >= token.end_unix_s:
            ended = time.strftime("%Y-%m-%d %H:%M", time.localtime(token.end_unix_s))
            raise UnauthenticatedError(
                subject,
                found=f"a join token that ended at {ended}",
                expected="one that goes on",
                remedy="Make another beside the analyzer: kernalyse nodes join-token",
            )
        return token


def key_digest(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate's public key (SubjectPublicKeyInfo, DER) as "sha256:" and hexadecimal digits.

    Args:
        certificate: PEM; of a chain the first counts.
    """
    first = x509.load_pem_x509_certificates(certificate)[0]
    return f"sha256:{hashlib.sha256(first.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()}"


def server_name(certificate: bytes) -> str:
    """Return a name that a certificate is for: it is known by its key, whatever address it was found at. certificate: PEM."""
    first = x509.load_pem_x509_certificates(certificate)[0]
    try:
        names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    return found[0] if found else ""


def shown_certificate(address: str, timeout_s: float) -> bytes:
    """Return the certificate that a service shows, unchecked, as PEM.

    Args:
        address: host:port.

    Raises:
        OSError: nothing answers there, or without TLS.
    """
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=timeout_s).encode()
