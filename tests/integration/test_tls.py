"""TLS between real services: client certificates on every way into the product, and mistakes that are told at once."""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import kernalyse
from kernalyse.client import DEFAULT_TIMEOUT_S
from tests.certificates import CertificateFiles, make_certificate, make_certificate_for, make_expired_certificate
from tests.command import Done
from tests.command import kernalyse as command
from tests.service_processes import ServiceProcess, ServiceProcesses

LOOPBACK: Final = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class MutualTls:
    """A service's certificate, and the only client's that it lets in."""

    service: CertificateFiles
    client: CertificateFiles

    @property
    def flags(self) -> tuple[str, ...]:
        return (*serving(self.service), "--client-ca-file", str(self.client.certificate))

    def shown(self, prefix: str = "") -> tuple[str | Path, ...]:
        """The options with which a command shows the client certificate."""
        return (f"--{prefix}client-certificate-file", self.client.certificate, f"--{prefix}client-key-file", self.client.key)


def serving(files: CertificateFiles) -> tuple[str, ...]:
    return ("--certificate-file", str(files.certificate), "--key-file", str(files.key))


@pytest.fixture
def mutual(tmp_path: Path) -> MutualTls:
    return MutualTls(make_certificate(tmp_path / "service"), make_certificate_for(tmp_path / "client", "a client"))


@pytest.fixture
def analyzer(services: ServiceProcesses, mutual: MutualTls) -> ServiceProcess:
    return services.start("analyzer", *mutual.flags, address=LOOPBACK)


def token_file(directory: Path) -> Path:
    return directory / "config" / "kernalyse" / "token"


def runs_of(address: str, directory: Path, *options: str | Path) -> Done:
    return command("runs", "--server", address, "--token-file", token_file(directory), *options)


def assert_refused_at_once(ask: Done, begin_s: float, *words: str) -> None:
    """Long before a call gives up; what is said is neither that it did."""
    assert time.monotonic() - begin_s < DEFAULT_TIMEOUT_S / 2
    assert ask.returncode == 1
    for word in words:
        assert word in ask.stderr
    assert "DEADLINE" not in ask.stderr


# ---------------------------------------------------------------- client certificates


def test_a_command_shows_a_client_certificate_and_one_without_is_told_what_is_missing(
    analyzer: ServiceProcess, mutual: MutualTls, private_directories: Path
) -> None:
    trusted = ("--ca-file", mutual.service.certificate)
    shown = runs_of(analyzer.address, private_directories, *trusted, *mutual.shown())
    assert shown.returncode == 0, shown.stderr
    begin_s = time.monotonic()
    refused = runs_of(analyzer.address, private_directories, *trusted)
    assert_refused_at_once(refused, begin_s, f"connection to {analyzer.address}", "no client certificate was shown", "client_ca_file")
    stranger = MutualTls(mutual.service, mutual.service)
    refused = runs_of(analyzer.address, private_directories, *trusted, *stranger.shown())
    assert_refused_at_once(refused, begin_s, "the client certificate was shown", "signed by the CA in the service's client_ca_file")
    refused = runs_of(analyzer.address, private_directories, *trusted, "--client-certificate-file", mutual.client.certificate)
    assert_refused_at_once(refused, begin_s, "a certificate without its key")


def test_a_command_finds_the_analyzer_of_this_machine_and_shows_the_certificate_that_the_environment_names(
    services: ServiceProcesses, mutual: MutualTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.start("analyzer", *mutual.flags, address=LOOPBACK)
    monkeypatch.setenv("KERNALYSE_ANALYZER_ANNOUNCEMENT_FILE", str(services.directory / "run" / "analyzer-0.json"))
    begin_s = time.monotonic()
    assert_refused_at_once(command("runs"), begin_s, "no client certificate was shown")
    monkeypatch.setenv("KERNALYSE_CLIENT_CERTIFICATE_FILE", str(mutual.client.certificate))
    monkeypatch.setenv("KERNALYSE_CLIENT_KEY_FILE", str(mutual.client.key))
    done = command("runs")
    assert done.returncode == 0, done.stderr
    with kernalyse.connect() as client:
        assert list(client.runs()) == []


def test_services_that_a_command_starts_for_itself_are_shown_the_certificate_too(
    mutual: MutualTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    for service in ("PROFILER", "ANALYZER"):
        monkeypatch.setenv(f"KERNALYSE_{service}_CERTIFICATE_FILE", str(mutual.service.certificate))
        monkeypatch.setenv(f"KERNALYSE_{service}_KEY_FILE", str(mutual.service.key))
        monkeypatch.setenv(f"KERNALYSE_{service}_CLIENT_CA_FILE", str(mutual.client.certificate))
    done = command("nodes", "list", *mutual.shown())
    assert done.returncode == 0, done.stderr
    done = command("devices", "--json", *mutual.shown())
    assert done.returncode == 0, done.stderr
    assert all(row["health"] == "SERVING" for row in json.loads(done.stdout))


def test_python_connects_with_a_client_certificate(analyzer: ServiceProcess, mutual: MutualTls) -> None:
    connect = partial(kernalyse.connect, analyzer.address, analyzer.token, ca_file=mutual.service.certificate)
    with connect(client_certificate_file=mutual.client.certificate, client_key_file=mutual.client.key) as client:
        assert list(client.runs()) == []
    with connect() as client:
        with pytest.raises(kernalyse.RequestError) as caught:
            list(client.runs())
        assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "TLS_HANDSHAKE_FAILED")
        assert "no client certificate was shown" in caught.value.found
        assert "client_ca_file" in caught.value.remedy


@pytest.mark.slow
def test_the_analyzer_shows_a_client_certificate_to_a_node_over_its_own_restarts(
    services: ServiceProcesses, mutual: MutualTls, private_directories: Path
) -> None:
    node = services.start("profiler", *mutual.flags, address=LOOPBACK)
    analyzer = services.start("analyzer")
    at_analyzer = ("--server", analyzer.address, "--token-file", token_file(private_directories))
    options = (*at_analyzer, "--node-token-file", token_file(private_directories), "--node-ca-file", mutual.service.certificate)
    begin_s = time.monotonic()
    assert_refused_at_once(command("nodes", "add", node.address, *options), begin_s, node.address, "no client certificate was shown")
    added = command("nodes", "add", node.address, *options, *mutual.shown("node-"))
    assert added.returncode == 0, added.stderr
    wait_until_serving(at_analyzer)
    analyzer.stop()
    services.start("analyzer")
    wait_until_serving(at_analyzer)
    (kept,) = private_directories.rglob("node_tokens.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    key = mutual.client.key.read_text()
    assert json.loads(kept.read_text())[node.address]["client_key"] == key
    assert all(key.encode() not in path.read_bytes() for path in private_directories.rglob("*") if path.is_file() and path != kept)


@pytest.mark.slow
def test_a_renewed_certificate_of_pages_is_served_without_a_restart(services: ServiceProcesses, tmp_path: Path) -> None:
    first, second = make_certificate(tmp_path / "first"), make_certificate(tmp_path / "second")
    served = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    shutil.copy(first.certificate, served.certificate)
    shutil.copy(first.key, served.key)
    ui = services.start("ui", "--analyzer-address", "127.0.0.1:1", *serving(served), address=LOOPBACK)
    host, _, port = ui.address.rpartition(":")

    def shown() -> str:
        return ssl.get_server_certificate((host, int(port)))

    before = http.client.HTTPSConnection(host, int(port), context=ssl.create_default_context(cafile=first.certificate), timeout=60)
    before.request("GET", "/login")
    assert before.getresponse().read()
    shutil.copy(second.certificate, served.certificate)  # half of it: the key is still the first one's
    wait_for(lambda: "not renewed" in ui.log_path.read_text(), "a look at the files")
    assert shown() == first.certificate.read_text()
    shutil.copy(second.key, served.key)
    wait_for(lambda: shown() == second.certificate.read_text(), "the second certificate")
    after = http.client.HTTPSConnection(host, int(port), context=ssl.create_default_context(cafile=second.certificate), timeout=60)
    for connection in (after, before):  # one that was open goes on
        connection.request("GET", "/login")
        assert connection.getresponse().read()
        connection.close()
    assert ui.process.poll() is None


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def wait_until_serving(at_analyzer: tuple[str | Path, ...]) -> None:
    deadline = time.monotonic() + 60
    while True:
        listed = command("nodes", "list", "--json", *at_analyzer)
        assert listed.returncode == 0, listed.stderr
        if [row["health"] for row in json.loads(listed.stdout)] == ["SERVING"]:
            return
        assert time.monotonic() < deadline, listed.stdout
        time.sleep(0.05)


# ---------------------------------------------------------------- mistakes


def test_the_wrong_ca_is_told_at_once(services: ServiceProcesses, private_directories: Path, tmp_path: Path) -> None:
    analyzer = services.start("analyzer", *serving(make_certificate(tmp_path / "service")), address=LOOPBACK)
    other = make_certificate(tmp_path / "other")
    begin_s = time.monotonic()
    refused = runs_of(analyzer.address, private_directories, "--ca-file", other.certificate)
    assert_refused_at_once(refused, begin_s, "a certificate that is not trusted", "the CA that signed the service's")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    refused = runs_of(analyzer.address, private_directories, "--ca-file", garbage)
    assert_refused_at_once(refused, begin_s, "no PEM certificate as the CA's")
    refused = runs_of(analyzer.address, private_directories)
    assert_refused_at_once(refused, begin_s, "a service with TLS", "no CA certificate was given")


def test_an_expired_certificate_is_told_at_once(services: ServiceProcesses, private_directories: Path, tmp_path: Path) -> None:
    expired = make_expired_certificate(tmp_path)
    analyzer = services.start("analyzer", *serving(expired), address=LOOPBACK)
    begin_s = time.monotonic()
    refused = runs_of(analyzer.address, private_directories, "--ca-file", expired.certificate)
    assert_refused_at_once(refused, begin_s, "certificate has expired", "Give the service a new certificate")


def test_a_certificate_for_another_name_is_told_at_once(services: ServiceProcesses, private_directories: Path, tmp_path: Path) -> None:
    files = make_certificate_for(tmp_path, "gpu-lab.example")
    analyzer = services.start("analyzer", *serving(files), address=LOOPBACK)
    begin_s = time.monotonic()
    refused = runs_of(analyzer.address, private_directories, "--ca-file", files.certificate)
    assert_refused_at_once(refused, begin_s, "a certificate for another name", "one for 127.0.0.1", "subjectAltName")


@pytest.mark.slow
@pytest.mark.parametrize("service", ["profiler", "analyzer", "ui"])
def test_a_key_that_does_not_fit_is_not_taken_for_a_busy_address(service: str, mutual: MutualTls) -> None:
    flags = ("--address", LOOPBACK, "--certificate-file", mutual.service.certificate, "--key-file", mutual.client.key)
    ended = subprocess.run(
        [sys.executable, "-m", "kernalyse.services.cli.main", service, *flags], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert f"{service}.key_file: found a key that is not the certificate's" in ended.stderr
    assert "free" not in ended.stderr


def test_a_service_without_tls_is_told_at_once(services: ServiceProcesses, tmp_path: Path) -> None:
    plain = services.start("analyzer", address=LOOPBACK)
    begin_s = time.monotonic()
    refused = runs_of(plain.address, services.directory, "--ca-file", make_certificate(tmp_path).certificate)
    assert_refused_at_once(refused, begin_s, "a service without TLS")
