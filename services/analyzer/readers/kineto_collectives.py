"""What PyTorch's profiler records of a collective beside its inputs: which it is, and of which data type.

The operator record_param_comms has its name as an input, which the profiler leaves out as it does all texts, and lists of tensors,
whose types it leaves out; both stand in further arguments. Here they are put where they belong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import polars as pl

from services.core.work.collectives import NAME_PLACE

TENSOR_LIST: Final = "TensorList"
DTYPES: Final = {
    "Float": "float",
    "Double": "double",
    "Half": "c10::Half",
    "BFloat16": "c10::BFloat16",
    "Float8_e4m3fn": "c10::Float8_e4m3fn",
    "Float8_e5m2": "c10::Float8_e5m2",
    "Long": "long int",
    "Int": "int",
    "Char": "signed char",
    "Byte": "unsigned char",
    "Bool": "bool",
}
"""As inputs' data types are recorded, by the name that is recorded of a collective."""


def with_names(input_values: pl.Series, collectives: pl.Series) -> pl.Series:
    """input_values: JSON. collectives: name of each row's collective; null: it is none."""
    return _put(input_values, collectives, NAME_PLACE, lambda recorded, name: name if recorded == "" else recorded)


def with_dtypes(input_dtypes: pl.Series, collectives: pl.Series, dtypes: pl.Series) -> pl.Series:
    """input_dtypes: JSON. A list of tensors gets the data type that all of it has."""
    known = dtypes.replace_strict(DTYPES, default=None, return_dtype=pl.String).set(collectives.is_null(), None)
    return _put(input_dtypes, known, 0, lambda recorded, dtype: dtype if recorded == TENSOR_LIST else recorded)


def _put(recorded: pl.Series, texts: pl.Series, place: int, chosen: Callable[[Any, str], Any]) -> pl.Series:
    """Where there is a text, it is put at this place of the list."""
    rows = (recorded.is_not_null() & texts.is_not_null()).arg_true()
    if rows.is_empty():
        return recorded
    found = []
    for text, put in zip(recorded.gather(rows), texts.gather(rows), strict=True):
        values = json.loads(text)
        if isinstance(values, list) and place < len(values):
            values[place] = chosen(values[place], put)
        found.append(json.dumps(values, separators=(",", ":")))
    return recorded.clone().scatter(rows, found)
