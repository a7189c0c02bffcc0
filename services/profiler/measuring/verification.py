"""Verification of a kernel's outputs against its reference."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from kernalyse.services.core.errors import InvalidParameterError
from kernalyse.services.core.model import Verification, VerificationState
from kernalyse.services.profiler.measuring.buffers import Array

SWITCHED_OFF: Final = Verification(VerificationState.SWITCHED_OFF, message="The request switched verification off.")
NO_REFERENCE: Final = Verification(VerificationState.NO_REFERENCE, message="The kernel's definition names no reference.")
MAX_CACHED_BYTES: Final = 256 * 2**20  # of reference results: enough for a sweep up to 4096 x 4096, little beside the buffers themselves


@dataclass(frozen=True, slots=True)
class _Deviation:
    """The worst element of one output."""

    buffer_name: str
    index: tuple[int, ...]
    found: float
    expected: float
    absolute: float  # NaN where found or expected is not a number and the other is
    relative: float  # to the largest magnitude in the reference


def compare(outputs: Mapping[str, Array], expected: Mapping[str, Array], relative_tolerance: float) -> Verification:
    """Compare outputs with the reference, both by buffer name and of equal shapes.

    An output passes when max|output - reference| <= relative_tolerance * max|reference|. A value that is not a number
    passes only where the reference has the same one, so an element that the kernel left poisoned never passes.

    Raises:
        InvalidParameterError: the reference has an output that the kernel has not, or one of another size.
    """
    _check_comparable(outputs, expected)
    deviations = [_worst(name, outputs[name], reference) for name, reference in expected.items()]
    worst = max(deviations, key=lambda deviation: math.inf if math.isnan(deviation.relative) else deviation.relative)
    has_passed = worst.relative <= relative_tolerance
    is_known = math.isfinite(worst.absolute)
    return Verification(
        state=VerificationState.PASSED if has_passed else VerificationState.FAILED,
        max_absolute_error=worst.absolute if is_known else None,
        max_relative_error=worst.relative if is_known and math.isfinite(worst.relative) else None,
        relative_tolerance=relative_tolerance,
        buffer_name=worst.buffer_name,
        message="" if has_passed else _complaint(worst, relative_tolerance),
    )


def _check_comparable(outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, reference in expected.items():
        if name not in outputs or outputs[name].size != np.size(reference):
            raise InvalidParameterError(
                f"output {name} of the reference",
                found=f"{outputs[name].size} elements in the kernel's" if name in outputs else f"only {', '.join(outputs) or 'no outputs'}",
                expected=f"a written buffer {name} of {np.size(reference)} elements",
                remedy="Correct the buffers of the kernel's definition, or choose another reference.",
            )


def _complaint(worst: _Deviation, relative_tolerance: float) -> str:
    place = f"{worst.buffer_name}[{', '.join(str(position) for position in worst.index)}]"
    deviation = f"{worst.relative:.3g} of the largest expected value" if math.isfinite(worst.relative) else "no finite deviation"
    return f"{place}: found {worst.found:.9g}, expected {worst.expected:.9g}; {deviation}, tolerance {relative_tolerance:g}."


def _worst(buffer_name: str, output: Array, reference: Array) -> _Deviation:
    reference = np.asarray(reference).reshape(output.shape)
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity are findings here, not accidents
        difference = _absolute_difference(output, reference)
        position = int(np.argmax(difference))  # the first NaN counts as the largest
        if not math.isfinite(difference.flat[position]):
            same = (output == reference) | (np.isnan(output) & np.isnan(reference))
            difference = np.where(same, 0.0, difference)
            position = int(np.argmax(difference))
    absolute = float(difference.flat[position])
    scale = _largest_magnitude(reference)
    relative = _ratio(absolute, scale)
    index = tuple(int(part) for part in np.unravel_index(position, output.shape))
    return _Deviation(buffer_name, index, float(output.flat[position]), float(reference.flat[position]), absolute, relative)


def _ratio(deviation: float, scale: float) -> float:
    if deviation == 0:
        return 0.0
    return deviation / scale if scale > 0 else math.inf


def _absolute_difference(output: Array, reference: Array) -> Array:
    # Unsigned integers would wrap around, and so would the most distant signed ones. Floats stay as wide as they come:
    # the rounding of one float32 subtraction is far below any tolerance between float32 results.
    if output.dtype.kind in "iu":
        return np.abs(output.astype(np.float64) - reference.astype(np.float64))
    difference: Array = np.subtract(output, reference)
    return np.abs(difference, out=difference)


def _largest_magnitude(reference: Array) -> float:
    """Return max|reference| over its finite values."""
    largest, smallest = float(reference.max()), float(reference.min())
    if math.isfinite(largest) and math.isfinite(smallest):
        return max(abs(largest), abs(smallest))
    finite = reference[np.isfinite(reference)]
    return float(np.abs(finite).max()) if finite.size else 0.0


class ReferenceResults:
    """A cache of reference outputs, the most recent ones: kernels that compute the same from the same inputs share one."""

    def __init__(self, max_cached_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_cached_bytes = max_cached_bytes
        self._cache: OrderedDict[Hashable, Mapping[str, Array]] = OrderedDict()
        self._cached_bytes = 0

    def get(self, key: Hashable, compute: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """Return the outputs by buffer name for `key`, which must name reference, parameters, arguments, buffers and seed."""
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        outputs = compute()
        self._cache[key] = outputs
        self._cached_bytes += _size_bytes(outputs)
        while self._cached_bytes > self._max_cached_bytes:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= _size_bytes(dropped)
        return outputs


def _size_bytes(outputs: Mapping[str, Array]) -> int:
    return sum(output.nbytes for output in outputs.values())


def worse_verification(first: Verification, recheck: Verification | None) -> Verification:
    """Return the worse of two verifications: a kernel that is right once and wrong with other inputs is wrong."""
    if recheck is None or first.state is not VerificationState.PASSED or recheck.state is not VerificationState.FAILED:
        return first
    return replace(recheck, message=f"With fresh inputs after timing: {recheck.message}")
