"""Lines of a program's output: cut as a terminal shows them, and within a limit."""

from __future__ import annotations

from kernalyse.services.profiler.processes.children import MAX_LINE_BYTES, MAX_LOG_BYTES, OutputLines


def test_lines_come_when_they_are_complete_and_the_last_one_at_the_end() -> None:
    output = OutputLines()
    assert output.take(b"one\ntw") == ("one",)
    assert output.take(b"o\r\nthree \xff") == ("two",)
    assert output.end() == ("three \N{REPLACEMENT CHARACTER}",)
    assert output.tail == ("one", "two", "three \N{REPLACEMENT CHARACTER}")


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    assert OutputLines().take(b"[=  ] 1\r[== ] 2\r[===] 3\ndone\n") == ("[===] 3", "done")


def test_a_line_without_end_is_cut() -> None:
    output = OutputLines()
    assert output.take(b"x" * (3 * MAX_LINE_BYTES)) == ("x" * MAX_LINE_BYTES,)
    assert output.end() == ()


def test_over_the_limit_only_the_end_is_shown() -> None:
    output = OutputLines()
    line = b"x" * 1000 + b"\n"
    assert output.take(line * ((MAX_LOG_BYTES - 1000) // len(line)))[-1] == "x" * 1000
    last = output.take(b"\n" * 2000)[-1]
    assert last.startswith("Further output is left out"), "empty lines count too"
    for number in range(1000):
        assert output.take(b"line %d\n" % number) == ()
    assert output.end() == ("It ended with:", *(f"line {number}" for number in range(980, 1000)))
