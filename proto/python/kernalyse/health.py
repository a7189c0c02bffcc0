"""A health check for containers, without a token; the exit status is 0 when the service serves.

python -m kernalyse.health ADDRESS [CA_FILE [CLIENT_CERTIFICATE_FILE CLIENT_KEY_FILE]]
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
    """Return whether the service reports that it serves."""
    with open_channel(endpoint) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def main(address: str, *tls_files: str) -> int:
    """Return the exit status."""
    ca_certificate, certificate, key = (*(Path(name).read_bytes() for name in tls_files), None, None, None)[:3]
    return int(not is_serving(Endpoint(address, "", ca_certificate, certificate, key)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
