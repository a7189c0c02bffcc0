"""Which traces are taken for those of one job."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernalyse.services.analyzer.ingest.ranks import JobPart, group_by_job, read_job_part
from tests.unit.nsys_export import kernel, write_export
from tests.unit.rank_traces import BASE_UNIX_NS, write_rank

DATA = Path(__file__).parents[5] / "shared" / "data"
S = 10**9


def part(member: int, start_s: float, end_s: float | None = None, key: str = "job") -> JobPart:
    return JobPart((key,), frozenset({member}), int(start_s * S), None if end_s is None else int(end_s * S))


@pytest.mark.parametrize(
    ("first", "second", "is_compatible"),
    [
        (part(0, 0), part(1, 60), True),
        (part(0, 0), part(1, 60.1), False),
        (part(0, 0), part(0, 1), False),
        (part(0, 0), part(1, 1, key="other"), False),
        (part(0, 0, 10), part(1, 5, 100), True),
        (part(0, 0, 10), part(1, 5.1, 100), False),
        (part(0, 0, 10), part(1, 2, 4), True),
        (part(0, 0, 10), part(1, 11, 20), False),
        (part(0, 0, 100), part(1, 61), False),
    ],
)
def test_parts_of_one_job_run_beside_each_other(first: JobPart, second: JobPart, is_compatible: bool) -> None:
    assert first.is_compatible(second) is second.is_compatible(first) is is_compatible


def test_ranks_of_one_recording_are_together_and_in_their_order(tmp_path: Path) -> None:
    """Two recordings of the same two ranks, ten seconds apart, another job, and a file that is of none."""
    early = [write_rank(tmp_path / f"early_{rank}.json", rank, start_s=rank) for rank in (1, 0)]
    late = [write_rank(tmp_path / f"late_{rank}.json", rank, start_s=10 + rank) for rank in (0, 1)]
    other = write_rank(tmp_path / "other.json", 0, world_size=4)
    alone = write_rank(tmp_path / "alone.json", 0, world_size=1)
    nsys = write_export(tmp_path / "a.sqlite", kernels=[kernel(0, 1)])
    paths = [late[1], other, early[0], alone, nsys, early[1], late[0]]
    assert group_by_job(paths) == [late, [other], list(reversed(early)), [alone], [nsys]]


def test_what_a_rank_says(tmp_path: Path) -> None:
    path = write_rank(tmp_path / "a.json", 1, start_s=2)
    assert read_job_part(path) == JobPart(("kineto", "nccl", 2), frozenset({1}), BASE_UNIX_NS + 2 * S)
    assert read_job_part(tmp_path / "missing.json") is None
    for broken in (b'{"schemaVersion": 1, "distributedInfo": {"rank": 1', b'{"schemaVersion": 1, "distributedInfo": {"rank": 1}}', b""):
        path.write_bytes(broken)
        assert read_job_part(path) is None


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no directory {DATA}")
def test_recordings_that_have_nothing_to_do_with_each_other_stay_apart() -> None:
    paths = sorted([*(DATA / "nsys").iterdir(), *(DATA / "kineto").iterdir()])
    assert group_by_job(paths) == [[path] for path in paths]
    before = read_job_part(DATA / "nsys" / "h100x2_mfu_before.sqlite")
    assert before is not None
    assert before.end_ns is not None
    assert before.end_ns > before.start_ns
