"""The images built from the Dockerfile by buildah on a bare Debian, and run without rights on a root that nobody can write to."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tests.integration.pods import Cluster, Pod, Root, RunningContainer, identity
from tests.integration.test_hosts import own_hosts
from tests.kept import alone_with
from tests.object_storage import KEYS, running_object_storage
from tests.postgresql import running_postgresql
from tests.rendered_kubernetes import OVERLAYS, RENDERED, containers_of, makers, named, rendered
from tests.service_processes import free_port
from tests.unit.rank_traces import write_rank

ROOT = Path(__file__).parents[2]
DISTRIBUTION: Final = "trixie"
LEFT_OUT: Final = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
BASE: Final = "localhost/kernalyse-test-base"
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
USER_ID: Final = 10001
START_TIMEOUT_S: Final = 60.0
STAGES: Final = {"dashboard": "kernalyse", "profiler": "kernalyse-opencl"}
MOST_BYTES: Final = {"dashboard": (400e6, 1.0e9), "profiler": (500e6, 1.5e9)}
"""Compressed and unpacked. A profiler without CUDA has two OpenCL runtimes, each with a compiler."""

COMPRESSION: Final = (sys.executable, "-m", "isal.igzip", "-2")  # the bytes of gzip -1 in a sixth of its time; what registries keep is less

PROGRAMS: Final = ("buildah", "debootstrap", "bwrap", "setpriv")
MISSING: Final = [program for program in PROGRAMS if shutil.which(program) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # five to eight minutes on two cores, most of them for downloading and installing packages
    pytest.mark.skipif(not (ROOT / "Dockerfile").is_file(), reason="needs the checkout"),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the base of an image"),
]


@dataclass(frozen=True, slots=True)
class Image:
    """An image, mounted. root: its file system; configuration: as Docker knows it; origin: how it was built."""

    root: Path
    configuration: dict[str, Any]
    origin: str

    def command(self, state: Path, sockets: Path, *words: str) -> list[str]:
        """Return the words as a command in the image, as its user, on a root that is read-only; only the two volumes take files."""
        volumes = ("--bind", str(state), "/var/lib/kernalyse", "--bind", str(sockets), "/run/kernalyse")
        temporary = ("--perms", "1777", "--tmpfs", "/tmp", "--perms", "1777", "--tmpfs", "/dev/shm")
        environment = ["--clearenv", "--setenv", "HOME", "/var/lib/kernalyse"]
        for variable in self.configuration["Env"]:
            environment += ["--setenv", *variable.split("=", 1)]
        rights = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")  # for setpriv, which gives them up
        box = ("bwrap", "--die-with-parent", "--ro-bind", str(self.root), "/", "--dev", "/dev", "--proc", "/proc")
        user = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", "--bounding-set=-all", "--no-new-privs")
        return [*box, *temporary, *volumes, *environment, *rights, "--chdir", "/", *user, *words]


@dataclass(slots=True)
class Containers:
    """Runs commands in images over volumes that they share, and ends what still runs."""

    images: dict[str, Image]
    directory: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for volume in (self.state, self.sockets):
            volume.mkdir(mode=0o700)
            os.chown(volume, USER_ID, USER_ID)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def sockets(self) -> Path:
        return self.directory / "run"

    def run(self, stage: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = self.images[stage].command(self.state, self.sockets, *words)
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def start(self, stage: str, *arguments: str) -> None:
        """Start the image's entry point with the arguments, or with its own."""
        configuration = self.images[stage].configuration
        words = [*configuration["Entrypoint"], *(arguments or configuration["Cmd"])]
        with (self.directory / f"{words[1]}.log").open("wb") as log:
            command = self.images[stage].command(self.state, self.sockets, *words)
            self.started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def wait_until_healthy(self, stage: str, *services: str) -> None:
        """Wait until the services have said where they serve and the image's health check has the status 0."""
        _, *check = self.images[stage].configuration["Healthcheck"]["Test"]
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            have_announced = all((self.sockets / "kernalyse" / f"{service}.json").exists() for service in services)
            done = self.run(stage, *check)
            if have_announced and done.returncode == 0:
                return
            logs = "\n".join(path.read_text() for path in self.directory.glob("*.log"))
            assert time.monotonic() < deadline, f"{done.stderr}\n{logs}"
            time.sleep(0.2)

    def stop(self) -> list[int]:
        """Send SIGTERM to all services, and return their exit statuses."""
        for box in self.started:
            for process in psutil.Process(box.pid).children() if box.poll() is None else ():
                process.terminate()
        statuses = [box.wait(60) for box in self.started]
        self.started.clear()
        return statuses


OVERLAY: Final = ("--storage-driver", "overlay", "--storage-opt", "overlay.skip_mount_home=true")
COPIES: Final = ("--storage-driver", "vfs")


@cache
def storage() -> tuple[str, ...]:
    """Return options by which buildah stacks layers or, where the kernel mounts none so, copies all that is below each."""
    with tempfile.TemporaryDirectory(prefix="kernalyse-image-") as directory:
        command = ("buildah", *OVERLAY, "--root", f"{directory}/store", "--runroot", f"{directory}/run", "info")
        return COPIES if subprocess.run(command, capture_output=True, check=False).returncode else OVERLAY


def buildah(directory: Path, *words: str) -> str:
    command = ["buildah", *storage(), "--root", str(directory / "store"), "--runroot", str(directory / "run"), *words]
    with alone_with("image-build") as kept:  # one build at a time, whose cache mounts lie there
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": str(kept)})
    assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def pip_options(directory: Path) -> list[str]:
    """Return options of a build by which pip in it uses the index, proxy and certificates of pip here."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True).stdout
    here = {name.rpartition(".")[2]: value for name, value in re.findall(r"^(\S+?)='(.*)'$", listed, re.MULTILINE)}
    options = []
    told = configparser.RawConfigParser()
    told["global"] = {name: here[name] for name in ("index-url", "proxy", "trusted-host", "timeout") if name in here}
    if Path(certificates := here.get("cert", CERTIFICATES)).is_file():
        told["global"]["cert"] = CERTIFICATES
        options += ["--volume", f"{certificates}:{CERTIFICATES}:ro"]
    with (directory / "pip.conf").open("w") as file:
        told.write(file)
    return [*options, "--volume", f"{directory / 'pip.conf'}:/etc/pip.conf:ro"]


def debian() -> Path:
    """Return an archive of a bare Debian with Python, without what its images for containers lack as well; it is kept for later runs."""
    with alone_with(f"image-base-{DISTRIBUTION}") as kept:
        archive = kept / "base.tar"
        if not archive.exists():
            with tempfile.TemporaryDirectory(prefix="kernalyse-base-") as name:
                directory = Path(name) / "root"
                command = ["debootstrap", "--variant=minbase", "--include=python3-venv,bubblewrap", DISTRIBUTION, str(directory)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.skip(f"debootstrap has no {DISTRIBUTION}: {done.stdout[-300:]}{done.stderr[-300:]}")
                left_out = [f"--exclude=./{name}/*" for name in LEFT_OUT]
                part = kept / "part.tar"
                subprocess.run(["tar", "--create", "--file", str(part), *left_out, "--directory", str(directory), "."], check=True)
                part.rename(archive)
        return archive


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, Image]]:
    with tempfile.TemporaryDirectory(prefix="kernalyse-image-") as name:
        try:
            yield built_images(Path(name))
        finally:
            buildah(Path(name), "rm", "--all")  # nothing stays mounted, of a build that failed neither


def built_images(directory: Path) -> dict[str, Image]:
    begun_s = time.monotonic()
    archive = debian()
    made_s = time.monotonic()
    container = buildah(directory, "from", "scratch")
    buildah(directory, "add", "--quiet", container, str(archive), "/")
    buildah(directory, "commit", "--quiet", "--rm", container, BASE)
    users = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    times = f"debootstrap {made_s - begun_s:.0f} s, its image {time.monotonic() - made_s:.0f} s"
    origin = f"on Debian {DISTRIBUTION} ({times}; users: on {users[0]})"
    built = {}
    for stage, image in STAGES.items():
        begun_s = time.monotonic()
        arguments = ("--build-arg", f"PYTHON_IMAGE={BASE}", "--build-arg", "PROFILER_BASE=plain", "--target", stage)
        settings = ("--quiet", "--pull-never", "--isolation", "chroot", "--format", "docker", *pip_options(directory))
        buildah(directory, "build", *settings, *arguments, "--tag", f"localhost/{image}", str(ROOT))
        container = buildah(directory, "from", "--pull-never", f"localhost/{image}")
        root = Path(buildah(directory, "mount", container))
        configuration = json.loads(buildah(directory, "inspect", "--type", "image", f"localhost/{image}"))["Docker"]["config"]
        took = f"{image}: built in {time.monotonic() - begun_s:.0f} s {origin}; the stage cuda (CUDA, PyCUDA, nsys, ncu) is not built here"
        built[stage] = Image(root, configuration, took)
    return built


@pytest.fixture
def containers(images: dict[str, Image]) -> Iterator[Containers]:
    with tempfile.TemporaryDirectory(prefix="kernalyse-") as directory:
        boxes = Containers(images, Path(directory))
        yield boxes
        boxes.stop()


@pytest.mark.parametrize("stage", STAGES)
def test_the_image_says_how_it_runs_and_has_no_root(
    images: dict[str, Image], containers: Containers, stage: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("told", images[stage].origin)
    configuration = images[stage].configuration
    assert configuration["User"] == "kernalyse"
    assert configuration["Entrypoint"] == ["kernalyse"]
    assert configuration["Healthcheck"]["Test"][0] == "CMD"
    written = "touch /x; touch /opt/kernalyse/x; touch /etc/x; touch /var/lib/kernalyse/x && echo volume takes files"
    done = containers.run(stage, "sh", "-c", f"id --user; id --user kernalyse; grep CapBnd /proc/self/status; {written}")
    told = [str(USER_ID), str(USER_ID), "CapBnd:\t0000000000000000", "volume takes files"]
    assert done.stdout.splitlines() == told, done.stderr
    assert done.stderr.count("Read-only file system") == 3
    done = containers.run(stage, *configuration["Healthcheck"]["Test"][1:])
    assert (done.returncode, done.stderr) == (1, "No service of this user runs here.\n")


@pytest.mark.parametrize("stage", STAGES)
def test_the_image_is_small(images: dict[str, Image], stage: str, record_property: Callable[[str, object], None]) -> None:
    root = images[stage].root
    sizes = {(status.st_dev, status.st_ino): status.st_size for status in (path.lstat() for path in root.rglob("*"))}
    unpacked = sum(sizes.values())

    pipeline = f"tar --create --directory {shlex.quote(str(root))} . | {shlex.join(COMPRESSION)} --stdout | wc --bytes"
    compressed = int(subprocess.run(("bash", "-o", "pipefail", "-c", pipeline), capture_output=True, check=True).stdout)
    sizes_told = f"{unpacked / 1e6:.0f} MB unpacked, {compressed / 1e6:.0f} MB as a tar file compressed by igzip -2"
    record_property("told", f"{STAGES[stage]}: {sizes_told}, with the base")
    assert compressed <= MOST_BYTES[stage][0]
    assert unpacked <= MOST_BYTES[stage][1]


@pytest.mark.parametrize("stage", STAGES)
def test_the_bill_of_materials_lists_every_package_of_the_lock(images: dict[str, Image], containers: Containers, stage: str) -> None:
    done = containers.run(stage, "cat", "/opt/kernalyse/sbom.cdx.json")
    bill = json.loads(done.stdout)
    assert bill["bomFormat"] == "CycloneDX"
    listed = {(canonicalize_name(one["name"]), one["version"]) for one in bill["components"]}
    version = containers.run(stage, "python", "-c", "import platform; print(platform.python_version())").stdout.strip()
    environment = {"python_full_version": version, "python_version": version.rpartition(".")[0]}
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)(?: ; ([^\\\n]+))?", (ROOT / "deploy" / f"{stage}.lock").read_text(), re.MULTILINE)
    locked = {(canonicalize_name(name), pin) for name, pin, marker in pins if not marker or Marker(marker.strip()).evaluate(environment)}
    assert locked - listed == set()
    assert {name for name, _ in listed - locked} == {"kernalyse", "kernalyse-compat", "pip"}


def test_services_serve_measure_and_end_on_a_root_that_is_read_only(containers: Containers) -> None:
    address = {service: f"unix:/run/kernalyse/{service}.sock" for service in ("profiler", "analyzer")}
    containers.start("profiler", "profiler", "--address", address["profiler"], "--token-file", "/var/lib/kernalyse/token")
    containers.wait_until_healthy("profiler", "profiler")
    containers.start("dashboard", "analyzer", "--address", address["analyzer"], "--token-file", "/var/lib/kernalyse/token")
    containers.wait_until_healthy("dashboard", "analyzer")
    arguments = ("--address", f"127.0.0.1:{free_port()}", "--token-file", "/var/lib/kernalyse/token")
    containers.start("dashboard", "ui", *arguments, "--analyzer-address", address["analyzer"])
    containers.wait_until_healthy("dashboard", "ui")

    server = ("--server", address["analyzer"], "--token-file", "/var/lib/kernalyse/token")
    node_token = ("--node-token-file", "/var/lib/kernalyse/token")
    added = containers.run("dashboard", "kernalyse", "nodes", "add", address["profiler"], *node_token, *server)
    assert added.returncode == 0, added.stderr
    results = containers.directory / "results.json"
    outside = ("--server", f"unix:{containers.sockets}/analyzer.sock", "--token-file", str(containers.state / "token"))
    sweep = ("bench", "saxpy", "-p", "N=1024,4096", "--max-time", "0.2", "--json", str(results), *outside)
    done = subprocess.run(
        [sys.executable, "-m", "kernalyse.services.cli.main", *sweep], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr + done.stdout
    measured = json.loads(results.read_text())["measurements"]
    assert [one["verification_state"] for one in measured] == ["PASSED", "PASSED"]
    containers.wait_until_healthy("dashboard", "analyzer", "profiler", "ui")
    assert containers.stop() == [0, 0, 0]


def test_the_doctor_says_what_the_profilers_image_has(containers: Containers, record_property: Callable[[str, object], None]) -> None:
    done = containers.run("profiler", "kernalyse", "doctor")
    record_property("told", f"{STAGES['profiler']}: kernalyse doctor, status {done.returncode}\n{done.stdout}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"not needed +CUDA toolkit", done.stdout)
    assert "opencl:pocl:0" in done.stdout


# ---------------------------------------------------------------- pods of deploy/kubernetes

README: Final = ROOT / "deploy" / "README.md"
IMAGES: Final = {"kernalyse:latest": "dashboard", "kernalyse-nsys:latest": "profiler"}
"""Which of the images stands for those of the manifests. The profiler's is the one without CUDA, nsys and ncu."""

SERVER: Final = ("--server", "localhost:7002", "--token-file", "/run/kernalyse/token", "--ca-file", "/tls/tls.crt")
POSTGRESQL_DIRECTORY: Final = "/postgresql"


def containers_once() -> dict[str, list[tuple[str, str, str]]]:
    """Return each distinct container with the places of it: directory, object and name; those of one that run alike are together."""
    alike: dict[str, list[tuple[str, str, str]]] = {}
    for directory in RENDERED:
        for maker in makers(directory):
            pod = maker["spec"]["template"]["spec"]
            for container in containers_of(pod):
                alike.setdefault(identity(container, pod), []).append((directory, maker["metadata"]["name"], container["name"]))
    return alike


def secrets_of_readme(directory: Path) -> dict[str, dict[str, bytes]]:
    """Make token, certificate and key by the lines of deploy/README.md."""
    lines = re.findall(r"^\$ (openssl (?:.*\\\n)*.*)$", README.read_text(), re.MULTILINE)
    made = " && ".join(line.partition(" && ")[0] for line in lines)
    subprocess.run(["bash", "-c", made], cwd=directory, check=True, capture_output=True)
    pair = {"tls.crt": (directory / "cert.pem").read_bytes(), "tls.key": (directory / "key.pem").read_bytes()}
    return {"kernalyse-token": {"token": (directory / "token").read_bytes()}, "kernalyse-tls": pair}


@contextmanager
def cluster_of(overlay: str, images: dict[str, Image]) -> Iterator[Cluster]:
    """The surroundings of an overlay's pods, with the database and the storage that it names; what still runs at the end is killed."""
    objects = [*rendered(f"overlays/{overlay}"), *rendered("measure")]
    roots = {name: Root(images[stage].root, images[stage].configuration) for name, stage in IMAGES.items()}
    config_maps = {one["metadata"]["name"]: dict(one["data"]) for one in objects if one["kind"] == "ConfigMap"}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernalyse-pods-")))
        directory.chmod(0o755)
        secrets = secrets_of_readme(directory)
        hosts = stack.enter_context(own_hosts())
        services = [one for one in objects if one["kind"] == "Service"]
        cluster = Cluster(roots, hosts, directory, services, secrets, config_maps)
        cluster.host_paths["/var/lib/kubelet/pod-resources"] = directory / "pod-resources"
        (directory / "pod-resources").mkdir(mode=0o750)
        if overlay == "postgresql-s3":
            database = stack.enter_context(running_postgresql())
            url = database.new_database().replace(str(database.directory), POSTGRESQL_DIRECTORY)
            secrets["kernalyse-catalogue"] = {"url": url.encode()}
            cluster.sockets = tuple(
                (path, f"{POSTGRESQL_DIRECTORY}/{path.name}") for path in database.directory.glob(".s.PGSQL.*") if path.is_socket()
            )
            storage = stack.enter_context(running_object_storage(f"{hosts.subnet}.254"))
            secrets["kernalyse-objects-key"] = {name: KEYS[name].encode() for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
            [name] = config_maps
            assert config_maps[name].keys() == {"KERNALYSE_ANALYZER_OBJECTS", "KERNALYSE_ANALYZER_OBJECTS_ENDPOINT"}
            config_maps[name] = dict(zip(sorted(config_maps[name]), (storage.new_bucket(), storage.endpoint), strict=True))
        stack.callback(cluster.stop)
        yield cluster


def started(pod: Pod, name: str) -> RunningContainer:
    """Start a container, and wait for each of its probes; it has no rights."""
    container = pod.start(name)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container.spec:
            container.wait_for(probe)
    status = Path(f"/proc/{container.first_process.pid}/status").read_text()
    user = pod.spec["securityContext"]
    assert re.findall(r"^(?:Uid|Gid):\t(\d+)", status, re.MULTILINE) == [str(user["runAsUser"]), str(user["runAsGroup"])]
    assert set(re.findall(r"^Cap(?:Prm|Eff|Bnd|Amb):\t(\w+)", status, re.MULTILINE)) == {"0" * 16}
    return container


def asked(container: RunningContainer, *words: str) -> str:
    """Return what a command in the container prints."""
    done = container.exec("kernalyse", *words, *SERVER)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{container.told}"
    return done.stdout


def join_token(analyzer: RunningContainer) -> bytes:
    """Make one by the line of deploy/README.md."""
    pattern = r"^\$ kubectl exec statefulset/kernalyse -c analyzer -- (.*) > join-token$"
    [line] = re.findall(pattern, README.read_text(), re.MULTILINE)
    done = analyzer.exec(*shlex.split(line))
    assert done.returncode == 0, done.stderr
    return done.stdout.encode()


def node_that_joined(analyzer: RunningContainer, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        nodes: list[dict[str, Any]] = json.loads(asked(analyzer, "nodes", "list", "--json"))
        for node in nodes:
            if (node["hostname"], node["health"]) == (name, "SERVING"):
                return node
        assert time.monotonic() < deadline, nodes
        time.sleep(0.5)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_containers_of_an_overlay_start_answer_their_probes_and_end(
    images: dict[str, Image], overlay: str, record_property: Callable[[str, object], None]
) -> None:
    here = (f"overlays/{overlay}", "measure") if overlay == OVERLAYS[0] else (f"overlays/{overlay}",)
    alike = [places for places in containers_once().values() if places[0][0] in here]
    due = {(maker, container) for (_, maker, container), *_ in alike}
    with cluster_of(overlay, images) as cluster:
        statefulset = named(f"overlays/{overlay}", "StatefulSet", "kernalyse")
        if overlay == "dask":
            for part in ("scheduler", "worker"):
                started(cluster.add(f"kernalyse-dask-{part}-7c9d", named("overlays/dask", "Deployment", f"kernalyse-dask-{part}")), part)
        replicas = [cluster.add(f"kernalyse-{number}", statefulset) for number in range(statefulset["spec"]["replicas"])]
        for pod in replicas:
            pod.initialize()
            started(pod, "analyzer")
        first = replicas[0].started["analyzer"]
        if ("kernalyse", "ui") in due:
            started(replicas[0], "ui")

        cluster.secrets["kernalyse-join"] = {"join-token": join_token(first)}
        if ("kernalyse-observer", "profiler") in due:
            observer = named(f"overlays/{overlay}", "DaemonSet", "kernalyse-observer")
            started(cluster.add("kernalyse-observer-x2f", observer), "profiler")
            assert node_that_joined(first, cluster.node_name)["role"] == "observes"
        if ("kernalyse-profiler", "profiler") in due:
            started(cluster.add("kernalyse-profiler-9k4", named("measure", "Job", "kernalyse-profiler")), "profiler")
            assert node_that_joined(first, "kernalyse-profiler-9k4")["role"] == "measures"
            asked(first, "bench", "saxpy", "-p", "N=1024,4096", "--max-time", "0.2", "--json", "/tmp/results.json")
            measured = json.loads((replicas[0].volumes["tmp"] / "results.json").read_text())["measurements"]
            assert [one["verification_state"] for one in measured] == ["PASSED", "PASSED"]

        if overlay in ("postgresql-s3", "dask"):  # by one analyzer, and read by a worker of the cluster; the last analyzer knows of it
            ranks = [write_rank(replicas[0].volumes["tmp"] / f"rank{rank}.json", rank).name for rank in (0, 1)]
            asked(first, "import", *(f"/tmp/{name}" for name in ranks))
            assert len(json.loads(asked(replicas[-1].started["analyzer"], "runs", "--json"))) == 1
        if overlay == "fleet":  # the next pod of that name, over the same volume
            assert first.terminate() == 0, first.told
            following = cluster.add("kernalyse-0", statefulset)
            following.initialize()
            assert node_that_joined(started(following, "analyzer"), cluster.node_name)["origin"] == "joined"

        assert due <= {(pod.name.rpartition("-")[0], name) for pod in cluster.pods for name in pod.started}
        for container in (container for pod in reversed(cluster.pods) for container in pod.started.values()):
            assert container.terminate() == 0, container.told
    for places in alike:
        overlays = ", ".join(dict.fromkeys(directory.removeprefix("overlays/") for directory, *_ in places))
        record_property("told", f"ran in its image until its probes succeeded, and ended at TERM: {'/'.join(places[0][1:])} of {overlays}")
