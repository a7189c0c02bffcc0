"""Dashboards of models' performance: `python -m visualize_performance --run-profiling`, or from a script

    dashboard = PerformanceDashboard()
    dashboard.load_data("profiling_results/profiling_data.json")

Installed, this file is also a top-level module. It holds names only; docs/models.md says more.
"""

from __future__ import annotations

try:
    from services.compat.model_dashboards.performance import PerformanceDashboard
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"visualize_performance needs the Python module {error.name}. Install it with: pip install 'kernalyse[all]'", name=error.name
    ) from error

__all__ = ["PerformanceDashboard", "main"]


def main() -> None:
    """Run `kernalyse perf-dashboard` with the command line's arguments."""
    from services.cli.main import main_of
    from services.cli.model_dashboards import perf_dashboard

    main_of(perf_dashboard, "visualize_performance")


if __name__ == "__main__":
    main()
