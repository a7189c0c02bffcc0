"""A profile of ONNX Runtime as times of nodes, pass by pass.

The runtime takes the time at which a node ends after it has put together what it writes of the node: each node is longer by that,
some microseconds, which for small ones is most of it. What it comes to follows from the same pass without a profile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from services.core.onnxruntime_profile import MODEL_RUN, NODE, NODE_ENDING, NS_PER_US, SESSION
from services.core.statistics import Samples
from services.core.work.onnx_call import OnnxCall

RESOLUTION_NS: Final = float(NS_PER_US)
MIN_NODE_NS: Final = RESOLUTION_NS / 2  # times are cut off to whole microseconds: of less than half of one they tell nothing


@dataclass(slots=True)
class ProfiledNode:
    """A node of the graph that was run. calls: of one pass, several of a node in a loop's body; None: shapes unknown."""

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
    for event in _innermost(events):
        pass_index = int(np.searchsorted(starts, event["ts"], side="right")) - 1
        if pass_index < 0:
            continue
        name, arguments = event["name"].removesuffix(NODE_ENDING), event["args"]
        node = found.get(name)
        if node is None:
            operator, provider = (str(arguments.get(word, "")) for word in ("op_name", "provider"))
            node = found[name] = ProfiledNode(name, operator, provider, len(runs))
        node.durations[pass_index] += event["dur"] * NS_PER_US
        if pass_index == 0:
            node.calls.append(OnnxCall.recorded(arguments))
    return tuple(found.values())


def profile_cost_ns(nodes: Sequence[ProfiledNode], pass_ns: float) -> float:
    """Return what the profile adds to each node.

    That is by how much all together take longer than a pass without it, evenly, and no more than the quickest of them takes.

    Args:
        nodes: that compute while they run.
        pass_ns: median of a pass without a profile.
    """
    medians = [float(np.median(node.durations)) for node in nodes]
    if not medians:
        return 0.0
    return min(max(sum(medians) - pass_ns, 0.0) / len(medians), max(min(medians) - MIN_NODE_NS, 0.0))


def _innermost(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield executions of nodes that hold no other, in order of start."""
    nodes = [event for event in events if event["cat"] == NODE and event["name"].endswith(NODE_ENDING)]
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
