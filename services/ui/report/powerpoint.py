"""A document as PowerPoint: a slide for the run, one for each chart, one for each table. Words are text, charts are pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pptx import Presentation
from pptx.dml.color import RGBColor
from pptx.enum.text import PP_ALIGN
from pptx.util import Inches, Pt

from services.ui.charts.names import elided, plain
from services.ui.report.chart_figures import Sheet, chart_height, picture
from services.ui.report.document import Chart, Document, FigureTable
from services.ui.theme import LIGHT

WIDTH: Final = 13.333  # inches, 16:9
HEIGHT: Final = 7.5
MARGIN: Final = 0.6
TITLE_PT: Final = 26
TEXT_PT: Final = 13
CELL_PT: Final = 10
MAX_FACT_COUNT: Final = 14
MAX_ROW_COUNT: Final = 14  # of a slide; the whole table is in the other documents
MAX_CELL_LENGTH: Final = 48
MAX_TITLE_LENGTH: Final = 70
MAX_NOTE_LENGTH: Final = 420
ROW_HEIGHT: Final = 0.32
CHART_TOP: Final = 1.25
NOTE_HEIGHT: Final = 0.75
BLANK_LAYOUT: Final = 5  # of python-pptx's own template: a title and nothing else


def write_powerpoint(path: Path, document: Document) -> None:
    presentation = Presentation()
    presentation.slide_width, presentation.slide_height = Inches(WIDTH), Inches(HEIGHT)
    presentation.core_properties.title = document.title[:255]
    presentation.core_properties.author = "kernalyse"
    _add_facts(presentation, document)
    for table in document.tables:
        _add_table(presentation, table)
    for chart in document.charts:
        _add_chart(presentation, chart)
    for table in document.details:
        _add_table(presentation, table)
    presentation.save(str(path))


def _add_facts(presentation: Any, document: Document) -> None:
    slide = _slide(presentation, document.title)
    facts = document.facts[:MAX_FACT_COUNT]
    lines = [f"{name}: {elided(value, 110)}" for name, value in facts]
    _add_text(slide, lines, CHART_TOP, HEIGHT - CHART_TOP - MARGIN, TEXT_PT, LIGHT.text)


def _add_chart(presentation: Any, chart: Chart) -> None:
    slide = _slide(presentation, chart.title)
    room = HEIGHT - CHART_TOP - NOTE_HEIGHT - 0.3
    height = min(room, chart_height(chart) * 1.25 + 0.25 * bool(chart.key))
    width = WIDTH - 2 * MARGIN
    content = picture(chart, "png", Sheet(width=width, height=height), with_words=False)
    shown = slide.shapes.add_picture(io.BytesIO(content), Inches(MARGIN), Inches(CHART_TOP), width=Inches(width))
    shown.name = chart.title
    shown._element.nvPicPr.cNvPr.set("descr", _spoken(chart))
    if chart.note:
        _add_text(slide, [elided(chart.note, MAX_NOTE_LENGTH)], HEIGHT - NOTE_HEIGHT - 0.2, NOTE_HEIGHT, TEXT_PT - 2, LIGHT.muted)


def _spoken(chart: Chart) -> str:
    """For those who cannot see the picture."""
    names = ", ".join(elided(entry.name) for entry in chart.key)
    return plain(" ".join(part for part in (f"Chart: {chart.title}.", f"Shown: {names}." if names else "", chart.note) if part))


def _add_table(presentation: Any, table: FigureTable) -> None:
    slide = _slide(presentation, table.title)
    lead = [elided(sentence, MAX_NOTE_LENGTH) for sentence in table.lead]
    if not table.rows:
        _add_text(slide, lead, CHART_TOP, HEIGHT - CHART_TOP - MARGIN, TEXT_PT, LIGHT.text)
        return
    top = CHART_TOP
    if lead:
        _add_text(slide, lead, top - 0.15, 0.4, TEXT_PT - 2, LIGHT.muted)
        top += 0.3
    rows = [table.headings, *table.rows[:MAX_ROW_COUNT]]
    width, height = Inches(WIDTH - 2 * MARGIN), Inches(ROW_HEIGHT * len(rows))
    shape = slide.shapes.add_table(len(rows), len(table.headings), Inches(MARGIN), Inches(top), width, height)
    for place, share in enumerate(_shares(table)):
        shape.table.columns[place].width = int(width * share)
    for row_index, row in enumerate(rows):
        for column_index, text in enumerate(row):
            cell = shape.table.cell(row_index, column_index)
            cell.margin_left = cell.margin_right = Inches(0.06)
            cell.margin_top = cell.margin_bottom = Inches(0.02)
            _write(cell.text_frame, [elided(text, MAX_CELL_LENGTH)], CELL_PT, "#ffffff" if row_index == 0 else LIGHT.text)
            if table.headings[column_index] in table.numeric:
                cell.text_frame.paragraphs[0].alignment = PP_ALIGN.RIGHT
    rest = len(table.rows) - MAX_ROW_COUNT
    note = " ".join(part for part in (f"And {rest} more rows." if rest > 0 else "", table.note) if part)
    if note:
        _add_text(slide, [elided(note, MAX_NOTE_LENGTH)], HEIGHT - NOTE_HEIGHT - 0.1, NOTE_HEIGHT, TEXT_PT - 2, LIGHT.muted)


def _shares(table: FigureTable) -> list[float]:
    """Of the width, by the longest cell of each column."""
    counts = [
        max(6, len(heading), *(min(MAX_CELL_LENGTH, len(row[place])) for row in table.rows)) for place, heading in enumerate(table.headings)
    ]
    return [count / sum(counts) for count in counts]


def _slide(presentation: Any, title: str) -> Any:
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK_LAYOUT])
    shape = slide.shapes.title
    shape.left, shape.top, shape.width, shape.height = Inches(MARGIN), Inches(0.35), Inches(WIDTH - 2 * MARGIN), Inches(0.8)
    _write(shape.text_frame, [elided(title, MAX_TITLE_LENGTH)], TITLE_PT, LIGHT.text, is_bold=True)
    shape.text_frame.paragraphs[0].alignment = PP_ALIGN.LEFT
    return slide


def _add_text(slide: Any, lines: Sequence[str], top: float, height: float, size_pt: int, color: str) -> None:
    box = slide.shapes.add_textbox(Inches(MARGIN), Inches(top), Inches(WIDTH - 2 * MARGIN), Inches(height))
    _write(box.text_frame, lines, size_pt, color)


def _write(frame: Any, lines: Sequence[str], size_pt: int, color: str, *, is_bold: bool = False) -> None:
    frame.word_wrap = True
    for number, line in enumerate(lines):
        paragraph = frame.paragraphs[0] if number == 0 else frame.add_paragraph()
        run = paragraph.add_run()
        run.text = plain(line)
        run.font.size, run.font.bold = Pt(size_pt), is_bold
        run.font.color.rgb = RGBColor.from_string(color.removeprefix("#"))
