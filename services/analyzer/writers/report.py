"""A report of a run as a file to read or to paste: plain text or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from services.analyzer.imported_text import CONTROLS
from services.core.errors import InvalidRequestError
from services.core.report import Report, ReportFormat, Section

MAX_CELL_LENGTH: Final = 72
"""Names of C++ templates have hundreds of characters: whole, one would make every row as wide."""

GAP: Final = "  "
MARKDOWN_SIGNS: Final = re.compile(r"[\\|<>*`~&\[\]]|(?<!\w)_|_(?!\w)")
"""What Markdown would read as markup in a kernel's name; an underscore within a word is none."""

BLOCK_SIGNS: Final = re.compile(r"^(\d*)([-#+=.)])")
"""What would make a heading or a list of a sentence that begins so."""


def report_format(text: str) -> ReportFormat:
    """Raises InvalidRequestError."""
    if text in ReportFormat.__members__.values():
        return ReportFormat(text)
    raise InvalidRequestError("format of the report", found=repr(text), expected=" or ".join(ReportFormat), remedy="Choose one of these.")


def written_report(report: Report, chosen: ReportFormat) -> str:
    """The whole file. chosen: TEXT or MARKDOWN; the others are drawn (`services.analyzer.writers.drawing`)."""
    lines = _text_lines(report) if chosen is ReportFormat.TEXT else _markdown_lines(report)
    return "\n".join(lines) + "\n"


def _lines(section: Section) -> tuple[str, ...]:
    return (*(f"{name}: {value}" for name, value in section.facts), *section.sentences)


# ---------------------------------------------------------------- plain text


def _text_lines(report: Report) -> Iterator[str]:
    title = _plain(report.title)
    yield title
    yield "=" * len(title)
    for section in report.sections:
        yield ""
        yield section.title
        yield "-" * len(section.title)
        yield from map(_plain, _lines(section))
        if section.headings:
            yield ""
            yield from _aligned(section)
        yield from section.footnotes


def _aligned(section: Section) -> Iterator[str]:
    rows = [_cells(map(_plain, row)) for row in section.rows]
    widths = [max(map(len, column)) for column in zip(section.headings, *rows, strict=True)]
    rules = ["-" * min(width, MAX_CELL_LENGTH) for width in widths]
    for row in (section.headings, rules, *rows):
        cells = (
            text.rjust(width) if right else text.ljust(width) for text, width, right in zip(row, widths, section.is_numeric, strict=True)
        )
        yield GAP.join(cells).rstrip()


# ---------------------------------------------------------------- Markdown


def _markdown_lines(report: Report) -> Iterator[str]:
    yield f"# {_escaped(report.title)}"
    for section in report.sections:
        yield ""
        yield f"## {section.title}"
        yield ""
        lines = _lines(section)
        is_list = len(lines) > 1
        yield from (f"{'- ' if is_list else ''}{_sentence(line)}" for line in lines)
        if section.headings:
            yield from ([""] if lines else [])
            yield _markdown_row(section.headings)
            yield _markdown_row("--:" if right else "---" for right in section.is_numeric)
            yield from (_markdown_row(map(_escaped, _cells(row))) for row in section.rows)
        yield from (line for footnote in section.footnotes for line in ("", _sentence(footnote)))


def _markdown_row(cells: Iterable[str] | Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sentence(text: str) -> str:
    return BLOCK_SIGNS.sub(r"\1\\\2", _escaped(text))


def _escaped(text: str) -> str:
    return MARKDOWN_SIGNS.sub(lambda sign: f"\\{sign.group()}", _plain(text))


# ---------------------------------------------------------------- text of others


def _plain(text: str) -> str:
    """On one line, and without what would steer a terminal."""
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))


def _cells(row: Iterable[str]) -> list[str]:
    """Return the cells with long names cut. The last one may be a sentence that says why: it has the rest of the line."""
    *names, last = row
    return [*map(_cut, names), last]


def _cut(text: str) -> str:
    """Both ends of a long one: templates begin alike."""
    half = MAX_CELL_LENGTH // 2
    return text if len(text) <= MAX_CELL_LENGTH else f"{text[:half]}…{text[1 - half :]}"
