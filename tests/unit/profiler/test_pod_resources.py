"""Which pods hold which devices, asked of a stand-in for kubelet: a gRPC server on a Unix socket that speaks its pod-resources API."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pynvml
import pytest

from kernalyse.kubelet.v1.pod_resources_pb2 import ContainerDevices, ContainerResources, ListPodResourcesResponse, PodResources
from kernalyse.services.core.formatting import device_use
from kernalyse.services.core.model import Device, DeviceKind
from kernalyse.services.profiler.node import open_readers
from kernalyse.services.profiler.pod_resources import INTERVAL_S, PodDevices


class StandInKubelet:
    """Answers List with its pods, or with an error."""

    def __init__(self) -> None:
        self.pods: list[PodResources] = []
        self.question_count = 0
        self.fails = False

    def list(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        self.question_count += 1
        if self.fails:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        # Fields 2 and 4 of an answer of a newer kubelet, of a kind that nobody here knows: 12 bytes that are skipped.
        return ListPodResourcesResponse(pod_resources=self.pods).SerializeToString() + b"\x12\x03new\x22\x05newer"


@contextmanager
def serving(kubelet: StandInKubelet, path: Path) -> Iterator[None]:
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"List": grpc.unary_unary_rpc_method_handler(kubelet.list)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


def pod(name: str, *device_ids: str, resource_name: str = "nvidia.com/gpu") -> PodResources:
    devices = [ContainerDevices(resource_name=resource_name, device_ids=device_ids)] if device_ids else []
    return PodResources(name=name, namespace="team", containers=[ContainerResources(name="main", devices=devices)])


@pytest.fixture
def now_s() -> list[float]:
    return [0.0]


def test_pods_are_told_by_the_devices_that_they_hold(tmp_path: Path, now_s: list[float]) -> None:
    kubelet = StandInKubelet()
    kubelet.pods = [
        pod("train-0", "GPU-1", "GPU-2"),
        pod("web"),
        pod("shared-b", "GPU-3::1"),
        pod("shared-a", "GPU-3::0", "GPU-3::2"),
        pod("nic", "GPU-4", resource_name="example.com/nic"),
        pod("kernalyse-profiler-abc", "GPU-5"),
    ]
    path = tmp_path / "kubelet.sock"
    with serving(kubelet, path), closing(PodDevices(path, "kernalyse-profiler-abc", lambda: now_s[0])) as pods:
        told = {uuid: pods.holders(uuid) for uuid in ("GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5")}
        assert told == {
            "GPU-1": ("pod team/train-0",),
            "GPU-2": ("pod team/train-0",),
            "GPU-3": ("pod team/shared-a", "pod team/shared-b"),
            "GPU-4": (),
            "GPU-5": (),
        }
        assert kubelet.question_count == 1
        kubelet.pods = []
        now_s[0] += INTERVAL_S
        assert pods.holders("GPU-1") == ()
        assert kubelet.question_count == 2


def test_what_kubelet_does_not_tell_is_unknown_said_once_and_asked_again(
    tmp_path: Path, now_s: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    kubelet = StandInKubelet()
    kubelet.fails = True
    path = tmp_path / "kubelet.sock"
    with closing(PodDevices(path, "", lambda: now_s[0])) as pods:
        assert pods.holders("GPU-1") is None  # no socket: no kubelet here, which is no problem
        assert not caplog.records
        with serving(kubelet, path):
            for _ in range(2):
                now_s[0] += INTERVAL_S
                assert pods.holders("GPU-1") is None
            assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
                "rejected by rate limit. Kubelet's socket is open to root alone."
            ]
            kubelet.fails, kubelet.pods = False, [pod("train-0", "GPU-1")]
            now_s[0] += INTERVAL_S
            assert pods.holders("GPU-1") == ("pod team/train-0",)


def test_telemetry_tells_pods_beside_processes_and_no_pod_is_not_free_where_nvml_cannot_tell(tmp_path: Path) -> None:
    def refuse(*arguments: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    functions = [name for name, value in vars(pynvml).items() if name.startswith("nvmlDevice") and callable(value)]
    by_uuid = {"nvmlDeviceGetHandleByUUID": lambda uuid: uuid}
    nvml = SimpleNamespace(**{**vars(pynvml), **dict.fromkeys(functions, refuse), "nvmlEventSetCreate": refuse, **by_uuid})
    kubelet = StandInKubelet()
    kubelet.pods = [pod("train-0", "GPU-1")]
    path = tmp_path / "kubelet.sock"
    devices = [Device(f"cuda:{index}", "H100", DeviceKind.GPU, (), uuid=f"GPU-{index}") for index in (1, 2)]
    with serving(kubelet, path), closing(PodDevices(path, "")) as pods:
        _, held, free = (reader.read() for reader in open_readers(devices, lambda: nvml, pods=pods))
    assert held.other_processes == ("pod team/train-0",)
    assert free.other_processes is None


def test_pods_and_processes_are_counted_apart() -> None:
    assert device_use(("pod team/a",)) == "used by 1 pod (pod team/a)"
    assert device_use(("pod team/a", "pod team/b", "python 7")) == "used by 2 pods and 1 other process (pod team/a, pod team/b, python 7)"
