"""BenchmarkVisualizer: figures of results that KernelBenchmarker has written, each in a file of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from kernalyse.services.compat.kernel_benchmarker.results import RESULTS_FILE, BenchmarkResult, group_by_remark, read_results
from kernalyse.services.compat.visualizing import charts
from kernalyse.services.compat.visualizing.charts import MeasuredSlice, by_kernel, parameter_names, select, slice_along, varying_names
from kernalyse.services.core.errors import InvalidParameterError, UnknownKernelError

HEATMAP_FILE: Final = "heatmap.png"
COMPARISON_FILE: Final = "kernel_comparison.png"
SPEEDUP_FILE: Final = "speedup.png"
OUTPUT_DIRECTORY: Final = "visualizations"
DOTS_PER_INCH: Final = 150
NO_FIXED_PARAMS: Final[Mapping[str, int]] = {}
NO_PARAMETER: Final = "Measured without any parameter to draw along; benchmark_report.txt has the times."


class BenchmarkVisualizer:
    """The figures for the results in one file.

    Every method writes a PNG, by default to the working directory, and returns its path.

    Raises:
        InvalidParameterError: the file cannot be read or has no results.
    """

    def __init__(self, json_file: str | Path = RESULTS_FILE) -> None:
        self.results: Sequence[BenchmarkResult] = read_results(Path(json_file))
        if not self.results:
            raise InvalidParameterError(
                f"results {json_file}", found="no benchmark", expected="at least one", remedy="Run the benchmark again."
            )

    def plot_execution_time_heatmap(
        self,
        param1: str,
        param2: str,
        kernel_name: str | None = None,
        fixed_params: Mapping[str, int] = NO_FIXED_PARAMS,
        output_file: str | Path = HEATMAP_FILE,
    ) -> Path:
        """Draw execution time by `param1` (vertical) and `param2` (horizontal), of one kernel or of all side by side.

        Other parameters have the values in `fixed_params`, or the largest ones measured.

        Raises:
            InvalidParameterError, UnknownKernelError: a name or value that the results do not have.
        """
        if kernel_name is not None:
            self._check_kernel(kernel_name)
        of_kernel = [result for result in self.results if kernel_name in (None, result.kernel_name)]
        selected = select(of_kernel, [param1, param2], fixed_params)
        maps = [charts.build_heat_map(name, results, param1, param2) for name, results in by_kernel(selected).items()]
        constants = ", ".join(dict.fromkeys(one.note for one in maps))
        return _save(charts.draw_heat_maps(maps, param1, param2, self._note(constants)), output_file)

    def plot_kernel_comparison(
        self, param_name: str, fixed_params: Mapping[str, int] = NO_FIXED_PARAMS, output_file: str | Path = COMPARISON_FILE
    ) -> Path:
        """Draw the execution time of every kernel by one parameter.

        Raises:
            InvalidParameterError: a name or value that the results do not have.
        """
        measured = slice_along(self.results, param_name, fixed_params)
        return _save(charts.draw_comparison(measured, self._note(measured.note)), output_file)

    def plot_speedup_comparison(
        self,
        baseline_kernel: str,
        param_name: str,
        fixed_params: Mapping[str, int] = NO_FIXED_PARAMS,
        output_file: str | Path = SPEEDUP_FILE,
    ) -> Path:
        """Draw the speedup of every kernel over the baseline by one parameter.

        Raises:
            InvalidParameterError, UnknownKernelError: a name or value that the results do not have.
        """
        self._check_kernel(baseline_kernel)
        measured = slice_along(self.results, param_name, fixed_params)
        if baseline_kernel not in measured.results:
            text = f"{baseline_kernel} has no result along {param_name} at these parameters."
            return _save(charts.draw_explanation(f"Speed-up over {baseline_kernel}", text), output_file)
        return _save(charts.draw_speedup(measured, baseline_kernel, self._note(measured.note)), output_file)

    def plot_performance_metrics(
        self,
        kernel_name: str,
        param_name: str,
        fixed_params: Mapping[str, int] = NO_FIXED_PARAMS,
        output_file: str | Path | None = None,
    ) -> Path:
        """Draw time, throughput, occupancy and SM efficiency of one kernel, by default as metrics_<kernel>.png.

        Raises:
            InvalidParameterError, UnknownKernelError: a name or value that the results do not have.
        """
        self._check_kernel(kernel_name)
        own = [result for result in self.results if result.kernel_name == kernel_name]
        measured = slice_along(own, param_name, fixed_params)
        figure = charts.draw_metrics(measured, kernel_name, self._note(measured.note))
        return _save(figure, output_file or metrics_file(kernel_name))

    def create_dashboard(self, output_dir: str | Path = OUTPUT_DIRECTORY) -> list[Path]:
        """Draw every figure into that directory: along the first parameter that varies, relative to the slowest kernel."""
        directory = Path(output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        names = _liveliest_names(self.results)
        measured = slice_along(self.results, names[0], NO_FIXED_PARAMS) if names else None
        return [
            self._dashboard_heat_map(directory / HEATMAP_FILE),
            self._dashboard_comparison(measured, directory / COMPARISON_FILE),
            self._dashboard_speedup(measured, directory / SPEEDUP_FILE),
            *(self._dashboard_metrics(name, results, directory) for name, results in by_kernel(self.results).items()),
        ]

    def _dashboard_heat_map(self, path: Path) -> Path:
        for results in by_kernel(self.results).values():
            names = _liveliest_names(results)
            if len(names) > 1:
                return self.plot_execution_time_heatmap(names[0], names[1], output_file=path)
        text = "A heat map takes two parameters, and no kernel here has more than one."
        return _save(charts.draw_explanation("Execution time across the parameters", text), path)

    def _dashboard_comparison(self, measured: MeasuredSlice | None, path: Path) -> Path:
        if measured is None:
            return _save(charts.draw_explanation("Execution time", NO_PARAMETER), path)
        return self.plot_kernel_comparison(measured.param_name, output_file=path)

    def _dashboard_speedup(self, measured: MeasuredSlice | None, path: Path) -> Path:
        if measured is None:
            return _save(charts.draw_explanation("Speed-up", NO_PARAMETER), path)
        return self.plot_speedup_comparison(_slowest(measured), measured.param_name, output_file=path)

    def _dashboard_metrics(self, kernel_name: str, results: Sequence[BenchmarkResult], directory: Path) -> Path:
        path, names = directory / metrics_file(kernel_name), _liveliest_names(results)
        if not names:
            return _save(charts.draw_explanation(kernel_name, NO_PARAMETER), path)
        return self.plot_performance_metrics(kernel_name, names[0], output_file=path)

    def _check_kernel(self, kernel_name: str) -> None:
        known = list(by_kernel(self.results))
        if kernel_name not in known:
            raise UnknownKernelError(
                f"kernel {kernel_name}", found="no result of it", expected=f"one of {', '.join(known)}", remedy="Check the spelling."
            )

    def _note(self, constants: str) -> str:
        """Return a note on the constant parameters, the meaning of a point, and the device."""
        devices = list(dict.fromkeys(str(result.metrics["device_name"]) for result in self.results if "device_name" in result.metrics))
        counts = {result.metrics["sample_count"] for result in self.results if "sample_count" in result.metrics}
        samples = f"medians of {counts.pop()} samples" if len(counts) == 1 else ""
        return "  ·  ".join(part for part in (constants, samples, ", ".join(devices), *self._marks()) if part)

    def _marks(self) -> list[str]:
        """Return the reasons to doubt kernels' times, such as: not verified: a, b."""
        kernels: dict[str, list[str]] = {}
        for remark, results in group_by_remark(self.results).items():
            kernels.setdefault(remark.mark, []).extend(result.kernel_name for result in results)
        return [f"{mark}: {', '.join(dict.fromkeys(names))}" for mark, names in kernels.items()]


def visualize(json_file: str | Path = RESULTS_FILE, output_dir: str | Path = OUTPUT_DIRECTORY) -> list[Path]:
    """Draw all possible figures of a results file, and return the paths of the files."""
    return BenchmarkVisualizer(json_file).create_dashboard(output_dir)


def metrics_file(kernel_name: str) -> str:
    """Return the file name for a kernel's metrics, without the brackets and commas of a template instance."""
    words = re.sub(r"\W+", " ", kernel_name).split()
    return f"metrics_{'_'.join(words)}.png"


def _slowest(measured: MeasuredSlice) -> str:
    return max(measured.results, key=lambda name: sum(result.execution_time_ms for result in measured.results[name]))


def _liveliest_names(results: Sequence[BenchmarkResult]) -> list[str]:
    """Return the parameters, those with more than one value first."""
    return list(dict.fromkeys((*varying_names(results), *parameter_names(results))))


def _save(figure: Figure, path: str | Path) -> Path:
    figure.savefig(path, dpi=DOTS_PER_INCH, format="png")
    return Path(path)
