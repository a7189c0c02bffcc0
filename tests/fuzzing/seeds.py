"""Damages files of the readers of other tools' results for some minutes: an error that is no KernalyseError is a finding.

    python -m tests.fuzzing.seeds --minutes 10

Whatever a reader takes must be stored and worked out too: every table that follows from its rows is computed.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kernalyse.services.analyzer.ingest.reading import with_event_indexes
from kernalyse.services.analyzer.queries.registry import DERIVED, FileSource, resolve_table
from kernalyse.services.analyzer.readers.base import TraceFiles, limit_texts
from kernalyse.services.analyzer.readers.registry import select_reader
from kernalyse.services.analyzer.tables.runs import find_table
from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.file_formats import FILE_NAME
from tests.unit.analyzer.ingest.test_benchmark_list import GEMMS
from tests.unit.analyzer.readers.test_commands import ADDMM, CONFIG, CONV, MM, MUL
from tests.unit.analyzer.readers.test_seed_files import BENCHMARK, COMPARISON, PROFILE

CSV: Final = 'name,M,N,K,tflops,batch,dtype,model,time_ms\nk,1,2,3,4.5,8,f32,m,1.5\n"a,b",1,2,3,,8,f16,,2\n'
SEEDS: Final[tuple[Any, ...]] = (
    [CONV, MUL, MM, ADDMM, {"type": "ID_X", "data_type": "FP32", "macs": 3, "bytes": 5, "time_us": 2}],
    GEMMS,
    CSV,
    CSV.replace(",", ";"),
    {"benchmarks": [BENCHMARK, BENCHMARK]},
    PROFILE,
    COMPARISON,
)
FORMATS: Final = ("commands", "benchmark_list", "kernel_benchmarker", "model_profiles")
WORKED_OUT_SHARE: Final = 0.1
"""Of the files: the tables take a hundred times as long as the reading."""

VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 1e308, -1e-300, 0.5, "", "x", "nan", "1e999", "\x00", "\udc80", "é" * 40),
    *([], {}, [0], [[]], [1] * 20, {"mean_ms": 1}, {"a": {}}, [None, "x"], "FP16", "ID_CONV", 5e-324, float("nan"), float("inf")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    choice = random.Random(arguments.seed)
    end = time.monotonic() + arguments.minutes * 60
    outcomes: Counter[str] = Counter()
    findings: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as directory:
        while time.monotonic() < end:
            content = damaged(choice)
            outcome = read(Path(directory), content, damaged_config(choice), works_out=choice.random() < WORKED_OUT_SHARE)
            outcomes[outcome.split(":")[0]] += 1
            if outcome.startswith("finding") and outcome not in findings:
                findings[outcome] = content
                sys.stdout.write(f"{outcome} {content[:600]!r}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{sum(outcomes.values())} files: {dict(outcomes)}\n")
    return 1 if findings else 0


def damaged(choice: random.Random) -> bytes:
    seed = choice.choice(SEEDS)
    if isinstance(seed, str):
        data = seed.encode()
    else:
        value = json.loads(json.dumps(seed))
        for _ in range(choice.randint(0, 4)):
            replace_somewhere(value, choice)
        data = json.dumps(value).encode("utf-8", "surrogatepass")
    for _ in range(choice.choice((0, 0, 1, 3))):
        data = choice.choice(CUTS)(data, choice)
    return data


def damaged_config(choice: random.Random) -> bytes | None:
    if choice.random() < 0.5:
        return None
    config = dict(CONFIG)
    if choice.random() < 0.5:
        config[choice.choice(list(config))] = copy.deepcopy(choice.choice(VALUES))
    return json.dumps(config).encode("utf-8", "surrogatepass")


def replace_somewhere(value: Any, choice: random.Random) -> None:
    """Walks down to a random member and replaces, deletes, renames or copies it."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = choice.choice(keys)
        if isinstance(value[key], dict | list) and choice.random() < 0.8:
            value = value[key]
            continue
        match choice.randint(0, 3):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[choice.choice(("type", "time_ns", "mean", "metrics", "M", "\x00", "x" * 300))] = value.pop(key)
            case 2 if isinstance(value, list):
                value.insert(key, copy.deepcopy(value[key]))
            case _:
                value[key] = copy.deepcopy(choice.choice(VALUES))
        return


def cut(data: bytes, choice: random.Random) -> bytes:
    return data[: choice.randint(0, len(data))]


def flip(data: bytes, choice: random.Random) -> bytes:
    place = choice.randint(0, max(0, len(data) - 1))
    return data[:place] + bytes([choice.randint(0, 255)]) + data[place + 1 :]


def repeat(data: bytes, choice: random.Random) -> bytes:
    start, end = sorted((choice.randint(0, len(data)), choice.randint(0, len(data))))
    return data[:end] + data[start:end] + data[end:]


def insert(data: bytes, choice: random.Random) -> bytes:
    place = choice.randint(0, len(data))
    return (
        data[:place]
        + choice.choice((b"\x00", b"\xff", b'"', b",", b"\n", b";", b"\xef\xbb\xbf", b"-", b"9" * 30, b"[" * 3000))
        + data[place:]
    )


CUTS: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (cut, flip, repeat, insert)


def read(directory: Path, content: bytes, config: bytes | None, *, works_out: bool) -> str:
    """What came of it, in words. works_out: whether the tables that follow from its rows are computed."""
    path, beside = directory / "given", directory / FILE_NAME
    path.write_bytes(content)
    if config is not None:
        beside.write_bytes(config)
    files = TraceFiles("given", path, 0, {} if config is None else {FILE_NAME: beside})
    try:
        reader = select_reader(files)
        if reader.format not in FORMATS:
            return f"other {reader.format}"
        tables = limit_texts(reader.read(files), "given")
        with_event_indexes("run", tables.frames)
        source = FileSource(tables.frames)
        if works_out and source.has_results:
            for table_name in DERIVED:
                resolve_table(find_table(table_name), source).collect()
        return f"read {reader.format}"
    except KernalyseError as error:
        return f"refused {error.reason}"
    except UnicodeEncodeError:
        return "refused half a character"  # as Importing does
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        line = "" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        return f"finding: {type(error).__name__} {str(error)[:80]} at {line}"


if __name__ == "__main__":
    sys.exit(main())
