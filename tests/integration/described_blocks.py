"""The code blocks of data/kernel_benchmarker_blocks.md, word for word, and running them with small sizes.

Texts are never edited: sizes and iterations shrink in the syntax tree that is run.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "data" / "kernel_benchmarker_blocks.md"
BLOCK: Final = re.compile(r"^## (?P<heading>.+?)\n\n```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

SMALL_SIZES: Final = {128: 8, 256: 16, 512: 24, 1024: 32, 2048: 40}
SMALL_EXPONENTS: Final = {7: 3, 12: 6}  # of range(7, 12): 2**5 is the 32 that stands for 1024
FEW_ITERATIONS: Final = 2


@dataclass(frozen=True)
class DescribedBlock:
    language: str
    text: str

    def run(self, namespace: dict[str, Any]) -> None:
        """Executes the text as it stands, but for smaller numbers."""
        tree = ast.fix_missing_locations(_Shrink().visit(ast.parse(self.text)))
        exec(compile(tree, FILE.name, "exec"), namespace)


def described_blocks() -> dict[str, DescribedBlock]:
    """By the heading they stand under."""
    return {
        found["heading"]: DescribedBlock(found["language"], found["text"]) for found in BLOCK.finditer(FILE.read_text(encoding="utf-8"))
    }


class _Shrink(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        is_size = isinstance(node.value, int) and node.value in SMALL_SIZES
        return ast.Constant(SMALL_SIZES[node.value]) if is_size else node  # type: ignore[index]

    def visit_Call(self, node: ast.Call) -> ast.Call:
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            node.args = [ast.Constant(SMALL_EXPONENTS[argument.value]) for argument in node.args]  # type: ignore[attr-defined]
            return node
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "benchmark":
            others = [keyword for keyword in node.keywords if keyword.arg != "iterations"]
            node.keywords = [*others, ast.keyword("iterations", ast.Constant(FEW_ITERATIONS))]
        return node
