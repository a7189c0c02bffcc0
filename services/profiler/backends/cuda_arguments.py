"""Kernel arguments as the driver takes them, and the launch itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from services.profiler.backends.base import LaunchConfiguration

PackedArgument = int | np.generic
"""A device address, or a scalar of the parameter's own type."""


def pack_arguments(arguments: Sequence[PackedArgument]) -> bytes:
    """Return a buffer laid out as a C struct of the parameters: each argument at the next multiple of its own size."""
    packed = bytearray()
    for argument in arguments:
        data = argument.to_bytes(8, "little") if isinstance(argument, int) else argument.tobytes()
        packed += bytes(-len(packed) % len(data)) + data
    return bytes(packed)


def launcher(function: Any, configuration: LaunchConfiguration, packed: bytes, stream: Any) -> Callable[[], None]:
    """Return a call that puts one launch on the stream, with everything looked up beforehand.

    By the call on which PyCUDA's own launches end. These pack the arguments anew each time, know no 16-bit floats, and set
    the block in a further call that CUDA has deprecated: 5 us a launch instead of 1.

    Args:
        function, stream: of PyCUDA.
    """
    block, grid, shared_bytes = configuration.block, configuration.grid, configuration.dynamic_shared_memory_bytes
    launch, extents = function._launch_kernel, ((grid.x, grid.y, grid.z), (block.x, block.y, block.z))

    def enqueue() -> None:
        launch(*extents, packed, shared_bytes, stream)

    return enqueue
