"""A model in ONNX Runtime, timed from outside or by the runtime's own profile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from kernalyse.services.core.costs.onnx import OnnxCall
from kernalyse.services.core.errors import BackendUnavailableError, InvalidModelError
from kernalyse.services.core.file_formats import MODEL_RUN, NODE, NODE_SUFFIX, NS_PER_US, SESSION
from kernalyse.services.core.model import BUILT_IN_ONNX_MODEL, Device, DeviceKind, ModelRun, Verification, VerificationState
from kernalyse.services.core.statistics import Samples
from kernalyse.services.profiler.measuring.buffers import Array
from kernalyse.services.profiler.measuring.verification import SWITCHED_OFF, compare
from kernalyse.services.profiler.workloads.onnx.inputs import Feeds, PreparedModel
from kernalyse.services.profiler.workloads.onnx.model_file import ModelFile

Value = TypeVar("Value")

CPU_PROVIDER: Final = "CPUExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
ERRORS_ONLY: Final = 3  # log level of the runtime: its warnings are about graph optimizations

WEIGHTS_FILE_KEY: Final = "session.optimized_model_external_initializers_file_name"
WEIGHTS_SIZE_KEY: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
MIN_WEIGHTS_BYTES: Final = "1024"


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider of ONNX Runtime, for one device."""

    name: str
    device_number: int | None = None  # None: the CPU has none

    @classmethod
    def of(cls, device: Device) -> Provider:
        """Return the provider for a device. Raises BackendUnavailableError: this ONNX Runtime has none."""
        name = CPU_PROVIDER if device.kind is DeviceKind.CPU else CUDA_PROVIDER
        available = onnxruntime.get_available_providers()
        is_cuda = device.device_id.startswith("cuda:")
        if name not in available or (name == CUDA_PROVIDER and not is_cuda):
            raise BackendUnavailableError(
                f"ONNX Runtime on device {device.device_id}",
                found=f"providers {', '.join(available)}",
                expected=name if is_cuda else "a CPU or an NVIDIA device",
                remedy="Install onnxruntime-gpu instead of onnxruntime, or choose the CPU device.",
            )
        return cls(name, int(device.device_id.partition(":")[2]) if is_cuda else None)

    @property
    def is_host(self) -> bool:
        """Return whether the provider computes on the host."""
        return self.device_number is None

    @property
    def options(self) -> dict[str, int]:
        """Return the provider's options as ONNX Runtime takes them."""
        return {} if self.device_number is None else {"device_id": self.device_number}


class OnnxSession:
    """A model, ready to run. load_ns: the time to load it."""

    def __init__(self, path: Path, name: str, provider: Provider, *, profile: Path | None = None, optimized: Path | None = None) -> None:
        """Load the model. profile: path prefix for profiles. optimized: file for the optimized graph that is executed.

        Raises InvalidModelError, with ONNX Runtime's message: it cannot run the model.
        """
        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
            options.add_session_config_entry(WEIGHTS_FILE_KEY, f"{optimized.name}.weights")  # a model of more than 2 GB has no other way
            options.add_session_config_entry(WEIGHTS_SIZE_KEY, MIN_WEIGHTS_BYTES)
        self._name = name
        start_ns = time.perf_counter_ns()
        self._session = _translate_errors(
            name, lambda: onnxruntime.InferenceSession(path, options, providers=[(provider.name, provider.options)])
        )
        self.load_ns = time.perf_counter_ns() - start_ns
        if provider.name not in self._session.get_providers():
            raise BackendUnavailableError(
                f"provider {provider.name} of ONNX Runtime",
                found=f"it fell back to {', '.join(self._session.get_providers())}",
                expected="the provider of the device",
                remedy="The run's log has what was missing: mostly CUDA or cuDNN of another version.",
            )

    def run(self, feeds: Feeds) -> list[Any]:
        """Run one pass and return its outputs. Raises InvalidModelError with ONNX Runtime's message."""
        outputs: list[Any] = _translate_errors(self._name, lambda: self._session.run(None, dict(feeds)))
        return outputs

    def time(self, feeds: Feeds, duration_ns: int, max_count: int) -> Samples:
        """Run passes, at least one, for the given time; return the host's ns of each, transfer of inputs and outputs included."""
        durations: list[int] = []
        while not durations or (sum(durations) < duration_ns and len(durations) < max_count):
            start_ns = time.perf_counter_ns()
            self.run(feeds)
            durations.append(time.perf_counter_ns() - start_ns)
        return np.array(durations, dtype=np.float64)

    def end_profile(self) -> Path:
        """Write the profile; no pass is recorded any more."""
        return Path(self._session.end_profiling())


def _translate_errors(name: str, action: Callable[[], Value]) -> Value:
    try:
        return action()
    except Exception as error:  # each of the runtime's errors is a class of its own, of no common kind
        raise InvalidModelError(
            f"model {name}",
            found=str(error).strip(),
            expected=f"a model and inputs that ONNX Runtime {onnxruntime.__version__} can run",
            remedy="Export it with operators that this version has, or install another version on the node.",
        ) from error


# ---------------------------------------------------------------- profile
# The runtime takes the end time of a node after it has assembled the node's profile record. Each node is longer by that, some
# microseconds, which is most of the time of a small node. The difference to the same pass without a profile gives that cost.

RESOLUTION_NS: Final = float(NS_PER_US)
MIN_NODE_NS: Final = RESOLUTION_NS / 2  # times are truncated to whole microseconds, so shorter ones mean nothing


@dataclass(slots=True)
class ProfiledNode:
    """A node of the executed graph. calls: per pass, several for a node in a loop's body; None: shapes unknown."""

    name: str
    operator: str
    provider: str
    pass_count: int
    calls: list[OnnxCall | None] = field(default_factory=list)
    durations: Samples = field(init=False)  # ns of each pass, all its calls together

    def __post_init__(self) -> None:
        self.durations = np.zeros(self.pass_count)


def read_nodes(profile: Path, skip_count: int) -> tuple[ProfiledNode, ...]:
    """Return nodes in the order of their first execution, without those around others, whose time would count twice.

    Args:
        skip_count: passes at the beginning that do not count.
    """
    events: Sequence[Mapping[str, Any]] = json.loads(profile.read_bytes())
    runs = sorted((event for event in events if event["cat"] == SESSION and event["name"] == MODEL_RUN), key=_start)[skip_count:]
    starts = [run["ts"] for run in runs]
    found: dict[str, ProfiledNode] = {}
    for event in _leaves(events):
        pass_index = int(np.searchsorted(starts, event["ts"], side="right")) - 1
        if pass_index < 0:
            continue
        name, arguments = event["name"].removesuffix(NODE_SUFFIX), event["args"]
        node = found.get(name)
        if node is None:
            operator, provider = (str(arguments.get(word, "")) for word in ("op_name", "provider"))
            node = found[name] = ProfiledNode(name, operator, provider, len(runs))
        node.durations[pass_index] += event["dur"] * NS_PER_US
        if pass_index == 0:
            node.calls.append(OnnxCall.recorded(arguments))
    return tuple(found.values())


def profile_cost_ns(nodes: Sequence[ProfiledNode], pass_ns: float) -> float:
    """Return the time in ns that profiling adds to each node.

    That is by how much all together take longer than a pass without it, evenly, and no more than the quickest of them takes.

    Args:
        nodes: that compute while they run.
        pass_ns: median of a pass without a profile.
    """
    medians = [float(np.median(node.durations)) for node in nodes]
    if not medians:
        return 0.0
    return min(max(sum(medians) - pass_ns, 0.0) / len(medians), max(min(medians) - MIN_NODE_NS, 0.0))


def _leaves(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the leaf nodes' executions in order of start: those that contain no other node."""
    nodes = [event for event in events if event["cat"] == NODE and event["name"].endswith(NODE_SUFFIX)]
    nodes.sort(key=lambda event: (event["ts"], -event["dur"]))
    for event, following in zip(nodes, [*nodes[1:], None], strict=True):
        if following is None or not _holds(event, following):
            yield event


def _holds(event: Mapping[str, Any], following: Mapping[str, Any]) -> bool:
    end_us: int = event["ts"] + event["dur"]
    is_inside: bool = following["ts"] < end_us and following["ts"] + following["dur"] <= end_us
    return is_inside and bool(following["tid"] == event["tid"])


def _start(event: Mapping[str, Any]) -> int:
    start_us: int = event["ts"]
    return start_us


# ---------------------------------------------------------------- layer paths
# Layer paths follow from the names that exporters give to nodes.

SEPARATOR: Final = "."
BLOCKED: Final = "_nchwc"


def layer_paths(model: ModelFile, optimized: Path, nodes: tuple[ProfiledNode, ...]) -> dict[str, str]:
    """Return paths by node name: "/encoder/layer.0/attention/self/query/MatMul" is encoder.layer.0.attention.self.query.MatMul.

    So is a MatMul of which the file says that it is of this module. A node that the runtime made of several stands where the last of
    them stood: the one whose output it has.

    Args:
        optimized: the graph that is really run.
    """
    graph = onnx.load(optimized, load_external_data=False).graph
    former = {node.name: model.node_of_tensor.get(node.output[0], "") for node in graph.node if node.output}
    paths: dict[str, str] = {}
    for node in nodes:
        origin = node.name if node.name in model.node_names else former.get(node.name) or _blocked_origin(model, node.name)
        paths[node.name] = _unique(_layer_path(node, origin, model.module_of_node.get(origin)), set(paths.values()))
    return paths


def _blocked_origin(model: ModelFile, node_name: str) -> str:
    """Return the origin of a convolution or pooling over blocks of channels, which the runtime names after another tensor than its own."""
    tensor, is_blocked, _ = node_name.partition(BLOCKED)
    return model.node_of_tensor.get(tensor, "") if is_blocked else ""


def _layer_path(node: ProfiledNode, origin: str, module: str | None) -> str:
    """Return the path of a node. origin: the exported node that it stands for; empty: not known."""
    if module is not None:
        return _joined(module, node.operator)
    if origin in ("", node.name):
        return _joined(*node.name.split("/")) or node.name
    return _joined(*origin.split("/")[:-1], node.operator)


def _joined(*parts: str) -> str:
    return SEPARATOR.join(part for part in parts if part)


def _unique(path: str, taken: set[str]) -> str:
    """Number the path as exporters number nodes of one name."""
    if path not in taken:
        return path
    return next(numbered for number in range(1, len(taken) + 1) if (numbered := f"{path}_{number}") not in taken)


# ---------------------------------------------------------------- peak memory

PEAK_RESET_FILE: Final = Path("/proc/self/clear_refs")
PEAK_RESET: Final = "5"
"""Makes the peak what is resident now: proc(5), /proc/pid/clear_refs."""

STATUS_FILE: Final = Path("/proc/self/status")
SLACK_BYTES: Final = 1024 * 1024
"""Between a peak that was just reset and what is resident a moment later; more says that it was not reset."""


@dataclass(frozen=True, slots=True)
class ResidentPeak:
    """The peak of resident memory since `begin`. start_bytes: resident then; None where the system cannot measure a new peak."""

    start_bytes: int | None

    @classmethod
    def begin(cls) -> Self:
        """Reset the system's peak and return a measurement that starts now."""
        try:
            PEAK_RESET_FILE.write_text(PEAK_RESET)
            start_bytes = _status_bytes("VmRSS")
            return cls(start_bytes if _status_bytes("VmHWM") <= start_bytes + SLACK_BYTES else None)
        except OSError:
            return cls(None)

    def grown_bytes(self) -> int | None:
        """Return the growth of the peak since `begin` in bytes, or None."""
        return None if self.start_bytes is None else max(0, _status_bytes("VmHWM") - self.start_bytes)


def _status_bytes(name: str) -> int:
    """Read a field of the process's status in bytes. Raises OSError where the system does not have it."""
    for line in STATUS_FILE.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise OSError(f"{STATUS_FILE} has no {name}")


# ---------------------------------------------------------------- verification
# A built-in model is verified against ONNX's reference implementation in NumPy.

NOT_VERIFIED: Final = Verification(VerificationState.NO_REFERENCE, message="Nothing to compare with: a node, or a model of a bundle.")
RELATIVE_TOLERANCE: Final = 1e-4  # of logits in float32, summed in another order
MAX_TOKEN_COUNT: Final = 4096  # of all sequences: more take the reference seconds


def verify(work: ModelRun, model: PreparedModel, session: OnnxSession, feeds: Feeds) -> Verification:
    """Return the logits of one pass over these inputs against the reference's, max|difference| / max|reference|."""
    if work.measuring.skip_verification:
        return SWITCHED_OFF
    if work.model_name != BUILT_IN_ONNX_MODEL or model.dimensions.batch * model.dimensions.sequence > MAX_TOKEN_COUNT:
        return NOT_VERIFIED
    reference = ReferenceEvaluator(str(model.file.path))
    expected = cast(list[Array], reference.run(None, dict(feeds)))
    found = session.run(feeds)
    names = reference.output_names
    return compare(dict(zip(names, found, strict=True)), dict(zip(names, expected, strict=True)), RELATIVE_TOLERANCE)
