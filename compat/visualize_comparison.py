"""Two implementations of ML models side by side: `python -m visualize_comparison --compare-all --benchmark`.

Installed, this file is also a top-level module. It only re-exports names; docs/models.md says more.
"""

from __future__ import annotations

try:
    from kernalyse.services.compat.model_dashboards.dashboards import ComparisonDashboard
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"visualize_comparison needs the Python module {error.name}. Install it with: pip install 'kernalyse[all]'", name=error.name
    ) from error

__all__ = ["ComparisonDashboard", "main"]


def main() -> None:
    """Run `kernalyse perf-comparison` with the command line's arguments."""
    from kernalyse.services.cli.main import run_single_command
    from kernalyse.services.cli.model_dashboards import perf_comparison

    run_single_command(perf_comparison, "visualize_comparison")


if __name__ == "__main__":
    main()
