"""The forms of the page Run / Import: what stands in them as runs, as commands, and what is wrong with it."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import param
import pytest

from kernalyse.services.core.errors import InvalidParameterError, KernalyseError, TooManyConfigurationsError, UnknownParameterError
from kernalyse.services.core.model import (
    BackendName,
    CacheMode,
    CeilingMeasurement,
    ClockMode,
    CommandProfile,
    Dim3,
    EnvironmentVariable,
    KernelSource,
    KernelSweep,
    ModelRun,
    Node,
    NodePolicy,
    Pairing,
    SearchStrategy,
)
from kernalyse.services.profiler.kernel_sources.catalog import load_catalog, source_kernels
from kernalyse.services.ui.forms.command_form import CommandForm
from kernalyse.services.ui.forms.form import BuiltForm, Form, Place, SourceKernels
from kernalyse.services.ui.forms.model_form import ModelForm, PromptForm
from kernalyse.services.ui.forms.sweep_form import CeilingsForm, SweepForm
from kernalyse.services.ui.uploads.given_files import GivenFile

NODE = Node("n1", "gpu-7", "1", "j", datetime.now(UTC))
CATALOGUE = tuple(load_catalog().definitions.values())
PLACE = Place(nodes=(NODE,), node=NODE, kernels=CATALOGUE)
SOURCE = KernelSource("mine.cu", "__global__ void scale(const float* a, float* b, float alpha, int N) { b[0] = alpha * a[0]; }")
OWN = Place(nodes=(NODE,), node=NODE, source=SourceKernels(SOURCE, source_kernels(SOURCE).definitions))


def build(form: Form, values: dict[str, str], place: Place = PLACE) -> BuiltForm:
    parameters = {name.removeprefix("p."): text for name, text in values.items() if name.startswith("p.")}
    texts = {name: text for name, text in values.items() if not name.startswith("p.")}
    boxes = {name: True for name in texts if isinstance(form.param[name], param.Boolean)}
    form.param.update(**{**texts, **boxes, **({"parameters": parameters} if parameters else {})})
    form.settle(place)
    return form.built(place)


def work_of(form: Form, values: dict[str, str], place: Place = PLACE) -> object:
    built = build(form, values, place)
    assert built.problems == {}
    assert built.spec is not None
    return built.spec.work


def file(name: str) -> GivenFile:
    return GivenFile(name, name, 1, Path(name))


# ---------------------------------------------------------------- kernel sweeps


def test_a_sweep_has_the_axes_blocks_and_method_of_its_fields() -> None:
    values = {
        "kernel": "matmul_tiled",
        "other_kernel": "matmul_naive",
        "p.M": "2**7..2**8",
        "p.K": "32..64:32",
        "ties": "N=M",
        "blocks": "8x8,16x16",
        "macros": "UNROLL=1,2\nWIDTH=4",
        "where": "M > K",
        "cache": "cold",
        "max_time": "2",
        "strategy": "halving",
        "budget": "60",
        "backend": "opencl",
        "in_order": "on",
        "unconfirmed": "on",
        "clocks": "base",
        "title": "mine",
    }
    sweep = work_of(SweepForm(), values)
    assert isinstance(sweep, KernelSweep)
    assert [kernel.kernel_name for kernel in sweep.kernels] == ["matmul_tiled", "matmul_naive"]
    assert {axis.name: axis.values for axis in sweep.axes} == {"M": (128, 256), "K": (32, 64)}
    assert [axis.values for axis in sweep.macro_axes] == [(1, 2), (4,)]
    assert (sweep.blocks, sweep.where, sweep.backend) == ((Dim3(8, 8), Dim3(16, 16)), "M > K", BackendName.OPENCL)
    assert (sweep.strategy, sweep.budget_ns, sweep.order_seed) == (SearchStrategy.HALVING, 60 * 10**9, None)
    assert sweep.skip_confirmation
    assert sweep.clock_mode is ClockMode.BASE
    assert (sweep.measuring.cache_mode, sweep.measuring.max_duration_ns) == (CacheMode.COLD, 2 * 10**9)
    built = build(SweepForm(), values)
    assert built.max_duration_s == 2
    assert shlex.split(built.command_line) == [
        *("kernalyse", "bench", "matmul_tiled", "matmul_naive", "-p", "M=2**7..2**8", "-p", "K=32..64:32", "-D", "UNROLL=1,2"),
        *("-D", "WIDTH=4", "--block", "8x8,16x16", "--tie", "N=M", "--where", "M > K", "--cache", "cold", "--max-time", "2"),
        *(
            "--clocks",
            "base",
            "--strategy",
            "halving",
            "--budget",
            "60",
            "--no-confirm",
            "--no-shuffle",
            "--backend",
            "opencl",
            "--title",
            "mine",
        ),
    ]


def test_an_untouched_sweep_takes_the_catalogues_values() -> None:
    sweep = work_of(SweepForm(), {})
    assert isinstance(sweep, KernelSweep)
    assert (sweep.kernels[0].kernel_name, sweep.axes, sweep.pairing) == (CATALOGUE[0].kernel_name, (), None)
    assert not sweep.skip_confirmation
    assert sweep.clock_mode is ClockMode.AS_IS
    paired = work_of(SweepForm(), {"paired": "on"})
    assert isinstance(paired, KernelSweep)
    assert paired.pairing == Pairing()


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("p.N", "abc", "Found 'abc'; expected integers"),
        ("p.N", "8..4:1", "Found '8..4:1', which goes down"),
        ("blocks", "16x", "one to three positive integers"),
        ("macros", "UNROLL", "expected NAME=VALUES"),
        ("ties", "M", "expected NAME=VALUE"),
        ("where", "N <", ""),
        ("budget", "5", "Add --strategy halving"),
        ("max_time", "soon", "Found 'soon'; expected a number, 0 or more."),
        ("max_time", "0", "seconds, more than 0"),
        ("samples", "1", "a whole number, 2 or more"),
        ("samples", "9" * 400, "a whole number, 2 or more"),
        ("target", "200%", "a fraction above 0 and below 1"),
        ("processes", "1.5", "a whole number, 1 or more"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field(field: str, text: str, said: str) -> None:
    built = build(SweepForm(), {"kernel": "saxpy", field: text})
    assert built.spec is None
    assert list(built.problems) == [field]
    assert said in built.problems[field]


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (UnknownParameterError("axis N", found="no such name"), "p.N"),
        (InvalidParameterError("constraint 'N > 4'", found="none"), "where"),
        (InvalidParameterError("measuring option max_duration_ns", found="0"), "max_time"),
        (InvalidParameterError("sweep option budget_ns", found="0"), "budget"),
        (InvalidParameterError("a paired comparison", found="1 configuration"), "paired"),
        (TooManyConfigurationsError("the sweep", found="10000000 configurations"), ""),
    ],
)
def test_a_refusal_of_the_service_finds_its_field(error: KernalyseError, field: str) -> None:
    assert SweepForm().field_of(error) == field


def test_a_dropped_source_is_swept_with_what_the_form_says_of_it() -> None:
    assert build(SweepForm(), {}, OWN).problems == {"p.N": "Give it values: 1024,2048 or 2**7..2**10 or 32..128:32."}
    values = {"p.N": "1024", "arguments": "alpha=2.0", "flop": "2*N", "bytes": "8*N", "buffers": "a=2*N"}
    sweep = work_of(SweepForm(), values, OWN)
    assert isinstance(sweep, KernelSweep)
    (kernel,) = sweep.kernels
    assert kernel.source == SOURCE
    assert kernel.definition is not None
    assert (kernel.definition.flop, kernel.definition.bytes) == ("2*N", "8*N")
    assert [buffer.shape for buffer in kernel.definition.buffers] == [("2*N",), ("N",)]
    assert [argument.expression for argument in kernel.definition.arguments] == ["2.0"]
    assert build(SweepForm(), values, OWN).command_line == (
        "kernalyse bench mine.cu:scale -p N=1024 --arg alpha=2.0 --buffer 'a=2*N' --flop '2*N' --bytes '8*N'"
    )
    assert "no pointer of scale" in build(SweepForm(), {**values, "buffers": "c=N"}, OWN).problems["buffers"]


# ---------------------------------------------------------------- the others


def test_a_command_is_split_as_a_shell_does() -> None:
    values = {
        "command": "python 'my train.py' --epochs 1",
        "collector": "kineto",
        "steps": "3",
        "environment": "A=1\nB=x y",
        "duration": "30",
    }
    work = work_of(CommandForm(), values)
    assert work == CommandProfile(
        ("python", "my train.py", "--epochs", "1"),
        "kineto",
        environment=(EnvironmentVariable("A", "1"), EnvironmentVariable("B", "x y")),
        max_duration_ns=30 * 10**9,
        step_count=3,
    )
    assert build(CommandForm(), values).command_line == (
        "kernalyse profile --collector kineto --env A=1 --env 'B=x y' --duration 30 --steps 3 -- python 'my train.py' --epochs 1"
    )
    assert set(build(CommandForm(), {"command": "python 'train", "environment": "=1"}).problems) == {"command", "environment"}


def test_a_node_that_takes_no_commands_says_so() -> None:
    closed = Node("n1", "gpu-7", "1", "j", datetime.now(UTC), policy=NodePolicy(allow_commands=False))
    assert "gpu-7 takes no commands" in build(CommandForm(), {"command": "./a"}, Place((closed,), closed)).notices[0]


def test_a_node_that_only_observes_is_not_offered_and_named() -> None:
    watching = Node("n1", "gpu-7", "1", "j", datetime.now(UTC), policy=NodePolicy(observe_only=True))
    place = Place((NODE,), NODE, observers=(watching,))
    assert [value for value, _ in SweepForm().choices(place)["node"]] == ["", NODE.node_id]
    for form in (SweepForm(), CommandForm(), ModelForm()):
        assert form.hint_of("node", place) == "Not offered, as nothing is run there (observe_only): gpu-7."
        assert "gpu-7" not in form.hint_of("node", Place((NODE,), NODE))


def test_a_model_is_one_of_the_built_in_ones_or_a_file_that_was_given() -> None:
    work = work_of(ModelForm(), {"model": "gpt-tile-small", "variants": "baseline,fused", "batch_size": "2"})
    assert isinstance(work, ModelRun)
    assert (work.model_name, work.variants, work.batch_size, work.measuring.max_duration_ns) == (
        *("gpt-tile-small", ("baseline", "fused"), 2, 6 * 10**9),
    )
    own = Place((NODE,), NODE, files=(file("resnet.onnx"), file("resnet.onnx_data")))
    built = build(ModelForm(), {}, own)
    assert built.spec is not None
    assert isinstance(built.spec.work, ModelRun)
    assert (built.spec.work.model_name, built.spec.work.variants, built.bundle) == ("resnet.onnx", (), own.files)
    assert build(ModelForm(), {"batch_size": "2"}, own).command_line == "kernalyse model resnet.onnx --batch-size 2"
    apart = Place((NODE,), NODE, files=(file("resnet.onnx"), file("weights.data")))
    assert build(ModelForm(), {}, apart).command_line == "kernalyse model resnet.onnx --bundle ."
    assert build(ModelForm(), {"model": "bert-tiny"}, apart).command_line == "kernalyse model bert-tiny"
    assert build(ModelForm(), {"batch_size": "0"}).problems == {"batch_size": "Found '0'; expected a whole number, 1 or more."}


def test_an_onnx_model_runs_on_the_text_of_a_prompt() -> None:
    work = work_of(PromptForm(), {"prompt": "The quick brown fox"}, Place((NODE,), NODE, files=(file("bert.onnx"), file("tokenizer.json"))))
    assert isinstance(work, ModelRun)
    assert (work.model_name, work.prompt, work.tokenizer_file_name) == ("bert.onnx", "The quick brown fox", "tokenizer.json")
    files = (file("bert.onnx"), file("bert.onnx_data"), file("tokenizer.json"), file("weights.data"))
    for given, command in (
        (files[:3], "kernalyse profile --prompt a --model bert.onnx --tokenizer tokenizer.json"),
        (files, "kernalyse profile --prompt a --model bert.onnx --tokenizer tokenizer.json --bundle ."),
    ):
        assert build(PromptForm(), {"prompt": "a"}, Place((NODE,), NODE, files=given)).command_line == command
    assert build(PromptForm(), {"prompt": "a b", "node": "n1"}).command_line == "kernalyse profile --prompt 'a b' --node gpu-7"
    assert list(build(PromptForm(), {"prompt": " "}).problems) == ["prompt"]


def test_ceilings_are_those_of_the_chosen_backend() -> None:
    assert work_of(CeilingsForm(), {"backend": "opencl"}) == CeilingMeasurement(BackendName.OPENCL)


def test_a_choice_that_is_gone_counts_as_none() -> None:
    sweep = work_of(SweepForm(), {"kernel": "saxpy", "device": "cuda:9", "backend": "gone"})
    assert isinstance(sweep, KernelSweep)
    assert (sweep.device_id, sweep.backend) == (None, BackendName.AUTO)
