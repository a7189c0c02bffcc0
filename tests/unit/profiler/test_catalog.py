"""The catalog is read completely, and a bad entry is refused with file, kernel, field, found and expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernalyse.services.core.errors import InvalidCatalogError, UnknownKernelError
from kernalyse.services.core.model import BufferDefinition, BufferRole, DataType, ParameterDefinition
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog, parse_catalog

SOURCE = "__global__ void scale(const float* x, float* y, float alpha, int n) {}\n"

ENTRY = """
[scale]
source = "scale.cu"
parameters = { n = { values = [16, 32], min = 8 } }
arguments = { alpha = 2.5 }
block = [64]
grid = ["ceil_div(n, block_x)"]
flop = "n"
bytes = "8*n"
[scale.buffers]
x = { shape = ["n"], dtype = "float32", role = "INPUT" }
y = { shape = ["n"], dtype = "float32", role = "OUTPUT" }
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "scale.cu").write_text(SOURCE)
    return tmp_path


def test_packaged_catalogue_names_every_kernel_of_its_sources() -> None:
    catalog = load_catalog()
    assert set(catalog.kernel_names) == {
        *("vector_add", "saxpy", "stream_copy", "stream_scale", "stream_add", "stream_triad", "matmul_naive", "matmul_tiled"),
        *("transpose_naive", "transpose_tiled", "reduce_sum", "softmax", "layernorm", "residual_layernorm", "causal_attention"),
        *(
            "matmul_registers",
            "matmul_registers_bias",
            "matmul_registers_bias_gelu",
            "matmul_block",
            "matmul_block_bias",
            "matmul_block_bias_gelu",
        ),
    }
    for name in catalog.kernel_names:
        assert name in catalog.source(name).text
        assert catalog.definition(name).reference is not None


def test_entry_becomes_a_definition(directory: Path) -> None:
    definition = parse_catalog(ENTRY, "mine.toml", directory).definition("scale")
    assert definition.parameters == (ParameterDefinition("n", (16, 32), 8),)
    assert definition.buffers[1] == BufferDefinition("y", ("n",), DataType.FLOAT32, BufferRole.OUTPUT)
    assert definition.arguments[0].expression == "2.5"
    assert definition.launch.block == ("64",)


def test_unknown_kernel_names_the_closest() -> None:
    with pytest.raises(UnknownKernelError, match="perhaps saxpy"):
        load_catalog().definition("sapxy")


@pytest.mark.parametrize(
    ("old", "new", "field", "found", "expected"),
    [
        ('source = "scale.cu"', 'source = "none.cu"', "source", "none.cu", "a readable .cu file"),
        ('source = "scale.cu"', 'source = "../scale.cu"', "source", "../scale.cu", "beside the catalog"),
        ('source = "scale.cu"', "", "source", "nothing", "a text"),
        ("flop =", "flops =", "flops", "an unknown field", "perhaps flop"),
        ("block = [64]", 'block = "64"', "block", "'64'", "a list of expressions"),
        ("block = [64]", "block = [1, 1, 1, 1]", "block", "4 expressions", "1 to 3"),
        ("block = [64]", 'block = ["block_x"]', "block", "the name block_x", "one of n"),
        ("n, block_x)", "m, block_x)", "grid", "the name m in 'ceil_div(m, block_x)'", "one of n, block_x"),
        ('flop = "n"', 'flop = "2*"', "flop", "'2*'", "arithmetic"),
        ("values = [16, 32]", "values = [4]", "parameters.n", "4", "at least 8"),
        ("values = [16, 32]", 'values = ["a"]', "parameters.n.values", "['a']", "a list of whole numbers"),
        ("values = [16, 32]", "value = [16]", "parameters.n.values", "nothing", "a list of whole numbers"),
        ('y = { shape = ["n"], dtype = "float32"', 'y = { shape = ["n"], dtype = "float"', "buffers.y.dtype", "'float'", "float32"),
        (
            'y = { shape = ["n"], dtype = "float32"',
            'y = { shape = ["n"], dtype = "float64"',
            "buffers.y.dtype",
            "float64",
            "scale.cu, line 1",
        ),
        ('role = "INPUT"', 'role = "OUTPUT"', "buffers.x.role", "OUTPUT", "INPUT, for it is const"),
        ('y = { shape = ["n"]', "y = { shape = []", "buffers.y.shape", "no dimension", "at least one"),
        ('y = { shape = ["n"]', 'z = { shape = ["n"]', "buffers", "nothing for float* y", "a buffer y"),
        ("arguments = { alpha = 2.5 }", "", "arguments", "nothing for float alpha", "an expression for alpha"),
        ("arguments = { alpha = 2.5 }", "arguments = { alpha = 1, beta = 2 }", "arguments.beta", "no such parameter", "alpha"),
        ("arguments = { alpha = 2.5 }", "arguments = { alpha = true }", "arguments.alpha", "True", "an expression"),
        ("[scale]", '[scale]\nfunction = "scales"', "function", "the kernels scale", "a __global__ function scales"),
        ("[scale]", '[scale]\nreference = "sacale"', "reference", "sacale", "perhaps"),
        ("[scale]", '[scale]\ncategory = "odd"', "category", "odd", "matmul"),
        ("[scale]", "[scale]\nrelative_tolerance = -1", "relative_tolerance", "-1", "at least 0"),
    ],
)
def test_bad_entry_is_refused_by_field(directory: Path, old: str, new: str, field: str, found: str, expected: str) -> None:
    assert old in ENTRY
    with pytest.raises(InvalidCatalogError) as error:
        parse_catalog(ENTRY.replace(old, new, 1), "mine.toml", directory)
    assert error.value.subject == f"mine.toml, kernel scale, field {field}"
    assert found in error.value.found
    assert expected in error.value.expected


def test_text_that_is_no_toml_is_refused_with_its_place(directory: Path) -> None:
    with pytest.raises(InvalidCatalogError, match=r"mine\.toml.*line 1"):
        parse_catalog("= 3", "mine.toml", directory)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCatalogError, match=r"none\.toml"):
        load_catalog(tmp_path / "none.toml")
