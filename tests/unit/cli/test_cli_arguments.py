"""What the command line understands, and what it says to the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernalyse.services.cli.session import checkout_revision, describe_exit
from kernalyse.services.core.errors import InvalidExpressionError, UsageError
from kernalyse.services.core.formatting import duration, giga, median_with_interval, percentage, size
from kernalyse.services.core.model import ArgumentDefinition, Axis, Dim3, Revision, Tie
from kernalyse.services.core.request_syntax import (
    MAX_VALUE_COUNT,
    parse_argument,
    parse_axes,
    parse_axis,
    parse_blocks,
    parse_buffer,
    parse_tie,
)
from tests.command import kernalyse


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("N=128,256", (128, 256)),
        ("N=1024", (1024,)),
        ("N=2**7..2**10", (128, 256, 512, 1024)),
        ("N=3**0..3**2", (1, 3, 9)),
        ("N=2**5", (32,)),
        ("N=32..128:32", (32, 64, 96, 128)),
        ("N=32..100:32", (32, 64, 96)),
        ("N=5..5:1", (5,)),
        ("N=-2..0:1", (-2, -1, 0)),
        ("N=1, 2**3..2**4 ,100..300:100", (1, 8, 16, 100, 200, 300)),
        ("N=64,32,64", (64, 32)),
        ("N=2**62", (2**62,)),
        ("N=1**0..1**999", (1,)),
    ],
)
def test_values_of_a_parameter(text: str, values: tuple[int, ...]) -> None:
    assert parse_axis(text) == Axis("N", values)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("N", "'N'"),
        ("N=", "'N='"),
        ("=1", "'=1'"),
        ("2N=1", "'2N=1'"),
        ("N=a", "'a'"),
        ("N=1.5", "'1.5'"),
        ("N=1,,2", "''"),
        ("N=1..4", r"'1\.\.4'; expected a range with its step.*1\.\.4:1"),
        ("N=4..1:1", "goes down"),
        ("N=1..4:0", "step 0"),
        ("N=1..4:-1", r"'1\.\.4:-1'"),
        ("N=2**7..3**9", "bases 2 and 3"),
        ("N=2**9..2**7", "goes down"),
        ("N=2**64", r"2\*\*64"),
        ("N=10**999", r"10\*\*999"),
        ("N=9223372036854775808", "9223372036854775808"),
        ("N=1..10000000:1", f"10000000 values; expected at most {MAX_VALUE_COUNT}"),
        ("N=__import__('os')", "'__import__"),
        ("N=1;2", "'1;2'"),
    ],
)
def test_bad_values_name_option_found_and_expected(text: str, found: str) -> None:
    with pytest.raises(UsageError, match=rf"option -p .*: found .*{found}.*; expected|option -p .*: found {found}"):
        parse_axis(text)


def test_a_parameter_is_given_once() -> None:
    with pytest.raises(UsageError, match="the name N 2 times"):
        parse_axes(["N=1", "M=2", "N=3"])


def test_ties_arguments_buffers_and_blocks() -> None:
    assert parse_tie("M=N") == Tie("M", "N")
    assert parse_argument("alpha=2.0") == ArgumentDefinition("alpha", "2.0")
    assert parse_buffer("a = N*K") == ("a", "N*K")
    assert parse_blocks("256") == (Dim3(256),)
    assert parse_blocks("16x16, 8X8x4,16x16") == (Dim3(16, 16), Dim3(8, 8, 4))


@pytest.mark.parametrize("text", ["M", "M=", "=N", "M=2", "M=N*2"])
def test_a_bad_tie_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="option --tie"):
        parse_tie(text)


@pytest.mark.parametrize("text", ["", "x", "16x", "0x16", "-1", "1x1x1x1", "16*16", "1.5", "999999", "16,", "16;32", "16x16,y"])
def test_a_bad_block_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="option --block"):
        parse_blocks(text)


def test_a_bad_expression_of_an_argument_is_refused() -> None:
    with pytest.raises(InvalidExpressionError):
        parse_argument("alpha=2..0")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(0.5), "0.5 ns"),
        (duration(1234.0), "1.234 µs"),
        (duration(2.5e9), "2.5 s"),
        (duration(None), "–"),
        (size(3 * 2**30), "3 GiB"),
        (giga(2.5e10), "25"),
        (giga(None), "–"),
        (percentage(0.1234), "12.3 %"),
        (median_with_interval(1e6, 0.99e6, 1.01e6), "1 ms ±1 %"),
        (describe_exit(-9), "was ended by SIGKILL"),
        (describe_exit(3), "ended with status 3"),
    ],
)
def test_what_people_read(shown: str, expected: str) -> None:
    assert shown == expected


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    return subprocess.run(("git", "-C", str(directory), *identity, *arguments), check=True, capture_output=True, text=True).stdout


def test_the_revision_is_commit_and_dirty_flag(tmp_path: Path) -> None:
    assert checkout_revision(tmp_path) is None
    git(tmp_path, "init")
    assert checkout_revision(tmp_path) is None  # no commit yet
    (tmp_path / "kernel.cu").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "notes").write_text("not tracked")
    assert checkout_revision(tmp_path) == Revision(commit, is_dirty=False)
    (tmp_path / "kernel.cu").write_text("b")
    (tmp_path / "below").mkdir()
    assert checkout_revision(tmp_path / "below") == Revision(commit, is_dirty=True)


@pytest.mark.slow
def test_text_in_another_encoding_is_refused_as_that() -> None:
    ended = kernalyse("profile", "--prompt", os.fsdecode(b"caf\xe9"))
    assert (ended.returncode, "found what is not UTF-8; expected UTF-8" in ended.stderr) == (2, True), ended.stderr


def test_help_is_quick_and_names_every_command() -> None:
    before = os.times()
    done = subprocess.run([sys.executable, "-m", "kernalyse.services.cli.main", "--help"], capture_output=True, text=True, check=False)
    assert os.times().children_user - before.children_user < 3
    assert done.returncode == 0
    for command in ("up", "profiler", "analyzer", "ui", "bench", "runs", "show", "nodes", "devices", "doctor", "cancel"):
        assert f" {command} " in done.stdout


def test_help_loads_no_service() -> None:
    code = (
        "import sys\nfrom kernalyse.services.cli.main import app\n"
        "slow = {'grpc', 'google.protobuf', 'lark', 'numpy', 'panel', 'polars', 'pydantic', 'kernalyse.services.core.model'}\n"
        "heavy = slow & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "saxpy", "-p", "N=1..4"), "option -p N=1..4: found '1..4'"),
        (("bench", "saxpy", "--block", "x"), "option --block x"),
        (("bench", "no_such_file.cu:saxpy"), "no_such_file.cu"),
        (("bench",), "Missing argument"),
        (("show", "last", "--format", "parquet"), "option --format parquet"),
        (("runs", "--server", "node7:1", "--token", "t"), "without TLS"),
        (("runs", "--server", "127.0.0.1:1"), "found no token"),
        (("no-such-command",), "No such command"),
        (("profiler", "--no-such-flag"), "unrecognized arguments"),
    ],
)
def test_bad_usage_ends_with_status_2_and_no_traceback(arguments: tuple[str, ...], message: str) -> None:
    done = kernalyse(*arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_bad_setting_ends_with_status_1_and_its_message() -> None:
    done = kernalyse("profiler", "--grace-s", "soon")
    assert done.returncode == 1
    assert "setting profiler.grace_s: found 'soon'" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_of_a_service_shows_every_setting() -> None:
    done = kernalyse("profiler", "--help")
    assert done.returncode == 0
    for flag in ("--address", "--drain-s", "--opencl-runtime", "--allow-catalog-only", "--insecure"):
        assert flag in done.stdout


@pytest.mark.parametrize(
    ("path", "found"), [("missing/results.json", "no directory missing"), (".", "a directory")], ids=["no directory", "a directory"]
)
@pytest.mark.parametrize(
    "command", [("bench", "saxpy", "--json"), ("rerun", "last", "--json"), ("report", "last", "-o")], ids=lambda parts: parts[0]
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    command: tuple[str, ...], path: str, found: str, tmp_path: Path
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kernalyse.services.cli.main", *command, path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, f"file {path}: found {found}; expected a file to write" in done.stderr) == (2, True), done.stderr


def test_what_a_failed_command_leaves_is_freed_while_threads_still_run() -> None:
    script = """
import sys
import grpc
from kernalyse.services.cli import main
from kernalyse.services.core.errors import InternalError

class Call:
    def __init__(self):
        self.circle = self
    def __del__(self):
        print(sys.is_finalizing())

def app():
    call = Call()
    raise InternalError("the analyzer", found="nothing", expected=f"{id(call)}", remedy="None.")

main.app = app
main.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "False\n"), done.stderr
