"""Words of `kernalyse profile` that cannot be carried out, and the files that go with a command."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.cli.bundles import command_files, files_of_directory, model_bundle, pack_files
from kernalyse.services.cli.profile_request import ProfileOptions, build_profile
from kernalyse.services.core.errors import BackendUnavailableError, CompileError, KernalyseError, UsageError

COMMAND = ("python", "train.py")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "nothing to profile"),
        ({"command": COMMAND, "prompt": "text"}, "found COMMAND and --prompt"),
        ({"target": Path("a"), "prompt": ""}, "found --target and --prompt"),
        ({"prompt": "  "}, "option --prompt: found no text"),
        ({"prompt": "text", "collector": "nsys"}, "option --collector: found a model by --prompt"),
        ({"prompt": "text", "step_count": 2}, "option --steps"),
        ({"prompt": "text", "model": Path("none.onnx")}, "option --model none.onnx: found no such file"),
        ({"command": COMMAND, "model": Path("a.onnx")}, "found no --prompt"),
        ({"command": COMMAND, "environment": ("1A=b",)}, "option --env 1A=b: found '1A'"),
        ({"command": COMMAND, "environment": ("NOWHERE",)}, "option --env NOWHERE: found no such variable here"),
        ({"command": COMMAND, "duration_s": 0.0}, "option --duration 0"),
        ({"command": COMMAND, "duration_s": float("nan")}, "option --duration nan"),
        ({"command": COMMAND, "bundle": Path("none")}, "option --bundle none: found no such directory"),
        ({"target": Path("none")}, "option --target none: found no such file"),
        ({"target": Path(__file__), "bundle": Path("none")}, "option --bundle none: found no such directory"),
    ],
)
def test_words_that_cannot_be_carried_out_are_named(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_profile(ProfileOptions(**words), environment={})
    assert message in caught.value.message


def test_a_file_that_is_no_program_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no program")
    with pytest.raises(UsageError, match=r"a file that cannot be executed.*chmod \+x"):
        build_profile(ProfileOptions(target=tmp_path / "notes"))


def test_what_a_bundle_passes_by_is_told(tmp_path: Path) -> None:
    """A link to a file goes as the file; one to a directory may lead anywhere, above the bundle too."""
    (tmp_path / "train.py").write_text("print()")
    (tmp_path / "again.py").symlink_to("train.py")
    built = build_profile(ProfileOptions(command=COMMAND, bundle=tmp_path))
    assert (built.bundle and built.bundle.file_names, built.notices) == (("again.py", "train.py"), ())
    (tmp_path / "data").symlink_to("..")
    (tmp_path / "gone").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    built = build_profile(ProfileOptions(command=COMMAND, bundle=tmp_path))
    assert built.bundle
    assert built.bundle.file_names == ("again.py", "train.py")
    assert built.notices == ("Does not go to the node, being links to directories or to nothing, or no files: 'data', 'gone', 'pipe'.",)


def nvcc_that(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "bin").mkdir()
    nvcc = directory / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n{script}\n")
    nvcc.chmod(0o700)
    monkeypatch.setenv("CUDA_HOME", str(directory))


def test_a_source_is_compiled_or_refused_in_the_words_of_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "add.cu"
    source.write_text("int main() { return 1 }")
    nvcc_that(tmp_path, 'echo "add.cu(1): error: expected a \\";\\"" >&2; exit 2', monkeypatch)
    with pytest.raises(CompileError, match=r"add\.cu\(1\): error: expected"):
        build_profile(ProfileOptions(target=source))
    (tmp_path / "bin" / "nvcc").write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; printf x > "$2"; chmod 700 "$2"\n')
    built = build_profile(ProfileOptions(target=source, command=("3",)))
    assert getattr(built.work, "arguments", None) == ("./add", "3")
    assert built.bundle is not None
    assert built.bundle.file_names == ("add",)


def test_without_nvcc_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "add.cu").write_text("")
    monkeypatch.setattr("kernalyse.services.core.external_programs.find_nvcc", lambda: None)
    with pytest.raises(BackendUnavailableError, match="Install the CUDA toolkit"):
        build_profile(ProfileOptions(target=tmp_path / "add.cu"))


def test_a_command_takes_the_files_along_that_it_names_in_its_directory(tmp_path: Path) -> None:
    for name in ("train.py", "data/a.txt", "data/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    arguments = ("python", "./train.py", "--data", "data/a.txt", "data", "../outside", str(tmp_path / "data/b.txt"), "missing", "")
    assert list(command_files(arguments, tmp_path)) == ["train.py", "data/a.txt"]


def test_files_that_the_node_has_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert build_profile(ProfileOptions(COMMAND)).bundle is not None
    assert build_profile(ProfileOptions(COMMAND, has_files_there=True)).bundle is None


def test_a_directory_is_packed_without_what_only_belongs_here(tmp_path: Path) -> None:
    for name in ("a.py", ".git/HEAD", "pkg/__pycache__/a.pyc", "pkg/b.py", ".venv/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link.py").symlink_to("a.py")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "gone.py").symlink_to("nowhere")
    files = files_of_directory(tmp_path)
    assert list(files) == ["a.py", "link.py", "pkg/b.py"]
    assert pack_files(files).data == pack_files(files).data


def test_more_than_nodes_take_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2 * 1024**3)
    with pytest.raises(KernalyseError, match="files for the node: found 2147483648 bytes"):
        pack_files(files_of_directory(tmp_path))


def test_a_directory_of_too_many_files_is_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernalyse.bundle.MAX_FILE_COUNT", 3)
    for number in range(3):
        (tmp_path / str(number)).touch()
    assert len(files_of_directory(tmp_path)) == 3
    (tmp_path / "one more").touch()
    with pytest.raises(KernalyseError, match=f"directory {tmp_path}: found more than 3 files; expected at most 3. Leave data out"):
        files_of_directory(tmp_path)


def test_a_directory_that_cannot_be_read_is_not_left_out_unsaid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system refuses it: tests may run as a user that may read anything."""
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(KernalyseError, match="locked: found Permission denied; expected a file or directory that can be read"):
        files_of_directory(tmp_path)


def test_a_model_by_another_ending_is_no_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("hello")
    with pytest.raises(KernalyseError, match=r"model .*x\.txt: found a file of another kind; expected a file FILE\.onnx"):
        build_profile(ProfileOptions(prompt="hello", model=path))
    with pytest.raises(KernalyseError, match=r"expected a file FILE\.onnx"):
        model_bundle(str(path), None)
