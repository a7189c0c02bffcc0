"""What deploy/ and the Dockerfile name is there: files, stages, commands, options, settings, dependencies."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from kernalyse.services.cli.main import app
from kernalyse.services.cli.serve import flag_parser
from kernalyse.services.core.settings import SETTINGS_CLASSES

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SERVICES = {settings.section: settings for settings in SETTINGS_CLASSES}

pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="needs the checkout")


def yaml_files() -> list[Path]:
    return sorted(DEPLOY.rglob("*.yaml"))


def word_lists(value: Any) -> Iterator[list[str]]:
    """Lists of words anywhere in a document."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from word_lists(item)


def service_commands() -> Iterator[tuple[str, list[str]]]:
    for path in yaml_files():
        for document in yaml.safe_load_all(path.read_text()):
            yield from ((path.name, words) for words in word_lists(document) if words[0] in SERVICES)
    for path in [*DEPLOY.glob("systemd/*.service"), *DEPLOY.glob("slurm/*")]:
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"(?:kernalyse|/kernalyse) ((?:profiler|analyzer|ui)(?![\w:])[^&\n]*)", text):
            yield path.name, shlex.split(line)


def other_commands() -> Iterator[tuple[str, list[str]]]:
    """`kernalyse SUBCOMMAND …` of shell lines, up to the end of the command."""
    for path in sorted(DEPLOY.rglob("*")):
        if path.suffix in (".md", ".sbatch", ".yaml"):
            text = re.sub(r"^\s*#(?! ).*$", "", path.read_text().replace("\\\n", " "), flags=re.MULTILINE)
            for line in re.findall(r"kernalyse ((?:nodes|runs|devices|doctor|up|bench|show|import)\b[^|`;\n]*)", text):
                yield path.name, shlex.split(line, comments=True)


def test_services_are_started_with_options_that_they_have() -> None:
    found = list(service_commands())
    assert {words[0] for _, words in found} == set(SERVICES)
    assert {name for name, _ in found} >= {
        "compose.yaml",
        "profiler.yaml",
        "observer.yaml",
        "dashboard.yaml",
        "profiler.sbatch",
        "kernalyse-ui.service",
    }
    for name, (service, *arguments) in found:
        try:
            flag_parser(SERVICES[service]).parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{name}: kernalyse {service} {shlex.join(arguments)}")


def test_commands_and_their_options_exist() -> None:
    found = list(other_commands())
    assert {words[0] for _, words in found} >= {"nodes", "up"}
    for name, words in found:
        command: Any = typer.main.get_command(app)
        rest = list(words)
        while rest and hasattr(command, "commands"):
            assert rest[0] in command.commands, f"{name}: {shlex.join(words)}"
            command = command.commands[rest.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert options <= known, f"{name}: {shlex.join(words)}"


def test_variables_are_settings() -> None:
    known = {f"KERNALYSE_{section.upper()}_{name.upper()}" for section, settings in SERVICES.items() for name in settings.model_fields}
    for path in [path for path in DEPLOY.rglob("*") if path.is_file()] + [ROOT / "Dockerfile"]:
        assert set(re.findall(r"KERNALYSE_[A-Z_]+", path.read_text())) <= known | {"KERNALYSE_CONFIG", "KERNALYSE_TOKEN"}, path


def test_the_dockerfile_copies_what_is_there_and_compose_builds_its_stages() -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert stages[-1] == "profiler"  # what `docker build -t kernalyse-nsys .` makes
    taken = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for pattern in taken:
        assert list(ROOT.glob(pattern)), pattern
    copied = re.findall(r"^COPY (?:--from=(\w+) )?(\S+) \S+$", text, re.MULTILINE)
    mounted = re.findall(r"--mount=type=bind,(?:from=(\w+),)?source=([^,\s]+)", text)
    for stage, source in (*copied, *mounted):
        is_sent = source in (".", "deploy") or any(Path(source).match(pattern) for pattern in taken)
        assert stage in stages if stage else is_sent, source
    locks = [f"{name}.lock" for name in re.findall(r"image\.sh packages (\w+)$", text, re.MULTILINE)]
    assert locks == ["dashboard.lock", "profiler.lock"]
    for name in (*locks, *re.findall(r"/deploy/([\w.]+)", text + (DEPLOY / "image.sh").read_text())):
        assert (DEPLOY / name).exists(), name
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        assert service["build"]["target"] in stages, name
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(compose["volumes"])
    gpu = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())
    assert set(gpu["services"]) <= set(compose["services"])
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    needed = {Path(name.strip("/")).parts[0] for name in (*build["targets"]["wheel"]["packages"], *build["targets"]["sdist"]["include"])}
    assert needed <= set(taken)


def test_all_of_nvidia_is_in_one_stage_that_can_be_left_out() -> None:
    text = (ROOT / "Dockerfile").read_text()
    instructions = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    stages = {block.partition("\n")[0]: block for block in re.split(r"^FROM ", instructions, flags=re.MULTILINE)[1:]}
    assert [stage for stage, block in stages.items() if re.search("cuda|nsight", block, re.IGNORECASE)] == ["${CUDA_IMAGE} AS cuda"]
    assert "${PROFILER_BASE} AS profiler" in stages
    assert "ARG PROFILER_BASE=cuda\n" in text
    for name in ("${PROFILER_BASE} AS profiler", "plain AS dashboard"):
        assert "\nUSER kernalyse\n" in stages[name]
        assert "\nHEALTHCHECK " in stages[name]


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("dashboard.lock", ("analyzer", "ui", "postgresql", "s3", "cluster")), ("profiler.lock", ("profiler", "opencl"))],
)
def test_images_install_what_the_project_is_tested_with(lock: str, extras: tuple[str, ...]) -> None:
    def pins(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE))

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    found = pins(DEPLOY / lock)
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in wanted}
    assert names <= set(found), "make lock brings them"
    tested = pins(ROOT / "requirements-cuda.lock") | pins(ROOT / "requirements.lock")
    assert {name: version for name, version in found.items() if tested.get(name) != version} == {}
    blocks = re.split(r"\n(?=\S)", (DEPLOY / lock).read_text())
    assert [block.splitlines()[0] for block in blocks if "==" in block.splitlines()[0] and "--hash=sha256:" not in block] == []


def test_the_batch_script_is_bash(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    script = DEPLOY / "slurm" / "profiler.sbatch"
    assert subprocess.run([bash, "-n", script], check=False).returncode == 0
    done = subprocess.run(
        [bash, script], capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    )
    assert "is the address of the analyzer" in done.stderr
    assert done.returncode != 0


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_start_script_serves_the_dashboard_on_port_5000_unless_told_otherwise(tmp_path: Path) -> None:
    shutil.copy(ROOT / "run.sh", tmp_path)
    (tmp_path / "Makefile").write_text("run:\n\t@echo up $(ARGS)\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of the make that runs the tests
    for given, passed_on in (((), "up --port 5000"), (("--open", "--port", "7003"), "up --port 5000 --open --port 7003")):
        done = subprocess.run([tmp_path / "run.sh", *given], cwd="/", capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == passed_on
    command: Any = typer.main.get_command(app)
    assert command.commands["up"].make_context("up", ["--port", "5000", "--port", "7003"]).params["port"] == 7003


def test_the_grafana_dashboard_asks_for_figures_that_services_have() -> None:
    known = {
        *(f"kernalyse_analyzer_{name}" for name in ("nodes", "runs", "event_lag_seconds", "stored_bytes")),
        *(f"kernalyse_analyzer_rpc_duration_seconds_{name}" for name in ("bucket", "count")),
        *("kernalyse_profiler_runs", "kernalyse_ui_tabs"),
        *(f"hw_gpu_{name}" for name in ("utilization_ratio", "memory_usage_bytes", "memory_limit_bytes", "power_watts")),
        "hw_gpu_temperature_celsius",
    }
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:kernalyse|hw)_\w+", target["expr"])
    }
    assert asked <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(("service", "most"), [("analyzer", 2.0), ("ui", 2.0), ("profiler", 5.0)])
def test_units_are_valid_and_little_exposed(service: str, most: float, tmp_path: Path) -> None:
    """By systemd's own measure, which ends at 10. Here nothing is started under systemd."""
    unit = tmp_path / f"kernalyse-{service}.service"
    unit.write_text((DEPLOY / "systemd" / unit.name).read_text().replace("/opt/kernalyse/bin/kernalyse", shutil.which("true") or ""))
    verified = subprocess.run(("systemd-analyze", "verify", str(unit)), capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    told = subprocess.run(("systemd-analyze", "security", "--offline=true", str(unit)), capture_output=True, text=True, check=False).stdout
    exposure = re.search(r"Overall exposure level for \S+ ([\d.]+)", told)
    assert exposure is not None, told
    assert float(exposure[1]) <= most
