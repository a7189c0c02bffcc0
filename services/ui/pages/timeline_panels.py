"""What the Timeline page says of the chosen event and of the marked stretch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import polars as pl

from kernalyse.services.ui import theme
from kernalyse.services.ui.names_wanted import whole
from kernalyse.services.ui.pages.shell import fragment
from kernalyse.services.ui.state import ViewState, to_query
from kernalyse.services.ui.time_window import TimeWindow
from kernalyse.services.ui.timeline_questions import Event

MAX_LISTED_SUBJECTS: Final = 12


def chosen_fragment(event: Event | None, state: ViewState, problem: str, is_asking: bool) -> str:
    if event is None:
        return fragment("timeline_chosen.html", event=None, facts=(), links=(), launch="", problem=problem, is_asking=is_asking)
    facts = {"kernels": _kernel_facts, "memory": _memory_facts, "ranges": _range_facts, "calls": _call_facts}[event.track](event)
    facts = [("Start", f"{theme.count(event.start_ns)} ns"), ("Took", theme.duration(event.row["duration_ns"])), *facts]
    launch_ns = event.row.get("launch_start_ns")
    return fragment(
        "timeline_chosen.html",
        event=event,
        facts=[(title, text) for title, text in facts if text],
        links=_links(event, state),
        launch="" if launch_ns is None else str(TimeWindow(launch_ns, max(event.end_ns, launch_ns + 1))),
        problem=problem,
        is_asking=is_asking,
    )


def _links(event: Event, state: ViewState) -> list[dict[str, str]]:
    if event.track != "kernels":
        return []
    base = replace(ViewState(), runs=state.runs, theme=state.theme)
    kernel = replace(base, table="launched", kernel=whole(event.name))
    links = [{"title": "This kernel", "href": f"/kernels?{to_query(kernel)}"}]
    if event.layer:
        links.append({"title": "Its layer", "href": f"/layers?{to_query(replace(base, layer_name=whole(event.layer)))}"})
    return links


def _kernel_facts(event: Event) -> list[tuple[str, str]]:
    row = event.row
    shared = row["shared_bytes"] if row["shared_bytes"] is not None else _sum(row["static_shared_bytes"], row["dynamic_shared_bytes"])
    delay = None if row["launch_start_ns"] is None else event.start_ns - row["launch_start_ns"]
    return [
        ("Device", _number("", row["device_index"])),
        ("Stream", _number("", row["stream_index"])),
        ("Process", _number("", row["process_id"])),
        ("Grid", _size(row, "grid")),
        ("Block", _size(row, "block")),
        ("Registers a thread", _number("", row["registers_per_thread"])),
        ("Shared memory a block", "" if shared is None else theme.memory(shared)),
        ("Layer", event.layer + (f" (told by {row['layer_source']})" if event.layer and row["layer_source"] else "")),
        ("Launched by", _caller(event)),
        ("Queued for", "" if delay is None else theme.duration(delay)),
        ("Correlation", _number("", row["correlation_id"])),
        ("Graph node", _number("", row["graph_node_id"])),
    ]


def _memory_facts(event: Event) -> list[tuple[str, str]]:
    row = event.row
    is_rated = row["bytes"] is not None and (row["duration_ns"] or 0) > 0
    return [
        ("Bytes", "" if row["bytes"] is None else theme.memory(row["bytes"])),
        ("Rate", theme.byte_rate(row["bytes"] / row["duration_ns"] * 1e9) if is_rated else ""),
        ("Device", _number("", row["device_index"])),
        ("Stream", _number("", row["stream_index"])),
        ("Started by", _caller(event)),
        ("Correlation", _number("", row["correlation_id"])),
    ]


def _caller(event: Event) -> str:
    call = event.call
    return "" if call is None else f"{call.name}, {theme.duration(call.row['duration_ns'])}, thread {call.row['thread_id']}"


def _call_facts(event: Event) -> list[tuple[str, str]]:
    row, work = event.row, event.work
    others = f" and {event.work_count - 1} more" if event.work_count > 1 else ""
    return [
        ("Thread", _number("", row["thread_id"])),
        ("Process", _number("", row["process_id"])),
        ("Started", "" if work is None else f"{work.name}{others}"),
        ("Queued for", "" if work is None else theme.duration(work.start_ns - event.start_ns)),
        ("Correlation", _number("", row["correlation_id"])),
        ("Returned", "0 (success)" if row["return_value"] == 0 else _number("", row["return_value"])),
    ]


def _range_facts(event: Event) -> list[tuple[str, str]]:
    row = event.row
    return [
        ("Kind", str(row["kind"] or "").replace("_", " ")),
        ("Thread", _number("", row["thread_id"])),
        ("Depth", _number("", row["depth"])),
        ("Flop", "" if row["flop"] is None else theme.si(row["flop"], "flop")),
        ("Shapes", row["input_shapes"] or ""),
        ("Data types", row["input_dtypes"] or ""),
        ("Still open at the end", "yes" if row["is_open"] else ""),
    ]


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _number(before: str, value: Any) -> str:
    return "" if value is None else f"{before}{value}"


def _size(row: dict[str, Any], kind: str) -> str:
    return "" if row[f"{kind}_x"] is None else " × ".join(str(row[f"{kind}_{axis}"] or 1) for axis in "xyz")


def stretch_fragment(window: TimeWindow | None, summary: pl.DataFrame | None, problem: str, is_asking: bool) -> str:
    """summary: table window_summary of the window; None: it has not come."""
    rows = [] if summary is None else summary.to_dicts()
    devices = [row for row in rows if row["subject_kind"] == "device"]
    subjects = [row for row in rows if row["subject_kind"] != "device"]
    names = {(row["process_id"], row["device_index"]): _number("device ", row["device_index"]) or "device" for row in devices}
    if len({process_id for process_id, _ in names}) > 1:
        names = {key: f"{name} · process {key[0]}" for key, name in names.items()}
    return fragment(
        "timeline_stretch.html",
        window=window,
        devices=[row | {"name": names[row["process_id"], row["device_index"]]} for row in devices],
        subjects=[row | {"device": names.get((row["process_id"], row["device_index"]), "")} for row in subjects[:MAX_LISTED_SUBJECTS]],
        hidden_count=max(0, len(subjects) - MAX_LISTED_SUBJECTS),
        with_device=len(devices) > 1,
        problem=problem,
        is_asking=is_asking or (window is not None and summary is None and not problem),
    )
