"""The comparison of two runs, and of two traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import polars as pl

from kernalyse.services.analyzer.analysis.models import COMPLETE_PASS
from kernalyse.services.analyzer.tables.base import COUNT, NUMBER, TEXT
from kernalyse.services.analyzer.tables.derived import COMPARISON
from kernalyse.services.analyzer.tables.event_rows import frame_from_rows
from kernalyse.services.core.comparison import CONFIDENCE, CPU_MARGIN_RATIO, Comparison, Timings, compare_processes, equality_margin
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import Device, DeviceKind, Verdict

# ---------------------------------------------------------------- comparison of runs
# Two runs of the same configurations are compared, as far as separate runs can show what became faster or slower.

NS_PER_S: Final = 1e9


class Difference(StrEnum):
    """A difference in circumstances, with which two measurements do not compare the kernels alone."""

    DEVICE = "device"
    METHOD = "method"
    CACHE = "cache"
    INPUTS = "inputs"


def parse_differences(names: Sequence[str]) -> frozenset[Difference]:
    """Return the differences of these names.

    Raises:
        InvalidRequestError: a name is unknown; it lists the known ones.
    """
    known = {difference.value: difference for difference in Difference}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise InvalidRequestError(
            "allowed differences", found=repr(unknown), expected=f"some of {', '.join(known)}", remedy="Correct the name."
        )
    return frozenset(known[name] for name in names)


CIRCUMSTANCES: Final = {
    "device_id": Difference.DEVICE,
    "device_uuid": Difference.DEVICE,
    "device_name": Difference.DEVICE,
    "node_id": Difference.DEVICE,
    "backend": Difference.METHOD,
    "timing_method": Difference.METHOD,
    "is_blocked": Difference.METHOD,
    "clocks": Difference.METHOD,
    "cache_mode": Difference.CACHE,
    "input_distribution": Difference.INPUTS,
    "seed": Difference.INPUTS,
}
"""Columns that have to be equal if both operands know them. The duration of sampling and its stop reason may differ, since neither
moves a median."""

KEY: Final = ["kernel_name", "parameters", "dtype", "block", "macros", "form", "layer_path"]
"""Columns that identify a configuration; the cache mode too, unless it is what differs."""

REPEATED: Final = r"^(process=\d+|cold|hot|block=[\dx]+)$"
"""Words of a variant that repeat other columns or name the process: not every run of a configuration has them."""


@dataclass(frozen=True, slots=True)
class ComparisonOperand:
    """An operand of a comparison: one run, or several joined ones.

    measurements, samples, paired_comparisons: the tables of these names, of this run alone; the last only where it is required.
    node_id, devices: as far as they are known.
    """

    run_id: str
    measurements: pl.DataFrame
    samples: pl.DataFrame
    node_id: str | None = None
    devices: Mapping[str, Device] = field(default_factory=dict)  # by device_id
    paired_comparisons: pl.DataFrame | None = None
    joined_run_ids: tuple[str, ...] = ()  # if several runs are joined

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The ids of all its runs."""
        return self.joined_run_ids or (self.run_id,)

    @property
    def margin_ratio(self) -> float:
        """The ratio that counts as equal on its device; the wider margin if the device is unknown."""
        kinds = [device.kind for device in self.devices.values()]
        is_cuda = bool(self.measurements["device_id"].str.starts_with("cuda:").all()) and not self.measurements.is_empty()
        return equality_margin(kinds[0]) if kinds else equality_margin(DeviceKind.GPU) if is_cuda else CPU_MARGIN_RATIO


def join_runs(runs: Sequence[ComparisonOperand]) -> ComparisonOperand:
    """Join runs that repeat each other to one operand, in which each run's measurements count as further processes.

    Raises:
        InvalidRequestError: two runs have the same measurement, as a run and its file do, which would count as two processes.
    """
    run_id = ",".join(run.run_id for run in runs)
    measurements, samples = [], []
    next_index = next_process = 0
    for run in runs:
        identity = pl.lit(run_id).alias("run_id"), pl.col("configuration_index") + next_index
        measurements.append(run.measurements.with_columns(*identity, process_index=pl.col("process_index").fill_null(0) + next_process))
        samples.append(run.samples.with_columns(*identity))
        if not run.measurements.is_empty():
            next_index, next_process = measurements[-1].select(pl.col("configuration_index", "process_index").max() + 1).row(0)
    moments = pl.concat([run.measurements.select("label", "measured_unix_ns").drop_nulls().unique() for run in runs])
    duplicates = moments.filter(moments.is_duplicated())
    if not duplicates.is_empty():
        raise InvalidRequestError(
            f"runs {run_id}",
            found=f"one measurement of {duplicates['label'][0]} more than once",
            expected="runs that were measured one after the other",
            remedy="Leave out copies of a run's file, and a run that another one continues.",
        )
    return ComparisonOperand(
        run_id=run_id,
        measurements=pl.concat(measurements),
        samples=pl.concat(samples),
        node_id="/".join(sorted({run.node_id for run in runs if run.node_id})) or None,
        devices={device_id: device for run in runs for device_id, device in run.devices.items()},
        joined_run_ids=tuple(run.run_id for run in runs),
    )


def compare_runs(baseline: ComparisonOperand, candidate: ComparisonOperand, allowed: frozenset[Difference] = frozenset()) -> pl.DataFrame:
    """Return table comparison: configurations of both runs, then those of the candidate alone, then those of the baseline alone.

    The processes that measured a configuration are its evidence (`kernalyse.services.core.comparison.compare_processes`). Wrong
    results get no verdict.

    Args:
        baseline: the operand to compare with.
        candidate: the run compared with it.
        allowed: circumstances that may differ.

    Raises:
        InvalidRequestError: the runs differ in circumstances that are not allowed to; it names each, with both values.
    """
    before, after = _candidates(baseline), _candidates(candidate)
    matched = _matched(before, after)
    _check_differences(baseline, candidate, matched, allowed)
    margin_ratio = max(baseline.margin_ratio, candidate.margin_ratio)
    evidence, evidence_before = timings_by_configuration(candidate), timings_by_configuration(baseline)
    rows = [
        _operand_columns(row, "")
        | _operand_columns(row, "_before")
        | _verdict(row, _compared(row, evidence, evidence_before, margin_ratio))
        for row in matched.iter_rows(named=True)
    ]
    rows += [_operand_columns(row, "") for row in _left(after, matched["first_index"]).iter_rows(named=True)]
    rows += [_operand_columns(row, "_before") for row in _left(before, matched["first_index_before"]).rename(_before).iter_rows(named=True)]
    return frame_from_rows(COMPARISON, [{"run_id": candidate.run_id, "baseline_run_id": baseline.run_id} | row for row in rows])


# ---------------------------------------------------------------- matching of configurations


def _candidates(run: ComparisonOperand) -> pl.DataFrame:
    """Return one row per configuration over all processes; circumstances as text, null where they are not known."""
    names = {device_id: device.name for device_id, device in run.devices.items()}
    has_no_uuid = pl.col("device_uuid").is_null()  # a UUID identifies the device better than its node does
    return (
        run.measurements.sort("configuration_index")
        .with_columns(
            pl.col("parameters", "macros").str.extract_all(r'"[^"]+": -?\d+').list.sort().list.join(", "),
            clocks=pl.col("clocks").str.split(":").list.first(),  # after it: why they are as they are
            form=pl.col("variant").fill_null("").str.split(" ").list.filter(~pl.element().str.contains(REPEATED)).list.join(" "),
            device_name=pl.col("device_id").replace_strict(names, default=None, return_dtype=pl.String),
            node_id=pl.when(has_no_uuid).then(pl.lit(run.node_id or None, dtype=pl.String)),
        )
        .group_by([*KEY, "cache_mode"], maintain_order=True)
        .agg(
            *(
                pl.col(name).cast(pl.String).drop_nulls().unique().sort().str.join("/").replace("", None)
                for name in CIRCUMSTANCES
                if name != "cache_mode"
            ),
            pl.col("event_index").max(),
            pl.col("category").first(),
            pl.col("disturbance").drop_nulls().first(),
            pl.col("label").first().str.replace(r" process=\d+$", ""),
            pl.col("duration_median_ns").median(),
            pl.col("configuration_index", "process_index"),
            first_index=pl.col("configuration_index").first(),
            process_count=pl.col("process_index").n_unique(),
            is_wrong=(pl.col("verification_state") == "FAILED").any(),
        )
    )


def _matched(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Return the matched configurations, columns of `before` with that suffix. The cache mode may differ if all else matches."""
    exact = after.join(before, on=[*KEY, "cache_mode"], suffix="_before", nulls_equal=True).with_columns(cache_mode_before="cache_mode")
    left, left_before = _left(after, exact["first_index"]), _left(before, exact["first_index_before"])
    other_cache = left.join(left_before, on=KEY, suffix="_before", nulls_equal=True)
    versions = _versions_of_a_model(_left(left_before, other_cache["first_index_before"]), _left(left, other_cache["first_index"]))
    return pl.concat([exact, other_cache, versions], how="diagonal").sort("first_index")


def _versions_of_a_model(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Return the match of the whole passes if each operand has one, of equal inputs, whatever the ML model's file and variant."""
    passes = [side.filter(pl.col("category") == COMPLETE_PASS) for side in (before, after)]
    if any(side.height != 1 for side in passes):
        return after.clear()
    inputs = pl.col("parameters").str.extract_all(r'"(batch_size|sequence_length)": \d+').list.join(", ")
    first, second = (side.with_columns(inputs=inputs) for side in passes)
    found = second.join(first, on="inputs", suffix="_before").drop("inputs")
    other = pl.concat_str("kernel_name_before", "form_before", separator=" ").str.strip_chars_end()
    return found.with_columns(label=pl.format("{} against {}", "label", other))


def _left(candidates: pl.DataFrame, matched_indexes: pl.Series) -> pl.DataFrame:
    return candidates.filter(~pl.col("first_index").is_in(matched_indexes.to_list()))


def _before(name: str) -> str:
    return f"{name}_before"


# ---------------------------------------------------------------- circumstances


def _check_differences(
    baseline: ComparisonOperand, candidate: ComparisonOperand, matched: pl.DataFrame, allowed: frozenset[Difference]
) -> None:
    found: dict[Difference, list[str]] = {}
    for column, difference in CIRCUMSTANCES.items():
        if difference not in allowed:
            pairs = matched.filter(pl.col(column) != pl.col(_before(column))).select(_before(column), column)
            found.setdefault(difference, []).extend(f"{column} {first} and {second}" for first, second in pairs.head(1).iter_rows())
    refused = {difference: ", ".join(texts) for difference, texts in found.items() if texts}
    if refused:
        names = ",".join(refused)
        raise InvalidRequestError(
            f"comparison of run {candidate.run_id} with run {baseline.run_id}",
            found="; ".join(
                f"{'other' if difference is Difference.INPUTS else 'another'} {difference} ({text})" for difference, text in refused.items()
            ),
            expected=f"the same {' and '.join(refused)}",
            remedy=f"Repeat one run like the other; or allow it (--allow {names}), and read the result as one of both together.",
        )


def _differing(row: Mapping[str, Any]) -> list[Difference]:
    return list(
        dict.fromkeys(
            difference
            for column, difference in CIRCUMSTANCES.items()
            if None not in (row[column], row[_before(column)]) and row[column] != row[_before(column)]
        )
    )


# ---------------------------------------------------------------- evidence and verdicts


def timings_by_configuration(run: ComparisonOperand) -> dict[int, Timings]:
    """Return the timings by configuration_index. Results of other tools may have no samples; then the median is the only timing."""
    counted = run.samples.filter(~pl.col("is_discarded").fill_null(False), pl.col("duration_ns") > 0)
    medians = run.measurements.filter(pl.col("duration_median_ns") > 0)
    found = {
        index: Timings(np.array([median_ns]))
        for index, median_ns in medians.select("configuration_index", "duration_median_ns").iter_rows()
    }
    for (index,), part in counted.group_by("configuration_index"):
        durations_ns, clocks_hz = part["duration_ns"].to_numpy(), part["sm_clock_hz"]
        has_clock = clocks_hz.null_count() == 0 and clocks_hz.min() != 0
        found[int(index)] = Timings(durations_ns, durations_ns * clocks_hz.to_numpy() / NS_PER_S if has_clock else None)
    return found


def _compared(
    row: Mapping[str, Any], evidence: Mapping[int, Timings], evidence_before: Mapping[int, Timings], margin_ratio: float
) -> Comparison | None:
    """Return the comparison of a matched configuration; None if an operand has no timings."""
    candidate, baseline = _by_process(row, "", evidence), _by_process(row, "_before", evidence_before)
    return compare_processes(candidate, baseline, margin_ratio) if candidate and baseline else None


def _by_process(row: Mapping[str, Any], suffix: str, evidence: Mapping[int, Timings]) -> list[Timings]:
    """Return the timings of each process. Further measurements of one process are no further evidence, so its first counts."""
    pairs = list(zip(row[f"process_index{suffix}"], row[f"configuration_index{suffix}"], strict=True))
    first_of_process = dict(reversed(pairs))
    return [evidence[index] for index in first_of_process.values() if index in evidence]


def _verdict(row: Mapping[str, Any], comparison: Comparison | None) -> dict[str, Any]:
    differing = {"allowed_differences": ",".join(_differing(row)), "occurrence": "MATCHED"}
    if comparison is None:
        return differing | {"verdict": Verdict.UNDECIDED, "reason": "One of the runs has no durations of it."}
    duration, cycles = comparison.duration, comparison.cycles
    verdict, reason = comparison.verdict, comparison.reason
    if row["is_wrong"] or row["is_wrong_before"]:
        which = "second" if row["is_wrong"] else "first"
        verdict, reason = Verdict.UNDECIDED, f"The results of the {which} run are wrong: how fast they come tells nothing."
    return differing | {
        "duration_ratio": duration.ratio,
        "duration_ratio_low": duration.low,
        "duration_ratio_high": duration.high,
        "cycle_ratio": None if cycles is None else cycles.ratio,
        "cycle_ratio_low": None if cycles is None else cycles.low,
        "cycle_ratio_high": None if cycles is None else cycles.high,
        "confidence_ratio": CONFIDENCE,
        "verdict": verdict,
        "reason": reason,
    }


def _operand_columns(row: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """Return the columns of one operand; common columns are the candidate's if there is one."""
    prefix = "baseline_" if suffix else ""
    own = {
        f"{prefix}configuration_index": row[f"first_index{suffix}"],
        f"{prefix}process_count": row[f"process_count{suffix}"],
        f"{prefix}duration_median_ns": row[f"duration_median_ns{suffix}"],
        f"{prefix}disturbance": row[f"disturbance{suffix}"],
    }
    if suffix and "first_index" in row:
        return own
    common = {name: row.get(f"{name}{suffix}") for name in ("kernel_name", "label", "cache_mode")}
    return own | common | {"event_index": None if suffix else row["event_index"], "occurrence": "GONE" if suffix else "NEW"}


# ---------------------------------------------------------------- comparison of traces
# The device time of two traces is compared kernel by kernel and layer by layer.

FIGURES: Final = ("launch_count", "duration_sum_ns")
MEDIAN: Final = "duration_median_ns"
MATCHED_BY_NAME: Final = "name"
MATCHED_BY_FORM: Final = "form"
MAX_TEMPLATE_DEPTH: Final = 64
"""Nested levels of template arguments that are removed from names, one in each pass over all names; those of CUTLASS are sixteen
deep. Deeper ones stay in the name, which then has no counterpart."""

ADDRESS: Final = r"0x[0-9a-fA-F]+"
INNERMOST_TEMPLATE: Final = r"<[^<>]*>"
PARAMETERS: Final = r"\((?:[^()]|\([^()]*\))*\)\s*(?:\[[^\[\]]*\])?\s*$"
ANONYMOUS: Final = r"\(anonymous namespace\)::|<unnamed>::"
COUNTER: Final = r",?\s*\b(?:op_id|seq|input_op_ids|sizes) = (?:\[.*\]|\S+)|(?:^|\b)(triton_\w*?)_\d+$"
"""Numbers that PyTorch's NVTX ranges and Triton's compiler assign in the course of a program, which differ between runs."""


def kernel_comparison(candidate: pl.LazyFrame, baseline: pl.LazyFrame) -> pl.LazyFrame:
    """Return table kernel_comparison: one row per kernel of either trace, the largest change first.

    Args:
        candidate, baseline: kernels by name of the candidate and of the baseline, as `trace_kernels` returns them.
    """
    compared = _compared_kernels(candidate, baseline, "kernel_name", FIGURES, (MEDIAN,))
    return compared.with_columns(duration_median_ratio=_ratio(pl.col(MEDIAN), pl.col(f"baseline_{MEDIAN}")))


def layer_comparison(candidate: pl.LazyFrame, baseline: pl.LazyFrame) -> pl.LazyFrame:
    """Return table layer_comparison: one row per layer of either trace, the largest change first.

    Args:
        candidate, baseline: layers by name and source of the candidate and of the baseline, as `trace_layers` returns them; layers of
            one name count together.
    """
    return _compared_kernels(candidate, baseline, "layer", ("call_count", *FIGURES))


def _compared_kernels(
    candidate: pl.LazyFrame, baseline: pl.LazyFrame, name: str, figures: tuple[str, ...], medians: tuple[str, ...] = ()
) -> pl.LazyFrame:
    """Match equal names, and the other names by their normalized form, which several names may share.

    Every launch of both operands is in exactly one row.

    Args:
        candidate, baseline: rows of the candidate and of the baseline.
        name: column with the name.
        figures: metrics that are summed.
        medians: metrics that are null in rows of several names.
    """
    after, before = (side.group_by(name).agg(pl.col(*figures).sum(), *map(_of_one, medians)) for side in (candidate, baseline))
    by_name = after.join(before, on=name, suffix="_before", nulls_equal=True).with_columns(
        pl.col(name).alias(f"{name}_before"),
        name_count=pl.lit(1, dtype=COUNT),
        name_count_before=pl.lit(1, dtype=COUNT),
        matched_by=pl.lit(MATCHED_BY_NAME),
    )
    after_forms = _by_form(after.join(before, on=name, how="anti", nulls_equal=True), name, figures, medians)
    before_forms = _by_form(before.join(after, on=name, how="anti", nulls_equal=True), name, figures, medians)
    by_form = after_forms.join(before_forms, on="form", suffix="_before").with_columns(matched_by=pl.lit(MATCHED_BY_FORM))
    new = after_forms.join(before_forms, on="form", how="anti")
    gone = before_forms.join(after_forms, on="form", how="anti").rename(
        {column: f"{column}_before" for column in (name, *figures, *medians, "name_count")}
    )
    return _with_changes(pl.concat([by_name, by_form, new, gone], how="diagonal"), name, (*figures, *medians))


def _of_one(figure: str) -> pl.Expr:
    return pl.when(pl.len() == 1).then(pl.col(figure).first()).alias(figure)


def _by_form(side: pl.LazyFrame, name: str, figures: tuple[str, ...], medians: tuple[str, ...]) -> pl.LazyFrame:
    """Return one row per normalized form, with its name if it has only one, else with the form as name."""
    is_one = pl.len() == 1
    return (
        side.with_columns(form=pl.col(name).map_batches(normalize_names, return_dtype=TEXT))
        .group_by("form")
        .agg(
            pl.col(*figures).sum(),
            *map(_of_one, medians),
            pl.when(is_one).then(pl.col(name).first()).otherwise(pl.col("form").first()).alias(name),
            name_count=pl.len().cast(COUNT),
        )
    )


def normalize_names(names: pl.Series) -> pl.Series:
    """Return names without the parts that differ between builds and runs: template arguments, parameters, addresses, counters."""
    plain = names.str.replace_all(ANONYMOUS, "").str.replace_all(ADDRESS, "")
    for _ in range(MAX_TEMPLATE_DEPTH):
        if not plain.str.contains(INNERMOST_TEMPLATE).any():
            break
        plain = plain.str.replace_all(INNERMOST_TEMPLATE, "")
    return plain.str.replace(PARAMETERS, "").str.replace_all(COUNTER, "$1").str.strip_prefix("void ").str.strip_chars()


def _with_changes(rows: pl.LazyFrame, name: str, figures: tuple[str, ...]) -> pl.LazyFrame:
    """Return the matched rows with their changes. A missing operand counts as time 0."""
    after, before = (pl.col(column).fill_null(0) for column in ("duration_sum_ns", "duration_sum_ns_before"))
    delta_ns, total_delta_ns = after - before, (after - before).sum()
    per_launch = pl.col("duration_sum_ns") / pl.col("launch_count")
    per_launch_before = pl.col("duration_sum_ns_before") / pl.col("launch_count_before")
    is_after, is_before = pl.col("name_count").is_not_null(), pl.col("name_count_before").is_not_null()
    return (
        rows.with_columns(
            occurrence=pl.when(is_after & is_before).then(pl.lit("MATCHED")).when(is_after).then(pl.lit("NEW")).otherwise(pl.lit("GONE")),
            duration_delta_ns=delta_ns,
            delta_share_ratio=pl.when(total_delta_ns != 0).then(delta_ns / total_delta_ns),
            duration_ratio=_ratio(pl.col("duration_sum_ns"), pl.col("duration_sum_ns_before")),
            duration_per_launch_ratio=_ratio(per_launch, per_launch_before),
        )
        .with_columns(pl.when(is_after).then(pl.col(name)).otherwise(pl.col(f"{name}_before")).alias(name))
        .sort(
            pl.col("duration_delta_ns").abs(),
            "duration_delta_ns",
            name,
            "occurrence",
            descending=[True, True, False, False],
            nulls_last=True,
        )
        .select(
            *("occurrence", "matched_by", name, pl.col(f"{name}_before").alias(f"baseline_{name}"), "name_count"),
            pl.col("name_count_before").alias("baseline_name_count"),
            *(pl.col(column, f"{column}_before") for column in figures),
            *("duration_delta_ns", "delta_share_ratio", "duration_ratio", "duration_per_launch_ratio"),
        )
        .rename({f"{column}_before": f"baseline_{column}" for column in figures})
    )


def _ratio(after: pl.Expr, before: pl.Expr) -> pl.Expr:
    return pl.when(before > 0).then(after / before).cast(NUMBER)
