"""Documents with charts: asked for by the command, drawn by the analyzer's process, and what may go wrong with that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pypdf import PdfReader

from kernalyse.services.analyzer.export import report_files
from kernalyse.services.core.errors import BackendUnavailableError, InternalError, LimitReachedError
from kernalyse.services.core.report import DrawingTask, Report, ReportFormat
from tests.command import kernalyse
from tests.history_files import history_files
from tests.integration.test_compare import document
from tests.unit.nsys_export import call, kernel, write_export

TASK = DrawingTask((ReportFormat.PDF,), Report("Report of a run", ()), "run-1", "a run")


@pytest.mark.slow
def test_a_comparison_is_exported_as_a_page_and_as_pictures_and_a_file_as_a_pdf(analyzer_that_runs: None, tmp_path: Path) -> None:
    before, after = document(tmp_path / "before.json", 1_000), document(tmp_path / "after.json", 1_100)
    baseline, _ = (re.search(r"imported-\w+", kernalyse("import", file).stdout).group() for file in (before, after))  # type: ignore[union-attr]
    page, pictures, sheets = tmp_path / "out" / "page.html", tmp_path / "out" / "pictures", tmp_path / "out" / "sheets.pdf"
    done = kernalyse("export", "last", "--against", baseline, "--html", page, "--pdf", sheets, "--png", pictures)
    assert done.returncode == 0, done.stderr
    assert 'data-chart="Speed-up of each configuration"' in page.read_text()
    assert "×1.1" in page.read_text()
    assert (pictures / "01-speed-up-of-each-configuration.png").read_bytes().startswith(b"\x89PNG")
    assert "Speed-up of each configuration" in "".join(sheet.extract_text() for sheet in PdfReader(sheets).pages)

    trace = write_export(tmp_path / "a.sqlite", kernels=[kernel(500, 900, 1), kernel(950, 1000, 2)], calls=[call(1, 2, 1)], gpus=[{}])
    report = tmp_path / "report.pdf"
    done = kernalyse("report", trace, "--format", "pdf", "-o", report)
    assert done.returncode == 0, done.stderr
    texts = [page.extract_text() for page in PdfReader(report).pages]
    assert any("Timeline" in text and "stream 7 · kernels" in text for text in texts)


@pytest.mark.slow
def test_a_repeated_run_shows_its_history_and_the_first_one_shows_none(analyzer_that_runs: None, tmp_path: Path) -> None:
    files = history_files(tmp_path, [5_000.0, 5_100.0], "gemm")
    run_ids = [re.search(r"imported-\w+", kernalyse("import", file).stdout).group() for file in files]  # type: ignore[union-attr]
    for run_id, expected in zip(run_ids, ([], ["history-of-gemm-n-1000"]), strict=True):
        done = kernalyse("export", run_id, "--svg", tmp_path / run_id)
        assert done.returncode == 0, done.stderr
        assert [path.stem[3:] for path in (tmp_path / run_id).glob("*history*")] == expected


def test_what_cannot_be_asked_for_is_refused_with_the_option(private_directories: Path) -> None:
    alone = kernalyse("export", "last", "--against", "other")
    assert (alone.returncode, "option --against" in alone.stderr) == (2, True), alone.stderr
    nowhere = kernalyse("report", "last", "--format", "pdf")
    assert (nowhere.returncode, "Add -o FILE" in nowhere.stderr) == (2, True), nowhere.stderr


def test_libraries_that_are_missing_are_named_with_the_extra_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "LIBRARIES", ("holoviews", "no_such_library"))
    with pytest.raises(BackendUnavailableError, match=r"no no_such_library .*kernalyse\[analyzer,ui\]"):
        report_files.draw_report(TASK, {})


def test_a_process_that_fails_or_takes_too_long_costs_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "PROGRAM", "kernalyse.services.ui.report.nothing")
    with pytest.raises(InternalError, match=r"No module named kernalyse\.services\.ui\.report\.nothing"):
        report_files.draw_report(TASK, {})
    monkeypatch.setattr(report_files, "TIME_LIMIT_S", 0.001)
    with pytest.raises(LimitReachedError, match=r"more than 0\.001 s of drawing"):
        report_files.draw_report(TASK, {})
