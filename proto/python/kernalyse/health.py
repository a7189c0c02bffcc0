"""A health check for containers, without a token; the exit status is 0 when the service serves.

python -m kernalyse.health [ADDRESS [CA_FILE [CLIENT_CERTIFICATE_FILE CLIENT_KEY_FILE]]]

Without an address it asks every service that this user runs here, the dashboard among them. With TLS their certificates must be for
the address at which they are found here, localhost or 127.0.0.1.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernalyse.channel import Endpoint, open_channel
from kernalyse.discovery import Announcement, announcement_path, find_service

SERVICES: Final = ("profiler", "analyzer", "ui")
TIMEOUT_S: Final = 5.0
SERVER_ERROR: Final = 500


def is_serving(endpoint: Endpoint) -> bool:
    """Return whether the service reports that it serves."""
    with open_channel(endpoint) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def is_answering(address: str, ca_file: str | None) -> bool:
    """Return whether the dashboard answers; without a token it asks for one, with status 401."""
    connection: http.client.HTTPConnection
    if ca_file is None:
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(address, timeout=TIMEOUT_S, context=ssl.create_default_context(cafile=ca_file))
    try:
        connection.request("HEAD", "/")
        return connection.getresponse().status < SERVER_ERROR
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def is_healthy(service: Announcement) -> bool:
    """Return whether a service of this machine serves, with the client certificate that the environment names."""
    if service.service == "ui":
        return is_answering(service.address, service.ca_file)
    names = service.ca_file, os.environ.get("KERNALYSE_CLIENT_CERTIFICATE_FILE"), os.environ.get("KERNALYSE_CLIENT_KEY_FILE")
    ca_certificate, certificate, key = (None if not name else Path(name).read_bytes() for name in names)
    if ca_certificate is None:
        return is_serving(Endpoint(service.address, ""))
    return is_serving(Endpoint(service.address, "", ca_certificate, certificate, key))


def check_services() -> int:
    """Return the exit status for the services of this user on this machine, and write which of them do not serve."""
    found = [service for service in map(find_service, map(announcement_path, SERVICES)) if service is not None]
    ill = [service for service in found if not is_healthy(service)]
    for service in ill:
        sys.stderr.write(f"{service.service} {service.address}: does not serve\n")
    if not found:
        sys.stderr.write("No service of this user runs here.\n")
    return int(not found or bool(ill))


def main(address: str | None = None, *tls_files: str) -> int:
    """Return the exit status."""
    if address is None:
        return check_services()
    ca_certificate, certificate, key = (*(Path(name).read_bytes() for name in tls_files), None, None, None)[:3]
    return int(not is_serving(Endpoint(address, "", ca_certificate, certificate, key)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
