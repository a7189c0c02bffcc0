"""The real worker, told that counters can be had of any device: the stand-in for ncu counts on OpenCL devices too."""

from __future__ import annotations

from unittest.mock import patch

from kernalyse.services.profiler import worker
from kernalyse.services.profiler.workloads import counters

if __name__ == "__main__":
    with patch.object(counters, "check_countable_device", lambda device: "9.0"):
        worker._exit(worker.main())
