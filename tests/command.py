"""The command `kernalyse` in the process of the tests."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import typer.main

from kernalyse.services.cli.main import main

command_of = cache(typer.main.get_command)  # made from every option's type: longer than many a command takes


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def kernalyse(*arguments: str | Path) -> Done:
    """The command in this process, which spares each call a new interpreter's seconds; the services are processes all the same."""
    stdout, stderr = StringIO(), StringIO()
    status: object = 0
    given = patch("sys.argv", ["kernalyse", *map(str, arguments)])
    with given, patch("typer.main.get_command", command_of), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    assert isinstance(status, int)
    return Done(status, stdout.getvalue(), stderr.getvalue())
