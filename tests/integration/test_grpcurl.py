"""The grpcurl commands of docs/api.md do what they say: the same calls from what server reflection tells alone, as grpcurl makes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import kernalyse
from kernalyse.channel import open_channel
from tests.integration.test_python_api import add_node, needs_opencl
from tests.service_processes import ServiceProcess

PAGE = Path(__file__).parents[2] / "docs" / "api.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the checkout")


@dataclass(frozen=True, slots=True)
class Command:
    """grpcurl [-H HEADER] [-d JSON] ADDRESS [METHOD]"""

    symbol: str  # "package.Service/Method", or what is described
    data: str
    has_token: bool


def commands() -> Iterator[Command]:
    for line in re.findall(r"^\$ (grpcurl .*)$", PAGE.read_text(), re.MULTILINE):
        words = shlex.split(line)[1:]
        data, has_token = "{}", "-H" in words
        while words[0].startswith("-"):
            option = words.pop(0)
            if option in ("-H", "-d"):
                value = words.pop(0)
                data = value if option == "-d" else data
            else:
                assert option == "-plaintext"
        assert words.pop(0) == "127.0.0.1:7002"
        yield Command(words[-1], data, has_token)


def call(channel: grpc.Channel, pool: DescriptorPool, command: Command) -> list[Any]:
    """The answers, as dictionaries."""
    service_name, _, method_name = command.symbol.partition("/")
    method = pool.FindServiceByName(service_name).methods_by_name[method_name]
    request = json_format.Parse(command.data, GetMessageClass(method.input_type)())
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    answer_class = GetMessageClass(method.output_type)
    stub = kind(f"/{command.symbol}", request_serializer=type(request).SerializeToString, response_deserializer=answer_class.FromString)
    answered = stub(request, timeout=60)
    return [json_format.MessageToDict(answer) for answer in (answered if method.server_streaming else [answered])]


@pytest.mark.slow
@needs_opencl
def test_the_commands_of_the_page_work_by_reflection(analyzer_process: ServiceProcess, profiler: ServiceProcess) -> None:
    with kernalyse.connect(analyzer_process.address, analyzer_process.token) as client:
        add_node(client, profiler.endpoint)
    answers: dict[str, list[Any]] = {}
    with open_channel(analyzer_process.endpoint) as channel, grpc.insecure_channel(analyzer_process.address) as bare_channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        for command in commands():
            if command.symbol == "list":
                assert {"kernalyse.v1.AnalyzerService", "grpc.health.v1.Health"} <= set(database.get_services())
            elif "/" not in command.symbol:
                assert pool.FindServiceByName(command.symbol).methods
            else:
                answers[command.symbol.rpartition("/")[2]] = call(channel if command.has_token else bare_channel, pool, command)
    assert answers["ListNodes"][0]["nodes"]
    assert answers["StartRun"][0]["run"]["spec"]["title"] == "from grpcurl"
    assert answers["WatchRun"][-1]["run"]["state"] == "RUN_STATE_SUCCEEDED"
    assert answers["GetTable"][0]["chunk"]["tableName"] == "measurements"
    assert answers["ExportReport"]
    assert answers["Check"] == [{"status": "SERVING"}]
