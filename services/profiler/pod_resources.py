"""Which pods of a Kubernetes node hold which NVIDIA devices, as kubelet tells on its pod-resources socket."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from kernalyse.kubelet.v1 import pod_resources_pb2

logger = logging.getLogger(__name__)

LIST_METHOD: Final = "/v1.PodResourcesLister/List"
VENDOR: Final = "nvidia.com/"
INTERVAL_S: Final = 5.0
"""Between two questions to kubelet, which answers with all pods of the machine. Longer, and a pod that has just come is missed."""
TIMEOUT_S: Final = 1.0  # telemetry waits for the answer: a kubelet that hangs must not hold it up
MAX_ANSWER_BYTES: Final = 16 * 1024**2  # what kubelet itself sends at most
REPLICA_SEPARATOR: Final = "::"  # "GPU-…::1" of a device that the plugin shares by time


class PodDevices:
    """The pods that hold the devices of this machine, read anew every few seconds. On one thread.

    Args:
        path: of kubelet's socket, which may be missing, or come later.
        own_pod_name: of the pod that this service runs in, which is left out.
    """

    def __init__(self, path: Path, own_pod_name: str | None = None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._own_pod_name = socket.gethostname() if own_pod_name is None else own_pod_name
        self._clock_s = clock_s
        self._next_s = -math.inf
        self._channel: Any = None
        self._holders: Mapping[str, tuple[str, ...]] | None = None
        self._told_problem = ""

    def holders(self, uuid: str) -> tuple[str, ...] | None:
        """Return the pods that hold a device, each as "pod NAMESPACE/NAME"; None: kubelet does not tell.

        A device whose plugin names it otherwise than by its UUID, as by its index or by a MIG instance, has none.
        """
        if self._clock_s() >= self._next_s:
            self._next_s = self._clock_s() + INTERVAL_S
            self._holders = self._read()
        return None if self._holders is None else self._holders.get(uuid, ())

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _read(self) -> Mapping[str, tuple[str, ...]] | None:
        try:
            if not self._path.exists():
                return None  # a machine without kubelet, or a pod that has not mounted its directory
            answer = self._list(pod_resources_pb2.ListPodResourcesRequest(), timeout=TIMEOUT_S)
        except (OSError, grpc.RpcError) as error:
            self._tell(error.details() if isinstance(error, grpc.Call) else str(error))
            return None
        self._told_problem = ""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for pod in answer.pod_resources:
            if pod.name[:63] == self._own_pod_name:  # a pod's host name is its own, cut
                continue
            devices = (devices for container in pod.containers for devices in container.devices)
            for device_id in (one for some in devices if some.resource_name.startswith(VENDOR) for one in some.device_ids):
                found[device_id.partition(REPLICA_SEPARATOR)[0]].add(f"pod {pod.namespace}/{pod.name}")
        return {uuid: tuple(sorted(pods)) for uuid, pods in found.items()}

    @property
    def _list(self) -> Any:
        if self._channel is None:
            # Kubelet's HTTP/2 refuses a path as the name of its host.
            options = (("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.default_authority", "localhost"))
            self._channel = grpc.insecure_channel(f"unix:{self._path}", options)
        return self._channel.unary_unary(
            LIST_METHOD,
            request_serializer=pod_resources_pb2.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pod_resources_pb2.ListPodResourcesResponse.FromString,
        )

    def _tell(self, problem: str | None) -> None:
        """Say once why it is not known which pods hold the devices."""
        if not self._told_problem:
            self._told_problem = problem or "no answer"
            logger.warning(
                "Which pods hold the devices is not known, %s: %s. Kubelet's socket is open to root alone.", self._path, self._told_problem
            )
