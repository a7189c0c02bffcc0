"""Dashboards of ML models' performance: `python -m visualize_performance --run-profiling`, or from a script.

    dashboard = PerformanceDashboard()
    dashboard.load_data("profiling_results/profiling_data.json")

Installed, this file is also a top-level module. It only re-exports names; docs/models.md says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

try:
    from kernalyse.services.compat.model_dashboards import dashboards
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"visualize_performance needs the Python module {error.name}. Install it with: pip install 'kernalyse[all]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from kernalyse.services.compat.model_dashboards.document import Document

__all__ = ["PerformanceDashboard", "main"]


class PerformanceDashboard(dashboards.PerformanceDashboard):
    """Metrics of ML models, measured here or read from a file, and the page that shows them."""

    def run_profiling(self, batch_size: int = 4, seq_len: int = 64, backend: str = "auto", models: Sequence[str] = ()) -> Document:
        """Measure models on this machine, or on the nodes of the analyzer that runs here, and return the document with their times.

        Args:
            batch_size: sequences in each pass.
            seq_len: tokens of each sequence.
            backend: how kernels are compiled and launched.
            models: empty for all built-in ones.

        Raises:
            KernalyseError: an unknown model or backend, or a run that failed.
        """
        from kernalyse.services.cli.model_documents import ProfilingRequest, profile_models

        self.data = profile_models(ProfilingRequest(tuple(models), batch_size=batch_size, sequence_length=seq_len, backend=backend))
        return self.data


def main() -> None:
    """Run `kernalyse perf-dashboard` with the command line's arguments."""
    from kernalyse.services.cli.main import run_single_command
    from kernalyse.services.cli.model_dashboards import perf_dashboard

    run_single_command(perf_dashboard, "visualize_performance")


if __name__ == "__main__":
    main()
