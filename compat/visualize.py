"""Figures of KernelBenchmarker's results: `import visualize`.

    visualize.visualize("benchmark_results.json")

Installed, this file is also a top-level module. It only re-exports names.
"""

from __future__ import annotations

try:
    from kernalyse.services.compat.visualizing.visualizer import BenchmarkVisualizer, visualize
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"visualize needs the Python module {error.name}. Install it with: pip install 'kernalyse[ui]'", name=error.name
    ) from error

__all__ = ["BenchmarkVisualizer", "visualize"]
