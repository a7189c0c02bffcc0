"""kernalyse.services.profiler.runs.files: what a run has left is read, and nothing that it has put a link to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernalyse.services.core.errors import ArtifactNotFoundError
from kernalyse.services.core.model import KernelSelection, KernelSweep, RunSpec
from kernalyse.services.profiler.runs.files import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found = RunDirectory(tmp_path / "runs", "run")
    found.prepare(RunSpec(KernelSweep((KernelSelection("saxpy"),))), {})
    return found


@pytest.fixture
def artifacts(directory: RunDirectory) -> Path:
    found = directory.working_directory / "artifacts"
    (found / "below").mkdir()
    (found / "below" / "a.txt").write_text("text")
    return found


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    found = tmp_path / "secrets" / "token"
    found.parent.mkdir()
    found.write_text("a secret")
    return found


def test_a_file_is_opened_by_its_path(directory: RunDirectory, artifacts: Path) -> None:
    with directory.open_artifact("below/a.txt") as file:
        assert file.read() == b"text"
    assert directory.artifacts_size_bytes() == 4


NO_FILES = ("", ".", "..", "/etc/passwd", "below", "below/", "below/../below/a.txt", "../../spec.pb", "a\0b", "x" * 300)


@pytest.mark.parametrize("name", NO_FILES)
def test_other_names_are_no_files_and_the_error_says_which_there_are(directory: RunDirectory, artifacts: Path, name: str) -> None:
    with pytest.raises(ArtifactNotFoundError, match=r"expected one of below/a\.txt"):
        directory.open_artifact(name)


def test_links_are_followed_nowhere(directory: RunDirectory, artifacts: Path, secret: Path) -> None:
    (artifacts / "token").symlink_to(secret)
    (artifacts / "elsewhere").symlink_to(secret.parent, target_is_directory=True)
    for name in ("token", "elsewhere/token"):
        with pytest.raises(ArtifactNotFoundError):
            directory.open_artifact(name)
    assert directory.artifacts_size_bytes() == 4


def test_a_link_in_the_place_of_the_directory_is_none(directory: RunDirectory, artifacts: Path, secret: Path) -> None:
    artifacts.rename(artifacts.with_name("moved"))
    artifacts.symlink_to(secret.parent, target_is_directory=True)
    with pytest.raises(ArtifactNotFoundError, match="the run has left no artifact"):
        directory.open_artifact("token")
    assert directory.artifacts_size_bytes() == 0
    directory.delete_artifacts()
    directory.keep_artifacts_only()
    assert secret.read_text() == "a secret"


def test_a_pipe_is_no_file(directory: RunDirectory, artifacts: Path) -> None:
    os.mkfifo(artifacts / "pipe")
    with pytest.raises(ArtifactNotFoundError):
        directory.open_artifact("pipe")
