"""The dashboard's state in its URL, its formats, its memory, and who may open it."""

from __future__ import annotations

import io
from typing import Any, cast
from urllib.parse import parse_qsl

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from kernalyse.services.core.model import Filter, FilterOperator, SortKey
from kernalyse.services.ui import theme
from kernalyse.services.ui.access import Access
from kernalyse.services.ui.data.client import frames_of
from kernalyse.services.ui.data.filters import csv_query, table_query
from kernalyse.services.ui.data.memory import TableMemory
from kernalyse.services.ui.view import MAX_RUNS, KernelsView, Parameters, RooflineView, TableView, View, to_query
from kernalyse.v1.table_pb2 import TableChunk

names = st.text(st.characters(exclude_characters=",", codec="utf-8"), min_size=1, max_size=20)


texts = st.text(st.characters(codec="utf-8"), max_size=50)


def read(part: Parameters, query: str) -> Parameters:
    part.read(dict(parse_qsl(query, keep_blank_values=True)))
    return part


@given(
    st.fixed_dictionaries(
        {
            "runs": st.lists(names, unique=True, max_size=MAX_RUNS),
            "theme": st.sampled_from(("light", "dark")),
            "kernel": texts,
            "category": names | st.just(""),
        }
    ),
    st.fixed_dictionaries(
        {
            "table": st.sampled_from(("measurements", "kernels")),
            "columns": st.lists(names, unique=True, max_size=5),
            "hidden": st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), unique=True, max_size=3),
            "descending": st.booleans(),
            "row": st.integers(0, 10**9),
            "configuration": texts,
        }
    ),
    st.fixed_dictionaries(
        {
            "color_by": st.sampled_from(("category", "dtype", "kernel", "run")),
            "ceilings": st.sampled_from(("best", "datasheet", "clock", "measured")),
            "hidden": st.lists(names, unique=True, max_size=3),
        }
    ),
)
def test_a_view_survives_its_url(everywhere: dict[str, Any], kernels: dict[str, Any], roofline: dict[str, Any]) -> None:
    for parts in ((View(**everywhere), KernelsView(**kernels)), (View(**everywhere), RooflineView(**roofline))):
        query = to_query(*parts)
        for part in parts:
            assert read(type(part)(), query).written() == part.written()


@pytest.mark.parametrize("query", ["theme=blue", "row=-1", "row=²", "table=secrets", "ceilings=guessed", "nothing=1", "row=" + "9" * 400])
def test_what_cannot_be_read_takes_its_default(query: str) -> None:
    for part in (View(), KernelsView(), RooflineView()):
        assert read(part, query).written() == {}


def test_a_series_is_hidden_and_shown_again_until_other_series_are_drawn() -> None:
    view = RooflineView()
    view.toggle_series("gemm<float, 16>")
    view.toggle_series("b")
    assert view.hidden == ["gemm<float, 16>", "b"]
    view.toggle_series("b")
    assert view.hidden == ["gemm<float, 16>"]
    view.color_by = "dtype"
    assert view.hidden == []


def test_a_table_in_several_chunks_arrives_whole() -> None:
    def chunk(name: str, *values: int) -> TableChunk:
        buffer = io.BytesIO()
        pl.DataFrame({"value": values}).write_ipc_stream(buffer)
        return TableChunk(table_name=name, arrow_ipc=buffer.getvalue())

    frames = frames_of([chunk("roofline", 1, 2), chunk("ceilings", 9), chunk("roofline", 3)])
    assert {name: frame["value"].to_list() for name, frame in frames.items()} == {"roofline": [1, 2, 3], "ceilings": [9]}


def test_toggling_runs_adds_removes_and_keeps_to_the_limit() -> None:
    assert View(runs=["a"]).runs_with("b") == ["a", "b"]
    assert View(runs=["a", "b"]).runs_with("a") == ["b"]
    full = View(runs=[str(number) for number in range(MAX_RUNS)])
    assert full.runs_with("new") == [*full.runs[1:], "new"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (theme.duration(950), "950 ns"),
        (theme.duration(1500), "1.50 µs"),
        (theme.duration(999_900), "1.00 ms"),
        (theme.duration(2.5e9), "2.50 s"),
        (theme.duration(None), "–"),
        (theme.flop_rate(345e9), "345 Gflop/s"),
        (theme.byte_rate(24.3e9), "24.3 GB/s"),
        (theme.memory(2**31), "2.00 GiB"),
        (theme.memory(512), "512 B"),
        (theme.percent(0.1234), "12.3 %"),
        (theme.percent(3.96), "396 %"),
        (theme.percent(5e-7), "<0.01 %"),
        (theme.percent(0), "0 %"),
        (theme.span(75), "1 min 15 s"),
        (theme.span(7260), "2 h 01 min"),
        (theme.intensity(None), "–"),
        (theme.frequency(2.6e9), "2.60 GHz"),
    ],
)
def test_figures_carry_their_units(text: str, expected: str) -> None:
    assert text == expected


def rows(first: int, count: int) -> pl.DataFrame:
    return pl.DataFrame({"value": range(first, first + count)})


def test_memory_gives_what_is_new_since_a_position() -> None:
    memory = TableMemory()
    assert memory.since(0).frame is None
    memory.append(rows(0, 3))
    memory.append(rows(3, 2))
    first = memory.since(0)
    assert first.frame is not None
    assert first.frame["value"].to_list() == [0, 1, 2, 3, 4]
    memory.append(rows(5, 1))
    second = memory.since(first.position)
    assert second.frame is not None
    assert (second.frame["value"].to_list(), second.is_restart) == ([5], False)
    assert memory.since(second.position).frame is None


def test_memory_drops_the_oldest_and_tells_a_late_reader_to_start_over() -> None:
    memory = TableMemory(row_limit=10)
    for first in range(0, 40, 5):
        memory.append(rows(first, 5))
    late = memory.since(7)
    assert late.is_restart
    assert late.frame is not None
    assert late.frame["value"].to_list() == list(range(30, 40))
    assert memory.dropped_row_count == 30


def test_memory_of_many_small_frames_keeps_every_row_in_order() -> None:
    memory = TableMemory()
    for first in range(1000):
        memory.append(rows(first, 1))
    kept = memory.all()
    assert kept is not None
    assert kept["value"].to_list() == list(range(1000))
    assert memory.since(995).frame is not None


def request(path: str = "/live", **headers: str) -> HTTPServerRequest:
    named = HTTPHeaders({"Host": "localhost:7003"} | headers)
    return HTTPServerRequest(start_line=RequestStartLine("GET", path, "HTTP/1.1"), headers=named)


def test_the_cookie_is_a_session_of_its_own_and_only_those_of_this_token_and_port_open() -> None:
    access = Access("secret", frozenset({"localhost:7003"}), is_secure=False)
    name = access.cookie_name(request())
    assert name == "kernalyse_session_7003"
    session, other = access.new_session(name), access.new_session(name)
    assert session != other
    for known in (session, other):
        assert "secret" not in known
        assert access.has_session(request(Cookie=f"other=1; {name}={known}"))
    assert not access.has_session(request(Cookie=f"{name}=secret"))
    assert not access.has_session(request(Cookie=f"{name}={session[:-1]}"))
    assert not access.has_session(request())
    assert not Access("another", frozenset(), is_secure=False).has_session(request(Cookie=f"{name}={session}"))
    next_port = access.new_session("kernalyse_session_7004")
    assert not access.has_session(request(Cookie=f"kernalyse_session_7004={next_port}; {name}={next_port}"))


def test_a_session_ends_after_thirty_days_whatever_the_browser_keeps() -> None:
    now_s = 1_800_000_000.0
    access = Access("secret", frozenset(), is_secure=False, clock=lambda: now_s)
    name = access.cookie_name(request())
    cookie = f"{name}={access.new_session(name)}"
    now_s += 30 * 86_400 - 1
    assert access.has_session(request(Cookie=cookie))
    now_s += 2
    assert not access.has_session(request(Cookie=cookie))


def test_a_link_leads_to_its_chart_alone_and_ends() -> None:
    now_s = 1_800_000_000.0
    access = Access("secret", frozenset({"localhost:7003"}), is_secure=False, clock=lambda: now_s)
    address = "/charts/roofline?runs=a"
    signature = access.new_link(address, days=2)
    link = access.read_link(signature)
    assert link is not None
    assert access.read_link(signature[:-1]) is None
    cookie = access.link_cookie(request(), signature, link).partition(";")[0]
    for path, is_let_through in (
        ("/charts/roofline?runs=a", True),
        ("/charts/roofline/?runs=a", True),
        ("/charts/roofline/ws", True),
        ("/static/js/bokeh.min.js", True),
        ("/charts/roofline?runs=b", False),
        ("/charts/roofline", False),
        ("/charts/samples?runs=a", False),
        ("/live/ws", False),
        ("/live", False),
    ):
        assert access.has_link(request(path, Cookie=f"other=1; {cookie}")) == is_let_through, path
    now_s += 2 * 86_400 + 1
    assert access.read_link(signature) is None
    assert not access.has_link(request("/charts/roofline?runs=a", Cookie=cookie))


def test_frames_of_sites_that_are_not_named_are_refused_with_the_setting_that_names_them() -> None:
    access = Access("secret", frozenset({"localhost:7003"}), is_secure=False, frame_ancestors=("https://wiki.example",))

    def refusal(**headers: str) -> str:
        return access.why_not_framed(request(**{name.replace("_", "-"): value for name, value in headers.items()}))

    assert refusal(Sec_Fetch_Dest="iframe", Referer="https://wiki.example/page") == ""
    assert refusal(Sec_Fetch_Dest="iframe", Referer="http://localhost:7003/live") == ""
    assert refusal(Sec_Fetch_Dest="document", Referer="https://evil.example/") == ""
    assert "ui.allowed_frame_ancestors" in refusal(Sec_Fetch_Dest="iframe", Referer="https://evil.example/")


def test_foreign_hosts_and_origins_are_told_apart() -> None:
    access = Access("secret", frozenset({"localhost:7003"}), is_secure=False)
    assert access.is_host_allowed(request(Host="LOCALHOST:7003"))
    assert not access.is_host_allowed(request(Host="evil.example:7003"))
    assert not access.is_host_allowed(request(Host="localhost:80"))
    assert access.is_origin_allowed(request())
    assert access.is_origin_allowed(request(Origin="http://localhost:7003"))
    assert not access.is_origin_allowed(request(Origin="http://evil.example"))
    assert not access.is_origin_allowed(request(Origin="https://localhost:7003"))
    assert not access.is_origin_allowed(request(Origin="null"))


def test_kernels_of_traces_are_rows_of_the_same_table_that_were_launched() -> None:
    query = table_query("launched", View(kernel="gemm"), TableView(sort="share_ratio", descending=True))
    assert query.table_name == "kernels"
    assert query.filters == (Filter("launch_count", "0", FilterOperator.GREATER), Filter("kernel_name", "gemm", FilterOperator.CONTAINS))
    assert query.order_by == (SortKey("share_ratio", descending=True),)


def test_filters_that_a_table_has_no_column_for_are_left_out() -> None:
    view = View(kernel="attention", category="matmul", dtype="float32")
    assert table_query("layers", view, TableView()).filters == (Filter("layer", "attention", FilterOperator.CONTAINS),)
    assert table_query("breakdown", view, TableView()).filters == ()


def test_kernels_of_layers_are_those_of_the_layers_looked_for_in_the_download_too() -> None:
    view, page = View(kernel="gemm"), TableView(layer_name="head", row=50)
    wanted = (Filter("layer_path", "head", FilterOperator.CONTAINS), Filter("kernel_name", "gemm", FilterOperator.CONTAINS))
    assert table_query("layer_kernels", view, page).filters == wanted
    query = csv_query(view, page)
    downloaded = table_query("layer_kernels", cast(View, read(View(), query)), cast(TableView, read(TableView(), query)), limit=0)
    assert (downloaded.filters, downloaded.offset, downloaded.limit) == (wanted, 0, 0)
