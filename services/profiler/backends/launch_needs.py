"""Launch requirements that a kernel's PTX states: all of its blocks at once, or in clusters of blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from services.core.errors import LaunchLimitError, UnsupportedConstructError
from services.core.model import Dim3
from services.profiler.backends.base import LaunchConfiguration

FUNCTION: Final = re.compile(r"^[^\n;{]*\.(entry|func)\b", re.MULTILINE)
ENTRY_NAME: Final = re.compile(r"\.entry\s+([\w$]+)")
GRID_HANDLE: Final = re.compile(r"%envreg[12]\b")  # where grid.sync() of cooperative groups finds what its blocks share
CLUSTER_USE: Final = re.compile(r"%cluster|\bbarrier\.cluster\b|\bmapa\b")
CLUSTER_SIZE: Final = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")

MAX_CLUSTER_BLOCK_COUNT: Final = 8  # that every device with clusters takes; more have to be allowed kernel by kernel


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """Needs of a launch. is_cooperative: its blocks wait for each other. cluster: the blocks of one, if the kernel declares them."""

    is_cooperative: bool = False
    uses_clusters: bool = False
    cluster: Dim3 | None = None


NOTHING_SPECIAL: Final = LaunchNeeds()


def read_needs(ptx: str, entry: str | None) -> LaunchNeeds:
    """Return what a launch of the entry needs, by its own text and that of the functions that it may call.

    Args:
        entry: the kernel's name in machine code. None: not known, and then only a kernel alone in its file is.
    """
    starts = [found.start() for found in FUNCTION.finditer(ptx)]
    entries: dict[str, str] = {}
    functions = ""
    for start, end in pairwise([*starts, len(ptx)]):
        text = ptx[start:end]
        name = ENTRY_NAME.search(text.partition("\n")[0])
        if name is None:
            functions += text
        else:
            entries[name[1]] = text
    own = entries.get(entry) if entry is not None else next(iter(entries.values())) if len(entries) == 1 else None
    if own is None:
        return NOTHING_SPECIAL
    size = CLUSTER_SIZE.search(own)
    return LaunchNeeds(
        is_cooperative=GRID_HANDLE.search(own + functions) is not None,
        uses_clusters=CLUSTER_USE.search(own + functions) is not None,
        cluster=None if size is None else Dim3(*(int(extent or 1) for extent in size.groups())),
    )


def check_needs(needs: LaunchNeeds, kernel_name: str, configuration: LaunchConfiguration, *, is_cooperation_possible: bool) -> None:
    """Refuse a launch that would not be what the kernel is written for.

    Raises:
        UnsupportedConstructError: blocks that wait for each other, where the backend knows ordinary launches alone; clusters
            whose size an attribute of the launch would have to tell, or that not every device takes.
        LaunchLimitError: a grid that is not made of whole clusters.
    """
    subject = f"launch of {kernel_name}"
    if needs.is_cooperative and not is_cooperation_possible:
        raise UnsupportedConstructError(
            subject,
            found="blocks that wait for each other (grid.sync() of cooperative groups)",
            expected="a backend that launches all blocks at once",
            remedy="Use --backend nvcc.",
        )
    if needs.cluster is None:
        if needs.uses_clusters:
            raise UnsupportedConstructError(
                subject,
                found="a thread block cluster without a size, which is left to an attribute of the launch",
                expected="the size in the source",
                remedy="Put __cluster_dims__(x, y, z) on the kernel; (1, 1, 1) is what it has without the attribute.",
            )
        return
    cluster, grid = needs.cluster, configuration.grid
    if cluster.count > MAX_CLUSTER_BLOCK_COUNT:
        raise UnsupportedConstructError(
            subject,
            found=f"clusters of {cluster.count} blocks",
            expected=f"at most {MAX_CLUSTER_BLOCK_COUNT}, which every device with clusters takes",
            remedy="Choose a smaller __cluster_dims__.",
        )
    if grid.x % cluster.x or grid.y % cluster.y or grid.z % cluster.z:
        raise LaunchLimitError(
            subject,
            found=f"grid {grid}",
            expected=f"multiples of its clusters of {cluster} blocks",
            remedy="Choose parameters, or a grid expression, that fill whole clusters.",
        )
