"""Certificates that tests serve TLS with, and that clients show."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAMES: Final = ("DNS:localhost", "IP:127.0.0.1")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificate: Path
    key: Path


def make_certificate(directory: Path, *further_names: str) -> CertificateFiles:
    """A certificate for localhost and `further_names` that signs itself, and its key."""
    return _self_signed(directory, (*NAMES, *(f"DNS:{name}" for name in further_names)), day_count=1)


def make_certificate_for(directory: Path, name: str) -> CertificateFiles:
    """One for another name alone."""
    return _self_signed(directory, (f"DNS:{name}",), day_count=1)


def make_expired_certificate(directory: Path) -> CertificateFiles:
    """One for localhost that was valid until yesterday."""
    return _self_signed(directory, NAMES, day_count=-1)


def _self_signed(directory: Path, names: tuple[str, ...], day_count: int) -> CertificateFiles:
    files = CertificateFiles(directory / "cert.pem", directory / "key.pem")
    directory.mkdir(exist_ok=True)
    _openssl(directory, "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout key.pem -out request.pem")
    (directory / "extensions").write_text(f"subjectAltName={','.join(names)}\n")
    _openssl(directory, f"x509 -req -in request.pem -signkey key.pem -days {day_count} -extfile extensions -out cert.pem")
    return files


def _openssl(directory: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=directory, check=True, capture_output=True)
