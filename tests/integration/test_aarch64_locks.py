"""The locks of the images resolve for aarch64 (GH200, GB200): each pin has a wheel there, and its hash is in the lock."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHON_VERSION: Final = "3.12"
PLATFORMS: Final = (*(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)), "manylinux2014_aarch64")
"""What Debian 12, with glibc 2.36, installs."""

BUILT_THERE: Final = {"pycuda": "has no wheel for any machine: the stage `cuda` builds it against its toolkit"}
ENVIRONMENT: Final = {
    "implementation_name": "cpython",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON_VERSION}.0",
    "python_version": PYTHON_VERSION,
    "sys_platform": "linux",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "deploy").is_dir(), reason="needs the checkout"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]


def pins(lock: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Return requirement and SHA-256 digests of each package that the lock names for aarch64. pip takes markers for this machine's."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for block in re.split(r"\n(?=\S)", lock.read_text()):
        pin = re.match(r"(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+))?", block)
        if pin is None or (pin["marker"] and not Marker(pin["marker"].strip()).evaluate(ENVIRONMENT)):
            continue
        found[canonicalize_name(pin["name"])] = f"{pin['name']}=={pin['version']}", frozenset(re.findall(r"sha256:(\w+)", block))
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("lock", ["deploy/dashboard.lock", "deploy/profiler.lock", "deploy/sbom.lock", "requirements-cuda.lock"])
def test_each_pin_has_a_wheel_for_aarch64_whose_hash_is_in_the_lock(
    lock: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    wanted = {name: pin for name, pin in pins(ROOT / lock).items() if name not in BUILT_THERE}
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("".join(f"{requirement}\n" for requirement, _ in wanted.values()))
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    options += ["--implementation=cp", "--python-version", PYTHON_VERSION, *(f"--platform={platform}" for platform in PLATFORMS)]
    # pip compares Requires-Python and markers with the Python that it runs on, whatever --python-version says.
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(tmp_path / "target"), "--report", "-"]
    done = subprocess.run([*command, "--requirement", str(requirements)], capture_output=True, text=True, check=False)
    if done.returncode and re.search("connection|timed out|resolution", done.stderr, re.IGNORECASE):
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    chosen = {canonicalize_name(one["metadata"]["name"]): one["download_info"] for one in json.loads(done.stdout)["install"]}
    assert set(chosen) == set(wanted)
    unlocked = [name for name, source in chosen.items() if source["archive_info"]["hashes"]["sha256"] not in wanted[name][1]]
    assert unlocked == []
    native = sorted(name for name, source in chosen.items() if not source["url"].partition("#")[0].endswith("-any.whl"))
    record_property("told", f"{lock}: {len(chosen)} wheels for aarch64, {len(native)} of them native: {', '.join(native)}")


def test_only_what_is_built_in_the_stage_with_the_toolkit_has_no_wheel() -> None:
    assert set(BUILT_THERE) <= set(pins(ROOT / "requirements-cuda.lock"))
    for lock in ("dashboard", "profiler", "sbom"):
        assert not set(BUILT_THERE) & set(pins(ROOT / "deploy" / f"{lock}.lock"))
