"""`python -m tests.gpu.timed_by_triton CASES RESULTS`: medians by triton.testing.do_bench, in nanoseconds."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.gpu.cubin_launches import CubinLaunch, read_cases

WARM_UP_MS, MEASURING_MS = 50, 200


def main(cases_file: str, results_file: str) -> None:
    torch: Any = importlib.import_module("torch")
    testing: Any = importlib.import_module("triton.testing")
    torch.zeros(1, device="cuda")  # makes its context the current one
    stream = torch.cuda.current_stream().cuda_stream
    medians_ns = {}
    for case in read_cases(Path(cases_file)):
        launch = CubinLaunch(case)
        median_ms = testing.do_bench(lambda: launch.launch(stream), warmup=WARM_UP_MS, rep=MEASURING_MS, return_mode="median")  # noqa: B023
        medians_ns[case.label] = median_ms * 1e6
        launch.close()
    Path(results_file).write_text(json.dumps(medians_ns))


if __name__ == "__main__":
    main(*sys.argv[1:])
