"""kernalyse.services.core.telemetry_history: an hour of readings, thinned, each once."""

from __future__ import annotations

from itertools import pairwise

from kernalyse.services.core.model import NodeTelemetry, Telemetry
from kernalyse.services.core.telemetry_history import COARSE_STEP_NS, FINE_NS, HISTORY_NS, TelemetryHistory

S = 1_000_000_000


def reading(time_ns: int, device_id: str | None = None, node_id: str = "n1") -> NodeTelemetry:
    return NodeTelemetry(node_id, Telemetry(time_ns, device_id, utilization_ratio=0.5))


def test_two_hours_of_two_readings_a_second_leave_one_hour_thinned() -> None:
    history = TelemetryHistory()
    start = 1_700_000_000 * S
    end = start + 2 * HISTORY_NS
    for time_ns in range(start, end, S // 2):
        history.add(reading(time_ns))
    times = [one.telemetry.measured_unix_ns for one in history.readings()]
    assert times == sorted(times)
    newest = end - S // 2
    assert times[-1] == newest
    assert newest - HISTORY_NS <= times[0] <= newest - HISTORY_NS + 2 * COARSE_STEP_NS
    fine = [time_ns for time_ns in times if time_ns >= newest - FINE_NS]
    assert len(fine) == FINE_NS // (S // 2) + 1
    steps = {later - earlier for earlier, later in pairwise(times) if later < newest - FINE_NS}
    assert steps == {COARSE_STEP_NS}


def test_nodes_and_devices_are_kept_apart_and_repeats_passed_over() -> None:
    history = TelemetryHistory()
    for one in (reading(1 * S), reading(2 * S), reading(1 * S), reading(2 * S, "cuda:0"), reading(9 * S, node_id="n2")):
        history.add(one)
    assert [one.telemetry.measured_unix_ns for one in history.readings("n1")] == [1 * S, 2 * S, 2 * S]
    assert history.device_ids("n1") == [None, "cuda:0"]
    assert history.newest("n1", None) == reading(2 * S)
    assert history.newest("n3", None) is None
    assert history.readings(oldest_unix_ns=3 * S) == [reading(9 * S, node_id="n2")]


def test_readings_of_a_node_whose_clock_was_ahead_give_way_to_those_of_now() -> None:
    now_ns = 2 * HISTORY_NS
    history = TelemetryHistory(lambda: now_ns)
    for time_ns in (now_ns - S, now_ns + FINE_NS, now_ns + FINE_NS + S, now_ns, now_ns + S, now_ns - S):
        history.add(reading(time_ns))
    assert [one.telemetry.measured_unix_ns for one in history.readings()] == [now_ns - S, now_ns, now_ns + S]
