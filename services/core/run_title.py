"""What lists call a run."""

from __future__ import annotations

import shlex
from typing import Final

from services.core.model import CeilingMeasurement, CommandProfile, ImportedTrace, KernelSweep, ModelRun, Run

TITLE_KERNEL_COUNT: Final = 3
MAX_MADE_LENGTH: Final = 120
"""Of a title that is made from the work: a command may have thousands of characters."""


def title_of(run: Run) -> str:
    """The title given, or one made from the work."""
    if run.spec.title:
        return run.spec.title
    made = " ".join(_made(run).split())
    return made if len(made) <= MAX_MADE_LENGTH else f"{made[: MAX_MADE_LENGTH - 1]}…"


def _made(run: Run) -> str:
    match run.spec.work:
        case KernelSweep(kernels):
            names = [kernel.kernel_name for kernel in kernels]
            rest = len(names) - TITLE_KERNEL_COUNT
            return ", ".join(names[:TITLE_KERNEL_COUNT]) + (f" and {rest} more" if rest > 0 else "")
        case CommandProfile(arguments, collector):
            return f"{collector or 'profile'}: {shlex.join(arguments)}"
        case ModelRun(model_name=name, prompt=prompt) if prompt:
            return f"{name}: {prompt}"
        case ModelRun(model_name, variants):
            return f"{model_name} {' and '.join(variants)}".rstrip()
        case CeilingMeasurement():
            return f"ceilings of {run.device_id or 'the device'}"
        case ImportedTrace(file_name):
            return file_name
