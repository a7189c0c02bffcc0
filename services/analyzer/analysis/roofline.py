"""How far each measured configuration is from the roof of its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

import polars as pl

from kernalyse.services.analyzer.tables.derived import COUNTED_ROOFLINE, ROOFLINE
from kernalyse.services.core.disturbance import MAX_COUNTED_BUSY_RATIO, MAX_HOST_BUSY_RATIO, SEPARATOR
from kernalyse.services.core.model import Thresholds

SOURCES: Final = ("user", "measured", "datasheet", "clock")
"""The first that knows a ceiling counts: what a person set, then what the device was seen to reach, for a datasheet's peak
holds at a clock it may never run at."""

MEASURED: Final = "measured"
LEVELS: Final = ("dram", "l2", "l1", "shared")
PATHS: Final = ("fma", "tensor")
COMPARED_SOURCES: Final = ("datasheet", "clock", "measured")
"""Those whose efficiency is told apart."""

MAX_PLAUSIBLE_RATIO: Final = 1.05
"""Of the highest ceiling: below, honest kernels on a device that boosts would be marked; above, a kernel that leaves out a
tenth of its work would not."""

ACCUMULATE_SUFFIX: Final = "_accumulate16"
NS_PER_S: Final = 1e9
KEYS: Final = ["run_id", "device_id"]


@dataclass(frozen=True, slots=True)
class Roofs:
    """What measurements are held against, by run and device: memory, a row each; compute and highest, also by data type.

    thresholds: the table of this name.
    """

    memory: pl.LazyFrame
    compute: pl.LazyFrame
    highest: pl.LazyFrame
    thresholds: pl.LazyFrame

    @classmethod
    def of(cls, ceilings: pl.LazyFrame, thresholds: pl.LazyFrame) -> Self:
        """Of the tables of these names; ceilings of every source."""
        return cls(_memory_ceilings(ceilings), _compute_ceilings(ceilings), _highest_compute_ceilings(ceilings), thresholds)

    def worked_out(self) -> Self:
        """The same for measurement after measurement: what is known of devices takes longer to find than where a point lies."""
        frames = pl.collect_all([self.memory, self.compute, self.highest, self.thresholds])
        return type(self)(*(frame.lazy() for frame in frames))


def roofline(measurements: pl.LazyFrame, ceilings: pl.LazyFrame, counted_work: pl.LazyFrame, thresholds: pl.LazyFrame) -> pl.LazyFrame:
    """One row per measurement: intensity, achieved, attainable, efficiency and bound, and whether that is possible at all.

    Work is by formula; where the kernel has none it is by counters (`with_counted_work`).

    The memory level is that of the bytes where they were counted, else DRAM. A hot measurement by formula that moves its
    bytes faster than DRAM can has had them from the last-level cache and is held against that one's ceiling where it is
    known ("l2"), and one that is faster still against "l1".

    attainable flop/s = min(compute ceiling of the data type, intensity x memory ceiling), after Williams, Waterman and
    Patterson, "Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 52(4), 2009. A kernel
    without flop is held against the memory ceiling alone: efficiency = achieved bytes/s over it; one without bytes against
    the compute ceiling alone. Rates are over the median; imported results that have none are taken at their mean. The
    kernel's path picks the compute ceiling; where a data type has none on that path, that of the other counts.

    Ceilings of source "clock" hold at the clock they name. For a measurement that knows its SM clock they are those at
    that clock. Of device memory the clock says nothing: there it takes the datasheet's, else the measured one.

    A measurement is implausible when it is more than 5 % over the highest compute ceiling of its data type, whatever the
    path and the source, or over the fastest memory that its bytes can have come from: any level for hot samples, DRAM
    and L2 for cold ones. What was measured of a busy host counts as what it may have been without the other programs.

    Results of other tools that lack flop, bytes or durations have their point by the rate and the intensity that they state.

    Args:
        measurements: table measurements, of any runs.
        ceilings, counted_work, thresholds: the tables of these names, of the same runs; ceilings of every source.

    Returns:
        Table roofline, in the order of the measurements. What needs a ceiling that is not known is null. event_index is
        the later one of the measurement, of its counters and of what is known of its device.
    """
    return roofline_under(Roofs.of(ceilings, thresholds), measurements, counted_work)


def roofline_under(roofs: Roofs, measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """As `roofline`."""
    return ROOFLINE.conform(placed(with_counted_work(measurements, counted_work), roofs))


def counted_roofline(
    measurements: pl.LazyFrame, ceilings: pl.LazyFrame, counted_work: pl.LazyFrame, thresholds: pl.LazyFrame
) -> pl.LazyFrame:
    """One row per measurement and memory level that counters know: as `roofline`, but all work is by counters.

    After Yang, Kurth and Williams, "Hierarchical Roofline analysis for GPUs", 2020: one flop rate, an intensity and a
    ceiling for each level.
    """
    nothing_stated = [pl.lit(None, dtype=pl.Float64).alias(name) for name in ("stated_flop_per_s", "stated_flop_per_byte")]
    levels = counted_levels(measurements, counted_work).with_columns(nothing_stated)
    return COUNTED_ROOFLINE.conform(placed(levels, Roofs.of(ceilings, thresholds)))


def placed(measurements: pl.LazyFrame, roofs: Roofs) -> pl.LazyFrame:
    """Measurements with their work (`with_counted_work`) under the ceilings of their devices."""
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
        .with_columns(part for suffix in ("", *(f"_{source}" for source in COMPARED_SOURCES)) for part in _held_against(suffix))
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


# ---------------------------------------------------------------- what is known of the device


def _memory_ceilings(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """One row per run and device: "measured_l2" and so on, and the fastest memory for hot and for cold samples."""
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
    """Value and name of the fastest of these levels; null while no cache is known: then bytes may be faster than all that is."""
    value, name = _possible().filter(is_level), pl.col("ceiling_name").filter(is_level)
    is_known = (is_level & is_cache).any()
    return (
        pl.when(is_known).then(value.max()).alias(f"fastest_{temperature}_bytes_per_s"),
        pl.when(is_known).then(name.sort_by(value).last()).alias(f"fastest_{temperature}_level"),
    )


def _compute_ceilings(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """One row per run, device and data type: "measured_fma", "clock_tensor" and so on."""
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
    """How busy the host was while the ceiling was measured."""
    return pl.col("host_busy_ratio").filter(is_wanted & (pl.col("source") == MEASURED)).last()


def _highest_compute_ceilings(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """Per run, device and data type, over paths, sources and types of sums."""
    return (
        ceilings.filter(pl.col("unit") == "flop_per_s")
        .group_by(*KEYS, pl.col("ceiling_name").str.strip_suffix(ACCUMULATE_SUFFIX).alias("dtype"))
        .agg(highest_flop_per_s=_possible().max())
    )


def _possible() -> pl.Expr:
    """What a device can do at most as far as a ceiling tells: on a busy host more than was measured, see `undisturbed`."""
    busy_ratio = pl.col("host_busy_ratio")
    left_ratio = 1 - busy_ratio.clip(upper_bound=MAX_COUNTED_BUSY_RATIO)
    return pl.when(busy_ratio > MAX_HOST_BUSY_RATIO).then(pl.col("value") / left_ratio).otherwise("value")


def _at_measured_clock() -> list[pl.Expr]:
    """Ceilings of source clock at the measurement's own clock, where both are known."""
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
    """Device memory has a clock of its own: on a device with ceilings at its SM clock, those of its memory are the datasheet's,
    else the measured ones."""
    borrowed = {f"clock_{level}": [f"datasheet_{level}", f"measured_{level}"] for level in LEVELS}
    return {name: pl.when("has_clock").then(pl.coalesce(name, *others)) for name, others in borrowed.items()}


def _known_ceilings(suffix: str, sources: Sequence[str]) -> list[pl.Expr]:
    """Compute and memory ceiling that count for the measurement, of these sources, and which source each is of."""
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
    """Of the first of these columns that is known."""
    return pl.coalesce(pl.when(pl.col(name).is_not_null()).then(pl.lit(name.partition("_")[0])) for name in names)


def _held_against(suffix: str) -> list[pl.Expr]:
    """Attainable flop rate, efficiency and bound under the ceilings of this suffix."""
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
    """What disturbed the measuring of the measurement, and of both ceilings that it is held against."""
    level, is_tensor = pl.col("memory_level"), (pl.col("path") == "tensor").fill_null(value=False)
    of_memory = pl.when(level == "l1").then("busy_l1").when(level == "l2").then("busy_l2").otherwise("busy_dram")
    # As for the ceiling itself: where there is none on the kernel's own path, that of the other counts.
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


# ---------------------------------------------------------------- what cannot be


def _plausibility() -> list[pl.Expr]:
    is_cold = (pl.col("cache_mode") == "COLD").fill_null(False)
    fastest = pl.when(is_cold).then(pl.col("fastest_cold_bytes_per_s")).otherwise(pl.col("fastest_hot_bytes_per_s"))
    level = pl.when(is_cold).then(pl.col("fastest_cold_level")).otherwise(pl.col("fastest_hot_level"))
    flop_excess = pl.col("achieved_flop_per_s") / pl.col("highest_flop_per_s")
    byte_excess = pl.col("achieved_bytes_per_s") / fastest
    has_flop_excess, has_byte_excess = flop_excess > MAX_PLAUSIBLE_RATIO, byte_excess > MAX_PLAUSIBLE_RATIO
    stated = pl.when(pl.col("work_source") == COUNTERS).then(pl.lit("counted")).otherwise(pl.lit("claimed"))
    is_judged = flop_excess.is_not_null() | byte_excess.is_not_null()
    return [
        pl.when(is_judged).then(has_flop_excess.fill_null(False) | has_byte_excess.fill_null(False)).alias("is_implausible"),
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


# ---------------------------------------------------------------- counted roofline
# Work for the roofline: by formula where the kernel has one, else by counters; and by counters for each memory level.

MEMORY_LEVELS: Final = ("dram", "l2", "l1")
LAUNCH_IDENTITY: Final = ("kernel_name", "parameters", "macros", "block", "dynamic_shared_memory_bytes", "cache_mode")
"""What a launch does depends on these alone: counters of one process of a run hold for the others."""

FORMULA: Final = "formula"
COUNTERS: Final = "counters"


def with_counted_work(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Measurements with the work that their point on the roofline stands on.

    A kernel with either formula has its flop and bytes by formula: they say what it has to do, counters what it did. A
    kernel with none has them by counters: all its flop, and the bytes of the farthest memory that it used.

    Args:
        measurements, counted_work: the tables of these names, of any runs.

    Returns:
        The rows and columns of measurements in their order, then work_source ("formula", "counters"; null: no work is
        known), counted_level ("dram", "l2", "l1": where bytes by counters were counted; null: the roofline chooses), and to
        compare with, counted_flop and counted_dram_bytes (null: not counted). Of rows by counters dtype and path are those
        of most of the flop, for they pick the compute ceiling. event_index: the later one of measurement and counters.
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
    """One row for each measurement and memory level whose bytes are counted, whether its kernel has formulas or not.

    Args and columns as those of `with_counted_work`; levels of one measurement from the farthest to the nearest.
    """
    joined = _joined(measurements.with_row_index("place"), counted_work)
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
    return pl.concat(levels).sort("place", maintain_order=True).select(*measurements.collect_schema().names(), *_ADDED)


_ADDED: Final = ("work_source", "counted_level", "counted_flop", "counted_dram_bytes")


def _level_bytes(level: str) -> pl.Expr:
    return pl.col(f"counted_{level}_bytes")


def _is_counted() -> pl.Expr:
    return pl.any_horizontal(pl.col("counted_flop").is_not_null(), *(_level_bytes(level).is_not_null() for level in MEMORY_LEVELS))


def _counted_kind(by_counters: pl.Expr) -> dict[str, pl.Expr]:
    """Data type and path of most of the flop, where that is what counts and is known."""
    return {name: pl.when(by_counters).then(pl.coalesce(f"counted_{name}", name)).otherwise(name) for name in ("dtype", "path")}


def _joined(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    counted = counted_work.filter(pl.col("configuration_index").is_not_null()).collect()
    latest = _latest(measurements, counted.lazy())
    if counted.is_empty():  # mostly; a million measurements need not be looked up in nothing
        added = {name: dtype for name, dtype in latest.collect_schema().items() if name.startswith("counted_")}
        return measurements.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in added.items())
    return measurements.join(latest, on=["run_id", *LAUNCH_IDENTITY], how="left", nulls_equal=True, maintain_order="left").with_columns(
        event_index=pl.max_horizontal("event_index", "counted_event_index")
    )


def _latest(measurements: pl.LazyFrame, counted_work: pl.LazyFrame) -> pl.LazyFrame:
    """Counters of configurations by what identifies a launch; of several reports or launches the last."""
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
# Whether a kernel is at a limit of its device, far below it, or between: five categories by two thresholds.

BOUND_RATIO: Final = 0.7
"""Over it the hardware is the limit. What datasheets promise is never reached whole: at 0.9 hardly a kernel would count as
bound; at 0.5 one that could be twice as fast would."""

CATEGORY_KEYS: Final = ["run_id", "device_id"]


def with_efficiency_category(points: pl.LazyFrame, thresholds: pl.LazyFrame, suffixes: Sequence[str] = ("",)) -> pl.LazyFrame:
    """The rows with the column efficiency_category, and one for each further suffix.

    The ceiling that binds picks the side. Over BOUND_RATIO of what is attainable: "compute bound" or "memory bound"; else
    below the threshold of that side: "compute inefficient" or "memory inefficient"; else "normal".

    Args:
        points: with run_id, device_id and, for each suffix, efficiency{suffix}_ratio and bound{suffix} ("compute", "memory"; null: not
            known).
        thresholds: table thresholds, of the same runs; devices without a row have the default ones.
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


# ---------------------------------------------------------------- ceiling shares
# What was measured of a device beside what its datasheet and its clock promise.

SHARE_SOURCES: Final = ("measured", "datasheet", "clock")
CEILING_KEYS: Final = ["device_id", "ceiling_name", "unit", "path"]


def ceiling_shares(ceilings: pl.LazyFrame) -> pl.LazyFrame:
    """One row per ceiling that was measured or that a device like this should have, the measured ones first.

    Args:
        ceilings: table ceilings, of one run.

    Returns:
        device_id, ceiling_name, unit, path; measured, datasheet and at_clock in that unit, null where nothing is known;
        datasheet_ratio and clock_ratio, the measured one over each of these; clock_hz, the SM clock at which the measured
        one was seen, else the maximum; note and host_busy_ratio, of the measured one. at_clock holds at clock_hz: it follows the clock in
        proportion, as the rates that it is made of do.
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
