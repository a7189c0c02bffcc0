"""Formatting for people: quantities with units, labels and footnotes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

# ---------------------------------------------------------------- quantities
# None, a value that is not known, is shown as a dash.

UNKNOWN: Final = "–"
_DURATIONS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SI_PREFIXES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES: Final = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def duration(duration_ns: float | None) -> str:
    """Return a duration in the unit that suits it: "1.23 ms"."""
    return UNKNOWN if duration_ns is None else _scaled(duration_ns, _DURATIONS)


def size(size_bytes: float | None) -> str:
    """Return a number of bytes in the binary unit that suits it: "1.5 GiB"."""
    return UNKNOWN if size_bytes is None else _scaled(size_bytes, _BYTES)


def giga(rate: float | None) -> str:
    """Return a rate in units of 1e9, GFLOP/s or GB/s, without the unit."""
    return UNKNOWN if rate is None else f"{rate / 1e9:.4g}"


def rate(value: float | None, unit: str) -> str:
    """Return a rate with SI prefix: 4.32e12 and "B/s" give "4.32 TB/s"."""
    if value is None:
        return UNKNOWN
    factor, prefix = next(((factor, prefix) for factor, prefix in _SI_PREFIXES if abs(value) >= factor), (1.0, ""))
    return f"{value / factor:.4g} {prefix}{unit}"


def operation(dtype: str | None) -> str:
    """Return the name of one operation on values of a type: "flop", of integers "op"."""
    return "op" if dtype is not None and dtype.lower().startswith(("int", "uint")) else "flop"


def operation_rate(value: float | None, dtype: str | None = None) -> str:
    """Return a rate of operations: 4.32e12 gives "4.32 Tflop/s", of integers "4.32 Top/s"."""
    return rate(value, f"{operation(dtype)}/s")


def ceiling_rate(value: float | None, unit: str, ceiling_name: str = "") -> str:
    """Return a ceiling's rate: 4.32e12 and "bytes_per_s" give "4.32 TB/s". The unit and name are those of `Ceiling`."""
    return rate(value, "B/s") if unit == "bytes_per_s" else operation_rate(value, ceiling_name)


def percentage(ratio: float | None) -> str:
    """Return a ratio as a percentage: 0.5 gives "50 %"."""
    return UNKNOWN if ratio is None else f"{ratio * 100:.3g} %"


def change(ratio: float | None) -> str:
    """Return a ratio as relative change: 1.0512 gives "+5.12 %"."""
    return UNKNOWN if ratio is None else f"{(ratio - 1) * 100:+.2f} %"


def median_with_interval(median_ns: float, low_ns: float, high_ns: float) -> str:
    """Return the median and half the width of its 95 % interval: "1.23 ms ±0.5 %"."""
    half_width_ratio = (high_ns - low_ns) / 2 / median_ns if median_ns > 0 else None
    return f"{duration(median_ns)} ±{UNKNOWN if half_width_ratio is None else f'{half_width_ratio * 100:.2g} %'}"


MAX_NAMED_PROCESSES: Final = 3


POD_PREFIX: Final = "pod "
"""Before a user of a device that is a pod, "pod NAMESPACE/NAME", not a process."""


def device_use(other_processes: Sequence[str] | None) -> str:
    """Return who else uses a device: "used by 1 pod and 1 other process (pod team/a, python 77)", "free" or, for None, "unknown"."""
    if other_processes is None:
        return "unknown"
    if not other_processes:
        return "free"
    rest = ", …" if len(other_processes) > MAX_NAMED_PROCESSES else ""
    names = f"{', '.join(other_processes[:MAX_NAMED_PROCESSES])}{rest}"
    pod_count = sum(name.startswith(POD_PREFIX) for name in other_processes)
    process_count = len(other_processes) - pod_count
    counts = [f"{pod_count} pod{'s' if pod_count > 1 else ''}"] if pod_count else []
    counts += [f"{process_count} other process{'es' if process_count > 1 else ''}"] if process_count else []
    return f"used by {' and '.join(counts)} ({names})"


def _scaled(value: float, units: tuple[tuple[float, str], ...]) -> str:
    factor, unit = next(((factor, unit) for factor, unit in units if abs(value) >= factor), units[-1])
    return f"{value / factor:.4g} {unit}"


# ---------------------------------------------------------------- labels

REPEATED_WORDS: Final = r" (process=\d+|cold|hot)\b"
"""Words that differ between repeated runs; histories match labels without them."""

MODULE_PREFIX: Final = "nn.Module: "
"""Prefix of PyTorch's ranges around modules; tables show the source of a layer in a column of its own."""

PATH_SEPARATOR: Final = " / "
"""Separates the names in the path of a layer of a trace."""

LAYER_PARTS: Final = {"forward": "(backward pass)", "graph": "(in graphs)"}
"""Which launches of a layer come from these sources, as opposed to those that the layer made itself."""


def layer_label(layer: str, source: str | None) -> str:
    """Return the label of a layer in tables that list the same layer from several sources."""
    part = LAYER_PARTS.get(source or "")
    return " ".join(word for word in (layer.removeprefix(MODULE_PREFIX), part) if word)


def relative_layer_name(layer: str, parent_path: str | None) -> str:
    """Return a layer's name relative to its parent: "attn" for "blocks.0.attn" below "blocks.0"."""
    around = (parent_path or "").rpartition(PATH_SEPARATOR)[-1].removeprefix(MODULE_PREFIX)
    name = layer.removeprefix(MODULE_PREFIX)
    return name.removeprefix(f"{around}.") or name


# ---------------------------------------------------------------- footnotes
# A reason that several rows of a table share is written once, below the table.


def footnote_marks(reasons: Iterable[str | None]) -> dict[str, str]:
    """Return a mark for each reason that more than one row gives: "note 1" for the first of them, and so on."""
    counts = Counter(reason for reason in reasons if reason)
    return {reason: f"note {number}" for number, reason in enumerate((reason for reason, count in counts.items() if count > 1), start=1)}


def footnote_lines(marks: dict[str, str]) -> tuple[str, ...]:
    """Return the sentences below the table for the marks that `footnote_marks` returned."""
    return tuple(f"{mark.capitalize()}: {reason}" for reason, mark in marks.items())
