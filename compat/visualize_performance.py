"""Dashboards of models' performance: `python -m visualize_performance --run-profiling`, or from a script

    dashboard = PerformanceDashboard()
    dashboard.load_data("profiling_results/profiling_data.json")

Installed, this file is also a top-level module. It holds names only; docs/models.md says more.
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
    """Figures of models, timed here or read from a file, and the page that shows them."""

    def run_profiling(self, batch_size: int = 4, seq_len: int = 64, backend: str = "auto", models: Sequence[str] = ()) -> Document:
        """Time models on this machine, or on the nodes of the analyzer that runs here, and return the document of what they took.

        Args:
            models: empty for all built-in ones.

        Raises:
            KernalyseError: a model or a backend that there is not, a run that failed.
        """
        from kernalyse.services.cli.model_documents import ProfilingRequest, profiled_models

        self.data = profiled_models(ProfilingRequest(tuple(models), batch_size=batch_size, sequence_length=seq_len, backend=backend))
        return self.data


def main() -> None:
    """Run `kernalyse perf-dashboard` with the command line's arguments."""
    from kernalyse.services.cli.main import main_of
    from kernalyse.services.cli.model_dashboards import perf_dashboard

    main_of(perf_dashboard, "visualize_performance")


if __name__ == "__main__":
    main()
