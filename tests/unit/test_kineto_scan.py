"""The scan of Kineto events against the plain JSON parser: whatever it does not leave, it reads alike."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from services.analyzer.readers import kineto_events
from services.analyzer.readers.json_scan import BROKEN, NULL, after_value, thousandths
from services.analyzer.readers.kineto_events import KinetoEvents, Unscanned, scanned_events
from services.analyzer.readers.kineto_fields import ARGUMENTS, CATEGORIES, MEMBERS
from services.analyzer.readers.kineto_plain import plain_events
from services.core.errors import InvalidTraceError
from tests.examples import examples
from tests.unit.kineto_alike import NOT_SCANNED, array, assert_alike, content

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
ODD_EVENTS = st.dictionaries(st.sampled_from(list(MEMBERS)) | TEXTS, ANYTHING, max_size=6)


@EXAMPLES
@given(st.lists(EVENTS, max_size=6), st.sampled_from([None, 1, 4]), st.booleans())
def test_usual_events_are_read_as_the_plain_parser_does(events: list[dict[str, object]], indent: int | None, is_ascii: bool) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=indent, ensure_ascii=is_ascii)
    assert_alike(text.encode("utf-8", "surrogatepass"))


@EXAMPLES
@given(st.lists(ODD_EVENTS, max_size=4))
def test_odd_events_are_left_or_read_alike(events: list[dict[str, object]]) -> None:
    assert_alike(trace(*events))


@EXAMPLES
@given(st.lists(EVENTS, min_size=1, max_size=3), st.data())
def test_damaged_bytes_are_left_or_read_alike(events: list[dict[str, object]], data: st.DataObject) -> None:
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
@given(ANYTHING.map(json.dumps) | st.text(alphabet='{}[]",:\\ \n0123456789.eE+-truefalsn\x00é', max_size=30))
def test_a_value_is_passed_over_where_the_parser_takes_it(text: str) -> None:
    data = array(text.encode("utf-8", "surrogatepass"))
    end = after_value(data, 0)
    if end != BROKEN:
        json.loads(data[:end].tobytes().decode("utf-8", "replace"), strict=False)


@EXAMPLES
@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?\Z"))
def test_decimal_times_are_exact(text: str) -> None:
    found = thousandths(array(text.encode()), 0, len(text))
    exact = int((Decimal(text) * 1000).to_integral_value())
    assert found == exact or (found == NULL and (abs(exact) > 4 * 10**18 or len(text) > 26 or len(text.lstrip("-").split(".")[0]) > 16))


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
    assert thousandths(array(text.encode()), 0, len(text)) == expected_ns
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
def test_is_scanned_and_read_alike(text: bytes) -> None:
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
    ],
)
def test_is_left_to_the_plain_parser_which_takes_it(text: bytes, why: str) -> None:
    assert isinstance(scanned_events(array(text)), Unscanned), why
    plain_events(array(text), "t.json", NOT_SCANNED)


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
    unscanned = scanned_events(array(text))
    assert isinstance(unscanned, Unscanned)
    with pytest.raises(InvalidTraceError, match=r"t\.json"):
        plain_events(array(text), "t.json", unscanned)


def test_stretches_together_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With texts that look like starts of events, where stretches must not begin."""
    trap = ', { "ph": "X", "ts": 1 }'
    events = [
        kernel(ts=index, name=f"k{index % 5}{trap}", args={"correlation": index, "list": [kernel(), kernel()]}) for index in range(400)
    ]
    text = json.dumps({"traceEvents": events}).encode()
    whole = scanned_events(array(text))
    for thread_bytes in (1500, 7001, 20011):
        monkeypatch.setattr(kineto_events, "BYTES_PER_THREAD", thread_bytes)
        monkeypatch.setattr("os.cpu_count", lambda: 16)
        parts = scanned_events(array(text))
        assert isinstance(whole, KinetoEvents)
        assert isinstance(parts, KinetoEvents)
        assert content(parts) == content(whole)


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[3] / "shared" / "data" / "kineto").glob("*.json.gz")) or [None],
    ids=lambda path: getattr(path, "name", "none"),
)
def test_shared_traces_are_scanned_and_read_alike(path: Path | None) -> None:
    if path is None:
        pytest.skip("the folder of shared traces is not there: it is not part of the project")
    assert assert_alike(gzip.decompress(path.read_bytes()))
