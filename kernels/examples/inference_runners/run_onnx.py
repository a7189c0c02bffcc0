"""Runs a BERT in ONNX format on a prompt: a whole program to profile.

    python run_onnx.py --prompt "The quick brown fox"
    kernalyse profile --collector nsys -- python run_onnx.py --prompt "The quick brown fox"
    python run_onnx.py --model bert.onnx --tokenizer tokenizer.json --profile profile && kernalyse show profile_*.json layers

Without --model it is the small BERT with random weights that `kernalyse profile --prompt` measures. Needs `pip install 'kernalyse[onnx]'`;
with onnxruntime-gpu in the place of onnxruntime it runs on an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs a BERT in ONNX format on a prompt.")
    parser.add_argument("--prompt", default="The quick brown fox jumps over the lazy dog.")
    parser.add_argument("--model", type=Path, help="FILE.onnx; else a small BERT with random weights")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json of the model; else a small English vocabulary")
    parser.add_argument("--passes", type=int, default=20, help="timed passes, after three to warm up")
    parser.add_argument("--profile", help="beginning of the name of a profile that ONNX Runtime writes")
    arguments = parser.parse_args()

    options = onnxruntime.SessionOptions()
    if arguments.profile:
        options.enable_profiling = True
        options.profile_file_prefix = arguments.profile
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    session = onnxruntime.InferenceSession(arguments.model or built_in_model(), options, providers=providers)
    tokens = Tokenizer.from_file(str(arguments.tokenizer or built_in_tokenizer())).encode(arguments.prompt)
    feeds = {
        "input_ids": np.array([tokens.ids]),
        "attention_mask": np.array([tokens.attention_mask]),
        "token_type_ids": np.array([tokens.type_ids]),
    }
    feeds = {part.name: feeds[part.name] for part in session.get_inputs()}

    for _ in range(3):
        session.run(None, feeds)
    durations_ms = []
    for index in range(arguments.passes):
        start_s = time.perf_counter()
        with nvtx_range(f"pass {index}"):
            outputs = session.run(None, feeds)
        durations_ms.append((time.perf_counter() - start_s) * 1e3)
    print(f"{len(tokens.ids)} tokens on {session.get_providers()[0]}: {' '.join(tokens.tokens)}")
    print(f"{session.get_outputs()[0].name}: {np.array2string(outputs[0], precision=4, threshold=16)}")
    print(f"median of {len(durations_ms)} passes: {statistics.median(durations_ms):.3f} ms")
    if arguments.profile:
        print(f"profile: {session.end_profiling()}")


def built_in_model() -> Path:
    from kernalyse.services.profiler.workloads.onnx.bert import stored_bert

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return stored_bert(cache / "kernalyse" / "models", vocabulary_size=1024, seed=0)


def built_in_tokenizer() -> Path:
    from kernalyse.services.profiler.workloads.onnx.inputs import OWN_TOKENIZER

    return OWN_TOKENIZER


def nvtx_range(name: str) -> AbstractContextManager[object]:
    """A range for nsys where the package nvtx is installed."""
    try:
        import nvtx
    except ImportError:
        return nullcontext()
    return nvtx.annotate(name)


if __name__ == "__main__":
    main()
