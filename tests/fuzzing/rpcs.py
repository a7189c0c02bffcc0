"""Hostile requests against running services: python -m tests.fuzzing.rpcs --minutes 10 [--service analyzer|profiler|ui]

Every RPC of both contracts gets messages made at random, valid ones with a field changed, bytes that are no messages, and streams in
disorder; the dashboard gets requests over HTTP and its socket. A service has to answer each within LIMIT_S, never with INTERNAL or
UNKNOWN and without a traceback in its log; it has to serve afterwards, and to grow in neither memory, open files nor threads. Cases
are made from their numbers alone; what is found is written down with its number, as JSON, and sent again by --file.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import grpc
import psutil
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernalyse.v1 import analyzer_service_pb2, profiler_service_pb2
from tests.fuzzing.campaign import campaign, parser
from tests.fuzzing.dashboard import Dashboard
from tests.fuzzing.messages import broken_bytes, disturbed, harmless, mutated, random_message
from tests.fuzzing.services import Fuzzed, fuzzed_services
from tests.private_directory import private_directory

LIMIT_S: Final = 20.0
"""For an answer. The slowest valid one, a report with all charts, takes half of it on a busy machine."""

LASTING: Final = ("Watch", "Tunnel")
LASTING_S: Final = 0.15
"""After which a stream that has no end is left: it has begun by then."""

READ_RESPONSES: Final = 30

CONTRACTS: Final = {
    "analyzer": analyzer_service_pb2.DESCRIPTOR.services_by_name["AnalyzerService"],
    "profiler": profiler_service_pb2.DESCRIPTOR.services_by_name["ProfilerService"],
}
WEIGHTS: Final = {"GetTable": 5, "StartRun": 4, "ImportTrace": 3, "ExportReport": 2, "UpdateHardware": 2}
"""Methods with more to go wrong; the others have 1."""

STATUS_DETAILS: Final = "grpc-status-details-bin"
CHANNEL_OPTIONS: Final = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def rpc_case(random: Random, service: Fuzzed) -> tuple[bytes, str]:
    """A call as JSON, and what kind of case it is. Methods take turns by chance; the same numbers give the same case."""
    methods = CONTRACTS[service.name].methods
    (method,) = random.choices(methods, [WEIGHTS.get(method.name, 1) for method in methods])
    seed = random.choice(service.seeds[method.name])
    kind = random.choice(("random", "changed", "changed", "bytes"))
    messages: list[bytes]
    if kind == "random":
        count = random.randrange(1, 5) if method.client_streaming else 1
        messages = [_packed(random_message(random, method.input_type, service.ids)) for _ in range(count)]
    elif method.client_streaming and kind == "changed":
        messages = [_packed(message) for message in disturbed(random, seed, service.ids)]
    elif kind == "changed":
        messages = [_packed(mutated(random, seed[0], service.ids))]
    else:
        messages = [_packed(message) for message in seed]
        place = random.randrange(len(messages))
        messages[place] = broken_bytes(random, messages[place])
    sent = [harmless(random, method.input_type, data, service.kept) for data in messages]
    case = {"method": method.name, "messages": [base64.b64encode(data).decode() for data in sent]}
    return json.dumps(case).encode(), f"{service.name}, {'stream ' if method.client_streaming else ''}{kind}"


def _packed(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data


class RpcTarget:
    """Sends cases to a service over gRPC and judges what becomes of them."""

    def __init__(self, service: Fuzzed, channel: grpc.Channel) -> None:
        self.service = service
        self._channel = channel
        self._metadata = (("authorization", f"Bearer {service.endpoint.token}"),)
        self._health = health_pb2_grpc.HealthStub(channel)
        self._methods = {method.name: method for method in CONTRACTS[service.name].methods}

    def attempt(self, random: Random) -> tuple[bytes, str]:
        return rpc_case(random, self.service)

    def settle(self) -> None:
        """Have the analyzer read the runs that cases of the profiler have left: the first question about all runs does, without a limit."""
        request = analyzer_service_pb2.GetTableRequest(table_name="fleet").SerializeToString()
        answer = self._channel.unary_stream(f"/{CONTRACTS['analyzer'].full_name}/GetTable")(request, metadata=self._metadata)
        assert sum(1 for _ in answer) > 0

    def check(self, data: bytes) -> str:
        """Send a case and return how it ended. Raises AssertionError."""
        case = json.loads(data)
        name = case["method"]
        start_s = time.monotonic()
        try:
            ended = self._ended(name, [base64.b64decode(message) for message in case["messages"]])
            duration_s = time.monotonic() - start_s
            assert duration_s < LIMIT_S, f"{name}: {ended} after {duration_s:.1f} s"
        finally:
            judge(self.service, name)
        answer = self._health.Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, f"after {name}: {answer}"
        return ended

    def _ended(self, name: str, messages: list[bytes]) -> str:
        method = self._methods[name]
        path = f"/{CONTRACTS[self.service.name].full_name}/{name}"
        limit_s = LASTING_S if name.startswith(LASTING) else LIMIT_S
        options = {"timeout": limit_s, "metadata": self._metadata}
        try:
            if method.client_streaming:
                request: Any = iter(messages)
                call = self._channel.stream_stream(path) if method.server_streaming else self._channel.stream_unary(path)
            else:
                request = messages[0]
                call = self._channel.unary_stream(path) if method.server_streaming else self._channel.unary_unary(path)
            answer = call(request, **options)
            if method.server_streaming:
                for count, _ in enumerate(answer):
                    if count >= READ_RESPONSES:
                        answer.cancel()
                        break
        except grpc.RpcError as error:
            return _ending(name, error)
        return "OK"


def _ending(name: str, error: Any) -> str:
    """The name of the status. Raises AssertionError: a service of ours does not end a call like this.

    gRPC's own client says INTERNAL, without details of ours, when it sends while the service ends the call.
    """
    code: grpc.StatusCode = error.code()
    has_details = any(key == STATUS_DETAILS for key, _ in error.trailing_metadata() or ())
    said = f"{name}: {code.name}: {error.details()}"
    assert code is not grpc.StatusCode.UNKNOWN, said
    assert code is not grpc.StatusCode.INTERNAL or not has_details, said
    assert code is not grpc.StatusCode.DEADLINE_EXCEEDED or has_details or name.startswith(LASTING), said
    assert code is not grpc.StatusCode.UNIMPLEMENTED or has_details, said
    is_own = has_details or code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
    return str(code.name) if is_own else f"{code.name} of gRPC"


CALLER_GONE: Final = re.compile(r"ExecuteBatchError raised in core .*?\ngrpc\._cython\.cygrpc\.ExecuteBatchError: [^\n]*", re.DOTALL)
"""What gRPC itself writes when a caller's deadline comes while an answer is being written: nothing of ours."""


def judge(service: Fuzzed, name: str, traceback_of: str = "Traceback") -> None:
    """Raise AssertionError where the service has ended or has written a traceback. traceback_of: what one that counts has in it."""
    assert psutil.pid_exists(service.process_id), f"{service.name} has ended over {name}: {service.new_log()[-3000:]}"
    said = CALLER_GONE.sub("", service.new_log())
    assert "Traceback" not in said or traceback_of not in said, f"{name}: {said[:6000]}"
    service.look()


@contextmanager
def target_of(service: Fuzzed) -> Iterator[Any]:
    if service.name == "ui":
        yield Dashboard(service, judge)
        return
    with grpc.insecure_channel(service.endpoint.address, options=CHANNEL_OPTIONS) as channel:
        yield RpcTarget(service, channel)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--service", action="append", choices=("profiler", "analyzer", "ui"), help="one of them; else each in turn")
    arguments.add_argument("--file", type=Path, help="send this case again, to the one --service")
    options = arguments.parse_args()
    count = 0
    lines = []
    with private_directory() as directory, fuzzed_services(directory) as services:
        for name in options.service or services:
            with target_of(services[name]) as target:
                if options.file is not None:
                    sys.stdout.write(f"{target.check(options.file.read_bytes())}\n")
                    continue
                if name == "analyzer":
                    target.settle()
                count += campaign(target.attempt, target.check, options)
            try:
                lines.append(services[name].growth())
            except AssertionError as error:
                count += 1
                lines.append(f"finding: growth of {error}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
