"""`python -m kernalyse.health ADDRESS [CA_FILE [CLIENT_CERTIFICATE_FILE CLIENT_KEY_FILE]]`: status 0 when a service serves.

For health checks of containers; needs no token.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernalyse.channel import Endpoint, open_channel

TIMEOUT_S: Final = 5.0


def is_serving(endpoint: Endpoint) -> bool:
    """Return whether the service answers that it serves."""
    with open_channel(endpoint) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def main(address: str, *tls_files: str) -> int:
    return int(not is_serving(Endpoint(address, "", *(Path(name).read_bytes() for name in tls_files))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
