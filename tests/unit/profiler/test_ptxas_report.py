"""Reports of ptxas, as several versions of it write them."""

from __future__ import annotations

from kernalyse.services.profiler.backends.cuda.compiler import KernelUsage, read_report, split_report

CUDA_13 = """\
k.cu(3): warning #177-D: variable "unused" was declared but never referenced

ptxas info    : 14 bytes gmem
ptxas info    : Compiling entry function '_Z5spillPf' for 'sm_90'
ptxas info    : Function properties for _Z5spillPf
    256 bytes stack frame, 296 bytes spill stores, 300 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 256 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compile time = 12.345 ms
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers
ptxas info    : Compile time = 1.2 ms
"""
CUDA_11 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for helper
    32 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Function properties for k
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, 1024+8 bytes smem, 376 bytes cmem[0], 24 bytes cmem[2]
"""


def test_usage_is_told_by_entry() -> None:
    usages = read_report(CUDA_13)
    assert usages["_Z5spillPf"] == KernelUsage(64, 256, 296, 300, 4096, None)
    assert usages["plain"] == KernelUsage(10, 0, 0, 0, 0, None)


def test_functions_that_were_not_inlined_are_apart_and_banks_are_added() -> None:
    usages = read_report(CUDA_11)
    assert usages["k"].spill_store_bytes == 0
    assert usages["k"].register_count == 22
    assert usages["k"].constant_memory_bytes == 400
    assert usages["helper"] == KernelUsage(None, 32, 8, 8, None, None)


def test_warnings_are_apart_from_the_report() -> None:
    report, remarks = split_report(CUDA_13)
    assert remarks == 'k.cu(3): warning #177-D: variable "unused" was declared but never referenced'
    assert "warning" not in report
    assert read_report(report) == read_report(CUDA_13)


def test_warnings_of_ptxas_itself_are_remarks() -> None:
    text = "ptxas warning : Registers are spilled to local memory in function 'k', 8 bytes spill stores\n"
    assert split_report(text) == ("", text.strip())


def test_nothing_known_is_none() -> None:
    assert read_report("") == {}
    assert read_report("ptxas info    : Compiling entry function 'k' for 'sm_90'") == {}
