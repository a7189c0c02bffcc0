"""ONNX models as a workload: files, prompts, inputs, paths of layers, and what each is refused for."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kernalyse.services.core.costs.onnx import OnnxCall
from kernalyse.services.core.costs.operator import Tensor
from kernalyse.services.core.errors import BackendUnavailableError, InvalidModelError, InvalidParameterError, KernalyseError
from kernalyse.services.core.model import (
    BackendName,
    CacheMode,
    Device,
    DeviceKind,
    LogLines,
    MeasuringOptions,
    ModelRun,
    NodePolicy,
    RunSpec,
)
from kernalyse.services.profiler.kernel_sources.catalog import Catalog, catalog_directory
from kernalyse.services.profiler.runs.admission import Admission, NodeLimits
from kernalyse.services.profiler.runs.files import BundleStore
from kernalyse.services.profiler.workloads.models import find_model_spec
from kernalyse.services.profiler.workloads.onnx.bert import bert, stored_bert
from kernalyse.services.profiler.workloads.onnx.inputs import (
    OWN_TOKENIZER,
    OpenDimensions,
    PreparedModel,
    prepare,
    read_tokenizer,
    tokenize,
)
from kernalyse.services.profiler.workloads.onnx.model_file import read_model_file
from kernalyse.services.profiler.workloads.onnx.run import plan_pass
from kernalyse.services.profiler.workloads.onnx.session import (
    CPU_PROVIDER,
    MIN_NODE_NS,
    OnnxSession,
    ProfiledNode,
    Provider,
    layer_paths,
    profile_cost_ns,
    read_nodes,
)
from tests.onnx_files import save_model, save_with_external_data, unknown_operator

DIGEST = "sha256:" + "0" * 64


class Told:
    """A sink that keeps the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, payload: Any) -> None:
        assert isinstance(payload, LogLines)
        self.lines += payload.lines


def prepared(directory: Path, told: Told | None = None, **changes: Any) -> PreparedModel:
    """Of a run with the bundle directory/bundles/0…"""
    work = ModelRun(**{"model_name": "bert-tiny", **changes})
    find_model_spec(work).check(work)
    return prepare(work, directory, None, told or Told())


def bundle(directory: Path) -> Path:
    path = directory / "bundles" / ("0" * 64)
    path.mkdir(parents=True, exist_ok=True)
    return path


# ---------------------------------------------------------------- prompts


def test_every_text_becomes_tokens() -> None:
    tokenizer = read_tokenizer(OWN_TOKENIZER, "own")
    assert tokenizer.get_vocab_size() == ModelRun("bert-tiny").vocabulary_size == 1024
    assert tokenize(tokenizer, "The quick brown fox", None).texts == ("[CLS]", "the", "quick", "brown", "fox", "[SEP]")
    assert tokenize(tokenizer, "cuDNN's naïve matmul!", None).texts[1:5] == ("c", "##u", "##d", "##n")
    assert tokenize(tokenizer, "日本", None).texts == ("[CLS]", "[UNK]", "[UNK]", "[SEP]")


def test_a_prompt_becomes_the_inputs_of_bert(tmp_path: Path) -> None:
    told = Told()
    model = prepared(tmp_path, told, prompt="hello world", batch_size=2)
    assert model.dimensions == OpenDimensions(batch=2, sequence=4)
    ids = model.feeds["input_ids"]
    assert ids.shape == (2, 4)
    assert ids[0].tolist() == ids[1].tolist() == [2, *(read_tokenizer(OWN_TOKENIZER, "").encode("hello world").ids[1:-1]), 3]
    assert model.feeds["attention_mask"].tolist() == [[1] * 4] * 2
    assert told.lines == ["Prompt, 4 tokens of the project's small vocabulary: [CLS] hello world [SEP]"]


def test_a_long_prompt_is_cut_and_that_is_said(tmp_path: Path) -> None:
    told = Told()
    model = prepared(tmp_path, told, prompt="word " * 1000)
    assert model.dimensions.sequence == 512
    assert model.feeds["input_ids"][0, -1] == 3  # [SEP] stays
    assert told.lines[1] == "The prompt has 1002 tokens, the model takes 512: the last 490 are left out."


def test_a_model_of_a_fixed_length_gets_padding_behind_the_prompt(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["words", "input_ids"], ["e"], name="/e"), helper.make_node("Cast", ["mask_ids"], ["m"], to=1)]
    shapes = {"input_ids": [1, 6], "mask_ids": [1, 6], "attention_mask": [1, 6]}
    words = np.ones((1024, 4), np.float32)
    save_model(bundle(tmp_path) / "m.onnx", *nodes, inputs=shapes, outputs={"e": [1, 6, 4], "m": [1, 6]}, words=words)
    fixed: dict[str, Any] = {"model_name": "m.onnx", "bundle_digest": DIGEST, "batch_size": 2}
    told = Told()
    model = prepared(tmp_path, told, prompt="hello world", **fixed)
    assert model.dimensions == OpenDimensions(batch=1, sequence=6)
    assert model.feeds["input_ids"][0, 3:].tolist() == [3, 0, 0]  # [SEP], [PAD], [PAD]
    assert model.feeds["attention_mask"].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert told.lines[1:] == [
        "The model takes sequences of 6 tokens alone: 2 behind the prompt are padding.",
        "The model's file fixes the batch at 1: 2 is not what runs.",
    ]
    told = Told()
    assert prepared(tmp_path, told, prompt="word " * 10, **fixed).feeds["input_ids"].shape == (1, 6)
    assert "The prompt has 12 tokens, the model takes 6: the last 6 are left out." in told.lines
    told = Told()
    assert prepared(tmp_path, told, **fixed).dimensions == OpenDimensions(batch=1, sequence=6)
    assert told.lines[1] == "The model's file fixes the sequence at 6 tokens: 64 is not what runs."


def test_without_a_prompt_tokens_are_random_and_seeded(tmp_path: Path) -> None:
    first, again, other = (prepared(tmp_path, seed=seed, sequence_length=50).feeds["input_ids"] for seed in (1, 1, 2))
    assert first.shape == (1, 50)
    assert (first == again).all()
    assert not (first == other).all()
    assert 0 <= first.min() < first.max() < 1024


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": " \n "}, "prompt of model bert-tiny: found 3 blanks; expected text"),
        ({"prompt": "a" * 2**20}, "found 1048576 characters; expected at most 65536"),
        ({"prompt": "\u200b"}, "prompt: found text that the tokenizer drops"),
        ({"variants": ("fused",)}, "variants of model bert-tiny: found fused; expected none"),
        ({"batch_size": 0}, "batch_size of model bert-tiny: found 0"),
        ({"sequence_length": 513}, "sequence_length of model bert-tiny: found 513; expected at most 512"),
        ({"tokenizer_file_name": "t.json"}, "tokenizer_file_name of model bert-tiny: found t.json; expected a bundle"),
        ({"model_name": "m.onnx"}, "bundle_digest of model m.onnx: found none"),
        ({"model_name": "../m.onnx", "bundle_digest": DIGEST}, "file name of model ../m.onnx"),
        ({"model_name": "gpt-nano", "prompt": "x"}, "prompt for model gpt-nano"),
        ({"measuring": MeasuringOptions(cache_mode=CacheMode.COLD)}, "cache_mode of model bert-tiny: found COLD; expected HOT"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    bundle(tmp_path)
    with pytest.raises(InvalidParameterError, match=message.replace("(", r"\(")):
        prepared(tmp_path, **changes)


def test_a_gpu_that_only_opencl_drives_is_passed_by() -> None:
    def placed(*devices: Device) -> str | None:
        catalog, bundles = cast(Catalog, None), cast(BundleStore, None)
        admission = Admission(NodePolicy(), NodeLimits(1, 1, 1), devices, (), catalog, bundles)
        return admission.place(RunSpec(ModelRun("bert-tiny"))).device_id

    gpu = Device("opencl:nvidia:0", "GPU", DeviceKind.GPU, (BackendName.OPENCL,))
    cpu = Device("opencl:intel:0", "CPU", DeviceKind.CPU, (BackendName.OPENCL,))
    assert placed(gpu, cpu) == cpu.device_id
    with pytest.raises(BackendUnavailableError, match="no device for it on this node"):
        placed(gpu)


def test_missing_packages_are_named_with_the_extra_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernalyse.services.profiler.workloads.onnx.spec.PACKAGES", ("onnx", "no_such_package"))
    work = ModelRun("bert-tiny")
    with pytest.raises(KernalyseError, match=r"no_such_package not installed .* pip install 'kernalyse\[onnx\]'"):
        find_model_spec(work).check(work)


# ---------------------------------------------------------------- files


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    directory = bundle(tmp_path)
    (directory / "text.onnx").write_text("hello world, no model")
    (directory / "empty.onnx").write_bytes(b"")
    for name, message in (
        ("text.onnx", "model file text.onnx: found Error parsing message"),
        ("empty.onnx", "model file empty.onnx: found no node in it; expected an ONNX file"),
        ("other.onnx", "no such file in the bundle; expected one of empty.onnx, text.onnx"),
    ):
        with pytest.raises(InvalidModelError, match=message):
            prepared(tmp_path, model_name=name, bundle_digest=DIGEST)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    path = save_with_external_data(bundle(tmp_path) / "a/m.onnx", bert(1024, 0), "m.weights")
    assert prepared(tmp_path, model_name="a/m.onnx", bundle_digest=DIGEST, prompt="hello").dimensions.sequence == 3
    (path.parent / "m.weights").unlink()
    with pytest.raises(InvalidModelError, match=r"weights of model file a/m\.onnx: found no file m\.weights beside it"):
        prepared(tmp_path, model_name="a/m.onnx", bundle_digest=DIGEST)


def test_a_tokenizer_must_fit_the_model(tmp_path: Path) -> None:
    directory = bundle(tmp_path)
    (directory / "t.json").write_bytes(OWN_TOKENIZER.read_bytes())
    (directory / "bad.json").write_text("{}")
    fitting: dict[str, Any] = {"bundle_digest": DIGEST, "prompt": "hello"}
    assert prepared(tmp_path, tokenizer_file_name="t.json", **fitting).dimensions.sequence == 3
    with pytest.raises(InvalidModelError, match=r"tokenizer file t\.json: found 1024 tokens; expected at most 1000, the vocabulary"):
        prepared(tmp_path, tokenizer_file_name="t.json", vocabulary_size=1000, **fitting)
    with pytest.raises(InvalidModelError, match=r"tokenizer file bad\.json"):
        prepared(tmp_path, tokenizer_file_name="bad.json", **fitting)
    with pytest.raises(InvalidModelError, match=r"tokenizer file none\.json: found no such file"):
        prepared(tmp_path, tokenizer_file_name="none.json", **fitting)


def test_a_model_without_tokens_is_fed_with_random_numbers(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="/fc/MatMul")
    save_model(bundle(tmp_path) / "m.onnx", node, inputs={"x": ["n", 8]}, outputs={"y": ["n", 2]}, w=np.ones((8, 2), np.float32))
    model = prepared(tmp_path, model_name="m.onnx", bundle_digest=DIGEST, batch_size=3)
    assert model.feeds["x"].shape == (3, 8)
    assert OnnxSession(model.file.path, "m", Provider(CPU_PROVIDER)).run(model.feeds)[0] == pytest.approx(
        model.feeds["x"].sum(axis=1, keepdims=True).repeat(2, axis=1)
    )
    with pytest.raises(InvalidParameterError, match=r"prompt for model m\.onnx: found a model with the inputs x; expected one that takes"):
        prepared(tmp_path, model_name="m.onnx", bundle_digest=DIGEST, prompt="hello")


def test_an_operator_that_the_runtime_does_not_have_is_quoted(tmp_path: Path) -> None:
    path = unknown_operator(tmp_path / "m.onnx")
    with pytest.raises(InvalidModelError, match=r"model m: found .*com\.acme:Frobnicate.* is not a registered function"):
        OnnxSession(path, "m", Provider(CPU_PROVIDER))


# ---------------------------------------------------------------- layers


def test_fused_nodes_stand_where_the_last_of_them_stood(tmp_path: Path) -> None:
    path = stored_bert(tmp_path, 1024, 0)
    model, optimized = read_model_file(path, "bert"), tmp_path / "optimized.onnx"
    session = OnnxSession(path, "bert", Provider(CPU_PROVIDER), profile=tmp_path / "profile", optimized=optimized)
    ids = np.ones((1, 5), np.int64)
    for _ in range(3):
        session.run({"input_ids": ids, "attention_mask": ids, "token_type_ids": 0 * ids})
    nodes = read_nodes(session.end_profile(), skip_count=1)
    assert {node.pass_count for node in nodes} == {2}
    assert all(len(node.calls) == 1 and node.durations.shape == (2,) for node in nodes)
    paths = layer_paths(model, optimized, nodes)
    assert len(set(paths.values())) == len(nodes)
    by_operator = {node.operator: paths[node.name] for node in nodes if ".1." in paths[node.name]}
    assert by_operator["BiasGelu"] == "bert.encoder.layer.1.intermediate.intermediate_act_fn.BiasGelu"
    assert "bert.encoder.layer.0.attention.self.query.MatMul" in paths.values()
    # What all layers have to do, against the products that BERT's sizes give.
    plan = plan_pass(PreparedModel("bert", model, {}, OpenDimensions(1, 5)), nodes, paths)
    linear, scores, heads = 5 * (4 * 128 * 128 + 2 * 128 * 512), 2 * 5 * 5 * 128, 128 * 128 + 128 * 2
    products = sum(node.configuration.flop or 0 for node in plan.nodes if node.configuration.category == "matmul")
    assert products == 2 * (2 * (linear + scores) + heads)
    assert plan.configuration.flop == sum(node.configuration.flop or 0 for node in plan.nodes)
    assert (plan.configuration.category, plan.configuration.layer_path, plan.notices) == ("model", "", ())


def test_modules_that_stand_beside_nodes_are_as_good_as_those_in_their_names(tmp_path: Path) -> None:
    """As PyTorch's newer exporter writes them."""
    stored = onnx.load(stored_bert(tmp_path, 1024, 0))
    for index, node in enumerate(stored.graph.node):
        modules = [part for part in node.name.split("/")[:-1] if part]
        scopes = ["", *(".".join(modules[: depth + 1]) for depth in range(len(modules))), f"fx_{index}"]
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(scopes))
        node.name = f"node_{index}"
    onnx.save(stored, path := tmp_path / "named_by_number.onnx")
    model, optimized = read_model_file(path, "bert"), tmp_path / "optimized.onnx"
    session = OnnxSession(path, "bert", Provider(CPU_PROVIDER), profile=tmp_path / "profile", optimized=optimized)
    ids = np.ones((1, 5), np.int64)
    session.run({"input_ids": ids, "attention_mask": ids, "token_type_ids": 0 * ids})
    paths = layer_paths(model, optimized, read_nodes(session.end_profile(), skip_count=0)).values()
    assert {path for path in paths if "node_" in path} == set()
    self_attention = {path.rpartition(".")[-1] for path in paths if path.startswith("bert.encoder.layer.1.attention.self.query.")}
    assert self_attention == {"MatMul", "Add"}
    assert "bert.encoder.layer.0.intermediate.intermediate_act_fn.BiasGelu" in paths


def test_convolutions_over_blocks_of_channels_stand_where_they_stood(tmp_path: Path) -> None:
    shape = [1, 16, 8, 8]
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["sums"], name="/stem/conv/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["sums"], ["kept"], name="/stem/act/Relu"),
        helper.make_node("MaxPool", ["kept"], ["pooled"], name="/pool/MaxPool", kernel_shape=[2, 2]),
    ]
    weight = numpy_helper.from_array(np.ones((16, 16, 3, 3), np.float32), "weight")
    image, pooled = (helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in (("image", shape), ("pooled", None)))
    graph = helper.make_graph(nodes, "blocks", [image], [pooled], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path := tmp_path / "blocks.onnx")
    model, optimized = read_model_file(path, "blocks"), tmp_path / "optimized.onnx"
    session = OnnxSession(path, "blocks", Provider(CPU_PROVIDER), profile=tmp_path / "profile", optimized=optimized)
    session.run({"image": np.ones(shape, np.float32)})
    nodes_run = read_nodes(session.end_profile(), skip_count=0)
    paths = layer_paths(model, optimized, nodes_run)
    assert any(node.name.endswith("_nchwc") for node in nodes_run)
    assert {"stem.act.Conv", "pool.MaxPool"} <= set(paths.values())


@pytest.mark.parametrize("told", ["", "['', 'a', 'b'", "{'a': 1}", "[1, 2]", "['_empty_nn_module_stack', 'size']"])
def test_modules_that_are_not_told_leave_the_name_of_the_node(tmp_path: Path, told: str) -> None:
    stored = onnx.load(stored_bert(tmp_path, 1024, 0))
    stored.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=told)
    onnx.save(stored, path := tmp_path / "told.onnx")
    assert read_model_file(path, "bert").module_of_node == {}


def test_nodes_that_are_only_launched_have_no_times_of_their_own(tmp_path: Path) -> None:
    node = ProfiledNode("/fc/MatMul", "MatMul", "CUDAExecutionProvider", 2, [OnnxCall("MatMul", (Tensor((2, 3)),), (Tensor((2, 4)),))])
    node.durations[:] = 5_000
    other = ProfiledNode("/odd", "Odd", CPU_PROVIDER, 2, [None])
    file = read_model_file(stored_bert(tmp_path, 8, 0), "bert")
    plan = plan_pass(PreparedModel("m", file, {}, OpenDimensions(1, 2)), (node, other), {"/odd": "odd"})
    assert [planned.configuration.layer_path for planned in plan.nodes] == ["odd"]
    assert plan.configuration.flop is None  # not all of it is known
    assert "No cost model knows 1 Odd" in plan.notices[0]
    assert "1 nodes run on CUDAExecutionProvider, which launches kernels" in plan.notices[1]


def test_what_the_profile_costs_is_taken_evenly_and_no_node_below_its_resolution() -> None:
    def node(*durations_ns: float) -> ProfiledNode:
        made = ProfiledNode("n", "Add", CPU_PROVIDER, len(durations_ns))
        made.durations[:] = durations_ns
        return made

    nodes = (node(10_000, 10_000, 90_000), node(30_000, 30_000, 30_000))
    assert profile_cost_ns(nodes, pass_ns=30_000) == 5_000
    assert profile_cost_ns(nodes, pass_ns=50_000) == 0
    assert profile_cost_ns(nodes, pass_ns=1_000) == 10_000 - MIN_NODE_NS
    assert profile_cost_ns((), pass_ns=1_000) == 0


def test_a_loop_counts_for_the_nodes_in_it(tmp_path: Path) -> None:
    def event(category: str, name: str, start_us: int, duration_us: int, **arguments: Any) -> dict[str, Any]:
        return {"cat": category, "pid": 1, "tid": 1, "dur": duration_us, "ts": start_us, "ph": "X", "name": name, "args": arguments}

    shapes = {"op_name": "Add", "provider": CPU_PROVIDER, "input_type_shape": [{"float": [4]}], "output_type_shape": [{"float": [4]}]}
    events = [
        *(event("Node", "/Loop/Add_kernel_time", start, 10, **shapes) for start in (5, 15, 105, 115)),
        *(event("Node", "/Loop_kernel_time", start, 30, op_name="Loop", provider=CPU_PROVIDER) for start in (2, 102)),
        *(event("Session", "model_run", start, 50) for start in (0, 100)),
    ]
    (tmp_path / "p.json").write_text(json.dumps(events))
    (node,) = read_nodes(tmp_path / "p.json", skip_count=0)
    assert node.durations.tolist() == [20_000, 20_000]
    assert node.calls == [OnnxCall("Add", (Tensor((4,), "float32"),), (Tensor((4,), "float32"),))] * 2


def test_the_example_runs_the_model_as_a_program_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["run_onnx.py", "--prompt", "Hello world", "--passes", "2", "--profile", str(tmp_path / "p")])
    runpy.run_path(str(catalog_directory() / "examples/inference_runners/run_onnx.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert "4 tokens on CPUExecutionProvider: [CLS] hello world [SEP]" in told
    assert {node.pass_count for node in read_nodes(next(tmp_path.glob("p_*.json")), skip_count=0)} == {5}


GROWTH_PROGRAM = """
import numpy as np
from kernalyse.services.profiler.workloads.onnx.session import ResidentPeak
np.ones(32 * 2**20)  # 256 MiB, gone before it begins
peak = ResidentPeak.begin()
if peak.start_bytes is not None:
    np.ones(8 * 2**20)
    print(peak.grown_bytes())
"""


def test_the_peak_of_memory_counts_from_its_beginning() -> None:
    """In a process of its own: in this one allocators may give other tests' memory back meanwhile."""
    done = subprocess.run([sys.executable, "-c", GROWTH_PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    if not done.stdout:
        pytest.skip("this system does not reset the peak of a process's memory")
    assert 60 * 2**20 < int(done.stdout) < 128 * 2**20
