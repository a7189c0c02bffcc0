"""What several pages make of the same rows, made once for all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar, cast

Made = TypeVar("Made")

REMEMBERED_COUNT: Final = 128
"""Pages of one run are a few updates apart at most, and an update makes about ten things."""


class MadeOnce:
    """The newest results by what they were made of. For one thread: that of the pages.

    Args:
        remembered_count: results kept; a few of what is made of all rows, else a long run would be held a hundred times over.
    """

    def __init__(self, remembered_count: int = REMEMBERED_COUNT) -> None:
        self._remembered_count = remembered_count
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """key: of everything that the result depends on. Nobody changes the result."""
        if key not in self._made:
            self._made[key] = make()
            if len(self._made) > self._remembered_count:
                self._made.popitem(last=False)
        return cast(Made, self._made[key])
