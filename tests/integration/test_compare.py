"""`kernalyse compare` as CI uses it: real runs, files, every exit status, every refusal; and the same table from the analyzer."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kernalyse.services.analyzer.export.results import results_document
from kernalyse.services.core.errors import InvalidRequestError
from kernalyse.services.core.model import EventPayload, RunState, SampleBatch, StateChanged, TableQuery
from tests.command import kernalyse
from tests.integration.analyzer_under_test import add_node, connected, eventually, get_table, serving
from tests.integration.profiler_stand_in import ProfilerStandIn, configuration, measurement, samples, started
from tests.unit.rank_traces import write_rank
from tests.unit.run_results import results_of

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="needs the extra opencl: pip install 'kernalyse[opencl]'")

WORK = """__global__ void work(const float *a, float *b, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int step = 0; step < STEPS; ++step) sum = a[i] * sum + 1.0f;
    b[i] = sum;
}
"""
QUICK = ("--max-time", "0.05", "--samples", "100", "--block", "64")


# ---------------------------------------------------------------- runs


@pytest.mark.slow
@pytest.mark.timeout(600)  # twelve processes that each open the device: a minute, more on a busy machine
def test_runs_and_files_are_compared_alike_and_the_status_tells_ci(server: tuple[str, ...], tmp_path: Path) -> None:
    """One kernel whose file is changed between two runs to a hundred times the work: slower on the busiest machine."""

    def bench(name: str, step_count: int, *arguments: str) -> str:
        (tmp_path / "work.cu").write_text(WORK.replace("STEPS", str(step_count)))
        file = tmp_path / f"{name}.json"
        done = kernalyse("bench", f"{tmp_path}/work.cu:work", *QUICK, *arguments, "--json", file, *server)
        assert done.returncode == 0, done.stderr
        return str(json.loads(file.read_text())["run"]["run_id"])

    before_id = bench("before", 400, "-p", "N=4096", "--processes", "5")
    after_id = bench("after", 40_000, "-p", "N=4096", "--processes", "5")
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    for sides in ((before_id, "last"), (before, after_id)):
        done = kernalyse("compare", *sides, *server, "--fail-if-slower", "2%")
        assert done.returncode == 1, done.stderr
        for text in ("work N=4096", "slower", "5, 5", "of time.", "1 compared: 1 slower."):
            assert text in done.stdout, (sides, done.stdout)
        assert "Slower by more than 2 %: work N=4096." in done.stdout
    assert kernalyse("compare", before_id, after_id, *server).returncode == 0
    faster = kernalyse("compare", after, before, "--fail-if-slower", "2%")
    assert (faster.returncode, "1 faster" in faster.stdout, "none that is known to be" in faster.stdout) == (0, True, True)
    unknown = kernalyse("compare", before, "no-such-run", *server)
    assert (unknown.returncode, "no such run" in unknown.stderr) == (2, True)


# ---------------------------------------------------------------- files


def document(file: Path, duration_ns: float, *, process_count: int = 5, has_new: bool = False, **values: Any) -> Path:
    """Results of some processes, written by the writer itself; then with other values of columns of the measurements."""
    payloads: list[EventPayload] = []
    for index in range(process_count):
        drifted_ns = duration_ns + index
        batch = SampleBatch(index, 0, tuple(drifted_ns + place / 10 for place in range(20)), 1)
        own = replace(configuration(0), configuration_index=index, process_index=index)
        payloads += [own, batch, replace(measurement(index, duration_ns=drifted_ns), seed=0)]
    if has_new:
        payloads += [replace(configuration(9), configuration_index=9), measurement(9)]
    written = json.loads(results_document(results_of(file.parent / f"{file.stem}-store", *payloads)))
    for row in written["measurements"]:
        row.update(values)
    file.write_text(json.dumps(written))
    return file


def test_files_need_no_service_and_markdown_and_json_are_all_that_standard_output_has(tmp_path: Path) -> None:
    before = document(tmp_path / "before.json", 1_000, has_new=True)
    after = document(tmp_path / "after.json", 1_100)
    markdown = kernalyse("compare", before, after, "--format", "markdown", "--fail-if-slower", "2%")
    assert markdown.returncode == 1
    assert markdown.stdout.startswith("- 1 compared: 1 slower.\n")
    assert "| saxpy N=1000 |" in markdown.stdout
    written = kernalyse("compare", before, after, "--format", "json", "--fail-if-slower", "2%")
    found = json.loads(written.stdout)
    assert (written.returncode, found["is_slower"], found["fail_if_slower_ratio"]) == (1, True, 0.02)
    assert [row["occurrence"] for row in found["comparison"]] == ["MATCHED", "GONE"]
    assert found["comparison"][0]["duration_ratio"] == pytest.approx(1.1, rel=0.01)
    lenient = kernalyse("compare", before, after, "--fail-if-slower", "11%")
    assert (lenient.returncode, "none that is known to be" in lenient.stdout) == (0, True)


def test_one_process_a_side_is_undecided_said_aloud_and_no_failure(tmp_path: Path) -> None:
    before, after = document(tmp_path / "before.json", 1_000), document(tmp_path / "after.json", 2_000, process_count=1)
    undecided = kernalyse("compare", before, after, "--fail-if-slower", "2%")
    assert undecided.returncode == 0
    assert "1 compared: 1 undecided." in undecided.stdout
    assert "a single process each cannot decide" in undecided.stdout
    assert "Undecided says neither that it is the same nor that it is not." in undecided.stdout


@pytest.mark.slow
def test_five_files_a_side_decide_as_five_processes_do(tmp_path: Path) -> None:
    def files(name: str, median_ns: int) -> str:
        moments = {tmp_path / f"{name}{index}.json": index for index in range(5)}
        return ",".join(str(document(file, median_ns, process_count=1, measured_unix_ns=moment)) for file, moment in moments.items())

    done = kernalyse("compare", files("before", 1_000), files("after", 1_100), "--fail-if-slower", "2%")
    assert (done.returncode, "1 compared: 1 slower." in done.stdout, "5, 5" in done.stdout) == (1, True, True), done


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("device", {"device_id": "cuda:1"}, "another device (device_id cuda:0 and cuda:1"),
        ("method", {"timing_method": "GRAPH"}, "another method (timing_method SINGLE and GRAPH"),
        ("cache", {"cache_mode": "HOT"}, "another cache (cache_mode COLD and HOT"),
        ("inputs", {"seed": 5}, "other inputs (seed 0 and 5"),
    ],
)
def test_what_differs_is_refused_with_status_2_unless_it_is_allowed(tmp_path: Path, name: str, values: dict[str, Any], said: str) -> None:
    before, other = document(tmp_path / "before.json", 1_000), document(tmp_path / "other.json", 1_100, **values)
    refused = kernalyse("compare", before, other, "--fail-if-slower", "2%")
    assert (refused.returncode, said in refused.stderr, f"--allow {name}" in refused.stderr) == (2, True, True), refused.stderr
    allowed = kernalyse("compare", before, other, "--allow", f"inputs,{name}", "--fail-if-slower", "2%")
    assert (allowed.returncode, f"differ in {name}, as allowed" in allowed.stdout) == (1, True), allowed.stderr


@pytest.mark.slow
def test_what_cannot_be_compared_ends_with_status_2_for_1_would_say_slower(tmp_path: Path) -> None:
    before, after = document(tmp_path / "before.json", 1_000), document(tmp_path / "after.json", 1_100, measured_unix_ns=2)
    copied = tmp_path / "copied.json"
    copied.write_bytes(after.read_bytes())
    other = document(tmp_path / "other.json", 1_100, kernel_name="other")
    broken, trace = tmp_path / "broken.json", write_rank(tmp_path / "trace.json", 0)
    broken.write_text("{}")
    cases: tuple[tuple[tuple[str | Path, ...], str], ...] = (
        ((before, before), "one run on both sides"),
        ((before, f"{after},{before}"), "one run on both sides"),
        ((before, f"{after},{after}"), "more than once"),
        ((before, f"{after},{copied}"), "one measurement of saxpy N=1000 more than once"),
        ((before, f"{after},{trace}"), "a trace among several"),
        ((before, tmp_path / "nothing.json"), "no such file"),
        ((before, broken), "content that begins with"),
        ((before, after, "--allow", "weather"), "device, method, cache, inputs"),
        ((before, after, "--fail-if-slower", "much"), "--fail-if-slower 1%"),
        ((before, other), "nothing was compared"),
    )
    for arguments, said in cases:
        done = kernalyse("compare", *arguments)
        assert (done.returncode, said in done.stderr + done.stdout) == (2, True), (arguments, done)


# ---------------------------------------------------------------- the analyzer


async def test_the_analyzer_serves_the_comparison_of_two_runs_as_a_table(private_directories: Path) -> None:
    node = ProfilerStandIn(f"unix:{private_directories}/node.sock")
    for run_id, seed in (("run-a", 0), ("run-b", 0), ("run-c", 1)):
        node.add_run(run_id)
        told = configuration(0), samples(0, 0, 20), replace(measurement(0), seed=seed)
        node.journal(run_id, *started(), *told, StateChanged(RunState.SUCCEEDED))
    await node.start()
    async with serving(private_directories) as here, connected(here.endpoint) as stub:
        await add_node(stub, node.endpoint)

        async def are_all_in() -> bool:
            return (await get_table(stub, TableQuery("measurements")))[1] == 3

        await eventually(are_all_in)
        (row,) = (await get_table(stub, TableQuery("comparison", ("run-a", "run-b"))))[0].rows(named=True)
        assert (row["baseline_run_id"], row["run_id"], row["label"]) == ("run-a", "run-b", "saxpy N=1000")
        assert (row["duration_ratio"], row["verdict"], row["process_count"]) == (1.0, "UNDECIDED", 1)
        refusals: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
            (("run-a", "run-c"), ("device",), "seed 0 and 1"),
            (("run-a", "run-b"), ("weather",), "device, method, cache, inputs"),
            (("run-a",), (), "two different ones"),
            (("run-a", "last", "run-b"), (), "two different ones"),
            ((), (), "two different ones"),
        )
        for run_ids, allowed, said in refusals:
            with pytest.raises(InvalidRequestError, match=said):
                await get_table(stub, TableQuery("comparison", run_ids, allowed_differences=allowed))
        found, _ = await get_table(stub, TableQuery("comparison", ("run-a", "run-c"), allowed_differences=("inputs",)))
        assert found["allowed_differences"].to_list() == ["inputs"]
    await node.stop()
