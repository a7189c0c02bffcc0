"""Headers of one's own: found, expanded in their place, packed, and searched where they are unpacked."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from kernalyse.services.core.artifacts import DIRECTORY_LIST
from kernalyse.services.core.errors import InvalidBundleError, InvalidSourceError
from kernalyse.services.core.model import KernelSource
from kernalyse.services.profiler.kernel_sources.functions import parse_kernel_source
from kernalyse.services.profiler.kernel_sources.headers import bundle_include_directories, expand_headers, pack_headers
from kernalyse.services.profiler.kernel_sources.syntax import descendants, source_location

KNOWN = frozenset({"math.h"})


def write(directory: Path, **files: str) -> None:
    """Files by name, with __ for a directory's slash and _h for .h."""
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("_h", ".h").replace("_cu", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def expanded(text: str, *directories: Path) -> str:
    return expand_headers(KernelSource("k.cu", text), directories, KNOWN).text


def places(text: str) -> dict[str, str]:
    """The place of each identifier of a text."""
    root = parse_kernel_source(KernelSource("k.cu", text)).tree.root_node
    return {(node.text or b"").decode(): str(source_location(node, "k.cu")) for node in descendants(root) if node.type == "identifier"}


def test_a_header_stands_in_the_place_of_its_include_and_every_line_keeps_its_name_and_number(tmp_path: Path) -> None:
    write(tmp_path, a_h='int in_a;\n#include "sub/b.h"\nint after_b;\n', sub__b_h='\n#include "c.h"\nint in_b;', sub__c_h="int in_c;\n")
    text = expanded('int first;\n#include "a.h"\nint last;\n', tmp_path)
    assert places(text) == {
        "first": "k.cu, line 1",
        "in_a": "a.h, line 1",
        "in_c": "sub/c.h, line 1",
        "in_b": "sub/b.h, line 3",
        "after_b": "a.h, line 3",
        "last": "k.cu, line 3",
    }


def test_directories_are_searched_in_their_order_and_beside_the_including_file_first(tmp_path: Path) -> None:
    write(tmp_path, one__x_h="int one;", two__x_h="int two;", two__y_h='#include "x.h"\n#include <x.h>\n')
    directories = (tmp_path / "one", tmp_path / "two")
    assert list(places(expanded("#include <x.h>\n", *directories))) == ["one"]
    assert list(places(expanded('#include "y.h"\n', *directories))) == ["two", "one"]


def test_what_is_found_nowhere_and_what_the_runtime_knows_stays(tmp_path: Path) -> None:
    write(tmp_path, math_h="int own_math;")
    text = '#include <math.h>\n#include "missing.h"\n#include MACRO\n#include "/etc/hostname"\n'
    assert expanded(text, tmp_path) == text
    assert "own_math" in expanded('#include "math.h"\n', tmp_path)


@pytest.mark.parametrize(
    "guard",
    ["#pragma once\nint x;\n", "// a\n#ifndef X_H\n#define X_H\nint x;\n#endif\n", "#if !defined(X_H)\n#define X_H\nint x;\n#endif"],
)
def test_a_guarded_header_comes_once(tmp_path: Path, guard: str) -> None:
    write(tmp_path, x_h=guard, y_h='#include "x.h"\n#include "x.h"\n')
    assert expanded('#include "y.h"\n#include "x.h"\nint z;\n', tmp_path).count("int x;") == 1


def test_a_header_without_guard_comes_as_often_as_it_is_included(tmp_path: Path) -> None:
    write(tmp_path, x_h="ENTRY(1)\n", y_h="#ifndef Y_H\nint y;\n#endif\n")  # y_h defines nothing: no guard
    assert expanded('#include "x.h"\n#include "x.h"\n#include "y.h"\n#include "y.h"\n', tmp_path).count("\nENTRY") == 2
    assert expanded('#include "y.h"\n#include "y.h"\n', tmp_path).count("int y;") == 2


def test_behind_a_condition_the_guard_itself_decides(tmp_path: Path) -> None:
    write(tmp_path, x_h="#pragma once\nint x;\n")
    text = expanded('#ifdef NEVER\n#include "x.h"\n#endif\n#include "x.h"\n#include "x.h"\n', tmp_path)
    assert text.count("int x;") == 2
    assert text.count("#ifndef KERNALYSE_ONCE_0") == 2


def test_a_circle_ends_with_a_guard_and_is_refused_without(tmp_path: Path) -> None:
    write(tmp_path, a_h='#pragma once\n#include "b.h"\nint a;\n', b_h='#pragma once\n#include "a.h"\nint b;\n', c_h='\n#include "c.h"\n')
    assert list(places(expanded('#include "a.h"\n', tmp_path))) == ["b", "a"]
    with pytest.raises(InvalidSourceError, match=r"c\.h, line 2: found an #include of c\.h, which is being included"):
        expanded('#include "c.h"\n', tmp_path)


def test_headers_that_multiply_are_refused_before_they_fill_the_memory(tmp_path: Path) -> None:
    for level in range(30):
        write(tmp_path, **{f"l{level}_h": f'#include "l{level + 1}.h"\n#include "l{level + 1}.h"\n// {"x" * 1000}\n'})
    with pytest.raises(InvalidSourceError, match="with all its headers"):
        expanded('#include "l0.h"\n', tmp_path)


def test_a_header_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.h").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSourceError, match=r"header x\.h"):
        expanded('#include "x.h"\n', tmp_path)


# ---------------------------------------------------------------- bundles


def unpacked(data: bytes, directory: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian's Python 3.11 has no filters, 3.13 asks for one
        archive.extractall(directory)
        return archive.getnames()


def project(directory: Path) -> Path:
    write(
        directory,
        src__k_cu='#include "near.h"\n#include <far/deep.h>\n#include <vector>\n__global__ void k(float* y) { y[0] = 1; }\n',
        src__near_h='#include "../common/shared.h"\n',
        src__unused_h="int unused;\n",
        common__shared_h="int shared;\n",
        include__far__deep_h='#include "deeper.h"\n',
        include__far__deeper_h="int deeper;\n",
        include__other_h="int other;\n",
    )
    return directory / "src" / "k.cu"


def test_what_is_really_included_is_packed_and_means_the_same_where_it_is_unpacked(tmp_path: Path) -> None:
    source_file = project(tmp_path / "here")
    bundle = pack_headers(source_file, [tmp_path / "here" / "include"])
    assert bundle is not None
    assert bundle.header_names == ("common/shared.h", "include/far/deep.h", "include/far/deeper.h", "src/near.h")
    unpacked(bundle.data, tmp_path / "there")
    directories = bundle_include_directories(tmp_path / "there")
    assert directories == (tmp_path / "there" / "src", tmp_path / "there" / "include")
    found = places(expand_headers(KernelSource("k.cu", source_file.read_text()), directories, KNOWN).text)
    assert {name: found[name] for name in ("shared", "deeper")} == {
        "shared": "../common/shared.h, line 1",
        "deeper": "far/deeper.h, line 1",
    }


def test_a_path_through_a_directory_without_headers_works(tmp_path: Path) -> None:
    write(tmp_path, here__src__k_cu='#include "../common/x.h"\n', here__common__x_h="int x;\n")
    bundle = pack_headers(tmp_path / "here" / "src" / "k.cu", [])
    assert bundle is not None
    assert "src" in unpacked(bundle.data, tmp_path / "there")
    assert (bundle_include_directories(tmp_path / "there")[0] / "../common/x.h").is_file()


def test_the_same_files_give_the_same_bytes_wherever_they_lie(tmp_path: Path) -> None:
    bundles = []
    for name in ("one", "two/deeper"):
        bundles.append(pack_headers(project(tmp_path / name), [tmp_path / name / "include"]))
        (tmp_path / name / "src" / "near.h").touch()
    assert bundles[0] is not None
    assert bundles[0] == bundles[1]
    assert bundles[0].digest.startswith("sha256:")


def test_a_source_without_own_headers_needs_no_bundle(tmp_path: Path) -> None:
    write(tmp_path, k_cu="#include <cuda_runtime.h>\n#include <vector>\n__global__ void k() {}\n", vector="int not_asked_for;")
    assert pack_headers(tmp_path / "k.cu", []) is None


def test_a_bundle_without_a_list_is_searched_at_its_top(tmp_path: Path) -> None:
    assert bundle_include_directories(tmp_path) == (tmp_path,)


@pytest.mark.parametrize("name", ["/etc", "../outside", "a/../../b"])
def test_a_list_that_leads_out_of_the_bundle_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / DIRECTORY_LIST).parent.mkdir()
    (tmp_path / DIRECTORY_LIST).write_text(f"src\n{name}\n")
    with pytest.raises(InvalidBundleError, match="directories of the bundle"):
        bundle_include_directories(tmp_path)
