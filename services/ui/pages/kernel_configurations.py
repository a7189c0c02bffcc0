"""The configurations of a kernel of a sweep, as its chosen row lists them: the best first, each a way to its own row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kernalyse.services.ui.charts.performance_rows import configuration_key
from kernalyse.services.ui.charts.roofline import VERIFICATION_TEXTS
from kernalyse.services.ui.chosen_row import ChosenRow
from kernalyse.services.ui.pages.shell import fragment

MAX_LISTED: Final = 12
"""The table of measurements has all of them, in pages."""


def configurations_fragment(row: ChosenRow) -> str:
    """Empty: the row is no kernel of a sweep."""
    if row.configurations is None:
        return ""
    listed = [_listed(configuration, row.kernel_name) for configuration in row.configurations.head(MAX_LISTED).to_dicts()]
    return fragment("kernel_configurations.html", rows=listed, hidden_count=max(0, row.configurations.height - MAX_LISTED))


def _listed(configuration: Mapping[str, Any], kernel_name: str) -> dict[str, Any]:
    """Under what tells it from the others: all begin with the name of the kernel."""
    label, (result, is_bad) = configuration["label"], _result(configuration)
    name = label.removeprefix(kernel_name).strip() or label
    return {**configuration, "name": name, "key": configuration_key(configuration), "result": result, "is_bad": is_bad}


def _result(configuration: Mapping[str, Any]) -> tuple[str, bool]:
    """In words, and whether something is wrong."""
    if configuration["reason"]:
        return f"failed: {configuration['reason'].replace('_', ' ').lower()}", True
    if not configuration["is_measured"]:
        return "not measured", False
    if configuration["is_implausible"]:
        return "implausible", True
    state = configuration["verification_state"]
    return ("", False) if state is None else (VERIFICATION_TEXTS.get(state, state.lower()), state == "FAILED")
