"""kernalyse.services.core.settings: where values come from, what is refused, and that every setting is documented."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from pydantic.fields import FieldInfo

from kernalyse.services.cli.serve import flag_parser
from kernalyse.services.core.errors import InvalidSettingError
from kernalyse.services.core.settings import SETTINGS_CLASSES, AnalyzerSettings, ProfilerSettings, ServiceSettings, UiSettings
from tests.certificates import CertificateFiles, make_certificate

SETTINGS_PAGE = Path(__file__).parents[3] / "docs" / "settings.md"
ALL_SETTINGS = [(cls, name, field) for cls in SETTINGS_CLASSES for name, field in cls.model_fields.items()]


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernalyse.toml"
    path.write_text('[profiler]\naddress = "127.0.0.1:1"\ngrace_s = 7\n\n[analyzer]\naddress = "127.0.0.1:2"\n')
    monkeypatch.setenv("KERNALYSE_CONFIG", str(path))
    return path


def test_flags_win_over_environment_over_file_over_defaults(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ProfilerSettings.load().address == "127.0.0.1:1"
    assert ProfilerSettings.load().drain_s == 10.0
    monkeypatch.setenv("KERNALYSE_PROFILER_ADDRESS", "127.0.0.1:3")
    assert ProfilerSettings.load().address == "127.0.0.1:3"
    assert ProfilerSettings.load(address="127.0.0.1:4").address == "127.0.0.1:4"
    assert ProfilerSettings.load(address=None).address == "127.0.0.1:3"


def test_each_service_reads_its_own_table(settings_file: Path) -> None:
    assert AnalyzerSettings.load().address == "127.0.0.1:2"
    assert UiSettings.load().address == "127.0.0.1:7003"


def test_the_file_is_looked_for_in_the_configuration_directory(private_directories: Path) -> None:
    directory = private_directories / "config" / "kernalyse"
    directory.mkdir()
    (directory / "kernalyse.toml").write_text("[profiler]\ngrace_s = 1.5\n")
    assert ProfilerSettings.load().grace_s == 1.5


def test_without_a_file_the_defaults_hold(private_directories: Path) -> None:
    settings = ProfilerSettings.load()
    assert settings.data_directory == private_directories / "data" / "kernalyse" / "profiler"
    assert settings.announcement_path() == private_directories / "run" / "kernalyse" / "profiler.json"
    assert settings.token() == AnalyzerSettings.load().token()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"grace_s": "soon"}, r"profiler\.grace_s.*'soon'.*KERNALYSE_PROFILER_GRACE_S"),
        ({"grace_s": -1}, r"profiler\.grace_s.*greater than or equal to 0"),
        ({"log_level": "LOUD"}, r"profiler\.log_level"),
        ({"opencl_runtime": "amd"}, r"profiler\.opencl_runtime.*intel\|pocl"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(flags: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        ProfilerSettings.load(**flags)


def test_an_unknown_setting_in_the_file_is_refused(settings_file: Path) -> None:
    settings_file.write_text("[profiler]\ngrace = 3\n")
    with pytest.raises(InvalidSettingError, match=r"profiler\.grace"):
        ProfilerSettings.load()


def test_a_file_that_is_not_toml_is_refused_with_its_line(settings_file: Path) -> None:
    settings_file.write_text("[profiler]\naddress = \n")
    with pytest.raises(InvalidSettingError, match="line 2"):
        ProfilerSettings.load()


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return make_certificate(tmp_path / "service")


def test_a_certificate_is_refused_without_its_key_and_a_key_without_its_certificate(files: CertificateFiles) -> None:
    with pytest.raises(InvalidSettingError, match=r"settings profiler\.certificate_file and .*: found a certificate without its key"):
        ProfilerSettings.load(certificate_file=files.certificate).security()
    with pytest.raises(InvalidSettingError, match="found a key without its certificate"):
        ProfilerSettings.load(key_file=files.key).security()


def test_a_key_of_another_certificate_is_refused_and_so_is_what_is_no_pem(files: CertificateFiles, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other")
    with pytest.raises(InvalidSettingError, match="a key that is not the certificate's") as caught:
        AnalyzerSettings.load(certificate_file=files.certificate, key_file=other.key).security()
    assert str(other.key) in caught.value.found
    rsa_key = tmp_path / "rsa.pem"
    subprocess.run(["openssl", "genrsa", "-out", rsa_key, "2048"], check=True, capture_output=True)
    with pytest.raises(InvalidSettingError, match="a key that is not the certificate's"):
        AnalyzerSettings.load(certificate_file=files.certificate, key_file=rsa_key).security()
    with pytest.raises(InvalidSettingError, match="no PEM key, or one with a password"):
        AnalyzerSettings.load(certificate_file=files.certificate, key_file=files.certificate).security()
    with pytest.raises(InvalidSettingError, match="no PEM certificate"):
        AnalyzerSettings.load(certificate_file=files.key, key_file=files.key).security()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(files: CertificateFiles, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", files.key, "-aes128", "-passout", "pass:secret", "-out", locked], check=True, capture_output=True
    )
    with pytest.raises(InvalidSettingError, match="or one with a password"):
        ProfilerSettings.load(certificate_file=files.certificate, key_file=locked).security()


def test_client_certificates_cannot_be_asked_for_without_tls_or_by_what_is_no_ca(files: CertificateFiles) -> None:
    with pytest.raises(InvalidSettingError, match=r"profiler\.client_ca_file: found no certificate_file beside it"):
        ProfilerSettings.load(client_ca_file=files.certificate).security()
    pair = {"certificate_file": files.certificate, "key_file": files.key}
    with pytest.raises(InvalidSettingError, match=r"profiler\.client_ca_file: found no PEM certificate"):
        ProfilerSettings.load(**pair, client_ca_file=files.key).security()
    assert ProfilerSettings.load(**pair, client_ca_file=files.certificate).security().client_ca == files.certificate.read_bytes()


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettingError, match=r"cert\.pem: No such file"):
        ProfilerSettings.load(certificate_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem").security()


@pytest.mark.parametrize(("cls", "name", "field"), ALL_SETTINGS, ids=lambda value: value if isinstance(value, str) else None)
def test_every_setting_is_described_and_on_the_page_of_settings(cls: type[ServiceSettings], name: str, field: FieldInfo) -> None:
    assert field.description
    rows = re.findall(rf"^\| `(?:\w+\.)?{name}` \|.*$", SETTINGS_PAGE.read_text(), re.MULTILINE)
    assert rows, f"docs/settings.md lacks {cls.section}.{name}"
    assert any(field.description in row.replace(r"\|", "|") for row in rows), f"docs/settings.md describes {name} differently: {rows}"


@pytest.mark.parametrize("cls", SETTINGS_CLASSES)
def test_every_setting_has_a_flag(cls: type[ServiceSettings]) -> None:
    assert set(vars(flag_parser(cls).parse_args([]))) == set(cls.model_fields)


def test_each_pattern_of_a_command_is_one_value_whatever_letters_it_has() -> None:
    given = ["[a-z]*", "python -c 'a, b'", "{x}"]
    flags = vars(flag_parser(ProfilerSettings).parse_args([part for pattern in given for part in ("--allowed-commands", pattern)]))
    assert ProfilerSettings.load(**flags).allowed_commands == tuple(given)


def test_flags_reach_the_settings() -> None:
    flags = vars(
        flag_parser(UiSettings).parse_args(["--allowed-hosts", "a:1", "--allowed-hosts", "b:2", "--insecure", "--address", "127.0.0.1:0"])
    )
    settings = UiSettings.load(**flags)
    assert (settings.allowed_hosts, settings.insecure, settings.address) == (("a:1", "b:2"), True, "127.0.0.1:0")
    assert ProfilerSettings.load(**vars(flag_parser(ProfilerSettings).parse_args(["--no-allow-commands"]))).allow_commands is False
