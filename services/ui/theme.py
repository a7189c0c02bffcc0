"""How figures look: units, numbers, colours and markers. The only place where units are converted for people.

Rates and frequencies take SI prefixes (1 GB/s = 10^9 B/s), memory takes binary ones (1 GiB = 2^30 B), durations go from
ns to hours. An unknown value is shown as an en dash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from kernalyse.services.core.formatting import operation

UNKNOWN: Final = "–"

ThemeName = Literal["light", "dark"]

_SI_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY_PREFIXES: Final = ((2**50, "Pi"), (2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
_DURATIONS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


# ---------------------------------------------------------------- numbers


def digits(value: float) -> str:
    """Three significant digits, never in powers of ten: 1.23, 12.3, 123, 1234."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001:
        return f"{value:.2g}"
    # Rounded first: 0.9999 has the places of 1.00.
    places = max(0, 2 - math.floor(math.log10(float(f"{size:.3g}"))))
    return f"{value:.{places}f}"


def si(value: float | None, unit: str) -> str:
    """1.23e9, "B/s" → "1.23 GB/s"."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for factor, prefix in _SI_PREFIXES:
        if abs(value) >= factor * 0.9995:
            return f"{digits(value / factor)} {prefix}{unit}"
    return f"{digits(value)} {unit}"


def flop_rate(value_flop_per_s: float | None, dtype: str | None = None) -> str:
    """Return a rate with its unit: of operations on integers Top/s, else Tflop/s."""
    return si(value_flop_per_s, f"{operation(dtype)}/s")


def byte_rate(value_bytes_per_s: float | None) -> str:
    return si(value_bytes_per_s, "B/s")


def frequency(value_hz: float | None) -> str:
    return si(value_hz, "Hz")


def memory(value_bytes: float | None) -> str:
    """2**31 → "2.00 GiB"."""
    if value_bytes is None or not math.isfinite(value_bytes):
        return UNKNOWN
    for factor, prefix in _BINARY_PREFIXES:
        if abs(value_bytes) >= factor:
            return f"{digits(value_bytes / factor)} {prefix}B"
    return f"{value_bytes:.0f} B"


def duration(value_ns: float | None) -> str:
    """Of a launch: 1500 → "1.50 µs"."""
    if value_ns is None or not math.isfinite(value_ns):
        return UNKNOWN
    for factor, unit in _DURATIONS:
        if abs(value_ns) >= factor * 0.9995:
            return f"{digits(value_ns / factor)} {unit}"
    return f"{digits(value_ns)} ns"


def span(value_s: float | None) -> str:
    """Of a run: 75 → "1 min 15 s"."""
    if value_s is None or not math.isfinite(value_s):
        return UNKNOWN
    seconds = max(0, round(value_s))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def percent(ratio: float | None) -> str:
    """0.123 → "12.3 %"; of less than a hundredth of a percent nobody needs the digits."""
    if ratio is None or not math.isfinite(ratio):
        return UNKNOWN
    if 0 < ratio < 0.0001:
        return "<0.01 %"
    return f"{digits(ratio * 100)} %" if abs(ratio) < 1 else f"{ratio * 100:.0f} %"


def intensity(value_flop_per_byte: float | None) -> str:
    if value_flop_per_byte is None or not math.isfinite(value_flop_per_byte):
        return UNKNOWN
    return f"{digits(value_flop_per_byte)} flop/B"


def temperature(value_celsius: float | None) -> str:
    return UNKNOWN if value_celsius is None else f"{value_celsius:.0f} °C"


def power(value_watts: float | None) -> str:
    return UNKNOWN if value_watts is None else f"{value_watts:.0f} W"


def count(value: float | None) -> str:
    """With thin spaces between thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}".replace(",", "\u202f")


def moment(unix_ns: int | None) -> str:
    """Date and time of day in UTC."""
    return UNKNOWN if unix_ns is None else datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def short_run_id(run_id: str) -> str:
    """The part that no other run of the day shares: "20260102-101500-6ca949ef" → "6ca949ef"."""
    return run_id.rpartition("-")[2][:8]


# ---------------------------------------------------------------- colours and shapes


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of one theme, CSS notation."""

    name: ThemeName
    surface: str
    text: str
    muted: str
    grid: str
    accent: str
    good: str
    bad: str
    series: tuple[str, ...]


# Series: Okabe and Ito's eight, told apart with every common colour vision; their yellow and black, lost on white or on
# dark, are replaced.
LIGHT: Final = Palette(
    name="light",
    surface="#ffffff",
    text="#1b2430",
    muted="#5d6b7c",
    grid="#e4e9ef",
    accent="#0072b2",
    good="#007a5a",
    bad="#b3261e",
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8f6a00", "#3d9bd1", "#5b5f97"),
)
DARK: Final = Palette(
    name="dark",
    surface="#171d26",
    text="#e6ebf2",
    muted="#93a1b3",
    grid="#2a3442",
    accent="#56b4e9",
    good="#3fc79a",
    bad="#ff8a7a",
    series=("#56b4e9", "#e69f00", "#2bc48f", "#e08fbd", "#f0e442", "#7fa7ff", "#b9a8ff"),
)
PALETTES: Final[dict[ThemeName, Palette]] = {"light": LIGHT, "dark": DARK}

MARKERS: Final = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "star")
"""A shape for each colour of `series`: colour never carries a meaning alone."""

SYMBOL_MARKERS: Final[dict[str, str]] = {
    "circle": "circle",
    "square": "square",
    "diamond": "diamond",
    "cross": "cross",
    "x": "x",
    "triangle-up": "triangle",
    "triangle-down": "inverted_triangle",
    "hexagon": "hex",
    "star": "star",
    "circle-open": "circle",
    "square-open": "square",
    "diamond-open": "diamond",
    "pentagon": "hex",
    "hexagon2": "hex",
    "octagon": "hex",
    "hexagram": "star_dot",
    "star-diamond": "star_dot",
    "cross-thin": "cross",
    "x-thin": "x",
    "asterisk": "asterisk",
}
"""Shapes that imported results ask for by Plotly's names, as Bokeh calls them, or the most alike that it has; any other leaves the shape
of the colour."""

FAILED_MARKERS: Final[dict[str, str]] = {"circle": "circle_x", "square": "square_x", "diamond": "diamond_cross"}
"""How a point looks whose results were wrong, where the shape has a crossed variant; the others are drawn hollow."""

IMPLAUSIBLE_MARKER: Final = "asterisk"
"""How a point looks that is faster than its device can be: a shape of its own, in the colour of what is wrong."""

LINE_MARKERS: Final = frozenset({"asterisk", "cross", "x"})
"""Shapes without an inside: their line is all that there is to see of their colour."""

IMPLAUSIBLE_SYMBOL: Final = "✱"

SYMBOLS: Final[dict[str, str]] = {
    "circle": "●",
    "square": "■",
    "triangle": "▲",
    "diamond": "◆",
    "inverted_triangle": "▼",
    "hex": "⬢",
    "star": "★",
    "star_dot": "✪",
    "cross": "✚",
    "x": "✖",
    "asterisk": "✱",
}
"""The markers as characters, for legends."""

EFFICIENCY_CATEGORIES: Final = ("compute bound", "memory bound", "normal", "compute inefficient", "memory inefficient")
"""As the analyzer calls them. Bound: at a limit of the hardware; inefficient: below the threshold of its side; normal: between them."""

CATEGORIES: Final = ("matmul", "elementwise", "stream", "transpose", "reduction", "normalization", "other")


@dataclass(frozen=True, slots=True)
class Style:
    color: str
    marker: str


def efficiency_style(category: str, palette: Palette) -> Style:
    """Green: bound, a limit of the hardware is reached; red: inefficient; blue: normal; grey: not known. The marker is for legends."""
    if category.endswith("bound"):
        return Style(palette.good, "circle")
    if category.endswith("inefficient"):
        return Style(palette.bad, "circle")
    return Style(palette.accent if category == "normal" else palette.muted, "circle")


@dataclass(frozen=True, slots=True)
class Outline:
    """How a point's line tells the category of its efficiency without colour. is_marked: it is drawn in the colour of text."""

    width_px: float
    dash: str
    is_marked: bool
    symbol: str  # for legends

    @classmethod
    def of(cls, category: str | None) -> Outline:
        if category is not None and category.endswith("bound"):
            return BOUND_OUTLINE
        if category is not None and category.endswith("inefficient"):
            return INEFFICIENT_OUTLINE
        return NORMAL_OUTLINE


BOUND_OUTLINE: Final = Outline(2.0, "solid", True, "◉")
INEFFICIENT_OUTLINE: Final = Outline(1.3, "2 2", True, "◌")
NORMAL_OUTLINE: Final = Outline(1.0, "solid", False, "●")


def values_with(present: Collection[str]) -> tuple[str, ...]:
    """CATEGORIES, with what else is present in the places of those that are not: each has a colour and shape of its own while they last."""
    others = iter(sorted(set(present) - set(CATEGORIES)))
    return (*(name if name in present else next(others, name) for name in CATEGORIES), *others)


def style_of(value: str, values: tuple[str, ...], palette: Palette) -> Style:
    """Colour and shape of one value among those that may occur; those beyond the palette share by turns, others look like the last."""
    position = values.index(value) if value in values else max(len(values) - 1, 0)
    return Style(palette.series[position % len(palette.series)], MARKERS[position % len(MARKERS)])


# ---------------------------------------------------------------- figures at the ticks of axes


@dataclass(frozen=True, slots=True)
class Ticks:
    """How an axis writes its figures.

    Args:
        code: body of a JavaScript function of `tick`, for the browser.
        text: the same in Python, for what is drawn without one.
        unit: that the axis itself counts in, where it is no label's; "": it has none.
    """

    code: str
    text: Callable[[float], str]
    unit: str = ""


def _plain(value: float) -> str:
    """At most three significant digits, without zeros at the end."""
    return f"{float(f'{value:.3g}'):.12g}"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    factor, unit = next(((factor, unit) for factor, unit in units if abs(value) >= factor * 0.9995), units[-1])
    return f"{_plain(value / factor)} {unit}".rstrip()


DURATION_TICKS: Final = Ticks(
    """
const size = Math.abs(tick)
const [factor, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"]
return parseFloat((tick / factor).toPrecision(3)) + " " + unit
""",
    lambda value: _scaled(value, _DURATIONS),
    "ns",
)

SI_TICKS: Final = Ticks(
    """
const size = Math.abs(tick)
const table = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]
const [factor, prefix] = table.find(([limit]) => size >= limit * 0.9995) ?? [1, ""]
return parseFloat((tick / factor).toPrecision(3)) + (prefix ? " " + prefix : "")
""",
    lambda value: _scaled(value, (*_SI_PREFIXES, (1.0, ""))),
)

PLAIN_TICKS: Final = Ticks("return String(parseFloat(tick.toPrecision(3)))", _plain)

PERCENT_TICKS: Final = Ticks('return tick + " %"', lambda value: f"{_plain(value)} %", "%")

SHARE_TICKS: Final = Ticks('return parseFloat((tick * 100).toPrecision(3)) + " %"', lambda value: f"{_plain(value * 100)} %")
"""Of ratios."""

CLOCK_TICKS: Final = Ticks(
    "return new Date(tick).toTimeString().slice(0, 8)",
    lambda value: datetime.fromtimestamp(value / 1e3, UTC).strftime("%H:%M:%S"),
    "ms since 1970-01-01 UTC",
)
"""Of milliseconds since 1970; in the browser's time zone, elsewhere in UTC."""

MILLISECOND_TICKS: Final = Ticks("return String(parseFloat(tick.toPrecision(3))) + ' ms'", lambda value: f"{_plain(value)} ms", "ms")

RATIO_TICKS: Final = Ticks("return '×' + String(parseFloat(tick.toPrecision(3)))", lambda value: f"×{_plain(value)}")

MEMORY_TICKS: Final = Ticks(
    """
const size = Math.abs(tick)
const [factor, unit] = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([limit]) => size >= limit) ?? [1, "B"]
return parseFloat((tick / factor).toPrecision(3)) + " " + unit
""",
    memory,
    "B",
)

# ---------------------------------------------------------------- and for hovers, where an unknown value is NaN

_DIGITS: Final = """
if (!Number.isFinite(value)) return "\u2013 "
const digits = (number) => Math.abs(number) < 1000 ? number.toPrecision(3) : number.toFixed(0)
const size = Math.abs(value)
"""

SI_HOVER: Final = (
    _DIGITS
    + """
const table = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]
const [factor, prefix] = table.find(([limit]) => size >= limit * 0.9995) ?? [1, ""]
return digits(value / factor) + " " + prefix
"""
)

DURATION_HOVER: Final = (
    _DIGITS
    + """
const table = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]
const [factor, unit] = table.find(([limit]) => size >= limit * 0.9995) ?? [1, "ns"]
return digits(value / factor) + " " + unit
"""
)

MEMORY_HOVER: Final = (
    _DIGITS
    + """
const table = [[2 ** 50, "Pi"], [2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]]
const [factor, prefix] = table.find(([limit]) => size >= limit) ?? [1, ""]
return (factor === 1 ? value.toFixed(0) : digits(value / factor)) + " " + prefix + "B"
"""
)

PERCENT_HOVER: Final = _DIGITS + 'return (value < 1 ? digits(value * 100) : (value * 100).toFixed(0)) + " %"'

PLAIN_HOVER: Final = _DIGITS + "return digits(value)"
