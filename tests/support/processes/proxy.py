"""TCP between real processes, with links that can be cut: nothing passes, in one direction or in both, and what was on
its way arrives after the link is mended, or its connection is gone.

A proxy's address stands for one way to somebody: (dialer, listener). Each connection has two threads, so that bytes
pass whatever the test waits for.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress

HOST = "127.0.0.1"
READ_BYTES = 64 << 10
CLOSE_LIMIT_S = 30.0
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing throws away what waits and resets the connection."""

Way = tuple[str, str]


class Pipe:
    """One connection through a proxy: there and back."""

    def __init__(self, there: Way, near: socket.socket, far: socket.socket) -> None:
        self.ways = (there, there[::-1])
        self.ends = (near, far)

    def abort(self) -> None:
        for end in self.ends:
            with suppress(OSError):  # it may be gone already
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)


class Proxies:
    """All proxies of a test."""

    def __init__(self) -> None:
        self.held_up = 0
        """Pieces that met a blocked way."""
        self.cut_connections = 0
        self._gate = threading.Condition()
        self._blocked: frozenset[Way] = frozenset()
        self._pipes: set[Pipe] = set()
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def address(self, dialer: str, listener: str, target: str) -> str:
        """A new proxy for the dialer, to the listener at `target`."""
        host, _, port = target.rpartition(":")
        server = socket.create_server((HOST, 0))
        self._listeners.append(server)
        self._start(self._accept, server, (dialer, listener), (host, int(port)))
        return f"{HOST}:{server.getsockname()[1]}"

    def block(self, ways: Iterable[Way]) -> None:
        """From now on nothing passes from the first to the second of each pair; every other way is open."""
        with self._gate:
            self._blocked = frozenset(ways)
            self._gate.notify_all()

    def isolate(self, *sets: Iterable[str]) -> None:
        """Nothing passes between any two of these sets of names, in either direction."""
        parts = [tuple(each) for each in sets]
        self.block((one, other) for a in parts for b in parts if a is not b for one in a for other in b)

    def repair(self, chance: random.Random) -> None:
        """All passes again; of the connections that were held up, some by chance are gone instead."""
        with self._gate:
            held_up = [pipe for pipe in self._pipes if not self._blocked.isdisjoint(pipe.ways)]
        self._abort(held_up, chance, 0.5)
        self.block(())

    def cut_some(self, chance: random.Random, share: float) -> int:
        """Resets about this share of the connections; how many."""
        with self._gate:
            pipes = list(self._pipes)
        return self._abort(pipes, chance, share)

    def close(self) -> None:
        with self._gate:
            self._is_closed = True
        for server in self._listeners:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes accept
            server.close()
        self.block(())
        with self._gate:
            pipes = list(self._pipes)
        for pipe in pipes:
            pipe.abort()
        for thread in list(self._threads):
            thread.join(CLOSE_LIMIT_S)
            assert not thread.is_alive(), f"{thread.name} does not end"

    # ---- on threads

    def _start(self, target: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name="proxy")  # type: ignore[arg-type]
        self._threads = [each for each in self._threads if each.is_alive() or each.ident is None]
        self._threads.append(thread)
        thread.start()
        return thread

    def _abort(self, pipes: list[Pipe], chance: random.Random, share: float) -> int:
        chosen = [pipe for pipe in pipes if chance.random() < share]
        for pipe in chosen:
            pipe.abort()
        self.cut_connections += len(chosen)
        return len(chosen)

    def _accept(self, server: socket.socket, there: Way, target: tuple[str, int]) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return  # closed
            self._start(self._serve, near, there, target)

    def _serve(self, near: socket.socket, there: Way, target: tuple[str, int]) -> None:
        self._pass(there)
        far = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with near, far:
            try:
                far.connect(target)
            except OSError:
                return  # nobody is there
            pipe = Pipe(there, near, far)
            with self._gate:
                if self._is_closed:
                    return
                self._pipes.add(pipe)
            for end in pipe.ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = self._start(self._pump, pipe, far, near, pipe.ways[1])
            self._pump(pipe, near, far, there)
            back.join()
            with self._gate:
                self._pipes.discard(pipe)

    def _pump(self, pipe: Pipe, source: socket.socket, sink: socket.socket, way: Way) -> None:
        """Until one end is gone; then the other one is, too."""
        with suppress(OSError):
            while data := source.recv(READ_BYTES):
                self._pass(way)
                sink.sendall(data)
            self._pass(way)
        for end in pipe.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass(self, way: Way) -> None:
        with self._gate:
            if way in self._blocked:
                self.held_up += 1
                self._gate.wait_for(lambda: way not in self._blocked)
