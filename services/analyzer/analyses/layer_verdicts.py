"""Which layers another variant of a model makes faster or slower: batches of launches that took turns in one run say so."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from services.analyzer.table import NUMBER, TEXT
from services.core.comparison import CPU_MARGIN_RATIO, GPU_MARGIN_RATIO, Timings, compare_pairs
from services.core.model import Verdict

KEYS: Final = ["run_id", "variant", "layer"]
BLOCKS: Final = "block_ns"
BASELINE_BLOCKS: Final = "baseline_block_ns"
AGAINST: Final = "Batches that took turns say one thing, the medians of all launches the opposite: something else ran meanwhile."
VERDICT: Final[dict[str, Any]] = {
    "paired_ratio": NUMBER,
    "paired_ratio_low": NUMBER,
    "paired_ratio_high": NUMBER,
    "verdict": TEXT,
    "reason": TEXT,
}


def layer_blocks(launches: pl.LazyFrame, samples: pl.LazyFrame) -> pl.LazyFrame:
    """One row per value of KEYS: is_gpu, and block_ns, what a pass takes in the layer in each batch of passes, in their order.

    Of a batch the fastest pass counts on a CPU, the median one on a GPU, as for blocks of whole passes (`Turns`).

    Args:
        launches: what `in_layers` says. samples: the table of that name, of the same runs.
    """
    launch_count = launches.group_by(KEYS).agg(launch_count=pl.len())
    is_gpu = pl.col("device_id").str.starts_with("cuda:").fill_null(False)
    of_passes = (
        samples.filter(~pl.col("is_discarded").fill_null(False), pl.col("duration_ns") > 0)
        .join(launches.select(*KEYS, "configuration_index", is_gpu=is_gpu), on=["run_id", "configuration_index"])
        .group_by(*KEYS, "sample_index")
        .agg(pl.col("duration_ns").sum(), pl.col("measured_unix_ns").max(), pl.col("is_gpu").first(), taken_count=pl.len())
        .join(launch_count, on=KEYS)
        .filter(pl.col("taken_count") == pl.col("launch_count"))
    )
    fastest, middle = pl.col("duration_ns").min(), pl.col("duration_ns").median()
    return (
        of_passes.group_by(*KEYS, "measured_unix_ns")
        .agg(pl.col("is_gpu").first(), block_ns=pl.when(pl.col("is_gpu").first()).then(middle).otherwise(fastest))
        .sort("measured_unix_ns")
        .group_by(KEYS, maintain_order=True)
        .agg(pl.col("is_gpu").first(), BLOCKS)
    )


def with_verdicts(pairs: pl.DataFrame) -> pl.DataFrame:
    """Rows with the columns of VERDICT in the place of blocks; null where a side has none.

    Input: what both sides' `layer_blocks` say, and the duration_sum_ns that is shown of each. A verdict that these go against is none.
    """
    rows = [_verdict(*row) for row in pairs.select(BLOCKS, BASELINE_BLOCKS, "is_gpu").iter_rows()]
    verdicts = pl.DataFrame(rows, schema=VERDICT, orient="row")
    change_ns = pl.col("duration_sum_ns") - pl.col("baseline_duration_sum_ns")
    is_faster, is_slower = (pl.col("verdict") == verdict.value for verdict in (Verdict.FASTER, Verdict.SLOWER))
    is_against = (is_faster & (change_ns > 0)) | (is_slower & (change_ns < 0))
    return (
        pairs.drop(BLOCKS, BASELINE_BLOCKS, "is_gpu")
        .hstack(verdicts)
        .with_columns(
            verdict=pl.when(is_against).then(pl.lit(Verdict.UNDECIDED.value)).otherwise("verdict"),
            reason=pl.when(is_against).then(pl.lit(AGAINST)).otherwise("reason"),
        )
    )


def _verdict(judged: list[float] | None, baseline: list[float] | None, is_gpu: bool | None) -> tuple[object, ...]:
    if not judged or not baseline:
        return (None,) * len(VERDICT)
    count = min(len(judged), len(baseline))
    margin_ratio = GPU_MARGIN_RATIO if is_gpu else CPU_MARGIN_RATIO
    found = compare_pairs(Timings(np.array(judged[:count])), Timings(np.array(baseline[:count])), margin_ratio)
    return found.duration.ratio, found.duration.low, found.duration.high, found.verdict.value, found.reason
