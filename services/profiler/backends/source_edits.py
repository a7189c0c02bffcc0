"""Edits on a source text that leave every line where it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tree_sitter import Node


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes `start` to `end` become `text`; `start == end` inserts."""

    start: int
    end: int
    text: str


def insert_before(node: Node, text: str) -> Edit:
    """Return an edit that puts `text` in front of `node`."""
    return Edit(node.start_byte, node.start_byte, text)


def replace(node: Node, text: str) -> Edit:
    """Return an edit to `text`, with the line ends that `node` had, so that later lines keep their numbers."""
    missing = (node.text or b"").count(b"\n") - text.count("\n")
    return Edit(node.start_byte, node.end_byte, text + "\n" * max(missing, 0))


def remove(node: Node) -> Edit:
    """Return an edit that removes `node` but keeps its line ends."""
    return replace(node, " ")


def apply_edits(text: bytes, start: int, end: int, edits: Iterable[Edit]) -> str:
    """Return `text[start:end]` after the edits within it. An edit inside another one is lost; inserts keep their order."""
    parts: list[bytes] = []
    position = start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end != edit.start, -edit.end)):
        if edit.start < position or edit.end > end:
            continue
        parts += [text[position : edit.start], edit.text.encode()]
        position = edit.end
    parts.append(text[position:end])
    return b"".join(parts).decode(errors="replace")
