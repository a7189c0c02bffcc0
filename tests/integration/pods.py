"""Rendered pods as processes of this machine, in built images: what kubelet makes of a pod's spec, without kubelet.

A pod has a network namespace and an address of its own, its containers have namespaces of processes and mounts. Volumes have the owners
and modes that kubelet gives them. Memory limits, seccomp, the runtime class and NetworkPolicies are not there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tests.integration.test_hosts import Hosts

FIELDS_OF_POD: Final = {
    *("initContainers", "containers", "volumes", "securityContext", "terminationGracePeriodSeconds"),
    *("automountServiceAccountToken", "enableServiceLinks", "restartPolicy"),  # nothing of it is there, nothing restarts
    *("affinity", "nodeSelector", "runtimeClassName", "tolerations"),  # where it runs
}
FIELDS_OF_USER: Final = {"runAsUser", "runAsGroup", "fsGroup", "runAsNonRoot", "seccompProfile"}
FIELDS_OF_CONTAINER: Final = {
    *("name", "image", "command", "args", "env", "envFrom", "ports", "startupProbe", "readinessProbe", "livenessProbe"),
    *("securityContext", "resources", "volumeMounts"),
}
"""What is heeded here, or left out knowingly; another field fails, so that none is overlooked."""

CONFINED: Final = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
START_TIMEOUT_S: Final = 60.0
EXEC_TIMEOUT_S: Final = 180.0
GROUP_MODE: Final = {True: stat.S_ISGID | 0o770, False: 0o660}
"""What fsGroup adds to the mode of a directory and of a file."""

READ_ONLY_GROUP_MODE: Final = {True: stat.S_ISGID | 0o550, False: 0o440}  # in a Secret


@dataclass(frozen=True, slots=True)
class Root:
    """The file system of an image and its configuration, as Docker has it."""

    path: Path
    configuration: dict[str, Any]

    def make_mount_point(self, path: str, *, is_file: bool = False) -> None:
        """As a container's runtime does in the writable layer."""
        place = self.path / path.lstrip("/")
        (place.parent if is_file else place).mkdir(parents=True, exist_ok=True)
        if is_file:
            place.touch()

    def home(self, user_id: int) -> str:
        """What HOME is where nothing names it."""
        users = (line.split(":") for line in (self.path / "etc" / "passwd").read_text().splitlines())
        return next((user[5] for user in users if int(user[2]) == user_id), "/")


def identity(container: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Return a text that is the same for containers that run alike; requests and limits are not heeded here."""
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    of_pod = {
        name: value for name, value in pod.items() if name in {"securityContext", "terminationGracePeriodSeconds", "runtimeClassName"}
    }
    volumes = [volume for volume in pod["volumes"] if volume["name"] in mounted]
    own = {name: value for name, value in container.items() if name != "resources"}
    return json.dumps([own, of_pod, volumes], sort_keys=True)


@dataclass(slots=True)
class RunningContainer:
    """A container that was started.

    Attributes:
        spec: of the container.
        inside: the command that gives others its variables and its user.
    """

    spec: Mapping[str, Any]
    address: str
    grace_s: float
    process: subprocess.Popen[bytes]
    inside: list[str]
    log: Path

    @property
    def first_process(self) -> psutil.Process:
        """The one that is process 1 in the container."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (children := psutil.Process(self.process.pid).children()):
            assert self.process.poll() is None, self.told
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return children[0]

    @property
    def told(self) -> str:
        return f"{self.spec['name']}: status {self.process.poll()}\n{self.log.read_text()[-4000:]}"

    def exec(self, *words: str, timeout_s: float = EXEC_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as its user."""
        namespaces = ("--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd")
        enter = ["nsenter", "--target", str(self.first_process.pid), *namespaces, "--", *self.inside, *words]
        return subprocess.run(enter, capture_output=True, text=True, timeout=timeout_s, check=False)

    def wait_for(self, probe_name: str) -> None:
        """Ask the probe until it succeeds, for as long as kubelet would go on, or a minute. Raise AssertionError: it did not."""
        probe = self.spec[probe_name]
        lasts_s = probe.get("initialDelaySeconds", 0) + probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
        deadline = time.monotonic() + max(lasts_s, START_TIMEOUT_S)
        while (problem := self._ask(probe)) is not None:
            assert self.process.poll() is None, f"{self.told}\n{probe_name}: {problem}"
            assert time.monotonic() < deadline, f"{self.told}\n{probe_name}: {problem}"
            time.sleep(0.25)

    def _ask(self, probe: Mapping[str, Any]) -> str | None:
        """Return what is wrong, or None where the probe succeeds."""
        timeout_s = probe.get("timeoutSeconds", 1)
        match probe:
            case {"exec": {"command": words}}:
                try:
                    done = self.exec(*words, timeout_s=timeout_s)
                except subprocess.TimeoutExpired:
                    return f"no end after {timeout_s} s"
                return None if done.returncode == 0 else f"status {done.returncode}: {done.stdout}{done.stderr}"
            case {"tcpSocket": {"port": name}}:
                [port] = [port["containerPort"] for port in self.spec["ports"] if port["name"] == name]
                try:
                    socket.create_connection((self.address, port), timeout_s).close()
                except OSError as error:
                    return str(error)
                return None
        raise AssertionError(f"{self.spec['name']}: unknown kind of probe: {probe}")

    def terminate(self) -> int:
        """Send SIGTERM and return the status with which it ended. Raise TimeoutExpired: kubelet would have killed it."""
        if self.process.poll() is None:
            self.first_process.terminate()
        return self.process.wait(self.grace_s)


@dataclass(slots=True)
class Pod:
    """A pod of the cluster: its containers share its volumes and its address."""

    cluster: Cluster
    name: str
    spec: Mapping[str, Any]
    address: str
    network: list[str]
    directory: Path
    volumes: dict[str, Path] = field(default_factory=dict)
    started: dict[str, RunningContainer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.spec.keys() <= FIELDS_OF_POD
        assert self.spec["securityContext"].keys() <= FIELDS_OF_USER
        for volume in self.spec["volumes"]:
            self.volumes[volume["name"]] = self._volume(volume)

    @property
    def group_id(self) -> int:
        return int(self.spec["securityContext"]["fsGroup"])

    def _volume(self, volume: Mapping[str, Any]) -> Path:
        directory: Path = self.directory / volume["name"]
        match volume:
            case {"emptyDir": _}:
                directory.mkdir(parents=True)
                directory.chmod(0o777)
            case {"persistentVolumeClaim": {"claimName": claim}}:
                directory = self.cluster.directory / claim
                directory.mkdir(exist_ok=True)
            case {"secret": {"secretName": name, **others}}:
                assert not others
                files = directory / "..data"
                files.mkdir(parents=True)
                for key, content in self.cluster.secrets[name].items():
                    (files / key).write_bytes(content)
                    (files / key).chmod(0o644)
                    (directory / key).symlink_to(f"..data/{key}")
                self._give(directory, READ_ONLY_GROUP_MODE)
                return directory
            case {"hostPath": {"path": path, "type": "Directory"}}:
                return self.cluster.host_paths[path]
            case _:
                raise AssertionError(f"unknown kind of volume: {volume}")
        self._give(directory, GROUP_MODE)
        return directory

    def _give(self, directory: Path, modes: Mapping[bool, int]) -> None:
        """Let fsGroup use everything in it, as kubelet does each time when it mounts a volume."""
        for path in (directory, *directory.rglob("*")):
            os.chown(path, -1, self.group_id, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) | modes[path.is_dir()])

    def initialize(self) -> None:
        """Run the init containers, one after the other, to their end."""
        for spec in self.spec.get("initContainers", ()):
            container = self.start(spec["name"])
            assert container.process.wait(START_TIMEOUT_S) == 0, container.told

    def start(self, name: str) -> RunningContainer:
        [spec] = [one for one in (*self.spec.get("initContainers", ()), *self.spec["containers"]) if one["name"] == name]
        assert spec.keys() <= FIELDS_OF_CONTAINER
        assert spec["securityContext"] == CONFINED
        root = self.cluster.roots[spec["image"]]
        user = self.spec["securityContext"]
        variables = dict(self._environment(spec, root))
        entry = spec["command"] if "command" in spec else root.configuration["Entrypoint"]
        further = spec["args"] if "args" in spec else () if "command" in spec else root.configuration["Cmd"]
        words = [expanded(word, variables) for word in (*entry, *further)]

        box = ["bwrap", "--die-with-parent", "--unshare-pid", "--as-pid-1", "--unshare-ipc", "--unshare-uts", "--hostname", self.name]
        box += ["--ro-bind", str(root.path), "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys"]
        box += ["--perms", "1777", "--tmpfs", "/dev/shm"]
        mounts = [(str(self.volumes[mount["name"]]), mount["mountPath"], bool(mount.get("readOnly"))) for mount in spec["volumeMounts"]]
        hosts = (str(self.cluster.hosts_file), "/etc/hosts", True)
        for source, target, is_read_only in (*mounts, hosts, *((str(path), target, False) for path, target in self.cluster.sockets)):
            root.make_mount_point(target, is_file=not Path(source).is_dir())
            box += ["--ro-bind" if is_read_only else "--bind", source, target]
        rights = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")  # for setpriv, which gives them up
        ids = (f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}", f"--groups={self.group_id}")
        inside = ["env", "-i", *(f"{key}={value}" for key, value in variables.items())]
        inside += ["setpriv", *ids, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        path = self.directory / f"{name}.log"
        with path.open("wb") as log:
            command = [*self.network, *box, *rights, "--chdir", "/", *inside, *words]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        grace_s = float(self.spec.get("terminationGracePeriodSeconds", 30))
        self.started[name] = RunningContainer(spec, self.address, grace_s, process, inside, path)
        return self.started[name]

    def _environment(self, spec: Mapping[str, Any], root: Root) -> Iterator[tuple[str, str]]:
        """Yield the image's variables and those of the spec, a later one wins."""
        yield "HOME", root.home(self.spec["securityContext"]["runAsUser"])
        yield "HOSTNAME", self.name
        yield from ((name, value) for name, _, value in (line.partition("=") for line in root.configuration["Env"]))
        for source in spec.get("envFrom", ()):
            match source:
                case {"configMapRef": {"name": name}}:
                    yield from self.cluster.config_maps[name].items()
                case {"secretRef": {"name": name}}:
                    yield from ((key, value.decode()) for key, value in self.cluster.secrets[name].items())
        known: dict[str, str] = {}
        for variable in spec.get("env", ()):
            match variable:
                case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
                    value = self.name
                case {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}:
                    value = self.cluster.node_name
                case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
                    value = self.cluster.secrets[name][key].decode()
                case {"value": text}:
                    value = expanded(text, known)
                case _:
                    raise AssertionError(f"unknown kind of variable: {variable}")
            known[variable["name"]] = value
        yield from known.items()


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """Put variables in the place of $(NAME), as kubelet does."""
    return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)


@dataclass(slots=True)
class Cluster:
    """What pods find around them.

    Attributes:
        roots: of images, by the names that manifests have for them.
        services: rendered Services, under whose names pods find each other.
        sockets: further files of this machine that every container has, with their places there.
        host_paths: directories that stand for those of a machine of the cluster.
    """

    roots: Mapping[str, Root]
    hosts: Hosts
    directory: Path
    services: Sequence[Mapping[str, Any]]
    secrets: dict[str, dict[str, bytes]]
    config_maps: dict[str, dict[str, str]]
    host_paths: dict[str, Path] = field(default_factory=dict)
    sockets: tuple[tuple[Path, str], ...] = ()
    node_name: str = "gpu-machine-1"
    pods: list[Pod] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    @property
    def hosts_file(self) -> Path:
        return self.directory / "hosts"

    def add(self, name: str, maker: Mapping[str, Any]) -> Pod:
        """Give a pod of the object an address, under which the others find it, and its volumes."""
        network, address = self.hosts.add()
        subprocess.run([*network, "ip", "route", "add", "default", "via", f"{self.hosts.subnet}.254"], check=True, capture_output=True)
        template = maker["spec"]["template"]
        known = {} if name in self.names else self.names  # the next pod of a name takes its place
        for service in self.services:
            if service["spec"]["selector"].items() <= template["metadata"]["labels"].items():
                full = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
                is_headless = service["spec"].get("clusterIP") == "None"
                for new in (f"{name}.{full}",) if is_headless else (full, service["metadata"]["name"]):
                    self.names[new] = known.get(new, address)
        self.names[name] = address
        lines = ("127.0.0.1 localhost", *(f"{found} {alias}" for alias, found in self.names.items()))
        self.hosts_file.write_text("\n".join((*lines, "")))
        directory = self.directory / f"{len(self.pods)}-{name}"
        directory.mkdir()
        pod = Pod(self, name, template["spec"], address, network, directory)
        self.pods.append(pod)
        return pod

    def stop(self) -> None:
        """Kill what still runs."""
        for container in (container for pod in self.pods for container in pod.started.values()):
            if container.process.poll() is None:
                with suppress(psutil.NoSuchProcess, IndexError):
                    for process in psutil.Process(container.process.pid).children():
                        process.kill()
                container.process.kill()
                container.process.wait()
