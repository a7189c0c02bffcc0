"""The run that the options of `kernalyse profile` describe, with the files that it needs on its node."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kernalyse.bundle import excluded_paths
from kernalyse.services.cli.bundles import ProgramBundle, command_files, files_of_directory, model_files, pack_files, require_onnx_file
from kernalyse.services.core.errors import BackendUnavailableError, UsageError
from kernalyse.services.core.model import CommandProfile, EnvironmentVariable, MeasuringOptions, ModelRun
from kernalyse.services.core.request_syntax import MAX_SECONDS

BUILT_IN_MODEL: Final = "bert-tiny"
PROMPT_MAX_DURATION_NS: Final = 5_000_000_000  # of complete passes; passes under the profiler take as long again, and the user waits
VARIABLE_NAME: Final = re.compile(r"[A-Za-z_]\w*")
PYTHON: Final = "python3"
MAX_SKIPPED_NAMES: Final = 8  # names in a notice; a directory may have thousands


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """The options of `kernalyse profile`, unchecked; None: not given.

    Attributes:
        command: program and arguments; with a target the arguments alone.
        collector: empty: the node selects one.
        environment: NAME=VALUE, or NAME for the value in this process.
        has_files_there: whether the node has the files that the command names.
    """

    command: tuple[str, ...] = ()
    target: Path | None = None
    prompt: str | None = None
    model: Path | None = None
    tokenizer: Path | None = None
    collector: str = ""
    environment: tuple[str, ...] = ()
    bundle: Path | None = None
    has_files_there: bool = False
    duration_s: float | None = None
    capture_range: str = ""
    with_cpu_sampling: bool = False
    kernel_filter: str = ""
    launch_skip_count: int | None = None
    max_launch_count: int | None = None
    step_count: int | None = None
    has_network: bool = False


@dataclass(frozen=True, slots=True)
class ProfileSubmission:
    """The work of a run, with what goes before it.

    Attributes:
        work: complete but for the digest of the bundle.
        bundle: files to upload before the run; None: none.
        notices: sentences for the user.
    """

    work: CommandProfile | ModelRun
    bundle: ProgramBundle | None = None
    notices: tuple[str, ...] = ()


def build_profile(words: ProfileOptions, environment: Mapping[str, str] = os.environ) -> ProfileSubmission:
    """Return the work that the options describe, with its bundle and notices.

    Args:
        words: the options.
        environment: variables of this process, for options without a value.

    Raises:
        UsageError: an option cannot be parsed, a file does not exist, or options exclude each other.
        BackendUnavailableError: the target is a .cu file, and there is no nvcc.
        CompileError: nvcc does not compile the target.
    """
    subjects = [
        name
        for name, is_given in (
            ("COMMAND", bool(words.command) and words.target is None),
            ("--target", words.target),
            ("--prompt", words.prompt),
        )
        if is_given or is_given == ""
    ]
    if len(subjects) != 1:
        raise UsageError(
            "kernalyse profile",
            found=" and ".join(subjects) or "nothing to profile",
            expected="a command, --target PATH or --prompt TEXT",
            remedy="For example: kernalyse profile -- python train.py",
        )
    if words.prompt is not None:
        return _prompt_profile(words, words.prompt)
    if words.model is not None or words.tokenizer is not None:
        raise UsageError(
            "option --model or --tokenizer", found="no --prompt", expected="the text that becomes its tokens", remedy="Add --prompt."
        )
    return _target_profile(words, words.target, environment) if words.target is not None else _command_profile(words, environment)


# ---------------------------------------------------------------- commands


def _command_profile(words: ProfileOptions, environment: Mapping[str, str]) -> ProfileSubmission:
    work = _work(words, words.command, environment)
    if words.bundle is not None:
        return ProfileSubmission(work, _directory_bundle(words.bundle), _skipped_files_notice(words.bundle))
    files = {} if words.has_files_there else command_files(words.command, Path.cwd())
    if not files:
        return ProfileSubmission(work)
    notice = f"Goes to the node with the command: {', '.join(files)}. For more: --bundle DIRECTORY."
    return ProfileSubmission(work, pack_files(files), (notice,))


def _target_profile(words: ProfileOptions, target: Path, environment: Mapping[str, str]) -> ProfileSubmission:
    """Return the profile of a program of this machine, to which the words of the command are arguments."""
    if not target.is_file():
        raise UsageError(f"option --target {target}", found="no such file", expected="a program or a .cu file", remedy="Correct the path.")
    name = target.stem if target.suffix == ".cu" else target.name
    files = {} if words.bundle is None else files_of_directory(_check_directory(words.bundle))
    with tempfile.TemporaryDirectory(prefix="kernalyse-target-") as directory:
        files[name] = _compile(target, Path(directory) / name) if target.suffix == ".cu" else target
        bundle = pack_files(files)
    if target.suffix == ".py":
        return ProfileSubmission(_work(words, (PYTHON, name, *words.command), environment), bundle, _skipped_files_notice(words.bundle))
    if target.suffix != ".cu" and not os.access(target, os.X_OK):
        raise UsageError(
            f"option --target {target}",
            found="a file that cannot be executed",
            expected="a program",
            remedy=f"If it is one: chmod +x {target}",
        )
    return ProfileSubmission(_work(words, (f"./{name}", *words.command), environment), bundle, _skipped_files_notice(words.bundle))


def _compile(source: Path, program: Path) -> Path:
    """Compile a complete .cu file with nvcc and return the path of the program."""
    from kernalyse.services.core.external_programs import find_nvcc
    from kernalyse.services.profiler.backends.cuda.compiler import TOOLKIT, run_nvcc

    nvcc = find_nvcc()
    if nvcc is None:
        raise BackendUnavailableError(
            f"option --target {source}",
            found="no nvcc to compile it with",
            remedy=f"{TOOLKIT} Or compile it elsewhere, and name the program.",
        )
    # -lineinfo keeps source lines in the program for the collector.
    run_nvcc(nvcc, ("-O3", "-lineinfo", "-o", str(program), str(source.absolute())), source.absolute().parent, f"program {source}")
    return program


def _work(words: ProfileOptions, arguments: tuple[str, ...], environment: Mapping[str, str]) -> CommandProfile:
    defaults = CommandProfile(arguments, words.collector)
    return CommandProfile(
        arguments=arguments,
        collector=words.collector,
        environment=tuple(_variable(text, environment) for text in words.environment),
        max_duration_ns=_duration_ns(words.duration_s),
        capture_range=words.capture_range,
        with_cpu_sampling=words.with_cpu_sampling,
        kernel_filter=words.kernel_filter,
        launch_skip_count=words.launch_skip_count or 0,
        max_launch_count=defaults.max_launch_count if words.max_launch_count is None else words.max_launch_count,
        step_count=words.step_count,
        network=words.has_network,
    )


def _variable(text: str, environment: Mapping[str, str]) -> EnvironmentVariable:
    """Return a variable of NAME=VALUE, or of NAME with its value in this process."""
    name, separator, value = text.partition("=")
    if VARIABLE_NAME.fullmatch(name) is None:
        raise UsageError(
            f"option --env {text}", found=repr(name), expected="NAME=VALUE, or NAME for its value here", remedy="Correct the name."
        )
    if not separator and name not in environment:
        raise UsageError(
            f"option --env {text}", found="no such variable here", expected="one that is set", remedy=f"Say --env {name}=VALUE."
        )
    return EnvironmentVariable(name, value if separator else environment[name])


def _duration_ns(duration_s: float | None) -> int | None:
    if duration_s is None:
        return None
    if not (math.isfinite(duration_s) and 0 < duration_s < MAX_SECONDS):
        raise UsageError(
            f"option --duration {duration_s:g}", found=f"{duration_s:g}", expected="seconds, more than 0", remedy="Say --duration 30."
        )
    return max(1, int(duration_s * 1e9))


def _directory_bundle(directory: Path) -> ProgramBundle:
    return pack_files(files_of_directory(_check_directory(directory)))


def _skipped_files_notice(directory: Path | None) -> tuple[str, ...]:
    """Return a notice on files that are not uploaded: a program without its data fails on the node without a hint of the cause."""
    names = [] if directory is None else excluded_paths(directory)
    if not names:
        return ()
    shown = ", ".join(map(repr, names[:MAX_SKIPPED_NAMES])) + (
        f" and {len(names) - MAX_SKIPPED_NAMES} more" if len(names) > MAX_SKIPPED_NAMES else ""
    )
    return (f"Does not go to the node, being links to directories or to nothing, or no files: {shown}.",)


def _check_directory(directory: Path) -> Path:
    if not directory.is_dir():
        raise UsageError(
            f"option --bundle {directory}", found="no such directory", expected="the directory of the program", remedy="Correct the path."
        )
    return directory


# ---------------------------------------------------------------- models


def _prompt_profile(words: ProfileOptions, prompt: str) -> ProfileSubmission:
    if not prompt.strip():
        raise UsageError(
            "option --prompt",
            found="no text",
            expected="words that become the model's tokens",
            remedy='Say --prompt "The quick brown fox".',
        )
    _reject_command_options(words)
    files = {} if words.bundle is None else files_of_directory(_check_directory(words.bundle))
    for option, path in (("--model", words.model), ("--tokenizer", words.tokenizer)):
        if path is not None and not path.is_file():
            raise UsageError(f"option {option} {path}", found="no such file", expected="a file", remedy="Correct the path.")
    if words.model is not None:
        require_onnx_file(words.model)
        files |= model_files(words.model)
    if words.tokenizer is not None:
        files[words.tokenizer.name] = words.tokenizer
    work = ModelRun(
        model_name=BUILT_IN_MODEL if words.model is None else words.model.name,
        prompt=prompt,
        measuring=MeasuringOptions(max_duration_ns=PROMPT_MAX_DURATION_NS),
        tokenizer_file_name="" if words.tokenizer is None else words.tokenizer.name,
    )
    return ProfileSubmission(work, pack_files(files) if files else None, _skipped_files_notice(words.bundle))


def _reject_command_options(words: ProfileOptions) -> None:
    defaults = ProfileOptions()
    for option, name in (
        ("--collector", "collector"),
        ("--env", "environment"),
        ("--duration", "duration_s"),
        ("--capture-range", "capture_range"),
        ("--cpu-sampling", "with_cpu_sampling"),
        ("--kernel-filter", "kernel_filter"),
        ("--launch-skip", "launch_skip_count"),
        ("--launch-count", "max_launch_count"),
        ("--steps", "step_count"),
        ("--network", "has_network"),
    ):
        if getattr(words, name) != getattr(defaults, name):
            raise UsageError(f"option {option}", found="a model by --prompt", expected="a command", remedy="Leave it out.")
