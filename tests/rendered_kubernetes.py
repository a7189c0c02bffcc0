"""The objects of deploy/kubernetes as kubectl renders them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

KUBERNETES: Final = Path(__file__).parents[1] / "deploy" / "kubernetes"
OVERLAYS: Final = ("one-machine", "fleet", "postgresql-s3", "dask")
RENDERED: Final = (*(f"overlays/{name}" for name in OVERLAYS), "measure")


@functools.cache
def rendered(directory: str) -> tuple[dict[str, Any], ...]:
    """All objects of a directory below deploy/kubernetes."""
    done = subprocess.run(("kubectl", "kustomize", KUBERNETES / directory), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return tuple(yaml.safe_load_all(done.stdout))


def named(directory: str, kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in rendered(directory) if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def makers(directory: str) -> Iterator[dict[str, Any]]:
    """Each object that makes pods."""
    yield from (one for one in rendered(directory) if "template" in one.get("spec", {}))


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a pod's spec, in the order in which they start."""
    return [*pod.get("initContainers", []), *pod["containers"]]
