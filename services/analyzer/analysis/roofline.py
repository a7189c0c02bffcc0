"""The roofline of measured configurations: efficiency, bound and plausibility under the ceilings of their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

import polars as pl

from kernalyse.services.analyzer.tables.derived import COUNTED_ROOFLINE, ROOFLINE
from kernalyse.services.core.disturbance import MAX_COUNTED_BUSY_RATIO, MAX_HOST_BUSY_RATIO, SEPARATOR
from kernalyse.services.core.model import Thresholds

SOURCES: Final = ("user", "measured", "datasheet", "clock")
"""Sources of ceilings; the first that has one counts. A user override comes first, then what was measured, since a datasheet's peak
holds at a clock that the device may never reach."""

MEASURED: Final = "measured"
LEVELS: Final = ("dram", "l2", "l1", "shared")
PATHS: Final = ("fma", "tensor")
COMPARED_SOURCES: Final = ("datasheet", "clock", "measured")
"""Sources for which the efficiency is computed separately as well."""

MAX_PLAUSIBLE_RATIO: Final = 1.05
"""Largest plausible ratio to the highest ceiling. With less, correct kernels on a device that boosts would be marked; with more, a
kernel that skips a tenth of its computation would not."""

ACCUMULATE_SUFFIX: Final = "_accumulate16"
NS_PER_S: Final = 1e9
KEYS: Final = ["run_id", "device_id"]


@dataclass(frozen=True, slots=True)
class RooflineModel:
    """The ceilings that measurements are compared with, prepared for joins.

    memory: one row per run and device. compute, highest: one row per run, device and data type. thresholds: the table of this name.
    """

    memory: pl.LazyFrame
    compute: pl.LazyFrame
    highest: pl.LazyFrame
    thresholds: pl.LazyFrame

    @classmethod
    def of(cls, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> Self:
        """Return the ceilings from the tables of these names. ceilings: of every source."""
        return cls(_memory_ceilings(ceilings), _compute_ceilings(ceilings), _highest_compute_ceilings(ceilings), thresholds)

    def worked_out(self) -> Self:
        """Return the same with computed frames, for repeated use: preparing the ceilings takes longer than comparing a point with them."""
        frames = pl.collect_all([self.memory, self.compute, self.highest, self.thresholds])
        return type(self)(*(frame.lazy() for frame in frames))


def roofline(measurements: pl.LazyFrame, ceilings: pl.LazyFrame, counted_work: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """Return table roofline: intensity, achieved and attainable rate, efficiency, bound and plausibility of each measurement.

    Flop and bytes are by formula, and by counters for kernels without one (`with_counted_work`).

    The memory level is that of the bytes if they were counted, else DRAM. A hot measurement by formula that moves its bytes
    faster than DRAM can has them in the last-level cache and is compared with that ceiling if it is known ("l2"), and one that
    is faster still with "l1".

    attainable flop/s = min(compute ceiling of the data type, intensity x memory ceiling), after Williams, Waterman and
    Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 52(4), 2009. A kernel
    without flop is compared with the memory ceiling alone: efficiency = achieved bytes/s over it; one without bytes with the
    compute ceiling alone. Rates are over the median duration, for imported results without one over the mean. The kernel's path
    selects the compute ceiling; if a data type has none on that path, that of the other path counts.

    Ceilings of source "clock" hold at the clock that they state, and are scaled to the SM clock of measurements that have one.
    Device memory does not depend on the SM clock: there the datasheet's ceiling counts, else the measured one.

    A measurement is implausible if it is more than 5 % over the highest compute ceiling of its data type, whatever the
    path and the source, or over the fastest memory that its bytes can have come from: any level for hot samples, DRAM
    and L2 for cold ones. Ceilings measured on a busy host are extrapolated to an idle one for this.

    Results of other tools that lack flop, bytes or durations get their point from the rate and the intensity that they state.

    Args:
        measurements: table measurements, of any runs.
        ceilings, counted_work, thresholds: the tables of these names, of the same runs; ceilings of every source.

    Returns:
        Table roofline, in the order of the measurements. Columns that need an unknown ceiling are null. event_index is the
        latest one of the measurement, its counters and its ceilings.
    """
    return roofline_under(RooflineModel.of(ceilings, thresholds), measurements, counted_work)


def roofline_under(roofs: RooflineModel, measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Return `roofline` of the measurements, with ceilings prepared before."""
    return ROOFLINE.conform(place_under_ceilings(with_counted_work(measurements, counted_work), roofs))


def counted_roofline(
    measurements: pl.LazyFrame, ceilings: pl.LazyFrame, counted_work: pl.LazyFrame, thresholds: pl.LazyFrame
) -> pl.LazyFrame:
    """Return table counted_roofline: one row per measurement and counted memory level, with flop and bytes by counters.

    After Yang, Kurth and Williams, "Hierarchical Roofline analysis for GPUs", 2020: one flop rate, an intensity and a
    ceiling for each level. Arguments are those of `roofline`.
    """
    nothing_stated = [pl.lit(None, dtype=pl.Float64).alias(name) for name in ("stated_flop_per_s", "stated_flop_per_byte")]
    levels = counted_levels(measurements, counted_work).with_columns(nothing_stated)
    return COUNTED_ROOFLINE.conform(place_under_ceilings(levels, RooflineModel.of(ceilings, thresholds)))


def place_under_ceilings(measurements: pl.LazyFrame, roofs: RooflineModel) -> pl.LazyFrame:
    """Return measurements with the columns of the roofline added.

    Args:
        measurements: the result of `with_counted_work`, or rows with the same columns.
        roofs: the ceilings of their devices.
    """
    duration_s = pl.coalesce("duration_median_ns", "duration_mean_ns") / NS_PER_S
    has_flop, has_bytes = pl.col("flop") > 0, pl.col("bytes") > 0
    return (
        measurements.join(roofs.memory, on=KEYS, how="left", maintain_order="left")
        .join(roofs.compute, on=[*KEYS, "dtype"], how="left", maintain_order="left")
        .join(roofs.highest, on=[*KEYS, "dtype"], how="left", maintain_order="left")
        .with_columns(
            event_index=pl.max_horizontal("event_index", "ceilings_event_index"),
            achieved_flop_per_s=pl.coalesce(pl.when(has_flop).then(pl.col("flop") / duration_s), "stated_flop_per_s"),
            intensity_flop_per_byte=pl.coalesce(
                pl.when(has_flop & has_bytes).then(pl.col("flop") / pl.col("bytes")), "stated_flop_per_byte"
            ),
        )
        .with_columns(
            achieved_bytes_per_s=pl.coalesce(
                pl.when(has_bytes).then(pl.col("bytes") / duration_s), pl.col("achieved_flop_per_s") / pl.col("intensity_flop_per_byte")
            ),
        )
        .with_columns(_at_measured_clock())
        .with_columns(memory_level=_memory_level(), **_memory_at_clock())
        .with_columns(_known_ceilings("", SOURCES))
        .with_columns(part for source in COMPARED_SOURCES for part in _known_ceilings(f"_{source}", (source,)))
        .with_columns(part for suffix in ("", *(f"_{source}" for source in COMPARED_SOURCES)) for part in _compared_with(suffix))
        .with_columns(
            efficiency_ratio=pl.col("efficiency"),
            ridge_flop_per_byte=pl.col("compute_ceiling_flop_per_s") / pl.col("memory_ceiling_bytes_per_s"),
            ceiling_source=pl.when(pl.col("bound") == "memory")
            .then(pl.col("memory_source"))
            .when(pl.col("bound") == "compute")
            .then(pl.col("compute_source")),
            **{f"efficiency_{source}_ratio": pl.col(f"efficiency_{source}") for source in COMPARED_SOURCES},
        )
        .with_columns(_plausibility())
        .with_columns(disturbance=_disturbance())
        .pipe(with_efficiency_category, roofs.thresholds, ("", *(f"_{source}" for source in COMPARED_SOURCES)))
    )


# ---------------------------------------------------------------- ceilings by device


def _memory_ceilings(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per run and device: "measured_l2" and so on, and the fastest memory for hot and for cold samples."""
    is_memory = pl.col("unit") == "bytes_per_s"
    is_cold_level = is_memory & pl.col("ceiling_name").is_in(["dram", "l2"])
    return (
        ceilings.sort("event_index", maintain_order=True)
        .group_by(KEYS)
        .agg(
            pl.col("event_index").max().alias("ceilings_event_index"),
            (pl.col("source") == "clock").any().alias("has_clock"),
            *(_busy_of(is_memory & (pl.col("ceiling_name") == level)).alias(f"busy_{level}") for level in LEVELS),
            *(
                pl.col("value")
                .filter(is_memory & (pl.col("ceiling_name") == level) & (pl.col("source") == source))
                .last()
                .alias(f"{source}_{level}")
                for source in SOURCES
                for level in LEVELS
            ),
            *(_clock_of(is_memory & (pl.col("ceiling_name") == level)).alias(f"clock_hz_{level}") for level in LEVELS),
            *_fastest("hot", is_memory, pl.col("ceiling_name").is_in(["l2", "l1", "shared"])),
            *_fastest("cold", is_cold_level, pl.col("ceiling_name") == "l2"),
        )
    )


def _fastest(temperature: str, is_level: pl.Expr, is_cache: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return value and name of the fastest of these levels; null if no cache is known, since bytes may come from one."""
    value, name = _possible().filter(is_level), pl.col("ceiling_name").filter(is_level)
    is_known = (is_level & is_cache).any()
    return (
        pl.when(is_known).then(value.max()).alias(f"fastest_{temperature}_bytes_per_s"),
        pl.when(is_known).then(name.sort_by(value).last()).alias(f"fastest_{temperature}_level"),
    )


def _compute_ceilings(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per run, device and data type: "measured_fma", "clock_tensor" and so on."""
    is_path = {"tensor": pl.col("path") == "tensor", "fma": pl.col("path") != "tensor"}
    return (
        ceilings.filter(pl.col("unit") == "flop_per_s")
        .sort("event_index", maintain_order=True)
        .group_by(*KEYS, pl.col("ceiling_name").alias("dtype"))
        .agg(
            *(
                pl.col("value").filter(is_path[path] & (pl.col("source") == source)).last().alias(f"{source}_{path}")
                for source in SOURCES
                for path in PATHS
            ),
            *(_clock_of(is_path[path]).alias(f"clock_hz_{path}") for path in PATHS),
            *(_busy_of(is_path[path]).alias(f"busy_{path}") for path in PATHS),
        )
    )


def _clock_of(is_wanted: pl.Expr) -> pl.Expr:
    return pl.col("clock_hz").filter(is_wanted & (pl.col("source") == "clock")).last()


def _busy_of(is_wanted: pl.Expr) -> pl.Expr:
    """Return how busy the host was while the ceiling was measured."""
    return pl.col("host_busy_ratio").filter(is_wanted & (pl.col("source") == MEASURED)).last()


def _highest_compute_ceilings(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """Return the highest ceiling per run, device and data type, over paths, sources and accumulator types."""
    return (
        ceilings.filter(pl.col("unit") == "flop_per_s")
        .group_by(*KEYS, pl.col("ceiling_name").str.strip_suffix(ACCUMULATE_SUFFIX).alias("dtype"))
        .agg(highest_flop_per_s=_possible().max())
    )


def _possible() -> pl.Expr:
    """Return the ceiling, extrapolated to an idle host if it was measured on a busy one."""
    busy_ratio = pl.col("host_busy_ratio")
    left_ratio = 1 - busy_ratio.clip(upper_bound=MAX_COUNTED_BUSY_RATIO)
    return pl.when(busy_ratio > MAX_HOST_BUSY_RATIO).then(pl.col("value") / left_ratio).otherwise("value")


def _at_measured_clock() -> list[pl.Expr]:
    """Return ceilings of source clock scaled to the measurement's own clock, where both clocks are known."""
    return [
        (pl.col(f"clock_{name}") * (pl.col("sm_clock_hz") / pl.col(f"clock_hz_{name}")).fill_null(1.0)).alias(f"clock_{name}")
        for name in (*LEVELS, *PATHS)
    ]


# ---------------------------------------------------------------- one measurement under its ceilings


def _memory_level() -> pl.Expr:
    achieved, is_hot = pl.col("achieved_bytes_per_s"), pl.col("cache_mode") == "HOT"
    dram, l2, l1 = (_first([f"{source}_{level}" for source in SOURCES]) for level in ("dram", "l2", "l1"))
    is_past_dram = (is_hot & (achieved > dram) & l2.is_not_null()).fill_null(False)
    is_past_l2 = is_past_dram & ((achieved > l2) & l1.is_not_null()).fill_null(False)
    return pl.coalesce(
        "counted_level", pl.when(is_past_l2).then(pl.lit("l1")).when(is_past_dram).then(pl.lit("l2")).otherwise(pl.lit("dram"))
    )


def _memory_at_clock() -> dict[str, pl.Expr]:
    """Return the memory ceilings of devices with ceilings of source clock: the datasheet's, else the measured ones.

    Device memory has a clock of its own, so its ceilings do not depend on the SM clock.
    """
    borrowed = {f"clock_{level}": [f"datasheet_{level}", f"measured_{level}"] for level in LEVELS}
    return {name: pl.when("has_clock").then(pl.coalesce(name, *others)) for name, others in borrowed.items()}


def _known_ceilings(suffix: str, sources: Sequence[str]) -> list[pl.Expr]:
    """Return the compute and the memory ceiling of the measurement from these sources, with the source of each."""
    of_paths = {path: [f"{source}_{path}" for source in sources] for path in PATHS}
    own_first, other_first = [*of_paths["fma"], *of_paths["tensor"]], [*of_paths["tensor"], *of_paths["fma"]]
    is_tensor = (pl.col("path") == "tensor").fill_null(False)
    levels = {level: [f"{source}_{level}" for source in sources] for level in ("dram", "l2", "l1")}

    def by_level(pick: dict[str, pl.Expr]) -> pl.Expr:
        level = pl.col("memory_level")
        return pl.when(level == "l1").then(pick["l1"]).when(level == "l2").then(pick["l2"]).otherwise(pick["dram"])

    return [
        pl.when(is_tensor).then(_first(other_first)).otherwise(_first(own_first)).alias(f"compute_ceiling_flop_per_s{suffix}"),
        pl.when(is_tensor).then(_source_of(other_first)).otherwise(_source_of(own_first)).alias(f"compute_source{suffix}"),
        by_level({level: _first(names) for level, names in levels.items()}).alias(f"memory_ceiling_bytes_per_s{suffix}"),
        by_level({level: _source_of(names) for level, names in levels.items()}).alias(f"memory_source{suffix}"),
    ]


def _first(names: Sequence[str]) -> pl.Expr:
    return pl.coalesce(names)


def _source_of(names: Sequence[str]) -> pl.Expr:
    """Return the source of the first of these columns that is not null."""
    return pl.coalesce(pl.when(pl.col(name).is_not_null()).then(pl.lit(name.partition("_")[0])) for name in names)


def _compared_with(suffix: str) -> list[pl.Expr]:
    """Return attainable flop rate, efficiency and bound under the ceilings of this suffix."""
    compute, memory = pl.col(f"compute_ceiling_flop_per_s{suffix}"), pl.col(f"memory_ceiling_bytes_per_s{suffix}")
    flop_per_s, bytes_per_s = pl.col("achieved_flop_per_s"), pl.col("achieved_bytes_per_s")
    memory_roof = pl.col("intensity_flop_per_byte") * memory
    only_bytes = flop_per_s.is_null() & bytes_per_s.is_not_null()
    only_flop = flop_per_s.is_not_null() & bytes_per_s.is_null()
    both_known = memory_roof.is_not_null() & compute.is_not_null()
    attainable = pl.when(both_known).then(pl.min_horizontal(compute, memory_roof)).when(only_flop).then(compute)
    return [
        attainable.alias(f"attainable_flop_per_s{suffix}"),
        pl.when(only_bytes).then(bytes_per_s / memory).otherwise(flop_per_s / attainable).alias(f"efficiency{suffix}"),
        pl.when((only_bytes & memory.is_not_null()) | (both_known & (memory_roof < compute)))
        .then(pl.lit("memory"))
        .when(attainable.is_not_null())
        .then(pl.lit("compute"))
        .alias(f"bound{suffix}"),
    ]


def _disturbance() -> pl.Expr:
    """Return what disturbed the measurement, and the measurement of both ceilings that it is compared with."""
    level, is_tensor = pl.col("memory_level"), (pl.col("path") == "tensor").fill_null(value=False)
    of_memory = pl.when(level == "l1").then("busy_l1").when(level == "l2").then("busy_l2").otherwise("busy_dram")
    # As for the ceiling itself: if there is none on the kernel's own path, that of the other path counts.
    is_of_tensor = pl.when(is_tensor).then(pl.col("measured_tensor").is_not_null()).otherwise(pl.col("measured_fma").is_null())
    of_compute = pl.when(is_of_tensor).then("busy_tensor").otherwise("busy_fma")
    busy_ratio = pl.max_horizontal(
        pl.when(pl.col("memory_source") == MEASURED).then(of_memory), pl.when(pl.col("compute_source") == MEASURED).then(of_compute)
    )
    of_ceilings = pl.format("ceilings of a host {} % busy", (busy_ratio * 100).round().cast(pl.Int64))
    parts = pl.concat_str(
        "disturbance", pl.when(busy_ratio > MAX_HOST_BUSY_RATIO).then(of_ceilings), separator=SEPARATOR, ignore_nulls=True
    )
    return pl.when(parts != "").then(parts)


# ---------------------------------------------------------------- plausibility


def _plausibility() -> list[pl.Expr]:
    is_cold = (pl.col("cache_mode") == "COLD").fill_null(False)
    fastest = pl.when(is_cold).then(pl.col("fastest_cold_bytes_per_s")).otherwise(pl.col("fastest_hot_bytes_per_s"))
    level = pl.when(is_cold).then(pl.col("fastest_cold_level")).otherwise(pl.col("fastest_hot_level"))
    flop_excess = pl.col("achieved_flop_per_s") / pl.col("highest_flop_per_s")
    byte_excess = pl.col("achieved_bytes_per_s") / fastest
    has_flop_excess, has_byte_excess = flop_excess > MAX_PLAUSIBLE_RATIO, byte_excess > MAX_PLAUSIBLE_RATIO
    stated = pl.when(pl.col("work_source") == COUNTERS).then(pl.lit("counted")).otherwise(pl.lit("claimed"))
    is_known = flop_excess.is_not_null() | byte_excess.is_not_null()
    return [
        pl.when(is_known).then(has_flop_excess.fill_null(False) | has_byte_excess.fill_null(False)).alias("is_implausible"),
        pl.when(has_flop_excess)
        .then(
            pl.format(
                "It computes {} times the highest {} ceiling of the device ({} Gflop/s): fewer flop than {}, or a cached result.",
                flop_excess.round_sig_figs(3),
                pl.col("dtype"),
                (pl.col("highest_flop_per_s") / 1e9).round_sig_figs(4),
                stated,
            )
        )
        .when(has_byte_excess)
        .then(
            pl.format(
                "It moves {} times what the fastest memory that counts can ({}, {} GB/s): fewer bytes than {}, or a cached result.",
                byte_excess.round_sig_figs(3),
                level,
                (fastest / 1e9).round_sig_figs(4),
                stated,
            )
        )
        .alias("implausible_reason"),
    ]


# ---------------------------------------------------------------- costs of measurements
# Flop and bytes are by formula if the kernel has one, else by counters; for the counted roofline they are by counters at each level.

MEMORY_LEVELS: Final = ("dram", "l2", "l1")
LAUNCH_IDENTITY: Final = ("kernel_name", "parameters", "macros", "block", "dynamic_shared_memory_bytes", "cache_mode")
"""Columns that determine what a launch computes: counters of one process of a run hold for the others."""

FORMULA: Final = "formula"
COUNTERS: Final = "counters"


def with_counted_work(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Return measurements with the flop and bytes that the roofline uses.

    A kernel with either formula has flop and bytes by formula, which state the required cost, while counters state the actual one.
    A kernel without has them by counters: all its flop, and the bytes of the farthest memory that it used.

    Args:
        measurements, counted_work: the tables of these names, of any runs.

    Returns:
        The rows and columns of measurements in their order, then work_source ("formula", "counters"; null: not known),
        counted_level ("dram", "l2", "l1": where bytes by counters were counted; null: the roofline selects the level), and for
        comparison counted_flop and counted_dram_bytes (null: not counted). In rows by counters, dtype and path are those of
        most of the flop, since they select the compute ceiling. event_index: the later one of measurement and counters.
    """
    has_formula = pl.col("flop").is_not_null() | pl.col("bytes").is_not_null()
    level = pl.coalesce(pl.when(_level_bytes(name) > 0).then(pl.lit(name)) for name in MEMORY_LEVELS)
    used_bytes = pl.coalesce(pl.when(_level_bytes(name) > 0).then(_level_bytes(name)) for name in MEMORY_LEVELS)
    by_counters = ~has_formula & _is_counted()
    return (
        _joined(measurements, counted_work)
        .with_columns(
            work_source=pl.when(has_formula).then(pl.lit(FORMULA)).when(by_counters).then(pl.lit(COUNTERS)),
            counted_level=pl.when(by_counters).then(level),
            flop=pl.when(has_formula).then("flop").otherwise("counted_flop"),
            bytes=pl.when(has_formula).then("bytes").otherwise(used_bytes),
            **_counted_kind(by_counters),
        )
        .select(*measurements.collect_schema().names(), *_ADDED)
    )


def counted_levels(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per measurement and memory level with counted bytes, whether its kernel has formulas or not.

    Arguments and columns are those of `with_counted_work`; levels of one measurement go from the farthest to the nearest.
    """
    joined = _joined(measurements.with_row_index("position"), counted_work)
    levels = [
        joined.filter(_level_bytes(level).is_not_null()).with_columns(
            work_source=pl.lit(COUNTERS),
            counted_level=pl.lit(level),
            flop="counted_flop",
            bytes=_level_bytes(level),
            **_counted_kind(pl.lit(True)),
        )
        for level in MEMORY_LEVELS
    ]
    return pl.concat(levels).sort("position", maintain_order=True).select(*measurements.collect_schema().names(), *_ADDED)


_ADDED: Final = ("work_source", "counted_level", "counted_flop", "counted_dram_bytes")


def _level_bytes(level: str) -> pl.Expr:
    return pl.col(f"counted_{level}_bytes")


def _is_counted() -> pl.Expr:
    return pl.any_horizontal(pl.col("counted_flop").is_not_null(), *(_level_bytes(level).is_not_null() for level in MEMORY_LEVELS))


def _counted_kind(by_counters: pl.Expr) -> dict[str, pl.Expr]:
    """Return data type and path: those of most of the counted flop in rows by counters."""
    return {name: pl.when(by_counters).then(pl.coalesce(f"counted_{name}", name)).otherwise(name) for name in ("dtype", "path")}


def _joined(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    counted = counted_work.filter(pl.col("configuration_index").is_not_null()).collect()
    latest = _latest(measurements, counted.lazy())
    if counted.is_empty():  # the usual case, in which joining a million measurements can be avoided
        added = {name: dtype for name, dtype in latest.collect_schema().items() if name.startswith("counted_")}
        return measurements.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in added.items())
    return measurements.join(latest, on=["run_id", *LAUNCH_IDENTITY], how="left", nulls_equal=True, maintain_order="left").with_columns(
        event_index=pl.max_horizontal("event_index", "counted_event_index")
    )


def _latest(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Return the counters by the columns that identify a launch; of several reports or launches the last."""
    identities = measurements.select("run_id", "configuration_index", *LAUNCH_IDENTITY).unique(["run_id", "configuration_index"])
    return (
        counted_work.sort("event_index", "launch_index", maintain_order=True)
        .join(identities, on=["run_id", "configuration_index"], maintain_order="left", suffix="_measured")
        .select(
            "run_id",
            # The kernel's name is in both tables; the measurement's is the one to join on.
            *(pl.col("kernel_name_measured").alias(name) if name == "kernel_name" else name for name in LAUNCH_IDENTITY),
            counted_event_index="event_index",
            counted_flop="flop",
            counted_dtype="dtype",
            counted_path="path",
            **{f"counted_{level}_bytes": f"{level}_bytes" for level in MEMORY_LEVELS},
        )
        .unique(["run_id", *LAUNCH_IDENTITY], keep="last", maintain_order=True)
    )


# ---------------------------------------------------------------- efficiency category
# Five categories: compute or memory bound, compute or memory inefficient, and normal between them.

BOUND_RATIO: Final = 0.7
"""Efficiency above which the hardware is the limit. Datasheet peaks are never reached completely: at 0.9 hardly any kernel would
count as bound; at 0.5 one that could be twice as fast would."""

CATEGORY_KEYS: Final = ["run_id", "device_id"]


def with_efficiency_category(points: pl.LazyFrame, thresholds: pl.LazyFrame, suffixes: Sequence[str] = ("",)) -> pl.LazyFrame:
    """Return points with the column efficiency_category{suffix} for each suffix.

    Above BOUND_RATIO of what is attainable it is "compute bound" or "memory bound", by the bound; else below the threshold for
    that bound "compute inefficient" or "memory inefficient"; else "normal".

    Args:
        points: rows with run_id, device_id and, for each suffix, efficiency{suffix}_ratio and bound{suffix} ("compute", "memory";
            null: not known).
        thresholds: table thresholds, of the same runs; devices without a row have the default ones.
        suffixes: suffixes of the columns.
    """
    defaults = asdict(Thresholds())
    known = thresholds.select(*CATEGORY_KEYS, *defaults).unique(CATEGORY_KEYS, keep="last", maintain_order=True)
    return points.join(known, on=CATEGORY_KEYS, how="left", maintain_order="left").with_columns(
        _category(suffix, defaults).alias(f"efficiency_category{suffix}") for suffix in suffixes
    )


def _category(suffix: str, defaults: dict[str, float]) -> pl.Expr:
    bound, efficiency = pl.col(f"bound{suffix}"), pl.col(f"efficiency{suffix}_ratio")
    memory_ratio, compute_ratio = (pl.col(name).fill_null(value) for name, value in defaults.items())
    threshold = pl.when(bound == "memory").then(memory_ratio).otherwise(compute_ratio)
    return (
        pl.when(efficiency.is_null() | bound.is_null())
        .then(None)
        .when(efficiency > BOUND_RATIO)
        .then(pl.format("{} bound", bound))
        .when(efficiency < threshold)
        .then(pl.format("{} inefficient", bound))
        .otherwise(pl.lit("normal"))
    )


# ---------------------------------------------------------------- comparison of ceilings
# Measured ceilings of a device are compared with those by its datasheet and at its clock.

SHARE_SOURCES: Final = ("measured", "datasheet", "clock")
CEILING_KEYS: Final = ["device_id", "ceiling_name", "unit", "path"]


def ceiling_shares(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """Return one row per ceiling that was measured or is known for such a device, the measured ones first.

    Args:
        ceilings: table ceilings, of one run.

    Returns:
        device_id, ceiling_name, unit, path; measured, datasheet and at_clock in that unit, null where not known;
        datasheet_ratio and clock_ratio, the measured one over each of these; clock_hz, the SM clock of the measured one, else
        the maximum; note and host_busy_ratio of the measured one. at_clock holds at clock_hz: it is proportional to the clock.
    """
    return (
        ceilings.sort("event_index", maintain_order=True)
        .group_by(CEILING_KEYS, maintain_order=True)
        .agg(
            *(_last("value", source).alias(source) for source in SHARE_SOURCES),
            measured_clock_hz=_last("clock_hz", "measured"),
            maximum_clock_hz=_last("clock_hz", "clock"),
            note=_last("note", "measured"),
            host_busy_ratio=_last("host_busy_ratio", "measured"),
        )
        .filter(pl.any_horizontal(pl.col(source).is_not_null() for source in SHARE_SOURCES))
        .with_columns(clock_hz=pl.coalesce("measured_clock_hz", "maximum_clock_hz"))
        .with_columns(at_clock=pl.col("clock") * (pl.col("clock_hz") / pl.col("maximum_clock_hz")))
        .with_columns(datasheet_ratio=pl.col("measured") / pl.col("datasheet"), clock_ratio=pl.col("measured") / pl.col("at_clock"))
        .sort(pl.col("measured").is_null(), maintain_order=True)
        .select(*CEILING_KEYS, "measured", "datasheet", "at_clock", "datasheet_ratio", "clock_ratio", "clock_hz", "note", "host_busy_ratio")
    )


def _last(column: str, source: str) -> pl.Expr:
    return pl.col(column).filter(pl.col("source") == source).last()
