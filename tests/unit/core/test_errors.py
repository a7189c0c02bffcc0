"""kernalyse.services.core.errors: one tree, every class with a code and a reason of its own."""

from __future__ import annotations

import re
from collections import Counter

import grpc
import pytest

from kernalyse.services.core import errors
from kernalyse.services.core.errors import (
    InternalError,
    InvalidParameterError,
    KernalyseError,
    RunNotFoundError,
    error_class,
    error_classes,
)

ALL_CLASSES = [cls for cls in error_classes() if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_every_error_has_a_code_that_grpc_knows(cls: type[KernalyseError]) -> None:
    assert cls.code in grpc.StatusCode.__members__
    assert cls.code != "OK"


def test_every_error_has_a_reason_of_its_own() -> None:
    counts = Counter(cls.reason for cls in ALL_CLASSES)
    assert [reason for reason, count in counts.items() if count > 1] == []
    assert all(re.fullmatch(r"[A-Z][A-Z_]+", reason) for reason in counts)


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_the_tree_in_the_docstring_names_every_error(cls: type[KernalyseError]) -> None:
    assert cls.__name__ in (errors.__doc__ or "")


def test_a_message_names_subject_found_expected_and_remedy() -> None:
    error = InvalidParameterError("parameter N of kernel saxpy", found="0", expected="at least 1", remedy="Choose a larger value.")
    assert error.message == "parameter N of kernel saxpy: found 0; expected at least 1. Choose a larger value."
    assert str(error) == error.message
    assert error.metadata == {
        "subject": "parameter N of kernel saxpy",
        "found": "0",
        "expected": "at least 1",
        "remedy": "Choose a larger value.",
    }


def test_empty_parts_are_left_out() -> None:
    error = RunNotFoundError("run 7", found="no such run")
    assert error.message == "run 7: no such run."
    assert error.metadata == {"subject": "run 7", "found": "no such run"}


@pytest.mark.parametrize("cls", ALL_CLASSES)
def test_a_reason_leads_back_to_its_class(cls: type[KernalyseError]) -> None:
    assert error_class(cls.reason) is cls


def test_a_reason_of_a_later_version_becomes_an_internal_error() -> None:
    assert error_class("NOT_INVENTED_YET") is InternalError
