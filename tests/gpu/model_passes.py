"""`python -m tests.gpu.model_passes MODEL VARIANT COUNT`: passes of a GPT on the first NVIDIA device, for whoever watches from outside."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernalyse.services.core.ml_models import find_architecture
from kernalyse.services.core.model import CacheMode, EventPayload
from kernalyse.services.profiler.backends.base import DeviceSession, PassSession
from kernalyse.services.profiler.workloads.gpt.operations import Problem, plan_pass
from kernalyse.services.profiler.workloads.gpt.reference import random_tokens, random_weights
from kernalyse.services.profiler.workloads.gpt.sampling import LoadedModel, LoadedPass
from kernalyse.services.profiler.workloads.sweeps.launches import SweepCompiler

BATCH_SIZE, SEQUENCE_LENGTH, VOCABULARY_SIZE, SEED = 4, 64, 1024, 0


class Nowhere:
    def write(self, payload: EventPayload) -> None:
        """Nobody reads the compiler's events here."""


def problem_of(model_name: str, session: DeviceSession) -> Problem:
    architecture, device = find_architecture(model_name), session.device
    assert architecture is not None
    return Problem(architecture, BATCH_SIZE, SEQUENCE_LENGTH, VOCABULARY_SIZE, device.kind, device.compute_unit_count)


@contextmanager
def loaded_pass(model_name: str, variant: str, session: PassSession) -> Iterator[tuple[LoadedModel, LoadedPass]]:
    problem = problem_of(model_name, session)
    planned = plan_pass(problem, variant, 0, CacheMode.HOT, ())
    model = LoadedModel(problem, [planned], session)
    model.fill(random_weights(problem, SEED), random_tokens(problem, SEED))
    with tempfile.TemporaryDirectory() as directory:
        yield model, model.prepare(planned, SweepCompiler((), session, Nowhere(), Path(directory)))
    model.release()


def main(model_name: str, variant: str, count: str) -> None:
    from kernalyse.services.profiler.backends.cuda.pycuda_backend import PyCudaBackend

    session = PyCudaBackend().open()
    with loaded_pass(model_name, variant, session) as (_, loaded):
        for _ in range(int(count)):
            session.run_pass(loaded.launches)
    session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
