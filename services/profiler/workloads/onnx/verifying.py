"""Verification of a built-in model: ONNX's own reference implementation, in NumPy, says what its answer should be."""

from __future__ import annotations

from typing import Final, cast

from onnx.reference import ReferenceEvaluator

from services.core.model import BUILT_IN_ONNX_MODEL, ModelRun, Verification, VerificationState
from services.profiler.measuring.inputs import Array
from services.profiler.measuring.verification import SWITCHED_OFF, compare
from services.profiler.workloads.onnx.feeds import Feeds
from services.profiler.workloads.onnx.preparing import PreparedModel
from services.profiler.workloads.onnx.session import OnnxSession

NOT_VERIFIED: Final = Verification(VerificationState.NO_REFERENCE, message="Nothing to compare with: a node, or a model of a bundle.")
RELATIVE_TOLERANCE: Final = 1e-4  # of logits in float32, summed in another order
MAX_TOKEN_COUNT: Final = 4096  # of all sequences: more take the reference seconds


def verify(work: ModelRun, model: PreparedModel, session: OnnxSession, feeds: Feeds) -> Verification:
    """Return the logits of one pass over these inputs against the reference's, max|difference| / max|reference|."""
    if work.measuring.skip_verification:
        return SWITCHED_OFF
    if work.model_name != BUILT_IN_ONNX_MODEL or model.extents.batch * model.extents.sequence > MAX_TOKEN_COUNT:
        return NOT_VERIFIED
    reference = ReferenceEvaluator(str(model.file.path))
    expected = cast(list[Array], reference.run(None, dict(feeds)))
    found = session.run(feeds)
    names = reference.output_names
    return compare(dict(zip(names, found, strict=True)), dict(zip(names, expected, strict=True)), RELATIVE_TOLERANCE)
