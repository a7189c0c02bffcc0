"""deploy/systemd/install.sh on a bare Debian: what it makes, an upgrade, what it leaves. Nothing is started under systemd."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.integration.test_image import debian, pip_options
from tests.integration.test_wheel import built

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "deploy" / "systemd" / "install.sh"
UNITS: Final = ("kernalyse-analyzer", "kernalyse-profiler", "kernalyse-ui")
EARLIER: Final = "0.0.9"
TIME_S: Final = 90
STAND_IN_SYSTEMCTL: Final = """#!/bin/sh
# Of a machine on which the analyzer runs.
echo "$*" >>/systemctl-calls
case $* in "is-active --quiet kernalyse-analyzer") exit 0 ;; is-active*) exit 3 ;; esac
"""
MISSING: Final = [program for program in ("debootstrap", "bwrap", "setpriv", "systemd-analyze") if shutil.which(program) is None]

pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the checkout")


@dataclass(frozen=True, slots=True)
class Machine:
    """A bare Debian in a directory. options: of bubblewrap, with which commands run as root in it."""

    root: Path
    options: tuple[str, ...]

    def command(self, *words: str) -> list[str]:
        return ["bwrap", *self.options, *words]

    def run(self, *words: str) -> str:
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def described(self, *paths: str) -> list[str]:
        """Owner, group and mode of each."""
        return self.run("stat", "--format", "%U:%G %a", *paths).splitlines()

    def path(self, path: str) -> Path:
        return self.root / path.removeprefix("/")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="kernalyse-install-") as name:
        root = Path(name) / "root"
        root.mkdir()
        subprocess.run(("tar", "--extract", "--file", str(debian()), "--directory", str(root)), check=True)
        box = ["--die-with-parent", "--bind", str(root), "/", "--dev", "/dev", "--proc", "/proc", "--perms", "1777", "--tmpfs", "/tmp"]
        for volume in pip_options(Path(name))[1::2]:
            source, target, _ = volume.split(":")
            box += ["--ro-bind", source, target]
        for file in filter(os.path.exists, ("/etc/resolv.conf", "/etc/hosts")):
            box += ["--ro-bind", os.path.realpath(file), file]
        box += ["--ro-bind", str(SCRIPT.parent), "/media", "--cap-add", "ALL", "--chdir", "/", "--clearenv"]
        variables = {variable: value for variable, value in os.environ.items() if variable.lower().endswith("_proxy")}
        for variable, value in (variables | {"PATH": "/usr/sbin:/usr/bin", "HOME": "/root"}).items():
            box += ["--setenv", variable, value]
        yield Machine(root, tuple(box))


def made_earlier(wheel: Path) -> Path:
    """The same wheel with the number of an earlier version."""
    now = version("kernalyse")
    target = wheel.with_name(wheel.name.replace(now, EARLIER))
    with zipfile.ZipFile(wheel) as read, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as written:
        for name in read.namelist():
            data = read.read(name)
            if ".dist-info/" in name and name.endswith(("METADATA", "RECORD")):
                data = data.replace(f"Version: {now}\n".encode(), f"Version: {EARLIER}\n".encode())
                data = data.replace(f"kernalyse-{now}.dist-info".encode(), f"kernalyse-{EARLIER}.dist-info".encode())
            written.writestr(name.replace(f"kernalyse-{now}.dist-info", f"kernalyse-{EARLIER}.dist-info"), data)
    return target


def serves_as_its_unit_says(machine: Machine) -> None:
    """Check that the analyzer starts with command, user and variables of its unit, and ends at SIGTERM."""
    unit = machine.path("/etc/systemd/system/kernalyse-analyzer.service").read_text()
    variables = dict(word.split("=", 1) for line in re.findall(r"^Environment=(.+)$", unit, re.MULTILINE) for word in line.split())
    (command,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    (user,) = re.findall(r"^User=(.+)$", unit, re.MULTILINE)
    (mode,) = re.findall(r"^RuntimeDirectoryMode=(.+)$", unit, re.MULTILINE)
    machine.run("install", "-d", "-o", user, "-m", mode, "/run/kernalyse")  # as systemd does, before each start
    rights = ("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--bounding-set=-all", "--no-new-privs")
    words = ("--unshare-net", "env", *(f"{name}={value}" for name, value in variables.items()), *rights, *shlex.split(command))
    with machine.path("/log").open("wb") as log:
        process = subprocess.Popen(machine.command(*words), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + TIME_S
        while not machine.path("/run/kernalyse/kernalyse/analyzer.json").exists():
            assert process.poll() is None, machine.path("/log").read_text()
            assert time.monotonic() < deadline, machine.path("/log").read_text()
            time.sleep(0.1)
        for child in psutil.Process(process.pid).children():
            child.terminate()
        assert process.wait(TIME_S) == 0, machine.path("/log").read_text()
    finally:
        for child in psutil.Process(process.pid).children() if process.poll() is None else ():
            child.kill()  # it has another user than bubblewrap and does not die with it
        process.wait(TIME_S)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif("INSTALL_SCRIPT" not in os.environ, reason="installs everything twice, in minutes: part install of `make soak`")
@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the machine")
def test_it_installs_upgrades_and_goes_without_the_data(machine: Machine, tmp_path: Path) -> None:
    wheel = built(ROOT, tmp_path)
    for file in (wheel, made_earlier(wheel)):
        shutil.copy(file, machine.path("/srv"))
    install = ("sh", "/media/install.sh")

    said = machine.run(*install, f"/srv/kernalyse-{EARLIER}-py3-none-any.whl[analyzer]")
    assert said.splitlines()[0].split()[-1] == EARLIER
    assert said.splitlines()[1].startswith("systemd does not run here; where it does: systemctl enable --now kernalyse-profiler")
    assert machine.run("id", "--groups", "--name", "kernalyse").split() == ["kernalyse"]
    assert machine.run("getent", "passwd", "kernalyse").strip().split(":")[5:] == ["/var/lib/kernalyse", "/usr/sbin/nologin"]
    settings, units = "/etc/kernalyse/kernalyse.toml", [f"/etc/systemd/system/{unit}.service" for unit in UNITS]
    described = ["kernalyse:kernalyse 700", "root:kernalyse 750", "root:kernalyse 640", "root:root 755", *["root:root 644"] * len(UNITS)]
    paths = ("/var/lib/kernalyse", "/etc/kernalyse", settings, "/opt/kernalyse", *units)
    assert machine.described(*paths) == described
    assert machine.run("getent", "group", "video", "render").count("\n") == 2
    targets = "/usr/lib/systemd/system"  # the bare Debian has none
    subprocess.run(("cp", "--archive", f"{targets}/.", machine.path(targets)), check=True)
    verify = ("systemd-analyze", f"--root={machine.root}", "verify", *units)
    verified = subprocess.run(verify, capture_output=True, text=True, check=False, timeout=TIME_S)
    assert (verified.returncode, verified.stderr) == (0, "")
    serves_as_its_unit_says(machine)
    catalogue = "/var/lib/kernalyse/data/kernalyse/store/catalogue.sqlite"
    assert machine.described(catalogue)[0].startswith("kernalyse:kernalyse")

    machine.path(settings).write_text('[analyzer]\nlog_format = "json"\n')
    machine.path("/usr/bin/systemctl").write_text(STAND_IN_SYSTEMCTL)
    machine.path("/usr/bin/systemctl").chmod(0o755)
    machine.path("/run/systemd/system").mkdir(parents=True)
    said = machine.run(*install, "--services", "analyzer,ui", f"/srv/{wheel.name}[analyzer]")
    assert said.splitlines()[0].split()[-1] == version("kernalyse")
    calls = machine.path("/systemctl-calls").read_text().splitlines()
    asked = [f"is-active --quiet kernalyse-{service}" for service in ("ui", "profiler", "analyzer")]
    assert calls == [*asked, "stop kernalyse-analyzer", "daemon-reload", "enable --now kernalyse-analyzer kernalyse-ui"]
    assert machine.described(*paths) == described
    assert "json" in machine.path(settings).read_text()
    serves_as_its_unit_says(machine)

    failed = subprocess.run(machine.command(*install, "/srv/nothing.whl"), capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == "install.sh: pip could not install /srv/nothing.whl[all]; kernalyse-analyzer was started again"
    assert machine.path("/systemctl-calls").read_text().splitlines()[-1] == "start kernalyse-analyzer"
    assert machine.run("/opt/kernalyse/bin/kernalyse", "--version").split()[-1] == version("kernalyse")

    said = machine.run(*install, "--uninstall")
    assert "Kept: data and tokens in /var/lib/kernalyse, settings in /etc/kernalyse, the user kernalyse." in said
    assert [path for path in ("/opt/kernalyse", *units) if machine.path(path).exists()] == []
    assert machine.described("/var/lib/kernalyse", "/etc/kernalyse", settings, catalogue)[:3] == described[:3]
    disabled = [call for call in machine.path("/systemctl-calls").read_text().splitlines() if call.startswith("disable")]
    assert disabled == [f"disable --now kernalyse-{service}" for service in ("profiler", "analyzer", "ui")]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--services", "analyser"), "--services analyser: expected some of profiler,analyzer,ui"),
        (("--prefix",), "--prefix needs a value; --help says which"),
        (("--prefix", "opt"), "--prefix opt: expected an absolute path of letters, digits, _ . and -, without / at its end"),
        (("--start",), "unknown option --start; --help lists them"),
    ],
)
def test_a_wrong_word_is_named_and_nothing_is_done(words: tuple[str, ...], told: str) -> None:
    done = subprocess.run(("sh", str(SCRIPT), *words), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"install.sh: {told}\n")


def test_its_help_names_every_option() -> None:
    done = subprocess.run(("sh", str(SCRIPT), "--help"), capture_output=True, text=True, check=True)
    options = set(re.findall(r"(?<![\w-])--[a-z-]+(?= ?[|)])", SCRIPT.read_text()))
    assert options == {"--help", "--prefix", "--services", "--no-start", "--uninstall"}
    assert [option for option in sorted(options - {"--help"}) if option not in done.stdout] == []
