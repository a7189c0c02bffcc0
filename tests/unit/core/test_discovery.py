"""kernalyse.services.core.settings: a service is found while it lives, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernalyse.services.core.settings import advertised, find_service


def test_a_service_is_found_while_its_block_runs(tmp_path: Path) -> None:
    path = tmp_path / "run" / "analyzer.json"
    with advertised(path, "analyzer", "127.0.0.1:7002", tmp_path / "token", tmp_path / "ca.pem") as own:
        found = find_service(path)
        assert found == own
        assert (own.service, own.address) == ("analyzer", "127.0.0.1:7002")
        assert (own.token_file, own.ca_file) == (str(tmp_path / "token"), str(tmp_path / "ca.pem"))
    assert find_service(path) is None
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "analyzer.json"
    with advertised(path, "analyzer", "127.0.0.1:7002", tmp_path / "token"):
        os.chown(path, 65534, 65534)
        assert find_service(path) is None


def test_a_dead_process_is_no_service(tmp_path: Path) -> None:
    path = tmp_path / "profiler.json"
    code = (
        "import os, sys, pathlib\nfrom kernalyse.services.core.settings import advertised\n"
        "with advertised(pathlib.Path(sys.argv[1]), 'profiler', 'unix:x', pathlib.Path('token')): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert json.loads(path.read_text())["service"] == "profiler"  # it left its file behind
    assert find_service(path) is None


def test_a_later_process_with_the_same_id_is_not_mistaken_for_the_service(tmp_path: Path) -> None:
    path = tmp_path / "ui.json"
    with advertised(path, "ui", "127.0.0.1:7003", tmp_path / "token"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"process_start_ticks": content["process_start_ticks"] - 1}))
        assert find_service(path) is None


def test_a_stopping_service_leaves_the_file_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "ui.json"
    with advertised(path, "ui", "127.0.0.1:7003", tmp_path / "token") as own:
        successor = replace(own, address="127.0.0.1:7004")
        path.write_text(json.dumps({name: getattr(successor, name) for name in own.__slots__}))
    assert find_service(path) == successor


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"service": "ui", "address": 1}', '{"unknown": 1}'])
def test_a_file_of_another_kind_is_no_service(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ui.json"
    path.write_text(text)
    assert find_service(path) is None
