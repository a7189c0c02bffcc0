"""What alternating blocks say, beside the ratio of the medians that the same screen shows: 105 to 30 µs is not a factor of 3.75."""

from __future__ import annotations

import pytest
from rich.console import Console

from kernalyse.services.analyzer.tables.derived import MODELS, PAIRED_COMPARISONS
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.analyzer.tables.runs import MEASUREMENTS
from kernalyse.services.cli.model import pair_lines
from kernalyse.services.cli.run_output import paired_table

PAIR = {"configuration_index": 1, "label": "gpt fused", "baseline_configuration_index": 0, "baseline_label": "gpt baseline"} | {
    "block_count": 20,
    "duration_ratio": 1 / 3.75,
    "duration_ratio_low": 1 / 4.0,
    "duration_ratio_high": 1 / 3.5,
    "cycle_ratio": 0.27,
    "confidence_ratio": 0.99,
    "verdict": "FASTER",
    "reason": "-73.33 % of time.",
}
MEDIANS_NS = {"baseline": 105_000.0, "fused": 30_000.0}
PAIRS = frame_from_rows(PAIRED_COMPARISONS, [PAIR])


def test_variants_of_a_model_are_compared_in_turns_and_by_their_medians() -> None:
    models = frame_from_rows(MODELS, [{"variant": name, "duration_median_ns": median_ns} for name, median_ns in MEDIANS_NS.items()])
    (line,) = pair_lines(PAIRS, models)
    assert (
        line == "fused against baseline: faster, ×3.75 (×3.5 to ×4) the speed in alternating blocks; ×3.5 by the medians; -73.33 % of time."
    )
    (alone,) = pair_lines(PAIRS, models.head(1))
    assert "by the medians" not in alone


@pytest.mark.parametrize(("median_ns", "expected"), [(30_000.0, ["0.2857", "0.2700"]), (None, ["0.2700"])])
def test_kernels_are_compared_in_turns_and_by_their_medians(median_ns: float | None, expected: list[str]) -> None:
    medians_ns = [105_000.0, median_ns]
    rows = [{"configuration_index": index, "duration_median_ns": value} for index, value in enumerate(medians_ns)]
    console = Console(width=200, record=True)
    console.print(paired_table(PAIRS, frame_from_rows(MEASUREMENTS, rows)))
    heading, row = (line for line in console.export_text().splitlines() if "gpt" in line or "paired time" in line)
    assert "paired time" in heading
    assert row.split()[row.split().index("0.2667") :][:-4] == ["0.2667", "0.2500", "to", "0.2857", *expected, "20"]
