"""What the tests on an NVIDIA device share: skips with a reason where there is none, and a file of the figures they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernalyse.services.core.model import BackendName, Device
from kernalyse.services.profiler.backends.base import DeviceSession
from kernalyse.services.profiler.backends.discovery import CUDA_BACKENDS, open_backend
from tests.gpu.records import DIRECTORY, write_record
from tests.integration.devices import found_devices

RecordFigure = Callable[..., None]


IS_WHOLE_RUN = DIRECTORY is not None  # run.sh names one: then a backend that is missing beside another one is a failure


def _devices_by_backend() -> tuple[dict[BackendName, Device], str]:
    devices, notices = found_devices()
    found = {backend: device for device in reversed(devices) for backend in device.backends}
    return {backend: found[backend] for backend in CUDA_BACKENDS if backend in found}, " ".join(
        notice for notice in notices if any(backend in notice for backend in CUDA_BACKENDS)
    )


DEVICES, MISSING = _devices_by_backend()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.cuda)
            if not DEVICES:
                item.add_marker(pytest.mark.skip(reason=f"no NVIDIA device: {MISSING}"))


@pytest.fixture(scope="session")
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was compiled by one test need not be by the next."""
    return tmp_path_factory.mktemp("compiled")


def require(name: BackendName) -> None:
    """Skips, or in a whole run fails, with what a missing backend lacks."""
    if name not in DEVICES:
        (pytest.fail if IS_WHOLE_RUN else pytest.skip)(MISSING)


def opened(name: BackendName, cache_directory: Path) -> DeviceSession:
    """A session on the first device."""
    require(name)
    return open_backend(name, cache_directory).open()


@pytest.fixture(params=CUDA_BACKENDS, ids=lambda name: name.lower())
def cuda_backend(request: pytest.FixtureRequest) -> BackendName:
    """Each backend for NVIDIA devices, after the other."""
    name: BackendName = request.param
    require(name)
    return name


@pytest.fixture
def session(cuda_backend: BackendName, cache_directory: Path) -> Iterator[DeviceSession]:
    session = opened(cuda_backend, cache_directory)
    yield session
    session.close()


@pytest.fixture
def pycuda_session(cache_directory: Path) -> Iterator[DeviceSession]:
    session = opened(BackendName.PYCUDA, cache_directory)
    yield session
    session.close()


@pytest.fixture
def figure(request: pytest.FixtureRequest, tmp_path: Path) -> RecordFigure:
    """Call it with `name` and numbers or words by name: one record of the call, or of the test alone."""

    def record(name: str, **values: object) -> None:
        write_record(DIRECTORY or tmp_path, record="figure", values={"test": request.node.name, "figure": name, **values})

    return record
