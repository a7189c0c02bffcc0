"""The form for a command under a collector."""

from __future__ import annotations

import re
import shlex
from typing import Final

from kernalyse.services.core.errors import KernalyseError
from kernalyse.services.core.model import CommandProfile, EnvironmentVariable, RunSpec
from kernalyse.services.ui.forms.form import (
    TITLE,
    BuiltForm,
    Field,
    FormName,
    Group,
    Place,
    Problems,
    Values,
    lines_of,
    node_field,
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


class CommandForm:
    name: FormName = "command"
    title = "Command"

    def groups(self, values: Values, place: Place) -> tuple[Group, ...]:
        collector = text_of(values, "collector")
        what = (
            Field(
                "command",
                "Command",
                placeholder="python train.py --epochs 1",
                hint="As in a shell; no pipes or redirections.",
                is_wide=True,
                max_length=4_000,
            ),
            Field("collector", "Collector", "select", COLLECTORS, is_wide=True),
            Field("files", "Files that go with it", "files", hint="It runs in a private directory of the node, beside them."),
            Field("environment", "Environment", "lines", placeholder="CUDA_VISIBLE_DEVICES=0", hint="NAME=VALUE, one a line."),
        )
        much = (
            Field("duration", "End it after, s", "number", hint="What was recorded is kept.", placeholder="no limit of its own"),
            Field("capture_range", "Record only", placeholder="cudaProfilerApi or nvtx:RANGE", hint="nsys and ncu."),
            *(
                (Field("steps", "Optimizer steps", "number", placeholder="all", hint="After the first."),)
                if collector in ("", "kineto")
                else ()
            ),
            *((Field("cpu_sampling", "Sample the CPU's stacks too", "check"),) if collector in ("", "nsys") else ()),
            *(OF_NCU if collector == "ncu" else ()),
        )
        return (Group("Command", what, note=_note(place)), Group("How much", much), Group("Where", (node_field(place), TITLE)))

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


OF_NCU: Final = (
    Field("kernel_filter", "Kernels", placeholder="gemm", hint="Regular expression over their names."),
    Field("launch_skip", "Launches left out first", "number", placeholder="0"),
    Field("launch_count", "Launches to profile", "number", placeholder=str(DEFAULTS.max_launch_count)),
)


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
        *(() if work.step_count is None else ("--steps", str(work.step_count))),
        *option("--kernel-filter", work.kernel_filter),
        *(("--launch-skip", str(work.launch_skip_count)) if work.launch_skip_count else ()),
        *(("--launch-count", str(work.max_launch_count)) if work.max_launch_count != DEFAULTS.max_launch_count else ()),
        *place_options({"node": values.get("node", "")}, place),
        *option("--title", text_of(values, "title")),
        *("--", *work.arguments),
    )
