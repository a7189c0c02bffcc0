"""Every lock file holds what pyproject.toml asks for, in its ranges, on every Python that can run kernalyse."""

from __future__ import annotations

import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT: Final = Path(__file__).parents[3]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
MAIN_LOCK: Final = "requirements.lock"

pytestmark = pytest.mark.skipif(not (ROOT / "Makefile").is_file(), reason="needs the checkout")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def environment(python: str) -> dict[str, str]:
    """Return the markers' values of x86-64 Linux with this Python."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "extra": "",
    }


def lock_options() -> dict[str, tuple[list[str], list[str], bool]]:
    """Return the extras and dependency groups that `make lock` resolves into each file, and whether with the project's dependencies."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    found = {}
    for line in re.findall(r"^\t\$\(UV_COMPILE\) (.*)$", text, re.MULTILINE):
        words = shlex.split(line)
        valued = list(pairwise(words))
        file_name = next(value for option, value in valued if option == "--output-file")
        found[file_name] = ([v for o, v in valued if o == "--extra"], [v for o, v in valued if o == "--group"], "pyproject.toml" in words)
    return found


def asked_for(extras: list[str], groups: list[str], has_project: bool) -> list[Requirement]:
    """Return what pyproject.toml asks for, with the extras that its extras name."""
    document = project()
    texts = list(document["project"]["dependencies"]) if has_project else []
    for group in groups:
        texts += document["dependency-groups"][group]
    waiting = list(extras)
    while waiting:
        for text in document["project"]["optional-dependencies"][waiting.pop()]:
            requirement = Requirement(text)
            if requirement.name == document["project"]["name"]:
                waiting += requirement.extras
            else:
                texts.append(text)
    return [Requirement(text) for text in texts]


def locked(file_name: str, python: str) -> dict[str, Version]:
    """Return the version of each package that the file installs on this Python."""
    found: dict[str, Version] = {}
    for line in re.findall(r"^([A-Za-z0-9][^\s;]*==[^\\\n]*)", (ROOT / file_name).read_text(), re.MULTILINE):
        requirement = Requirement(line.strip())
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            name = canonicalize_name(requirement.name)
            (pin,) = requirement.specifier
            assert name not in found, f"{file_name} has two versions of {name} for Python {python}"
            found[name] = Version(pin.version)
    return found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("file_name", "options"), lock_options().items(), ids=lambda value: value if isinstance(value, str) else "")
def test_locked_versions_lie_within_the_ranges_of_pyproject(
    file_name: str, options: tuple[list[str], list[str], bool], python: str
) -> None:
    versions = locked(file_name, python)
    wrong = []
    for requirement in asked_for(*options):
        if requirement.marker is not None and not requirement.marker.evaluate(environment(python)):
            continue
        version = versions.get(canonicalize_name(requirement.name))
        if version is None or version not in requirement.specifier:
            wrong.append(f"{file_name}, Python {python}: expected {requirement}, found {version}")
    assert not wrong, "\n".join([*wrong, "Run `make lock`."])


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_agree_on_the_version_of_each_package(python: str) -> None:
    expected = locked(MAIN_LOCK, python)
    for file_name in lock_options():
        shared = {name: version for name, version in locked(file_name, python).items() if name in expected}
        assert shared == {name: expected[name] for name in shared}, file_name


def test_every_lock_file_is_made_by_make_lock_and_checked_on_every_python() -> None:
    files = {str(path.relative_to(ROOT)) for directory in (ROOT, ROOT / "deploy") for path in directory.glob("*.lock")}
    assert files == set(lock_options())
    assert project()["project"]["requires-python"] == f">={PYTHONS[0]}"
