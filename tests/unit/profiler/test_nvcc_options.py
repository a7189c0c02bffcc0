"""The options that nvcc is given."""

from __future__ import annotations

import pytest

from kernalyse.services.profiler.backends.cuda.compiler import names_architecture


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), False),
        (("-O3", "-DARCH=1"), False),
        (("-arch=sm_90a",), True),
        (("-arch", "sm_90a"), True),
        (("-gencode=arch=compute_90,code=sm_90",), True),
        (("--gpu-architecture=sm_80",), True),
    ],
)
def test_the_users_own_architecture_is_seen(options: tuple[str, ...], expected: bool) -> None:
    assert names_architecture(options) is expected
