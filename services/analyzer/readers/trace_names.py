"""The names of a trace, each once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from services.analyzer.correlation import NONE, Coded, Indexes
from services.analyzer.readers.sqlite_file import TextColumn
from services.analyzer.table import INDEX, TEXT


class TraceNames:
    """Names by index, in order of first use. texts: those that the file refers to by id."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts
        self._indexes: dict[str, int] = {}

    def index_of(self, name: str) -> int:
        return self._indexes.setdefault(name, len(self._indexes))

    def of_codes(self, column: Coded) -> Indexes:
        """Indexes of texts that are referred to by id; NONE where there is none of that id."""
        found = [self._texts.get(key) for key in column.keys.tolist()]
        table = np.array([*(NONE if text is None else self.index_of(text) for text in found), NONE], dtype=np.int32)
        return table[column.codes]

    def of_texts(self, column: TextColumn) -> Indexes:
        table = np.array([*(self.index_of(text) for text in column.texts), NONE], dtype=np.int32)
        return table[column.codes]  # of null, -1, the last

    def frame(self) -> pl.DataFrame:
        """Rows of trace_names."""
        names = list(self._indexes)
        return pl.DataFrame({"name_index": pl.Series(range(len(names)), dtype=INDEX), "name": pl.Series(names, dtype=TEXT)})
