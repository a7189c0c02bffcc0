"""The decoding of Kineto events against the plain JSON parser: it reads the same, refuses the same, and names the place."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from kernalyse.services.analyzer.readers.base import TraceFiles
from kernalyse.services.analyzer.readers.kineto import document, workers
from kernalyse.services.analyzer.readers.kineto.decompress import TraceBytes, trace_bytes
from kernalyse.services.analyzer.readers.kineto.document import read_events
from kernalyse.services.analyzer.readers.kineto.events import CATEGORIES, NULL, TIME_LIMIT_NS, EventDecoder, nanoseconds
from kernalyse.services.analyzer.readers.kineto.workers import WorkerProcess
from kernalyse.services.core.errors import InvalidTraceError
from tests.examples import examples
from tests.unit.kineto_alike import RANGE_BYTES, assert_alike, content, source
from tests.unit.kineto_plain import ARGUMENTS, MEMBER_NAMES, plain_content

EXAMPLES = examples(100, suppress_health_check=[HealthCheck.too_slow])


def trace(*events: dict[str, object], **members: object) -> bytes:
    return json.dumps({**members, "traceEvents": events}).encode()


TEXTS = st.text(max_size=12) | st.sampled_from(["nn.Module: A_0", "nn.Module: ", "nn.Modul", 'a"b', "back\\slash", "\x00", "\ud800"])
SMALL = st.integers(-(2**70), 2**70) | st.integers(-3, 3)
ANYTHING = st.recursive(
    st.none() | st.booleans() | SMALL | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TIMES = st.decimals(min_value=-(10**13), max_value=10**13, places=3).map(float) | st.integers(-(10**17), 10**17)
USUAL: dict[str, st.SearchStrategy[object]] = {
    "ph": st.sampled_from(["X", "B", "E", "s", "f", "M", "i"]),
    "cat": st.sampled_from([*CATEGORIES, "python_function", ""]),
    "name": TEXTS,
    "pid": SMALL | TEXTS,
    "tid": SMALL | TEXTS,
    "ts": TIMES,
    "dur": TIMES,
    "id": SMALL,
    "args": st.dictionaries(
        st.sampled_from(list(ARGUMENTS)) | TEXTS, ANYTHING | st.lists(st.integers(0, 9), min_size=3, max_size=3), max_size=5
    ),
}
EVENTS = st.fixed_dictionaries(
    {name: USUAL[name] for name in ("ph", "ts")}, optional={name: values for name, values in USUAL.items() if name not in ("ph", "ts")}
)
ODD_EVENTS = st.dictionaries(st.sampled_from(MEMBER_NAMES) | TEXTS, ANYTHING, max_size=6)


@EXAMPLES
@given(st.lists(EVENTS, max_size=6), st.sampled_from([None, 1, 4]), st.booleans())
def test_usual_events_are_read_as_the_plain_parser_does(events: list[dict[str, object]], indent: int | None, is_ascii: bool) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=indent, ensure_ascii=is_ascii)
    assert_alike(text.encode("utf-8", "surrogatepass"))


@EXAMPLES
@given(st.lists(ODD_EVENTS, max_size=4))
def test_odd_events_are_read_or_refused_alike(events: list[dict[str, object]]) -> None:
    assert_alike(trace(*events))


@EXAMPLES
@given(st.lists(EVENTS, min_size=1, max_size=3), st.data())
def test_damaged_bytes_are_read_or_refused_alike(events: list[dict[str, object]], data: st.DataObject) -> None:
    text = bytearray(trace(*events))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        change = data.draw(st.sampled_from(["replace", "remove", "insert"]))
        byte = data.draw(st.integers(0, 255) | st.sampled_from(list(b'"\\{}[],:-.eE0')))
        if change == "replace":
            text[place] = byte
        elif change == "remove":
            del text[place]
        else:
            text.insert(place, byte)
    assert_alike(bytes(text))


@EXAMPLES
@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,2})?\Z"))
def test_decimal_times_are_exact(text: str) -> None:
    exact = int((Decimal(text) * 1000).to_integral_value())
    assert nanoseconds(text.encode()) == (exact if abs(exact) < TIME_LIMIT_NS else NULL)


NEAR_FLOATS = st.integers(-(2**53), 2**53) | st.integers(2**52, 2**53) | st.integers(-(10**6), 10**6)


@EXAMPLES
@given(st.lists(st.tuples(NEAR_FLOATS, st.integers(3, 6)), min_size=1, max_size=5))
def test_times_as_floats_are_exact_or_not_taken(decimals: list[tuple[int, int]]) -> None:
    texts = [f"{Decimal(number).scaleb(-places):f}" for number, places in decimals]
    events = ", ".join(f'{{"ph": "X", "cat": "kernel", "ts": {text}, "dur": {text}}}' for text in texts)
    assert_alike(b'{"traceEvents": [%s]}' % events.encode())


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("1712195495519689.695", 1712195495519689695),  # float64 ends in …689.75
        ("0.0005", 0),  # half, to even
        ("0.0015", 2),
        ("0.00050000001", 1),
        ("-3.25", -3250),
        ("7", 7000),
    ],
)
def test_no_digit_of_a_time_goes_through_a_float(text: str, expected_ns: int) -> None:
    assert nanoseconds(text.encode()) == expected_ns
    event = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": %s, "dur": 1}]}' % text.encode()
    assert assert_alike(event)


def kernel(**members: object) -> dict[str, object]:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, **members}


@pytest.mark.parametrize(
    "text",
    [
        trace(kernel(name='quote " backslash \\ é 漢 \x00 \ud800')),
        trace(kernel(args={"correlation": "12", "stream": 7.0, "device": None, "grid": [1, 2], "block": [1, 2, 3]})),
        b'\xef\xbb\xbf{"traceEvents": []}',
        b'[{"ph": "X", "cat": "Kernel", "name": "k", "ts": 1, "dur": 1}]',
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "\xff\xfe \x00 raw", "ts": 1}], "after": [NaN, -Infinity]}',
        b'{"traceEvents": [{}, {"args": {}}, {"ph": "X"}]}',
        b'{"traceEvents": [{"ph": "X", "cat": "fwdbwd", "ts": 1}, {"ph": "s", "cat": "fwdbwd", "id": 3, "ts": 2, "name": "f"}]}',
    ],
)
def test_is_read_alike(text: bytes) -> None:
    assert assert_alike(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"traceEvents": [{"ph": "X", "ph": "i", "ts": 1}]}', "a member twice"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "args": {"External id": 1, "external id": 2}}]}', "two spellings at once"),
        (b'{"traceEvents": [{"p\\u0068": "X", "ts": 1}]}', "a key with an escape"),
        (b'{"traceEvents": [{"ph": "X", "ts": "1.5", "cat": "kernel"}]}', "a time as text"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1e3, "cat": "kernel"}]}', "an exponent"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "cat": "kern\\u0065l"}]}', "a category with an escape"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "name": "nn.Module\\u003a A"}]}', "a name whose prefix hides"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "name": 5, "cat": "kernel"}]}', "a name that is no text"),
        (b'{"traceEvents": [1, {"ph": "X", "ts": 1}]}', "no object among the events"),
        (b'{"traceEvents": [], "traceEvents": []}', "events twice"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "cat": "kernel"}], "traceEvents": [{}]}', "other events twice"),
        (b'{"traceEvents": 5, "traceEvents": [{"ph": "X", "ts": 1, "cat": "kernel"}]}', "events after what is none"),
        (b'{"a": {"traceEvents": [{"ph": "X", "ts": 1}], "b": 1}, "traceEvents": [{}, {}]}', "an inner list of that name"),
        (b'{"a": "\\"traceEvents\\": [{}]", "traceEvents": [{}, {}]}', "a text that looks like the list"),
        (b'{"traceEvents": [{"ph": "X", "ts": NaN, "cat": "kernel"}, {"ph": "X", "ts": 1, "cat": "kernel", "id": Infinity}]}', "NaN"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "cat": "kernel", "pid": 7.50, "tid": true, "dur": 1e400}]}', "numbers"),
        (
            b'{"traceEvents": [{"ph": "X", "ts": 1, "cat": "kernel", "id": 1e400, "args": {"stream": 1e400, "device": [1]}}]}',
            "huge numbers",
        ),
        (
            b'{"traceEvents": [{"ph": "X", "ts": 1, "cat": "kernel", "args": [1]}, {"ph": "XX", "ts": 1, "args": {}}]}',
            "arguments as a list",
        ),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "cat": "kernel", "name": "a\tb\x01"}]}', "control characters"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "cat": "kernel", "dur": 1.00049999999999999999}]}', "many decimals"),
    ],
)
def test_what_no_profiler_writes_is_read_alike(text: bytes, why: str) -> None:
    assert assert_alike(text), why


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"traceEvents": [{"ph": "X", "ts": 1},]}',
        b'{"traceEvents": [{"ph": "X", "ts": 01}]}',
        b'{"traceEvents": [{"ph": "X" "ts": 1}]}',
        b'{"traceEvents": [{"ph": "\\x", "ts": 1}]}',
        b'{"traceEvents": [{"ph": "X", "args": {"a": tru}}]}',
        b'{"traceEvents": [{"ph": "X"}]} more',
        b'{"traceEvents": [{"ph": "X"}]',
        b'{"traceEvents": [{"ph": "X"}] "a": 1}',
        b'{"traceEvents": [{"ph": "X", "args": [1, 2}]}',
        b'{"schemaVersion": 1}',
    ],
)
def test_what_is_no_trace_is_refused_by_both(text: bytes) -> None:
    assert not assert_alike(text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"{", "byte 0, after 0 complete events"),
        (b'{"traceEvents": [{"ph": "X"}, {"ph": "Y"},  {"ph" 5}]}', "byte 44, after 2 complete events"),
        (b'{"traceEvents": [{"ph": "X"} {"ph": "Y"}]}', "byte 29, after 1 complete events"),
        (b'{"traceEvents": [{"ph": "X"}, ]}', "byte 30, after 1 complete events"),
        (b'[{"ph": "X"}, {"ph": "Y"', "byte 14, after 1 complete events"),
        (b'[{"ph": "X"}, {"ph": "Y"},', "byte 26, after 2 complete events"),
        (b'{"traceEvents": [{"ph": "X"}] "a": 1}', "byte 29, after 1 complete events"),
        (b'{"traceEvents": [{"ph": "X"}]} more', "byte 30, after 1 complete events"),
    ],
)
def test_an_error_names_the_place_of_the_damage(text: bytes, place: str) -> None:
    for byte_count in RANGE_BYTES:
        with mock.patch.object(workers, "RANGE_BYTES", byte_count), pytest.raises(InvalidTraceError) as caught:
            read_events(source(text), "t.json")
        assert caught.value.subject == f"file t.json: {place}"


TRAP = '}, { "ph": "X", "ts": 1 }'


def with_traps(count: int) -> bytes:
    """A trace of texts and arguments that look like starts of events, where ranges must not begin."""
    events = [
        kernel(ts=index, name=f"k{index % 5}{TRAP}", args={"correlation": index, "list": [kernel(), kernel()]}) for index in range(count)
    ]
    return json.dumps({"traceEvents": events}).encode()


def test_ranges_that_were_cut_within_texts_grow_or_are_given_up() -> None:
    assert assert_alike(with_traps(400), (100, 1500, 7001, 20011))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[WorkerProcess]:
    """Each trace is read by three processes: those that were started for it."""
    processes: list[WorkerProcess] = []

    def start(source: TraceBytes, start: int, stop: int) -> WorkerProcess:
        processes.append(WorkerProcess(source, start, stop))
        return processes[-1]

    monkeypatch.setattr(document, "WorkerProcess", start)
    monkeypatch.setattr(document, "START_BYTES", 0)
    monkeypatch.setattr(document, "_process_count", lambda _: 3)
    return processes


MANY = json.dumps({"traceEvents": [kernel(ts=index + 0.5, name=f"k{index % 7}") for index in range(5000)], "end": 1}).encode()


@pytest.mark.parametrize("text", [MANY, with_traps(400)])
def test_processes_together_read_the_whole(text: bytes, started: list[WorkerProcess]) -> None:
    assert content(read_events(source(text), "t.json")) == plain_content(text)
    assert len(started) == 2
    assert None not in [process.status for process in started]


def test_processes_read_a_plain_file_from_where_their_part_starts(tmp_path: Path, started: list[WorkerProcess]) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(MANY)
    with trace_bytes(TraceFiles(path.name, path, arrived_unix_ns=0)) as bytes_of_file:
        assert content(read_events(bytes_of_file, "t.json")) == plain_content(MANY)
    assert len(started) == 2


def test_no_process_stays_behind_when_reading_is_interrupted(started: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(document, "_decode_here", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_events(source(MANY), "t.json")
    assert [process.status for process in started] == [-signal.SIGKILL] * 2


def test_a_process_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    path.write_text(", ".join(json.dumps(kernel(ts=index)) for index in range(100)))
    command = [sys.executable, "-m", workers.PROGRAM, str(path.stat().st_size)]
    for parent, is_answered in ((os.getpid(), True), (1, False)):
        with path.open("rb") as file:
            done = subprocess.run([*command, str(parent)], stdin=file, capture_output=True, check=True)
        assert (pickle.loads(done.stdout) is not None) == is_answered


def test_a_process_that_dies_leaves_its_part_to_the_reader(started: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROGRAM", "no.such.program")
    assert content(read_events(source(MANY), "t.json")) == plain_content(MANY)
    assert started


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[5] / "shared" / "data" / "kineto").glob("*.json.gz")) or [None],
    ids=lambda path: getattr(path, "name", "none"),
)
def test_shared_traces_are_decoded_by_msgspec_and_read_alike(path: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if path is None:
        pytest.skip("the directory of shared traces is not there: it is not part of the project")

    def left(*_: object) -> None:
        raise AssertionError("left to the standard library")

    monkeypatch.setattr(EventDecoder, "add_values", left)
    assert assert_alike(gzip.decompress(path.read_bytes()), (workers.RANGE_BYTES,))
