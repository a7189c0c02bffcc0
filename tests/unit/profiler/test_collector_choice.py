"""The collector of a command for which none was named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.core.errors import CollectorUnavailableError, InvalidParameterError
from kernalyse.services.core.model import CommandProfile
from kernalyse.services.profiler.collectors.preflight import check_command
from kernalyse.services.profiler.workloads import command
from kernalyse.services.profiler.workloads.command import select_collector

TRAIN = CommandProfile(("/opt/venv/bin/python3.12", "train.py"), "")
PROGRAM = CommandProfile(("./app",), "")


@pytest.fixture(params=[True, False], ids=["nsys", "no nsys"])
def has_nsys(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(command, "locate_nsys", lambda setting, environment: "/usr/bin/nsys" if request.param else None)
    return bool(request.param)


def chosen(profile: CommandProfile) -> str:
    check_command(profile)
    return select_collector(profile, {}, None).collector


def test_nsys_comes_first_and_kineto_takes_python_programs_alone(has_nsys: bool) -> None:
    assert chosen(TRAIN) == ("nsys" if has_nsys else "kineto")
    assert chosen(replace(TRAIN, collector="proton")) == "proton"
    if has_nsys:
        assert chosen(PROGRAM) == "nsys"
    else:
        with pytest.raises(CollectorUnavailableError, match=r"a collector for \./app: found no nsys.*Install Nsight Systems"):
            chosen(PROGRAM)


@pytest.mark.parametrize(("option", "fits"), [({"with_cpu_sampling": True}, "nsys"), ({"step_count": 2}, "kineto")])
def test_an_option_has_to_fit_what_is_chosen(has_nsys: bool, option: dict[str, Any], fits: str) -> None:
    profile = replace(TRAIN, **option)
    if (fits == "nsys") is has_nsys:
        assert chosen(profile) == fits
    else:
        with pytest.raises(InvalidParameterError, match=f"expected collector {fits} with it"):
            chosen(profile)


def test_an_option_that_no_choice_has_is_refused_at_once() -> None:
    with pytest.raises(InvalidParameterError, match="gemm with collector nsys or kineto; expected collector ncu with it"):
        check_command(replace(TRAIN, kernel_filter="gemm"))
