"""Every overlay of deploy/kubernetes, rendered by kubectl and validated by Kubernetes' schemas."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from click.testing import CliRunner
from distributed.cli import dask_scheduler, dask_worker

from kernalyse import health
from kernalyse.services.cli.serve import flag_parser
from kernalyse.services.core.settings import SETTINGS_CLASSES
from tests.rendered_kubernetes import KUBERNETES, OVERLAYS, RENDERED, containers_of, makers, named, rendered

ROOT = Path(__file__).parents[3]
SERVICES = {settings.section: settings for settings in SETTINGS_CLASSES}
VERSIONS = ("1.29.0", "1.37.0")
USER_ID = 10001
SECRETS_OF_README = {"kernalyse-token", "kernalyse-tls", "kernalyse-join", "kernalyse-catalogue", "kernalyse-objects-key"}
PORTS = {"kernalyse-analyzer": 7002, "kernalyse-ui": 7003, "kernalyse-peers": 7002, "kernalyse-dask-scheduler": 8786}

pytestmark = [
    pytest.mark.skipif(not KUBERNETES.is_dir(), reason="needs the checkout"),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl"),
]


def pods(directory: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The kind of each object that makes pods, the labels of these and their spec."""
    for one in makers(directory):
        template = one["spec"]["template"]
        if one["kind"] != "Job":  # the cluster makes the selector of a Job
            assert one["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        yield one["kind"], template["metadata"]["labels"], template["spec"]


def containers(directory: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each container, with the spec of its pod."""
    for _, _, pod in pods(directory):
        yield from ((container, pod) for container in containers_of(pod))


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def test_every_directory_is_rendered_here() -> None:
    assert sorted(path.name for path in (KUBERNETES / "overlays").iterdir()) == sorted(OVERLAYS)
    parts = {path.parent.relative_to(KUBERNETES).as_posix() for path in KUBERNETES.rglob("kustomization.yaml")}
    assert parts - {"base"} - {part for part in parts if part.startswith("components/")} == set(RENDERED)
    used = {path for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"}
    for kustomization in KUBERNETES.rglob("kustomization.yaml"):
        for line in kustomization.read_text().splitlines():
            used.discard(kustomization.parent / line.strip().removeprefix("- ").removeprefix("path: "))
    assert not used


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("directory", RENDERED)
def test_objects_are_valid_against_the_strict_schemas(directory: str, version: str) -> None:
    for one in rendered(directory):
        kubernetes_validate.validate(one, version, strict=True)
        assert one["kind"] == "Namespace" or one["metadata"]["namespace"] == "kernalyse"


def test_the_validation_finds_a_field_that_does_not_exist() -> None:
    wrong = json.loads(json.dumps(named("measure", "Job", "kernalyse-profiler")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("directory", RENDERED)
def test_commands_options_and_variables_exist(directory: str) -> None:
    known = {f"KERNALYSE_{section.upper()}_{name.upper()}" for section, settings in SERVICES.items() for name in settings.model_fields}
    for container, _ in containers(directory):
        words = [*container.get("command", ()), *container.get("args", ())]
        match words:
            case [service, *arguments] if service in SERVICES:
                assert "command" not in container, "the image's entry point is kernalyse"
                flag_parser(SERVICES[service]).parse_args(arguments)
            case ["dask", "scheduler" | "worker" as part, *arguments]:
                command = dask_scheduler.main if part == "scheduler" else dask_worker.main
                names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
                assert {word.partition("=")[0] for word in arguments if word.startswith("--")} <= names
                assert CliRunner().invoke(command, ["--help"]).exit_code == 0
            case _:
                assert words[0] == "install"
        given = {variable["name"]: variable.get("value", "") for variable in container.get("env", ())}
        assert {name for name in given if name.startswith("KERNALYSE_")} <= known
        for name in re.findall(r"\$\((\w+)\)", " ".join((*words, *given.values()))):
            assert name in given, f"{container['name']}: $({name})"
            assert list(given).index(name) <= min(index for index, value in enumerate((*given.values(), "$")) if "$" in value)


@pytest.mark.parametrize("directory", RENDERED)
def test_probes_ask_what_a_container_serves(directory: str) -> None:
    for container, pod in containers(directory):
        if container in pod.get("initContainers", []):
            continue
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert "readinessProbe" in container
        for probe in (container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe") if name in container):
            if "exec" in probe:
                python, option, module, address, file = probe["exec"]["command"]
                assert (python, option, module) == ("python", "-m", health.__name__)
                assert int(address.removeprefix("localhost:")) in ports.values()
                assert any(file.startswith(f"{mount['mountPath']}/") for mount in container["volumeMounts"])
                assert probe["timeoutSeconds"] > health.TIMEOUT_S
            else:
                assert probe["tcpSocket"]["port"] in ports


@pytest.mark.parametrize("directory", RENDERED)
def test_pods_have_no_more_rights_than_they_need(directory: str) -> None:
    for container, pod in containers(directory):
        own = container["securityContext"]
        assert own == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        shared = pod["securityContext"]
        assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
        assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
        assert "hostNetwork" not in pod
        assert {"memory"} <= container["resources"]["limits"].keys()
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        hosts = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
        if hosts:  # kubelet's socket is root's
            assert (hosts, shared["runAsUser"]) == (["/var/lib/kubelet/pod-resources"], 0)
            assert [mount["readOnly"] for mount in container["volumeMounts"] if mount["mountPath"] == hosts[0]] == [True]
        else:
            assert (shared["runAsNonRoot"], shared["runAsUser"]) == (True, USER_ID)
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        if container["name"] != "token":
            assert {"/tmp", "/var/lib/kernalyse"} <= writable
    assert f"--uid {USER_ID} " in (ROOT / "deploy" / "image.sh").read_text()


@pytest.mark.parametrize("directory", RENDERED)
def test_what_pods_name_is_there_or_made_by_hand(directory: str) -> None:
    here = {(one["kind"], one["metadata"]["name"]) for one in rendered(directory)}
    readme = (ROOT / "deploy" / "README.md").read_text()
    for container, pod in containers(directory):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
        secrets = {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
        secrets |= {source["secretRef"]["name"] for source in container.get("envFrom", ()) if "secretRef" in source}
        references = (variable.get("valueFrom", {}).get("secretKeyRef", {}) for variable in container.get("env", ()))
        secrets |= {reference["name"] for reference in references if reference}
        assert secrets <= SECRETS_OF_README
        for name in secrets:
            assert re.search(rf"kubectl create secret \w+ {name} ", readme), name
        for source in container.get("envFrom", ()):
            assert "secretRef" in source or ("ConfigMap", source["configMapRef"]["name"]) in here
        claims = {volume["persistentVolumeClaim"]["claimName"] for volume in volumes.values() if "persistentVolumeClaim" in volume}
        assert all(("PersistentVolumeClaim", claim) in here for claim in claims)
    every = [labels for _, labels, _ in pods(directory)]
    for one in rendered(directory):
        match one:
            case {"kind": "Service", "spec": {"selector": selector, "ports": [{"port": port}]}}:
                assert any(selector.items() <= labels.items() for labels in every)
                assert PORTS[one["metadata"]["name"]] == port
            case {"kind": "PodDisruptionBudget", "spec": {"selector": selector}}:
                assert any(selects(selector, labels) for labels in every)


def test_what_requests_a_gpu_ends_by_itself_and_observers_request_none_and_run_nothing() -> None:
    holders = [
        (directory, one["kind"], one["metadata"]["name"])
        for directory in RENDERED
        for one in rendered(directory)
        if "nvidia.com/gpu" in json.dumps(one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []))
    ]
    assert holders == [("measure", "Job", "kernalyse-profiler")]
    assert named("measure", "Job", "kernalyse-profiler")["spec"]["activeDeadlineSeconds"] <= 24 * 3600
    for name in OVERLAYS:
        observer = named(f"overlays/{name}", "DaemonSet", "kernalyse-observer")["spec"]["template"]["spec"]
        assert observer["runtimeClassName"] == "nvidia"
        assert "--observe-only" in observer["containers"][0]["args"]


def test_overlays_differ_in_what_they_are_for() -> None:
    assert named("overlays/one-machine", "StatefulSet", "kernalyse")["spec"]["replicas"] == 1
    assert named("overlays/postgresql-s3", "StatefulSet", "kernalyse")["spec"]["replicas"] == 2
    for name, is_shared in (("one-machine", False), ("fleet", False), ("postgresql-s3", True), ("dask", True)):
        claim = named(f"overlays/{name}", "PersistentVolumeClaim", "kernalyse-store")
        assert claim["spec"]["accessModes"] == (["ReadWriteMany"] if is_shared else ["ReadWriteOnce"])
        namespace = named(f"overlays/{name}", "Namespace", "kernalyse")
        is_mounted = any("hostPath" in volume for _, _, pod in pods(f"overlays/{name}") for volume in pod["volumes"])
        level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        assert level == ("privileged" if is_mounted else "restricted")


def way(directory: str, source: str, target: str, port: int) -> bool:
    """Whether the policies let pods of one label call those of another: the source's out and the target's in."""
    every = {labels["app"]: labels for place in (directory, "measure") for _, labels, _ in pods(place)}
    policies = [one["spec"] for one in rendered(directory) if one["kind"] == "NetworkPolicy"]

    def allowed(of: str, peer: str, direction: str, side: str) -> bool:
        rules = [rule for policy in policies if selects(policy["podSelector"], every[of]) for rule in policy.get(direction, ())]
        return any(
            port in {entry["port"] for entry in rule["ports"]}
            and any("podSelector" in one and selects(one["podSelector"], every[peer]) for one in rule.get(side, ()))
            for rule in rules
        )

    return allowed(source, target, "egress", "to") and allowed(target, source, "ingress", "from")


@pytest.mark.parametrize("directory", RENDERED[:-1])
def test_policies_let_through_what_services_need_and_nothing_else(directory: str) -> None:
    analyzer, profilers = "kernalyse", ("kernalyse-observer", "kernalyse-profiler")
    for profiler in profilers:
        assert way(directory, profiler, analyzer, 7002)
        assert way(directory, analyzer, profiler, 7001)
        assert not way(directory, profiler, analyzer, 7003)
        assert not any(way(directory, profiler, other, 7001) for other in profilers)
    assert way(directory, analyzer, analyzer, 7002)
    denies = named(directory, "NetworkPolicy", "nothing-else")["spec"]
    assert denies == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    if directory.endswith("dask"):
        scheduler, worker = "kernalyse-dask-scheduler", "kernalyse-dask-worker"
        assert way(directory, analyzer, scheduler, 8786)
        assert way(directory, worker, scheduler, 8786)
        assert way(directory, scheduler, worker, 8789)
        assert way(directory, worker, worker, 8788)
        assert not way(directory, "kernalyse-profiler", scheduler, 8786)
