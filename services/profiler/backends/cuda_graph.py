"""Launches of one kernel as a CUDA graph: one call starts them all, and the device goes from one to the next by itself."""

from __future__ import annotations

from collections.abc import Callable

from services.profiler.backends.cuda_library import CudaLibrary


class LaunchGraph:
    """`launch_count` launches, one after the other.

    Args:
        stream: handle of the stream on which `enqueue` puts one launch.
    """

    def __init__(self, library: CudaLibrary, stream: int, enqueue: Callable[[], None], launch_count: int) -> None:
        self._library = library
        self._stream = stream
        self.launch_count = launch_count
        self.was_launched = False
        with library.capturing(stream) as graph:
            for _ in range(launch_count):
                enqueue()
        self._instance = library.instantiate(graph)
        library.upload_graph(self._instance, stream)  # else the first launch would

    def enqueue(self) -> None:
        self._library.launch_graph(self._instance, self._stream)
        self.was_launched = True

    def close(self) -> None:
        self._library.destroy_graph(self._instance)
