"""Exports of Nsight Systems with something wrong in them, each made from a number alone, so that it can be made again."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.unit.nsys_export import call, global_id, kernel, nvtx, write_export

PAGE_SIZES: Final = (512, 1024, 4096, 65536)
HUGE: Final = (0, 1, -1, 127, 128, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1, 2**56, 0xFFFFFF)
ODD_VALUES: Final = (*HUGE, None, 1.5, 1e300, "", "many", "12", b"", b"\xff\xfe", "a\0b", "\N{SNOWMAN}" * 3, "x" * 5000)
OFTEN_ALTERED: Final = ("CUPTI_ACTIVITY_KIND_", "CUDA_GRAPH", "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU")
LONG_NESTING: Final = 10_000


def write_case(number: int, path: Path, samples: list[Path]) -> str:
    """Writes the file; answers what was done to it. samples: real exports, of which some cases are made."""
    chance = random.Random(number)
    if samples and chance.random() < 0.15:
        sample = chance.choice(samples)
        path.write_bytes(sample.read_bytes())
        said = [sample.name]
    else:
        said = [_write_small(chance, path)]
    if chance.random() < 0.6:
        said += [_alter_tables(chance, path) for _ in range(chance.randint(1, 4))]
    if chance.random() < 0.6:
        said += [_alter_bytes(chance, path) for _ in range(chance.randint(1, 3))]
    return ", ".join(said)


def _write_small(chance: random.Random, path: Path) -> str:
    path.unlink(missing_ok=True)
    page_size = chance.choice(PAGE_SIZES)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        if chance.random() < 0.1:
            connection.execute("PRAGMA encoding = 'UTF-16'")
        if chance.random() < 0.1:
            connection.execute("PRAGMA auto_vacuum = FULL")
        connection.execute("PRAGMA user_version = 1")  # writes the header
    count = chance.choice((0, 1, 3, 40, 400))
    threads = [global_id(process, thread) for process in (77, 90) for thread in (78, 91)]

    def moment() -> int:
        return chance.randrange(0, 4 * count + 10)

    def times() -> tuple[int, int]:
        start = moment()
        return start, start + chance.randrange(-2, 60)

    ranges = [
        nvtx(*times(), chance.choice((None, "a", "b" * chance.randrange(3000))), globalTid=chance.choice(threads),
             textId=chance.randrange(5), eventType=chance.choice((59, 59, 60, 75, 34, 70)), domainId=chance.randrange(2))
        for _ in range(count)
    ]  # fmt: skip
    if chance.random() < 0.01:
        ranges += [nvtx(place, 10**6 - place, "deep") for place in range(LONG_NESTING)]
    write_export(
        path,
        kernels=[
            kernel(*times(), chance.randrange(count + 2), globalPid=chance.choice(threads) & ~0xFFFFFF, deviceId=chance.randrange(3))
            for _ in range(count)
        ],
        calls=[kernel_call(chance, times(), count, threads) for _ in range(count)],
        ranges=ranges,
        copies=[kernel(*times(), chance.randrange(count + 2)) for _ in range(count // 4)],
        fills=[kernel(*times()) for _ in range(count // 8)],
        gpus=[{}],
        strings={number: chance.choice(("gemm", "", "x" * chance.randrange(9000), "a\0b")) for number in range(1, 5)},
        schema_version=chance.choice(("3.25.0", "99.1", "nonsense", None)),
    )
    return f"{count} rows in pages of {page_size}"


def kernel_call(chance: random.Random, times: tuple[int, int], count: int, threads: list[int]) -> dict[str, Any]:
    return call(*times, chance.randrange(count + 2), globalTid=chance.choice(threads))


# ---------------------------------------------------------------- tables


def _alter_tables(chance: random.Random, path: Path) -> str:
    alter = chance.choice(TABLE_ALTERATIONS)
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        tables = [name.decode() for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if not tables:
            return "no tables"
        table = chance.choice([name for name in tables if name.startswith(OFTEN_ALTERED)] or tables)
        columns = [row[1].decode() for row in connection.execute(f'PRAGMA table_info("{table}")')]
        try:
            said = alter(chance, connection, table, columns)
            connection.commit()
        except sqlite3.Error as error:
            connection.rollback()
            said = f"not {error}"
    return f"{alter.__name__.strip('_')} {table} {said}"


def _drop_table(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    connection.execute(f'DROP TABLE "{table}"')
    return ""


def _drop_column(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    column = chance.choice(columns)
    connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    return column


def _rename_column(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    column = chance.choice(columns)
    other = chance.choice((column.upper(), column + "2", "rowid", "a b", '"', ""))
    connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{other.replace(chr(34), chr(34) * 2)}"')
    return f"{column} to {other}"


def _add_column(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    """Rows that were there have no value of it: theirs is the default."""
    name = chance.choice(("newest", "graphNodeId", "domainId", "rowid"))
    default = chance.choice(("", " DEFAULT 7", " DEFAULT 'x'", " GENERATED ALWAYS AS (1 + 1) VIRTUAL"))
    connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{name}"{default}')
    return f"{name}{default}"


def _odd_values(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    column, value = chance.choice(columns), chance.choice(ODD_VALUES)
    step = chance.choice((1, 3, 20))
    connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE (rowid + ?) % {step} = 0', (value, chance.randrange(step)))
    return f"{column} {value!r:.30}"


def _other_types(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    """The same rows in a table that was declared in another way."""
    kind = chance.choice(("TEXT", "REAL", "BLOB", "", "INTEGER"))
    order = chance.sample(columns, len(columns))
    keyed = chance.choice(("", "", " PRIMARY KEY", " PRIMARY KEY DESC"))
    declared = ", ".join(f'"{name}" {kind if place else "INTEGER" + keyed}' for place, name in enumerate(order))
    end = " WITHOUT ROWID" if keyed and chance.random() < 0.4 else ""
    connection.execute(f"CREATE TABLE fresh ({declared}){end}")
    names = ", ".join(f'"{name}"' for name in order)
    connection.execute(f'INSERT OR IGNORE INTO fresh ({names}) SELECT {names} FROM "{table}"')
    connection.execute(f'DROP TABLE "{table}"')
    connection.execute(f'ALTER TABLE fresh RENAME TO "{table}"')
    return f"{kind}{keyed}{end}"


def _shuffle(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    """Ids of rows with gaps, below zero, at the ends of their range."""
    step = chance.choice((-1, 3, 2**40, -(2**50)))
    connection.execute(f'UPDATE "{table}" SET rowid = rowid * ?', (step,))
    return str(step)


def _delete_rows(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    connection.execute(f'DELETE FROM "{table}" WHERE rowid % {chance.choice((1, 2, 7))} = 0')
    return ""


def _a_view_instead(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    connection.execute(f'ALTER TABLE "{table}" RENAME TO hidden')
    connection.execute(f'CREATE VIEW "{table}" AS SELECT * FROM hidden')
    return ""


def _another_journal(chance: random.Random, connection: sqlite3.Connection, table: str, columns: list[str]) -> str:
    connection.execute("PRAGMA journal_mode = WAL")
    return ""


TABLE_ALTERATIONS: Final[tuple[Callable[[random.Random, sqlite3.Connection, str, list[str]], str], ...]] = (
    *(_drop_table, _drop_column, _rename_column, _add_column, _other_types, _shuffle, _delete_rows, _a_view_instead, _another_journal),
    *(_odd_values, _odd_values, _odd_values, _odd_values),
)


# ---------------------------------------------------------------- bytes


def _alter_bytes(chance: random.Random, path: Path) -> str:
    content = bytearray(path.read_bytes())
    if len(content) < 200:
        return "too short"
    alter = chance.choice((_scribble, _scribble, _stretch, _copy_page, _truncate, _header, _page_headers))
    said = alter(chance, content)
    path.write_bytes(content)
    return f"{alter.__name__.strip('_')} {said}"


def _scribble(chance: random.Random, content: bytearray) -> str:
    places = [chance.randrange(100, len(content)) for _ in range(chance.choice((1, 1, 3, 20)))]
    for place in places:
        content[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return str(places[:3])


def _stretch(chance: random.Random, content: bytearray) -> str:
    start, length = chance.randrange(100, len(content)), chance.choice((2, 9, 40, 500))
    length = min(length, len(content) - start)
    content[start : start + length] = chance.choice((b"\xff" * length, bytes(length), chance.randbytes(length)))
    return f"{start}+{length}"


def _page_size(content: bytearray) -> int:
    size = int.from_bytes(content[16:18], "big")
    return size if 512 <= size <= 32768 else 4096


def _copy_page(chance: random.Random, content: bytearray) -> str:
    """Trees of which a page is in two places, or part of itself."""
    size = _page_size(content)
    count = max(1, len(content) // size)
    source, target = chance.randrange(count), chance.randrange(min(1, count - 1), count)
    content[target * size : (target + 1) * size] = content[source * size : (source + 1) * size]
    return f"{source} to {target}"


def _truncate(chance: random.Random, content: bytearray) -> str:
    size = chance.choice((chance.randrange(100, len(content)), len(content) // _page_size(content) // 2 * _page_size(content)))
    del content[size:]
    if chance.random() < 0.5:  # as if the header did not say how long it was
        content[92:96] = b"\0\0\0\0"
    return str(size)


def _header(chance: random.Random, content: bytearray) -> str:
    place = chance.choice((16, 17, 18, 19, 20, 21, 22, 23, 27, 31, 47, 56, 59, 63, 95))
    content[place] = chance.choice((0, 1, 2, 3, 16, 64, 255))
    return f"{place} {content[place]}"


def _page_headers(chance: random.Random, content: bytearray) -> str:
    """Kind, count of cells, places of cells, the rightmost child."""
    size = _page_size(content)
    start = chance.randrange(max(1, len(content) // size)) * size
    place = start + chance.randrange(40) if start else 100 + chance.randrange(40)
    if place < len(content):
        content[place] = chance.choice((0, 1, 2, 5, 10, 13, 255, chance.randrange(256)))
    return str(place)
