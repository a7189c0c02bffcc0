"""The form for a command under a collector."""

from __future__ import annotations

import re
import shlex
from typing import Final

import param

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import CommandProfile, EnvironmentVariable, RunSpec
from kernalyse.services.ui.forms.form import (
    BuiltForm,
    Choice,
    Form,
    Group,
    Place,
    Problems,
    Values,
    Words,
    lines_of,
    number_of,
    option,
    option_of_each,
    place_options,
    text_of,
)

COLLECTORS: Final = (
    ("", "the node chooses: nsys, else kineto for Python"),
    ("nsys", "nsys: kernels, copies, calls, NVTX ranges of any program"),
    ("ncu", "ncu: hardware counters, kernel by kernel"),
    ("kineto", "kineto: operators and kernels of a PyTorch program"),
    ("proton", "proton: kernels of a Triton program"),
)
VARIABLE_NAME: Final = re.compile(r"[A-Za-z_]\w*")
DEFAULTS: Final = CommandProfile((), "")
FIELD_OF_SUBJECT: Final = {
    "collector": "collector",
    "arguments": "command",
    "environment": "environment",
    "max_duration_ns": "duration",
    "capture_range": "capture_range",
    "with_cpu_sampling": "cpu_sampling",
    "kernel_filter": "kernel_filter",
    "launch_skip_count": "launch_skip",
    "max_launch_count": "launch_count",
    "step_count": "steps",
}


class CommandForm(Form):
    """What is run, what its collector records, and for how long."""

    key = "command"
    heading = "Command"

    command = Words("Command", "python train.py --epochs 1", "As in a shell; no pipes or redirections.", is_wide=True, max_length=4_000)
    collector = Choice("Collector", COLLECTORS, is_wide=True)
    environment = Words("Environment", "CUDA_VISIBLE_DEVICES=0", "NAME=VALUE, one a line.", line_count=2)
    duration = Words("End it after, s", "no limit of its own", "What was recorded is kept.", is_number=True)
    capture_range = Words("Record only", "cudaProfilerApi or nvtx:RANGE", "nsys and ncu.")
    steps = Words("Optimizer steps", "all", "After the first.", is_number=True)
    cpu_sampling = param.Boolean(default=False, label="Sample the CPU's stacks too")
    network = param.Boolean(default=False, label="Leave the network on, where the node sandboxes runs")
    kernel_filter = Words("Kernels", "gemm", "Regular expression over their names.")
    launch_skip = Words("Launches left out first", "0", is_number=True)
    launch_count = Words("Launches to profile", str(DEFAULTS.max_launch_count), is_number=True)

    def groups(self, place: Place) -> tuple[Group, ...]:
        collector = self.collector
        much = (
            *("duration", "capture_range"),
            *(("steps",) if collector in ("", "kineto") else ()),
            *(("cpu_sampling",) if collector in ("", "nsys") else ()),
            *(("kernel_filter", "launch_skip", "launch_count") if collector == "ncu" else ()),
            "network",
        )
        return (
            Group("Command", ("command", "collector", "files", "environment"), note=_note(place)),
            Group("How much", much),
            Group("Where", ("node", "title")),
        )

    def hint_of(self, name: str, place: Place) -> str:
        return "It runs in a private directory of the node, beside them." if name == "files" else super().hint_of(name, place)

    def build(self, values: Values, place: Place) -> BuiltForm:
        problems = Problems()
        arguments = _arguments(values, problems)
        collector = text_of(values, "collector")
        duration_s = number_of(values, "duration", problems)
        counts = {name: number_of(values, name, problems, is_whole=True) for name in ("steps", "launch_skip", "launch_count")}
        is_ncu = collector == "ncu"
        work = CommandProfile(
            arguments=arguments,
            collector=collector,
            environment=tuple(_variables(values, problems)),
            max_duration_ns=None if duration_s is None else int(duration_s * 1e9),
            capture_range=text_of(values, "capture_range"),
            network="network" in values,
            with_cpu_sampling="cpu_sampling" in values and collector in ("", "nsys"),
            kernel_filter=text_of(values, "kernel_filter") if is_ncu else "",
            launch_skip_count=int(counts["launch_skip"] or 0) if is_ncu else 0,
            max_launch_count=int(counts["launch_count"] or DEFAULTS.max_launch_count) if is_ncu else DEFAULTS.max_launch_count,
            step_count=int(counts["steps"]) if counts["steps"] is not None and collector in ("", "kineto") else None,
        )
        return BuiltForm(
            None if problems.found else RunSpec(work, title=text_of(values, "title")),
            problems.found,
            command=_command(work, values, place),
            bundle=place.files,
            notices=_forbidden(place),
        )

    def field_of(self, error: KernalyseError) -> str:
        words = error.subject.split(" ")
        return next((FIELD_OF_SUBJECT[word] for word in words if word in FIELD_OF_SUBJECT), "command" if words[0] == "command" else "")


def _note(place: Place) -> str:
    if place.node is None:
        return ""
    forbidden, notices = _forbidden(place), place.node.notices
    if forbidden:
        return forbidden[0]
    return f"Node {place.node.hostname} says: {' '.join(notices)}" if notices else ""


def _forbidden(place: Place) -> tuple[str, ...]:
    policy = None if place.node is None else place.node.policy
    if policy is None or (policy.allow_commands and not policy.allow_catalog_only):
        return ()
    assert place.node is not None
    setting = "allow_catalog_only" if policy.allow_catalog_only else "allow_commands"
    return (f"Node {place.node.hostname} takes no commands ({setting}): ask its owner, or choose another node.",)


def _arguments(values: Values, problems: Problems) -> tuple[str, ...]:
    text = text_of(values, "command")
    if not text:
        problems.say("command", "Write the program and its arguments.")
        return ()
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        problems.say("command", f"Found {str(error)[:1].lower()}{str(error)[1:]}; expected words as in a shell, each quotation closed.")
        return ()


def _variables(values: Values, problems: Problems) -> list[EnvironmentVariable]:
    found = []
    for line in lines_of(values, "environment"):
        name, separator, value = line.partition("=")
        if not separator or VARIABLE_NAME.fullmatch(name) is None:
            problems.say("environment", f"Found '{line[:60]}'; expected NAME=VALUE.")
        else:
            found.append(EnvironmentVariable(name, value))
    return found


def _command(work: CommandProfile, values: Values, place: Place) -> tuple[str, ...]:
    return (
        *("kernalyse", "profile"),
        *option("--collector", work.collector),
        *option_of_each("--env", (f"{variable.name}={variable.value}" for variable in work.environment)),
        *option("--duration", text_of(values, "duration")),
        *option("--capture-range", work.capture_range),
        *(("--cpu-sampling",) if work.with_cpu_sampling else ()),
        *(("--network",) if work.network else ()),
        *(() if work.step_count is None else ("--steps", str(work.step_count))),
        *option("--kernel-filter", work.kernel_filter),
        *(("--launch-skip", str(work.launch_skip_count)) if work.launch_skip_count else ()),
        *(("--launch-count", str(work.max_launch_count)) if work.max_launch_count != DEFAULTS.max_launch_count else ()),
        *place_options({"node": values.get("node", "")}, place),
        *option("--title", text_of(values, "title")),
        *("--", *work.arguments),
    )
