"""A TCP proxy between two services whose faults are switched while connections live."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

BLOCK_BYTES: Final = 65_536
THROTTLED_BLOCKS_PER_S: Final = 20


class FaultProxy:
    """Passes bytes on between clients of `address` and a target, "host:port", "http://host:port" or "unix:PATH".

    delay_s: before each block that is passed on. bytes_per_s: most that passes on each way; None: any number.
    cut_at: bytes in what the client sends at which the connection is cut. is_down: nothing is passed on, and all connections are cut.
    is_half_open: bytes are taken and lost and nothing is closed, as over a line behind which the other end has vanished; once it ends,
    connections that have lost bytes are cut, as by the end that knows nothing of them.

    Args:
        host: to listen on.
    """

    def __init__(self, target: str, host: str = "127.0.0.1") -> None:
        self._target = target.removeprefix("http://")
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self.endpoint = f"http://{self.address}"
        self.delay_s = 0.0
        self.bytes_per_s: int | None = None
        self.cut_at: bytes | None = None
        self.cut_count = 0
        self._is_down = self._is_half_open = False
        self._open: set[socket.socket] = set()
        self._losing: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def is_down(self) -> bool:
        return self._is_down

    @is_down.setter
    def is_down(self, value: bool) -> None:
        self._is_down = value
        if value:
            self.cut()

    @property
    def is_half_open(self) -> bool:
        return self._is_half_open

    @is_half_open.setter
    def is_half_open(self, value: bool) -> None:
        self._is_half_open = value
        for connection in () if value else list(self._losing):
            self._end(connection)

    def cut(self) -> None:
        """End all connections; new ones may come."""
        for connection in list(self._open):
            self._end(connection)

    def strand(self) -> None:
        """Have all connections lose what is sent from now on, and never end; new ones pass."""
        self._losing |= self._open

    def close(self) -> None:
        self.is_down = True
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_down:
                    client.close()
                    continue
                try:
                    server = self._connected()
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target, source is client), daemon=True).start()

    def _connected(self) -> socket.socket:
        if self._target.startswith("unix:"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self._target.removeprefix("unix:"))
            return connection
        host, _, port = self._target.rpartition(":")
        return socket.create_connection((host, int(port)))

    def _pass_on(self, source: socket.socket, target: socket.socket, is_from_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(self._block_bytes()):
                if is_from_client and self.cut_at is not None and self.cut_at in data:
                    self.cut_count += 1
                    break
                if self.bytes_per_s is not None:
                    time.sleep(len(data) / self.bytes_per_s)
                time.sleep(self.delay_s)
                if self._is_half_open:
                    self._losing |= {source, target}
                if source not in self._losing:
                    target.sendall(data)
        for connection in (source, target):
            self._end(connection)

    def _block_bytes(self) -> int:
        return BLOCK_BYTES if self.bytes_per_s is None else max(1, self.bytes_per_s // THROTTLED_BLOCKS_PER_S)

    def _end(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        self._losing.discard(connection)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    """A proxy that goes with the block."""
    proxy = FaultProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
