"""Certificates that tests serve TLS with."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificate: Path
    key: Path


def make_certificate(folder: Path, *further_names: str) -> CertificateFiles:
    """A certificate for localhost and `further_names` that signs itself, and its key."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ",".join(["DNS:localhost", "IP:127.0.0.1", *(f"DNS:{name}" for name in further_names)])
    subprocess.run(
        [*command.split(), "-addext", f"subjectAltName={names}", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return CertificateFiles(folder / "cert.pem", folder / "key.pem")
