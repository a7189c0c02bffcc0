"""What is read of an event of a Kineto trace: which members, as what, and which events are kept."""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final

from services.analyzer.readers.json_scan import NULL


class EventKind(IntEnum):
    """What an event is, by its category and name."""

    OTHER = 0  # not kept, unless it is one half of a pair
    KERNEL = auto()
    CALL = auto()
    OPERATOR = auto()
    ANNOTATION = auto()
    COPY = auto()
    SET = auto()
    FORWARD_LINK = auto()
    MODULE = auto()
    PROCESS_NAME = auto()


CATEGORIES: Final = {
    "kernel": EventKind.KERNEL,
    "Kernel": EventKind.KERNEL,  # names with capitals: until 2021
    "cuda_runtime": EventKind.CALL,  # of HIP too
    "cuda_driver": EventKind.CALL,
    "hip_runtime": EventKind.CALL,
    "hip_driver": EventKind.CALL,
    "Runtime": EventKind.CALL,
    "cpu_op": EventKind.OPERATOR,
    "Operator": EventKind.OPERATOR,
    "user_annotation": EventKind.ANNOTATION,
    "gpu_memcpy": EventKind.COPY,
    "Memcpy": EventKind.COPY,
    "gpu_memset": EventKind.SET,
    "Memset": EventKind.SET,
    "fwdbwd": EventKind.FORWARD_LINK,
    "forward_backward": EventKind.FORWARD_LINK,
}
OPTIMIZER_PREFIX: Final = "Optimizer."  # of annotations that PyTorch sets itself, such as Optimizer.step#AdamW.step
PROCESS_NAME: Final = "process_name"  # of a metadata event, whose argument "name" names the process
NEVER_MODULE: Final = (EventKind.KERNEL, EventKind.CALL, EventKind.FORWARD_LINK)
"""Whatever their names begin with."""


class Field(IntEnum):
    """A column of an event's row of int64."""

    PHASE = 0  # the letter's code
    KIND = auto()
    CATEGORY = auto()  # token
    NAME = auto()  # token
    PROCESS = auto()  # token
    THREAD = auto()  # token
    TIME_NS = auto()
    DURATION_NS = auto()
    FLOW_ID = auto()
    CORRELATION_ID = auto()
    EXTERNAL_ID = auto()
    DEVICE_INDEX = auto()
    STREAM_INDEX = auto()
    BYTES = auto()
    REGISTERS = auto()
    SHARED_BYTES = auto()
    SEQUENCE_NUMBER = auto()
    FORWARD_THREAD = auto()
    GRAPH_NODE_ID = auto()
    INPUT_SHAPES = auto()  # token
    INPUT_DTYPES = auto()  # token
    INPUT_VALUES = auto()  # token
    FLOP = auto()  # token
    LABEL = auto()  # token: of a process its name, of a collective which it is
    COLLECTIVE_DTYPE = auto()  # token
    GRID_X = auto()
    GRID_Y = auto()
    GRID_Z = auto()
    BLOCK_X = auto()
    BLOCK_Y = auto()
    BLOCK_Z = auto()


FIELD_COUNT: Final = len(Field)


class ValueKind(IntEnum):
    """How the value of a member is read."""

    PHASE = 0  # a string of one letter
    TEXT = auto()  # a string, kept as token
    IDENTITY = auto()  # a string or a number, kept as token
    TIME = auto()  # decimal microseconds, to whole nanoseconds
    WHOLE = auto()  # a whole number, or a string of its digits; whatever else is null
    TOKEN = auto()  # anything but null, kept as token
    TRIPLE = auto()  # three whole numbers; whatever else is null
    ARGUMENTS = auto()  # the object of arguments


MEMBERS: Final[dict[str, tuple[Field, ValueKind]]] = {
    "ph": (Field.PHASE, ValueKind.PHASE),
    "cat": (Field.CATEGORY, ValueKind.TEXT),
    "name": (Field.NAME, ValueKind.TEXT),
    "pid": (Field.PROCESS, ValueKind.IDENTITY),
    "tid": (Field.THREAD, ValueKind.IDENTITY),
    "ts": (Field.TIME_NS, ValueKind.TIME),
    "dur": (Field.DURATION_NS, ValueKind.TIME),
    "id": (Field.FLOW_ID, ValueKind.WHOLE),
    "args": (Field.KIND, ValueKind.ARGUMENTS),
}
ARGUMENTS: Final[dict[str, tuple[Field, ValueKind]]] = {
    "correlation": (Field.CORRELATION_ID, ValueKind.WHOLE),
    "External id": (Field.EXTERNAL_ID, ValueKind.WHOLE),
    "external id": (Field.EXTERNAL_ID, ValueKind.WHOLE),
    "device": (Field.DEVICE_INDEX, ValueKind.WHOLE),
    "stream": (Field.STREAM_INDEX, ValueKind.WHOLE),
    "bytes": (Field.BYTES, ValueKind.WHOLE),
    "registers per thread": (Field.REGISTERS, ValueKind.WHOLE),
    "shared memory": (Field.SHARED_BYTES, ValueKind.WHOLE),
    "Sequence number": (Field.SEQUENCE_NUMBER, ValueKind.WHOLE),
    "Fwd thread id": (Field.FORWARD_THREAD, ValueKind.WHOLE),
    "graph node id": (Field.GRAPH_NODE_ID, ValueKind.WHOLE),
    "Input Dims": (Field.INPUT_SHAPES, ValueKind.TOKEN),
    "Input dims": (Field.INPUT_SHAPES, ValueKind.TOKEN),
    "Input type": (Field.INPUT_DTYPES, ValueKind.TOKEN),
    "Concrete Inputs": (Field.INPUT_VALUES, ValueKind.TOKEN),
    "flops": (Field.FLOP, ValueKind.TOKEN),
    "name": (Field.LABEL, ValueKind.TOKEN),
    "Collective name": (Field.LABEL, ValueKind.TOKEN),
    "dtype": (Field.COLLECTIVE_DTYPE, ValueKind.TOKEN),
    "grid": (Field.GRID_X, ValueKind.TRIPLE),
    "block": (Field.BLOCK_X, ValueKind.TRIPLE),
}
TOKEN_FIELDS: Final = tuple(
    field
    for field, kind in dict([*MEMBERS.values(), *ARGUMENTS.values()]).items()
    if kind in (ValueKind.TEXT, ValueKind.IDENTITY, ValueKind.TOKEN)
)

COMPLETE: Final = ord("X")
BEGIN: Final = ord("B")
END: Final = ord("E")
METADATA: Final = ord("M")
FLOW_START: Final = ord("s")
FLOW_END: Final = ord("f")


def is_kept(kind: int, phase: int, time_ns: int) -> bool:
    """Whether tables are made of an event: complete ones of known kinds, links, and halves of pairs, whatever they are of.

    Names of processes need no time.
    """
    if kind == EventKind.PROCESS_NAME:
        return True
    if time_ns == NULL:
        return False
    if phase in (BEGIN, END):
        return True
    return phase in (FLOW_START, FLOW_END) if kind == EventKind.FORWARD_LINK else phase == COMPLETE and kind != EventKind.OTHER
