"""What the dashboard's server loads before it serves."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_pandas_is_loaded_before_charts_are_drawn_on_a_thread() -> None:
    """Bokeh's `stream` takes pandas from `sys.modules`, where a thread that is just importing it leaves half a module."""
    program = "import sys, kernalyse.services.ui.preparation; print('pandas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "True"
