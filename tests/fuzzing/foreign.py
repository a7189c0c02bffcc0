"""Damaged reports of ncu and profiles of Proton and ONNX Runtime against their readers: python -m tests.fuzzing.foreign --minutes 10

What is read has to have the types of its tables, to be answered from and stored; anything else has to be refused with an error of
this project, in seconds and without filling the memory. A case is made from its number alone: --case NUMBER does one again and
keeps its file. Status 1: something was found; it is printed with its number.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final

from kernalyse.services.analyzer.ingest.reading import read_with_counters, with_event_indexes
from kernalyse.services.analyzer.queries.filters import chunks
from kernalyse.services.analyzer.queries.registry import DERIVED, FileSource, QueryParameters, is_of_traces, resolve_table
from kernalyse.services.analyzer.readers.base import ReadResult, TraceFiles, limit_texts
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.errors import KernalyseError
from tests.unit.ncu_report import launch, report_text

SHARED: Final = Path(__file__).parents[3] / "shared" / "data"
CASE_LIMIT_S: Final = 20
"""Of a processor. The largest case takes half a second."""

ADDRESS_BYTES: Final = 6 * 1024**3
MAX_MUTATION_COUNT: Final = 6

TOKENS: Final = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b'""', b",", b"\n", b"\r", b"{", b"}", b"[", b"]", b":", b"null", b"true", b"-1", b"0"),
    *(b"1e999", b"NaN", b"-Infinity", b"9223372036854775808", b"1,234,567", b"1.234,5", b"0x1F", b"n/a", b"(1; 2)", b"\\ud800", b"\\u0000"),
    *(b'"ID","Process ID"', b'"metrics"', b'"children"', b'"time (ns)"', b'"count"', b'"cat" : "Kernel"', b'"ph" : "X"', b"(8, 1, 1)"),
    *(b"inf%", b"Gbyte/usecond", b"==ERROR== no", b"\xc3\x28", b"_kernel_time", b"x" * 70_000, b"[" * 3000, b'{"children":[' * 500),
)
NUMBER: Final = re.compile(rb"-?\d[\d.,]*(?:[eE][+-]?\d+)?")
NUMBERS: Final = (b"-1", b"0", b"1e400", b"1e18", b"9" * 30, b"0.1", b"2147483648", b"-9223372036854775809", b'"7"', b"null", b"")


def samples() -> list[bytes]:
    """Small files of every kind, and those of others where they are."""
    own = [
        report_text([launch("void f<4>(int)", ffma=5, bytes=64), launch("g", grid="(2, 3, 4)", duration=7)]).encode(),
        json.dumps(PROTON).encode(),
        json.dumps(ONNX_RUNTIME).encode(),
    ]
    others = [
        path.read_bytes() for pattern in ("ncu/*.csv", "proton/*.json", "onnxruntime/*.json") for path in sorted(SHARED.glob(pattern))
    ]
    return own + others


def _node(name: str, *children: Any, **metrics: Any) -> dict[str, Any]:
    return {"children": list(children), "frame": {"name": name}, "metrics": metrics}


PROTON: Final = [
    _node("ROOT", _node("s", _node("k", **{"count": 2, "time (ns)": 9, "device_id": "0", "device_type": "CUDA", "flops8": 5}), bytes=7)),
    {"CUDA": {"0": {"arch": "90", "bus_width": 5120, "clock_rate": 1980000, "memory_clock_rate": 2619000, "num_sms": 132}}},
]
ONNX_RUNTIME: Final = [
    {"cat": category, "pid": 1, "tid": 2, "ts": start, "dur": 5, "ph": "X", "name": name, "args": arguments}
    for category, start, name, arguments in (
        ("Session", 0, "model_run", {}),
        ("Node", 1, "/a_kernel_time", {"op_name": "Add", "provider": "CPUExecutionProvider", "input_type_shape": [{"float": [2]}]}),
        ("Kernel", 2, "gemm", {"parent_name": "/a_kernel_time"}),
    )
]


def mutated(number: int, originals: list[bytes]) -> bytes:
    """The case of this number."""
    choice = random.Random(number)
    data = choice.choice(originals)
    for _ in range(choice.randint(1, MAX_MUTATION_COUNT)):
        data = _mutated_once(data, originals, choice)
    return data


def _mutated_once(data: bytes, originals: list[bytes], choice: random.Random) -> bytes:
    place, end = sorted((choice.randint(0, len(data)), choice.randint(0, len(data))))
    end = min(end, place + 2000)
    match choice.randrange(8):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + data[end:]
        case 2:
            return data[:end] + data[place:end] + data[end:]
        case 3:
            other = choice.choice(originals)
            start = choice.randint(0, len(other))
            return data[:place] + other[start : start + 500] + data[place:]
        case 4:
            return data[:place] + bytes([choice.randrange(256)]) + data[place + 1 :]
        case 5 if numbers := list(NUMBER.finditer(data)):
            found = choice.choice(numbers)
            return data[: found.start()] + choice.choice(NUMBERS) + data[found.end() :]
        case _:
            return data[:place] + choice.choice(TOKENS) + data[place:]


def examine(path: Path) -> None:
    """Raises what should not be raised."""
    try:
        tables = read_with_counters(TraceFiles("case", path, 0))
        kept = limit_texts(tables, "case")
    except KernalyseError:
        return
    for name, frame in tables.frames.items():
        schema = find_table(name).schema
        unfit = {column: dtype for column, dtype in frame.schema.items() if dtype != schema[column]}
        assert not unfit, f"types of {name}: {unfit}"
    _answer(tables)
    stored, _ = with_event_indexes("run", kept.frames)
    for name, frame in stored.items():
        list(chunks(name, frame))


def _answer(tables: ReadResult) -> None:
    source = FileSource(tables.frames)
    answers = {
        (name, depth): resolve_table(find_table(name), source, QueryParameters(depth)).collect()
        for name in filter(is_of_traces, DERIVED)
        for depth in (None, 0)
    }
    sums = {key: frame["duration_sum_ns"].sum() for key, frame in answers.items() if key[0] in ("kernels", "layers")}
    assert len(set(sums.values())) == 1, f"kernels and layers differ: {sums}"


def fuzz(minutes: float, first: int) -> int:
    """Status."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    signal.signal(signal.SIGPROF, _give_up)
    originals, end, number, found_count = samples(), time.monotonic() + 60 * minutes, first, 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "case"
        for original in originals:  # what is compiled once takes longer than any case
            path.write_bytes(original)
            examine(path)
        while time.monotonic() < end:
            path.write_bytes(mutated(number, originals))
            signal.setitimer(signal.ITIMER_PROF, CASE_LIMIT_S)
            try:
                examine(path)
            except Exception:
                found_count += 1
                say(f"found {number} " + " | ".join(traceback.format_exc().strip().splitlines()[-9:]))
            signal.setitimer(signal.ITIMER_PROF, 0)
            number += 1
    say(f"{number - first} cases, {found_count} findings")
    return 1 if found_count else 0


def _give_up(signal_number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no end after {CASE_LIMIT_S} s")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="do this one alone")
    arguments = parser.parse_args()
    if arguments.case is None:
        return fuzz(arguments.minutes, arguments.first)
    path = Path(tempfile.mkdtemp()) / "case"
    path.write_bytes(mutated(arguments.case, samples()))
    say(str(path))
    examine(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
