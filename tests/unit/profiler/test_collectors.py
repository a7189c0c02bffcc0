"""kernalyse.services.profiler.collectors: finding ncu, whether it may count, what it is asked for, and what its refusals mean."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kernalyse.services.cli.doctor import CheckState, CommandResult, check_counter_access, check_tool
from kernalyse.services.core.errors import UnmetConditionError
from kernalyse.services.core.external_programs import find_ncu
from kernalyse.services.core.model import BackendName, CacheMode, Device, DeviceKind, EventPayload, LogLevel, LogLines
from kernalyse.services.profiler.collectors.ncu import (
    DCGM_REMEDY,
    INSTALL_REMEDY,
    PERMISSION_REMEDY,
    TENSOR_PATHS,
    CounterAccess,
    NcuCall,
    check_ncu,
    counter_error,
    dcgm_process_id,
    metric_names,
    ncu_cache_control,
    rejected_metrics,
)
from kernalyse.services.profiler.workloads import counters
from kernalyse.services.profiler.workloads.counters import base_name, prepare_counting

GPU = Device("cuda:0", "H200", DeviceKind.GPU, (BackendName.PYCUDA,), compute_capability="9.0")
CPU = Device("opencl:intel:0", "Xeon", DeviceKind.CPU, (BackendName.OPENCL,))
RESTRICTED = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n"
OPEN = RESTRICTED.replace("Only: 1", "Only: 0")
WITH_ADMINISTRATION = "Name:\tpython\nCapEff:\t000001ffffffffff\n"
WITHOUT_ADMINISTRATION = "Name:\tpython\nCapEff:\t00000000a80425fb\n"  # root's, in a container as Docker starts it

CATALOGUE = Path(__file__).parents[4] / "shared/facts/tensor_metrics_per_cc.json"


class Said:
    def __init__(self) -> None:
        self.payloads: list[EventPayload] = []

    def write(self, payload: EventPayload) -> None:
        self.payloads.append(payload)


def program_in(directory: Path, *, is_executable: bool = True) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "ncu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700 if is_executable else 0o600)
    return program


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without ncu."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("kernalyse.services.core.external_programs.NCU_PATHS", (f"{tmp_path}/usual/*/ncu",))
    return tmp_path


# ---------------------------------------------------------------- where it is


def test_the_toolkit_that_the_environment_names_comes_before_the_path_and_the_usual_places(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_ncu() is None
    newest = program_in(nowhere / "usual" / "2025.10.0")
    for version in ("2024.3.2", "2025.2.0"):
        program_in(nowhere / "usual" / version)
    assert find_ncu() == str(newest)
    on_path = program_in(nowhere / "path")
    assert find_ncu() == str(on_path)
    monkeypatch.setenv("CUDA_HOME", str(nowhere / "toolkit"))
    program_in(nowhere / "toolkit" / "bin", is_executable=False)
    assert find_ncu() == str(on_path)
    of_toolkit = program_in(nowhere / "toolkit" / "bin")
    assert find_ncu() == str(of_toolkit)


@pytest.mark.parametrize(
    ("parameters", "status", "is_allowed"),
    [
        (OPEN, WITHOUT_ADMINISTRATION, True),
        (RESTRICTED, WITH_ADMINISTRATION, True),
        (RESTRICTED, WITHOUT_ADMINISTRATION, False),
        (None, WITHOUT_ADMINISTRATION, True),  # hidden from the container: the driver answers when it is asked
    ],
)
def test_the_driver_may_keep_counters_for_administrators(nowhere: Path, parameters: str | None, status: str, is_allowed: bool) -> None:
    program = program_in(nowhere / "path")
    parameters_file, status_file = nowhere / "params", nowhere / "status"
    status_file.write_text(status)
    if parameters is not None:
        parameters_file.write_text(parameters)
    if is_allowed:
        assert check_ncu(parameters_file, status_file) == str(program)
    else:
        with pytest.raises(UnmetConditionError, match="ERR_NVGPUCTRPERM") as caught:
            check_ncu(parameters_file, status_file)
        assert caught.value.remedy == PERMISSION_REMEDY


def test_the_service_of_dcgm_is_found_among_the_processes(tmp_path: Path) -> None:
    for process_id, name in (("1", "systemd"), ("77", "nv-hostengine"), ("self", "nv-hostengine")):
        (tmp_path / process_id).mkdir()
        (tmp_path / process_id / "comm").write_text(f"{name}\n")
    (tmp_path / "78").mkdir()  # has ended meanwhile
    assert dcgm_process_id(tmp_path) == 77
    (tmp_path / "77" / "comm").unlink()
    assert dcgm_process_id(tmp_path) is None


def test_dcgm_is_told_of_before_anything_runs_and_does_not_keep_ncu_from_trying(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program_in(nowhere / "path")
    monkeypatch.setattr(counters, "dcgm_process_id", lambda: 77)
    said = Said()
    assert prepare_counting(GPU, said) is not None
    (warning,) = said.payloads
    assert isinstance(warning, LogLines)
    assert warning.lines[0].startswith("DCGM runs here as process 77, ")
    assert "dcgmi profile --pause" in warning.lines[0]


@pytest.mark.parametrize(
    ("access", "dcgm", "has_gpu", "state", "remedy"),
    [
        (CounterAccess.NOT_TOLD, None, False, CheckState.NOT_NEEDED, ""),
        (CounterAccess.NOT_TOLD, None, True, CheckState.OK, ""),
        (CounterAccess.OPEN, None, True, CheckState.OK, ""),
        (CounterAccess.ADMINISTRATOR, None, True, CheckState.OK, ""),
        (CounterAccess.OPEN, 77, True, CheckState.MISSING, DCGM_REMEDY),
        (CounterAccess.REFUSED, 77, True, CheckState.MISSING, PERMISSION_REMEDY),
        (CounterAccess.REFUSED, None, False, CheckState.MISSING, PERMISSION_REMEDY),
    ],
)
def test_the_doctor_says_whether_ncu_may_count(
    access: CounterAccess, dcgm: int | None, has_gpu: bool, state: CheckState, remedy: str
) -> None:
    check = check_counter_access(access, dcgm, has_gpu=has_gpu)
    assert (check.state, check.remedy) == (state, remedy)
    assert check.found


@pytest.mark.parametrize(
    ("result", "has_gpu", "state", "found"),
    [
        (CommandResult(0, "NVIDIA (R) Nsight Compute\nVersion 2025.3.1.0 (build 36398880)\n"), True, CheckState.OK, "2025.3.1.0"),
        (CommandResult(None, ""), True, CheckState.MISSING, "no /opt/ncu on PATH"),
        (CommandResult(127, "libX.so: cannot open\n"), True, CheckState.MISSING, "/opt/ncu --version fails: libX.so: cannot open"),
        (CommandResult(None, ""), False, CheckState.NOT_NEEDED, "no /opt/ncu on PATH; of use with an NVIDIA GPU only"),
    ],
)
def test_the_doctor_says_which_ncu_there_is(result: CommandResult, has_gpu: bool, state: CheckState, found: str) -> None:
    check = check_tool(lambda arguments: result, "Nsight Compute (ncu)", "/opt/ncu", has_gpu=has_gpu)
    assert (check.state, check.found) == (state, found)


def test_what_makes_counting_impossible_is_said_before_anything_runs(nowhere: Path) -> None:
    for device, found, remedy in (
        (CPU, "found opencl:intel:0, Xeon; expected an NVIDIA GPU through CUDA", "leave out --counters"),
        (GPU, "found no ncu on this node; expected Nsight Compute", INSTALL_REMEDY),
    ):
        said = Said()
        assert prepare_counting(device, said) is None
        (warning,) = said.payloads
        assert isinstance(warning, LogLines)
        assert warning.level is LogLevel.WARNING
        assert warning.lines[0].startswith(f"No counters, timings alone: hardware counters: {found}")
        assert remedy in warning.lines[0]


@pytest.mark.parametrize(("backend", "has_ranges"), [(BackendName.PYCUDA, True), (BackendName.NVCC, False)])
def test_launches_are_marked_where_the_backend_launches_in_its_own_process(nowhere: Path, backend: BackendName, has_ranges: bool) -> None:
    program = program_in(nowhere / "path")
    counting = prepare_counting(Device("cuda:0", "H200", DeviceKind.GPU, (backend,), compute_capability="9.0"), Said())
    assert counting is not None
    assert (counting.program, counting.metrics, counting.has_ranges) == (str(program), metric_names("9.0"), has_ranges)


# ---------------------------------------------------------------- what it is asked for


def test_the_command_around_a_program(tmp_path: Path) -> None:
    call = NcuCall("/opt/ncu", ("a.sum", "b.avg"), ("copy", "add.2"), "all", "none", has_ranges=True, log_file=tmp_path / "log")
    assert " ".join(call.command(("python", "-m", "x"))) == (
        "/opt/ncu --csv --page raw --print-units base --print-fp --replay-mode kernel --cache-control all --clock-control none "
        r"--target-processes all --kernel-name-base function --kernel-name regex:^(copy|add\.2)$ --profile-from-start off "
        f"--metrics a.sum,b.avg --log-file {tmp_path}/log python -m x"
    )
    assert [ncu_cache_control(mode) for mode in (CacheMode.COLD, CacheMode.HOT)] == ["all", "none"]


def test_functions_are_named_without_namespaces_and_template_arguments() -> None:
    names = ("saxpy", "tiled<float, 16>", "ns::tiled<ns::pair<int, 2>>", "(anonymous namespace)::scale")
    assert [base_name(name) for name in names] == ["saxpy", "tiled", "tiled", "scale"]


@pytest.mark.parametrize(
    ("compute_capability", "asked", "not_asked"),
    [
        ("7.0", {"sm__inst_executed_pipe_tensor.sum", "l1tex__lsu_writeback_active.sum"}, {"sm__ops_path_tensor_src_fp64.sum"}),
        ("7.5", {"sm__ops_path_tensor_src_fp16_dst_fp16.sum", "l1tex__lsu_writeback_active_mem_lg.sum"}, set()),
        ("8.6", {"sm__ops_path_tensor_src_tf32_dst_fp32_sparsity_on.sum", "dram__bytes_read.sum"}, {"sm__ops_path_tensor_src_fp8.sum"}),
        ("8.7", {"sm__ops_path_tensor_src_fp64.sum"}, {"dram__bytes.sum", "dram__bytes_read.sum"}),
        ("9.0", {"sm__ops_path_tensor_src_bf16_dst_fp32.sum", "l1tex__lsu_writeback_active_mem_lgds.sum", "dram__bytes.sum"}, set()),
        ("10.0", {"smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum", "dram__bytes_op_read.sum"}, {"dram__bytes_read.sum"}),
        ("12.1", {"sm__ops_path_tensor_src_fp4_dst_fp32_sparsity_off.sum"}, {"dram__bytes.sum"}),
        ("14.0", {"sm__ops_path_tensor_src_fp4_dst_fp32_sparsity_off.sum", "dram__bytes.sum"}, set()),
    ],
)
def test_metrics_follow_the_compute_capability(compute_capability: str, asked: set[str], not_asked: set[str]) -> None:
    names = metric_names(compute_capability)
    assert asked <= set(names)
    assert not not_asked & set(names)
    assert len(set(names)) == len(names)
    assert {"gpu__time_duration.sum", "sm__warps_active.avg.pct_of_peak_sustained_active"} <= set(names)


@pytest.mark.skipif(not CATALOGUE.is_file(), reason="needs ../shared/facts beside the checkout")
def test_every_tensor_metric_is_one_that_ncu_has_for_the_chip_and_none_is_part_of_another() -> None:
    """Left out: int1 and int4, of which no ceiling is known, and splits by instruction of what is there whole."""
    for first_last, known in json.loads(CATALOGUE.read_text())["tensor"].items():
        version = min(int(first_last.split("-")[0]), 120)
        capability = max(first for first in TENSOR_PATHS if first <= (version // 10, version % 10))
        asked = set(TENSOR_PATHS[capability])
        assert asked <= set(known), first_last
        left_out = {name for name in known if name not in asked and not re.search(r"_int[14](_|$)", name)}
        wholes = {name.partition("src_")[2].partition("_")[0] for name in asked}
        assert {name for name in left_out if not name.startswith("op_")} == set(), first_last
        assert {name.partition("src_")[2].partition("_")[0] for name in left_out} <= wholes, first_last


# ---------------------------------------------------------------- what it says when it does not


def test_a_refusal_has_each_message_once_and_the_remedy_for_the_first_that_is_known() -> None:
    lines = ["==PROF== Connected to process 7", *["==ERROR== Profiling failed because a driver resource was unavailable."] * 3]
    error = counter_error("\n".join(lines), 1)
    assert error.found == "ncu says: Profiling failed because a driver resource was unavailable."
    assert error.remedy == DCGM_REMEDY


def test_without_messages_of_ncu_the_last_words_of_the_program_are_the_reason() -> None:
    error = counter_error("\n".join(f"line {index}" for index in range(100)), None)
    assert error.found.startswith("ncu was ended by a signal; it says: line 88\n")
    assert counter_error("", 1).found == "ncu says: nothing"


def test_metrics_that_its_messages_name_are_those_to_leave_out() -> None:
    asked = ("dram__bytes.sum", "dram__bytes_read.sum", "sm__ops_path_tensor_src_fp64.sum", "gpu__time_duration.sum")
    failed = (
        "==ERROR== Failed to find metric regex:^sm__ops_path_tensor_src_fp64(\\.|$)\n==ERROR== Failed to find metric dram__bytes_read.sum\n"
    )
    assert rejected_metrics(failed, asked) == {"sm__ops_path_tensor_src_fp64.sum", "dram__bytes_read.sum"}
    listed = "==ERROR== Failed to access the following 2 metrics: dram__bytes.sum, unasked.sum\n"
    assert rejected_metrics(listed, asked) == {"dram__bytes.sum"}
    assert rejected_metrics("==ERROR== Out of memory", asked) == frozenset()
