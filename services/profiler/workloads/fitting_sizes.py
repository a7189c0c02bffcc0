"""Check that a device holds a configuration's buffers; where it does not, the largest sizes that it would hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from services.core.errors import InvalidRequestError, MemoryLimitError
from services.core.model import Device
from services.profiler.measuring.inputs import check_fits, plan_buffer
from services.profiler.workloads.sweep_plan import PlannedConfiguration


def check_device_memory(planned: PlannedConfiguration, device: Device) -> None:
    """Raise MemoryLimitError that names, for each parameter, the largest value that fits with the others as they are."""
    try:
        _check(planned, device)
    except MemoryLimitError as error:
        fitting = " or ".join(f"{name} up to {value}" for name, value in largest_fitting_values(planned, device).items())
        remedy = f"What fits, with the rest as it is: {fitting}." if fitting else error.remedy
        raise MemoryLimitError(error.subject, found=error.found, expected=error.expected, remedy=remedy) from error


def largest_fitting_values(planned: PlannedConfiguration, device: Device) -> Mapping[str, int]:
    """Return the largest value below its own of each parameter, by name; tied ones move together, under a name like N=M.

    Without those that no value helps. Buffers are taken to grow with their parameters.
    """
    together: defaultdict[str, list[str]] = defaultdict(list)
    sources = {tie.name: tie.source_name for tie in planned.kernel.ties}
    for name in planned.values:
        source = name
        while source in sources:
            source = sources[source]
        together[source].append(name)
    found: dict[str, int] = {}
    for source, names in together.items():
        low, high = 0, planned.values[source]  # fits, as far as is known; does not
        while high - low > 1:
            middle = (low + high) // 2
            if _fits(replace(planned, values={**planned.values, **dict.fromkeys(names, middle)}), device):
                low = middle
            else:
                high = middle
        if low > 0:
            found["=".join(names)] = low
    return found


def _fits(planned: PlannedConfiguration, device: Device) -> bool:
    try:
        _check(planned, device)
    except (MemoryLimitError, InvalidRequestError):  # a formula need not have a value everywhere
        return False
    return True


def _check(planned: PlannedConfiguration, device: Device) -> None:
    check_fits(tuple(plan_buffer(buffer, planned.names) for buffer in planned.kernel.definition.buffers), device)
