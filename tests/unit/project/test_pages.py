"""Completeness of the documentation: links resolve, commands, options, RPCs, tables and errors are named and exist, README is short."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from kernalyse.services.analyzer.tables.runs import TABLES
from kernalyse.services.cli.main import app
from kernalyse.services.core.errors import error_classes
from kernalyse.services.core.settings import AnalyzerSettings, ProfilerSettings, ServiceSettings, UiSettings
from kernalyse.v1 import analyzer_service_pb2, profiler_service_pb2

ROOT = Path(__file__).parents[3]
MAX_README_LINES = 180
SERVICES = (
    profiler_service_pb2.DESCRIPTOR.services_by_name["ProfilerService"],
    analyzer_service_pb2.DESCRIPTOR.services_by_name["AnalyzerService"],
)

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="needs the checkout")


def pages() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = done.stdout.split("\0") if done.returncode == 0 else [str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")]
    return [ROOT / name for name in names if name]


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), target


def test_each_promise_of_security_has_its_test() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    rows = re.findall(r"^\| .+\.( |$).*\|$", text, re.MULTILINE)
    named = re.findall(r"`(tests/\S+\.py)(?:::(\w+))?`", text)
    assert len(named) >= len(rows) > 20
    for file, name in named:
        source = (ROOT / file).read_text()
        assert not name or f"def {name}(" in source, name


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and f"({page.name})" not in index]
    assert missing == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def commands(command: Any, name: str = "") -> dict[str, Any]:
    """Return every command by its words, groups left out."""
    if not hasattr(command, "commands"):
        return {name: command}
    found = {}
    for word, part in command.commands.items():
        found.update(commands(part, f"{name} {word}".strip()))
    return found


def test_every_command_and_option_is_on_the_page_of_commands() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(re.findall(r"^### ([\w\- ]+)$\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    everywhere = text[: text.index("\n## ")]
    described = commands(typer.main.get_command(app))
    assert {name for name in sections if name not in ("nodes", "store")} == set(described)
    for name, command in described.items():
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("-") and option not in ("--help", "-h"):
                    assert f"`{option}`" in sections[name] or f"`{option}`" in everywhere, f"{name} {option}"


def command_lines() -> list[str]:
    """Return every line of a console block that calls kernalyse, from all pages."""
    blocks = (block for page in pages() for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    return [line for block in blocks for line in re.findall(r"^[\w-]*\$ (kernalyse .*)$", block, re.MULTILINE)]


def test_the_commands_of_all_pages_exist_and_take_their_options() -> None:
    known = commands(typer.main.get_command(app))
    flags: dict[str, type[ServiceSettings]] = {"profiler": ProfilerSettings, "analyzer": AnalyzerSettings, "ui": UiSettings}
    for line in command_lines():
        words = shlex.split(line, comments=True)[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        assert name in known, line
        options = {option for parameter in known[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
        if name in flags:
            options |= {f"--{field.replace('_', '-')}" for field in flags[name].model_fields}
        own = words[: words.index("--")] if "--" in words else words  # behind it stands a program with options of its own
        assert {word.partition("=")[0] for word in own if re.match(r"--?[A-Za-z]", word)} <= options, line


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_every_rpc_is_on_the_page_of_the_api(service: Any) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    section = text[text.index(f"## {service.name}") :]
    section = section[: section.find("\n## ", 1)]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    assert {method.name for method in service.methods} == {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_table_and_every_reason_is_on_the_page_of_the_api() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    tables, errors = text[text.index("\n## Tables") : text.index("\n## Errors")], text[text.index("\n## Errors") :]
    assert {table.table_name for table in TABLES} == set(re.findall(r"^\| `(\w+)`", tables, re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", errors, re.MULTILINE)
    described = {(code, reason) for code, reasons in rows for reason in re.findall(r"`(\w+)`", reasons)}
    assert described == {
        (cls.code, cls.reason)
        for cls in error_classes()
        if "reason" in vars(cls) and cls.reason != "BAD_USAGE"  # of the command line, which ends with status 2
    }
