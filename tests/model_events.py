"""Events of a small model's run as a worker writes them, with durations that a test can add up by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernalyse.services.core.model import Configuration, DataType, Dim3, EventPayload, Measurement, ModelRun, ParameterValue, SampleBatch
from tests.integration.profiler_stand_in import measurement

MODEL = ModelRun("gpt-nano", ("baseline", "fused"), batch_size=4, sequence_length=64)
LAYERS = {
    "baseline": (
        ("embed", "embedding", 1_000.0, 0.0, 4e3),
        ("blocks.0.attn.qkv", "matmul_naive", 6_000.0, 6e6, 3e5),
        ("blocks.0.attn.qkv", "add_bias", 1_000.0, 1e4, 1e5),
        ("blocks.0.mlp.fc", "matmul_naive", 8_000.0, 8e6, 4e5),
        ("blocks.0.mlp.gelu", "gelu", 2_000.0, 1e5, 2e5),
    ),
    "fused": (
        ("embed", "embedding", 1_000.0, 0.0, 4e3),
        ("blocks.0.attn.qkv", "matmul_fused", 2_000.0, 6.01e6, 3e5),
        ("blocks.0.mlp.fc", "matmul_fused", 3_000.0, 8.1e6, 4e5),
    ),
}
"""Of each variant: layer path, kernel, nanoseconds, flop, bytes."""

FACTS = {"batch_size": 4, "sequence_length": 64, "layer_count": 3, "head_count": 3, "width": 48, "vocabulary_size": 1024}
PASS_NS = {"baseline": 20_000.0, "fused": 7_000.0}


def announced() -> list[Configuration]:
    """Every launch of both variants, then the whole pass of each."""
    one = Dim3(1)
    launches = [
        Configuration(index, kernel, (), one, one, 0, "matmul", DataType.FLOAT32, flop, byte_count, variant=variant, layer_path=path)
        for index, (variant, path, kernel, flop, byte_count) in enumerate(
            (variant, path, kernel, flop, byte_count) for variant, rows in LAYERS.items() for path, kernel, _, flop, byte_count in rows
        )
    ]
    facts = tuple(ParameterValue(name, value) for name, value in FACTS.items())
    passes = [
        Configuration(len(launches) + place, "gpt-nano", facts, one, one, 0, "model", DataType.FLOAT32, *_sums(variant), variant=variant)
        for place, variant in enumerate(LAYERS)
    ]
    return [*launches, *passes]


def durations_ns() -> list[float]:
    """By configuration_index."""
    return [row[2] for rows in LAYERS.values() for row in rows] + [PASS_NS[variant] for variant in LAYERS]


def batch(index: int, duration_ns: float) -> SampleBatch:
    return SampleBatch(index, 0, (duration_ns - 10, duration_ns, duration_ns + 30), 13)


def measured(index: int, duration_ns: float) -> Measurement:
    return replace(measurement(index, duration_ns=duration_ns), duration_mean_ns=duration_ns * 1.1)


def model_events(measured_count: int | None = None) -> Iterator[EventPayload]:
    """Announcements and samples of all, and measurements of the first ones; None: of all."""
    yield from announced()
    for index, duration_ns in enumerate(durations_ns()):
        yield batch(index, duration_ns)
    for index, duration_ns in list(enumerate(durations_ns()))[:measured_count]:
        yield measured(index, duration_ns)


def _sums(variant: str) -> tuple[float, float]:
    return sum(row[3] for row in LAYERS[variant]), sum(row[4] for row in LAYERS[variant])
