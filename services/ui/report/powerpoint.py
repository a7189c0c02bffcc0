"""A document as PowerPoint: a slide for the run, one for each chart or two narrow ones, one for each table. Words are text."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from pptx import Presentation
from pptx.dml.color import RGBColor
from pptx.enum.text import MSO_ANCHOR, PP_ALIGN
from pptx.oxml.ns import qn
from pptx.util import Inches, Pt

from kernalyse.services.ui.charts.elements import elided, plain
from kernalyse.services.ui.report.chart_figures import Sheet, chart_height, picture
from kernalyse.services.ui.report.document import Chart, Document, FigureTable, cell_lines, cell_text, column_characters
from kernalyse.services.ui.theme import LIGHT

WIDTH: Final = 13.333  # inches, 16:9
HEIGHT: Final = 7.5
MARGIN: Final = 0.6
INNER: Final = WIDTH - 2 * MARGIN
TOP: Final = 1.25  # of what is below the title
BOTTOM: Final = HEIGHT - 0.3
GAP: Final = 0.4  # between two things beside each other
TITLE_PT: Final = 26
LONG_TITLE_PT: Final = 20
TEXT_PT: Final = 13
NOTE_PT: Final = 11
CELL_PT: Final = 10
MAX_SHORT_TITLE_LENGTH: Final = 46
MAX_TITLE_LENGTH: Final = 62
MAX_NOTE_LENGTH: Final = 420
NOTE_HEIGHT: Final = 0.62
CHARACTER: Final = 0.085  # inches of one in a cell, in a wide font: who opens the slides may lack the one they are made with
TEXT_CHARACTER: Final = 0.11  # and in text
NOTE_CHARACTER: Final = 0.093
MAX_NOTE_LINES: Final = 3  # in the height of a note
LINE: Final = 0.17  # inches of one in a cell
CELL_MARGIN: Final = 0.06
MAX_CELL_LINES: Final = 2
CELL_PADDING: Final = 0.05
TEXTS_WIDTH: Final = 4.8
TEXT_LINE: Final = 0.24
PICTURE_SCALE: Final = 1.35
"""Of charts against those of a printed page: letters of 8 points cannot be read from the back of a room. Of charts with many rows
less: at that size the names of thirty would lie on each other."""

PICTURE_GROWTH: Final = 1.25
SLIDE_DPI: Final = 200
TITLE_LAYOUT: Final = 5  # of python-pptx's own template: a title and nothing else
PLAIN_TABLE: Final = "{2D5ABB26-0587-4C30-8999-92F81FD0307C}"
"""PowerPoint's name of the style without grid and colours."""


def write_powerpoint(path: Path, document: Document) -> None:
    presentation = Presentation()
    presentation.slide_width, presentation.slide_height = Inches(WIDTH), Inches(HEIGHT)
    presentation.core_properties.title = document.title[:255]
    presentation.core_properties.author = "kernalyse"
    _add_facts(presentation, document)
    for table in document.tables:
        _add_table(presentation, table)
    for charts in _rows_of_charts(document.charts):
        _add_charts(presentation, charts)
    for table in document.details:
        if table.rows:
            _add_table(presentation, table)
    presentation.save(str(path))


# ---------------------------------------------------------------- the first slide


def _add_facts(presentation: Any, document: Document) -> None:
    """What the run is, and beside it what is told in sentences alone."""
    slide = _slide(presentation, document.title)
    said = [table for table in document.details if not table.rows]
    _add_named(slide, document.facts, INNER - (TEXTS_WIDTH + GAP if said else 0))
    if said:
        _add_said(slide, said, WIDTH - MARGIN - TEXTS_WIDTH)


def _add_named(slide: Any, facts: Sequence[tuple[str, str]], width: float) -> None:
    """As many as there is room for, names beside values."""
    names_width = min(3.0, 0.3 + TEXT_CHARACTER * max((len(name) for name, _ in facts), default=0))
    character_count = int((width - names_width) / TEXT_CHARACTER)
    values = [cell_text(value, character_count, MAX_CELL_LINES) for _, value in facts]
    heights = [TEXT_LINE * len(cell_lines(value, character_count, MAX_CELL_LINES)) for value in values]
    shown = sum(bottom <= BOTTOM - TOP for bottom in accumulate(heights))
    if not shown:
        return
    place = (Inches(MARGIN), Inches(TOP), Inches(width), Inches(sum(heights[:shown])))
    shape = slide.shapes.add_table(shown, 2, *place)
    shape._element.graphic.graphicData.tbl.tblPr.find(qn("a:tableStyleId")).text = PLAIN_TABLE
    shape.table.first_row = False
    shape.table.columns[0].width, shape.table.columns[1].width = Inches(names_width), Inches(width - names_width)
    for row in range(shown):
        shape.table.rows[row].height = Inches(heights[row])
        _write_cell(shape.table.cell(row, 0), elided(facts[row][0]), TEXT_PT, LIGHT.muted)
        _write_cell(shape.table.cell(row, 1), values[row], TEXT_PT, LIGHT.text)


def _add_said(slide: Any, said: Sequence[FigureTable], left: float) -> None:
    """As much as there is room for: the other documents have all."""
    frame = slide.shapes.add_textbox(Inches(left), Inches(TOP), Inches(TEXTS_WIDTH), Inches(BOTTOM - TOP)).text_frame
    line_count, room = 0, int((BOTTOM - TOP) / TEXT_LINE)
    for table in said:
        sentences = [elided(sentence, MAX_NOTE_LENGTH) for sentence in (*table.lead, *filter(None, [table.note]))]
        for text, is_title in ((table.title, True), *((sentence, False) for sentence in sentences)):
            line_count += len(textwrap.wrap(text, int(TEXTS_WIDTH / TEXT_CHARACTER)))
            if line_count > room:
                return
            _write(frame, [text], TEXT_PT, LIGHT.text if is_title else LIGHT.muted, is_bold=is_title)


# ---------------------------------------------------------------- charts


def _rows_of_charts(charts: Sequence[Chart]) -> Iterator[Sequence[Chart]]:
    """Two that are made to stand beside each other share a slide."""
    waiting: list[Chart] = []
    for chart in charts:
        if waiting and chart.width == "wide":
            yield waiting
            waiting = []
        waiting.append(chart)
        if chart.width == "wide" or len(waiting) == 2:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _add_charts(presentation: Any, charts: Sequence[Chart]) -> None:
    first, *others = [chart.title for chart in charts]
    slide = _slide(presentation, " and ".join([first, *(title[:1].lower() + title[1:] for title in others)]))
    width = (INNER - GAP * (len(charts) - 1)) / len(charts)
    for place, chart in enumerate(charts):
        left = MARGIN + place * (width + GAP)
        room = BOTTOM - TOP - (NOTE_HEIGHT if chart.note else 0)
        scale = min(PICTURE_SCALE, max(1.0, room / chart_height(chart)))
        sheet = Sheet(width=width / scale, growth=PICTURE_GROWTH, dpi=int(SLIDE_DPI * scale))
        content = picture(chart, "png", sheet, with_words=False, max_height=room / scale)
        shown = slide.shapes.add_picture(io.BytesIO(content), Inches(left), Inches(TOP), width=Inches(width))
        shown.name = chart.title
        shown._element.nvPicPr.cNvPr.set("descr", _spoken(chart))
        if chart.note:
            bottom = TOP + shown.height / Inches(1)
            note = cell_text(chart.note, int(width / NOTE_CHARACTER), MAX_NOTE_LINES)
            _add_text(slide, [note], (left, bottom, width, NOTE_HEIGHT), NOTE_PT, LIGHT.muted)


def _spoken(chart: Chart) -> str:
    """For those who cannot see the picture."""
    names = ", ".join(elided(entry.name) for entry in chart.key)
    return plain(" ".join(part for part in (f"Chart: {chart.title}.", f"Shown: {names}." if names else "", chart.note) if part))


# ---------------------------------------------------------------- tables


def _add_table(presentation: Any, table: FigureTable) -> None:
    """Rows as far as the slide reaches."""
    slide = _slide(presentation, table.title)
    top = TOP
    if table.lead:
        lead = [elided(sentence, MAX_NOTE_LENGTH) for sentence in table.lead]
        _add_text(slide, lead, (MARGIN, top - 0.1, INNER, 0.4), NOTE_PT, LIGHT.muted)
        top += 0.3
    column_count = len(table.headings)
    characters = column_characters(table, int((INNER - 2 * CELL_MARGIN * column_count) / CHARACTER) - column_count)
    rows = [
        [cell_text(cell, count, MAX_CELL_LINES) for cell, count in zip(row, characters, strict=True)]
        for row in (table.headings, *table.rows)
    ]
    heights = [_row_height(row, characters) for row in rows]
    shown = sum(bottom <= BOTTOM - NOTE_HEIGHT - top for bottom in accumulate(heights))
    widths = [(count + 1) * CHARACTER + 2 * CELL_MARGIN for count in characters]
    place = (Inches(MARGIN), Inches(top), Inches(sum(widths)), Inches(sum(heights[:shown])))
    shape = slide.shapes.add_table(shown, column_count, *place)
    for column, width in zip(shape.table.columns, widths, strict=True):
        column.width = Inches(width)
    for row_index, (row, height) in enumerate(zip(rows[:shown], heights, strict=False)):
        shape.table.rows[row_index].height = Inches(height)
        for column_index, text in enumerate(row):
            cell = shape.table.cell(row_index, column_index)
            _write_cell(cell, text, CELL_PT, "#ffffff" if row_index == 0 else LIGHT.text)
            if table.headings[column_index] in table.numeric:
                cell.text_frame.paragraphs[0].alignment = PP_ALIGN.RIGHT
    rest = len(rows) - shown
    note = " ".join(part for part in (f"{rest} more rows are in the other documents." if rest else "", table.note) if part)
    if note:
        bottom = top + sum(heights[:shown]) + 0.05
        _add_text(slide, [elided(note, MAX_NOTE_LENGTH)], (MARGIN, bottom, INNER, NOTE_HEIGHT), NOTE_PT, LIGHT.muted)


def _row_height(row: Sequence[str], characters: Sequence[int]) -> float:
    """Inches."""
    return LINE * max(len(cell_lines(cell, count, MAX_CELL_LINES)) for cell, count in zip(row, characters, strict=True)) + 2 * CELL_PADDING


# ---------------------------------------------------------------- words


def _slide(presentation: Any, title: str) -> Any:
    slide = presentation.slides.add_slide(presentation.slide_layouts[TITLE_LAYOUT])
    shape = slide.shapes.title
    shape.left, shape.top, shape.width, shape.height = Inches(MARGIN), Inches(0.35), Inches(INNER), Inches(0.8)
    shown = elided(title, MAX_TITLE_LENGTH)
    _write(shape.text_frame, [shown], TITLE_PT if len(shown) <= MAX_SHORT_TITLE_LENGTH else LONG_TITLE_PT, LIGHT.text, is_bold=True)
    shape.text_frame.paragraphs[0].alignment = PP_ALIGN.LEFT
    return slide


def _add_text(slide: Any, lines: Sequence[str], place: tuple[float, float, float, float], size_pt: int, color: str) -> None:
    """place: left, top, width and height in inches."""
    _write(slide.shapes.add_textbox(*map(Inches, place)).text_frame, lines, size_pt, color)


def _write_cell(cell: Any, text: str, size_pt: int, color: str) -> None:
    cell.margin_left = cell.margin_right = Inches(CELL_MARGIN)
    cell.margin_top = cell.margin_bottom = Inches(0.02)
    cell.vertical_anchor = MSO_ANCHOR.TOP
    _write(cell.text_frame, [text], size_pt, color)


def _write(frame: Any, lines: Sequence[str], size_pt: int, color: str, *, is_bold: bool = False) -> None:
    """Below what the frame has already."""
    frame.word_wrap = True
    for line in lines:
        paragraph = frame.add_paragraph() if frame.paragraphs[0].runs else frame.paragraphs[0]
        run = paragraph.add_run()
        run.text = plain(line)
        run.font.size, run.font.bold = Pt(size_pt), is_bold
        run.font.color.rgb = RGBColor.from_string(color.removeprefix("#"))
