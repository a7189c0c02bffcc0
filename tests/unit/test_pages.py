"""Completeness of the documentation: links resolve, commands, options and RPCs are named, README is short."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from kernalyse.v1 import analyzer_service_pb2, profiler_service_pb2
from services.cli.main import app

ROOT = Path(__file__).parents[2]
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
    assert {name for name in sections if name not in ("nodes",)} == set(described)
    for name, command in described.items():
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("-") and option not in ("--help", "-h"):
                    assert f"`{option}`" in sections[name] or f"`{option}`" in everywhere, f"{name} {option}"


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_every_rpc_is_on_the_page_of_the_api(service: Any) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    section = text[text.index(f"## {service.name}") :]
    section = section[: section.find("\n## ", 1)]
    assert {method.name for method in service.methods} == set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
