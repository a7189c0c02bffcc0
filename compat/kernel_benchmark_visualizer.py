"""A list of benchmarked kernels in a browser, as roofline, heatmap and split charts: `python -m kernel_benchmark_visualizer FILE`.

It runs `kernalyse follow`: the list and the roofline_config.json next to it are watched; peaks set on the page are stored there.

Installed, this file is also a top-level module. It only re-exports names; docs/operation_lists.md says more.
"""

from __future__ import annotations

__all__ = ["main"]

FILE = "kernel_benchmarks.json"
PORT = 8050
"""Where the page always was."""


def main() -> None:
    """Run `kernalyse follow` with the command line's arguments; without any on kernel_benchmarks.json, in a browser, on port 8050."""
    from kernalyse.services.cli.imports import follow
    from kernalyse.services.cli.main import run_single_command

    run_single_command(follow, "kernel_benchmark_visualizer", {"path": FILE, "open_browser": True, "port": PORT})


if __name__ == "__main__":
    main()
