"""What a report says of two runs that are compared: who they are, the verdicts, and every row with its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import polars as pl

from services.analyzer.writers.report_sections import TableOf, described, recorded_devices, run_facts, table_section
from services.core.disturbance import disturbed_sides
from services.core.model import Device, Run
from services.core.report import Report, Section
from services.core.shared_reasons import notes, shared_reasons

RATIOS: Final = ("duration_ratio", "duration_ratio_low", "duration_ratio_high")
WHAT_TRACES_PROVE: Final = (
    "Two recordings, one a side: they show where the time went in each, not that the next two would differ alike; "
    "bench --paired decides whether a kernel became slower."
)


def comparison_report(run: Run, baseline: Run, table_of: TableOf, device_of: Callable[[Run], Device | None]) -> Report:
    """The second run judged by the first.

    Args:
        run: what is judged.
        table_of: tables of both runs, by name: comparison, or kernel_comparison and layer_comparison.
        device_of: the device of a run, as its node describes it; None: no node has.
    """
    sections = (
        *(_side(name, side, table_of, device_of(side)) for name, side in (("Baseline", baseline), ("Judged", run))),
        *(_trace_sections(table_of) if run.is_trace and baseline.is_trace else _sweep_sections(table_of)),
    )
    return Report(comparison_title(run, baseline), tuple(section for section in sections if section is not None))


def _side(name: str, run: Run, table_of: TableOf, device: Device | None) -> Section:
    recorded = (table_of(table_name).filter(run_id=run.run_id) for table_name in ("trace_devices", "measurements"))
    devices = recorded_devices(*recorded) if device is None else described(device)
    return Section(name, facts=tuple((f"{name} {fact.lower()}", value) for fact, value in run_facts(run, devices)))


def comparison_title(run: Run, baseline: Run) -> str:
    if run.title == baseline.title:
        return f"{run.title}: {run.run_id} against {baseline.run_id}"
    return f"{run.title} against {baseline.title}"


def _sweep_sections(table_of: TableOf) -> Iterator[Section | None]:
    rows = table_of("comparison")
    verdicts = rows.drop_nulls("verdict").group_by("verdict").len().sort("len", "verdict", descending=[True, False])
    alone = {name: (rows["occurrence"] == name).sum() for name in ("NEW", "GONE")}
    told = [f"{count} {verdict.lower()}" for verdict, count in verdicts.iter_rows()]
    told += [f"{count} only in the {side} run" for side, count in (("judged", alone["NEW"]), ("baseline", alone["GONE"])) if count]
    disturbed = disturbed_sides(*(rows.drop_nulls(f"{side}duration_median_ns")[f"{side}disturbance"] for side in ("baseline_", "")))
    yield Section("Outcome", sentences=(f"{rows.height} configurations: {', '.join(told) or 'none in both runs'}.", *disturbed))
    marks = shared_reasons(rows["reason"])
    configurations = table_section(
        "Configurations",
        rows.sort("duration_ratio", descending=True, nulls_last=True).with_columns(
            pl.col("verdict").str.to_lowercase(), pl.col("reason").replace(marks), *(_times(name) for name in RATIOS)
        ),
        {
            "configuration": "label",
            "before": "baseline_duration_median_ns",
            "after": "duration_median_ns",
            "time ratio": "duration_ratio",
            "lowest": "duration_ratio_low",
            "highest": "duration_ratio_high",
            "verdict": "verdict",
            "because": "reason",
        },
        "Time after over time before, with the ends of its interval: below 1 the judged run is faster.",
    )
    yield configurations and replace(configurations, footnotes=(*configurations.footnotes, *notes(marks)))


def _times(ratio: str) -> pl.Expr:
    """1.234 → "×1.234"."""
    return pl.when(pl.col(ratio).is_not_null()).then(pl.format("×{}", pl.col(ratio).round_sig_figs(4))).alias(ratio)


def _trace_sections(table_of: TableOf) -> Iterator[Section | None]:
    yield Section("What this proves", sentences=(WHAT_TRACES_PROVE,))
    for table_name, heading, name in (("kernel_comparison", "kernel", "kernel_name"), ("layer_comparison", "layer", "layer")):
        yield table_section(
            f"{heading.capitalize()}s by change of device time",
            table_of(table_name).with_columns(pl.col(name).fill_null("(outside of every one)")),
            {
                heading: name,
                "before": "baseline_duration_sum_ns",
                "after": "duration_sum_ns",
                "change": "duration_delta_ns",
                "of all change": "delta_share_ratio",
                "launches before": "baseline_launch_count",
                "launches": "launch_count",
                "occurs": "occurrence",
            },
        )
