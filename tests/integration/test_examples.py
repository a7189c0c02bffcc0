"""The notebook-style scripts in kernels/examples and the page about the Python API run as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kernalyse
from kernalyse.services.profiler.kernel_sources.catalog import catalog_directory
from tests.integration.profiler_node import running_node
from tests.integration.quick_worker import QUICK_WORKER
from tests.integration.test_python_api import add_node, needs_opencl
from tests.service_processes import ServiceProcesses

PAGE = Path(__file__).parents[2] / "docs" / "python_api.md"
SCRIPTS = ("sweep_kernels", "measure_ceilings", "profile_command", "profile_model", "time_callables")
MAY_LACK_SOMETHING = {"profile_command": "Not here: ", "profile_model": "NOT_BUILT_YET"}
"""What may stand in the way on a machine without a GPU's tools; it is said, with the remedy."""

pytestmark = needs_opencl


def outcome(program: str, name: str) -> str:
    """Runs a program as __main__; what it says on its way out, empty when it came to its end."""
    try:
        exec(compile(program, name, "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        return str(ended.code)
    return ""


@pytest.mark.slow
def test_every_script_and_the_page_run_from_top_to_bottom(
    services: ServiceProcesses, ceilings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    analyzer = services.start("analyzer")
    monkeypatch.setenv("KERNALYSE_ANALYZER_ANNOUNCEMENT_FILE", str(services.directory / "run" / "analyzer-0.json"))
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.chdir(tmp_path)
    programs = {name: (catalog_directory() / "examples" / f"{name}.py").read_text() for name in SCRIPTS}
    assert all(program.count("# %%") >= 2 for program in programs.values())
    if PAGE.is_file():
        programs["page"] = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    (tmp_path / "node").mkdir()
    shutil.copy2(ceilings_file, tmp_path / "ceilings.json")  # one program measures them; no sweep has to
    with running_node(tmp_path / "node", worker=(*QUICK_WORKER, "--ceilings-file", str(tmp_path / "ceilings.json"))) as node:
        with kernalyse.connect(analyzer.address, analyzer.token) as client:
            add_node(client, node.endpoint)
        for name, program in programs.items():
            said = outcome(program, name)
            assert not said or (name in MAY_LACK_SOMETHING and MAY_LACK_SOMETHING[name] in said), f"{name}: {said}"
            assert said or capsys.readouterr().out, name
    assert not PAGE.is_file() or (tmp_path / "twice.json").is_file()


@pytest.mark.slow
def test_a_program_without_services_starts_them_for_itself(tmp_path: Path) -> None:
    program = "import kernalyse\nwith kernalyse.connect(start=True) as client: print(client.nodes()[0].node.devices[0].device_id)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("opencl:")
