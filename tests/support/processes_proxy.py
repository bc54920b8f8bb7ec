"""TCP between real processes, with links that can be cut: nothing passes, in one direction or in both, and what was on
its way arrives after the link is mended, or its connection is gone.

A proxy's address stands for one way to somebody: (dialer, listener). Connections live on a thread of their own, so
that they pass while the test waits for something else.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

HOST = "127.0.0.1"
READ_BYTES = 64 << 10
CALL_LIMIT_S = 30.0
CLOSE_POLL_S = 0.01

Way = tuple[str, str]
T = TypeVar("T")


@dataclass(eq=False)
class Pipe:
    """One connection through a proxy."""

    ways: tuple[Way, Way]
    transports: list[asyncio.WriteTransport] = field(default_factory=list)

    def abort(self) -> None:
        for transport in self.transports:
            transport.abort()


class Proxies:
    """All proxies of a test."""

    def __init__(self) -> None:
        self.passed_bytes = 0
        self.held_up = 0
        """Pieces that met a blocked way."""
        self.cut_connections = 0
        self._blocked: frozenset[Way] = frozenset()
        self._changed = asyncio.Event()
        self._pipes: set[Pipe] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def address(self, dialer: str, listener: str, target: str) -> str:
        """A new proxy for the dialer, to the listener at `target`."""
        return self._call(self._listen(dialer, listener, target))

    def block(self, ways: Iterable[Way]) -> None:
        """From now on nothing passes from the first to the second of each pair; every other way is open."""
        self._call(self._set(frozenset(ways)))

    def isolate(self, *sets: Iterable[str]) -> None:
        """Nothing passes between any two of these sets of names, in either direction."""
        parts = [tuple(each) for each in sets]
        self.block((one, other) for a in parts for b in parts if a is not b for one in a for other in b)

    def mend(self, chance: random.Random) -> None:
        """All passes again; of the connections that were held up, some by chance are gone instead."""
        self._call(self._abort(chance, 0.5, only_blocked=True))
        self.block(())

    def cut_some(self, chance: random.Random, share: float) -> int:
        """Resets about this share of the connections; how many."""
        return self._call(self._abort(chance, share, only_blocked=False))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_LIMIT_S)
        self._loop.close()

    # ---- on the thread

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_LIMIT_S)

    async def _listen(self, dialer: str, listener: str, target: str) -> str:
        host, _, port = target.rpartition(":")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            pipe = Pipe(((dialer, listener), (listener, dialer)), [writer.transport])
            self._pipes.add(pipe)
            try:
                await self._serve(pipe, reader, writer, (host, int(port)))
            except OSError:
                pass  # one end is gone: so is the other
            finally:
                pipe.abort()
                self._pipes.discard(pipe)

        server = await asyncio.start_server(serve, HOST, 0, limit=READ_BYTES)
        self._servers.append(server)
        return f"{HOST}:{server.sockets[0].getsockname()[1]}"

    async def _serve(
        self,
        pipe: Pipe,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: tuple[str, int],
    ) -> None:
        there, back = pipe.ways
        await self._open(there)
        other_reader, other_writer = await asyncio.open_connection(*target, limit=READ_BYTES)
        pipe.transports.append(other_writer.transport)
        pumps = [
            asyncio.create_task(self._pump(reader, other_writer, there)),
            asyncio.create_task(self._pump(other_reader, writer, back)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        while data := await reader.read(READ_BYTES):
            await self._open(way)
            self.passed_bytes += len(data)
            writer.write(data)
            await writer.drain()
        await self._open(way)

    async def _open(self, way: Way) -> None:
        self.held_up += way in self._blocked
        while way in self._blocked:
            await self._changed.wait()

    async def _set(self, blocked: frozenset[Way]) -> None:
        self._blocked = blocked
        self._changed.set()
        self._changed = asyncio.Event()

    async def _abort(self, chance: random.Random, share: float, *, only_blocked: bool) -> int:
        count = 0
        for pipe in list(self._pipes):
            if (not only_blocked or not self._blocked.isdisjoint(pipe.ways)) and chance.random() < share:
                pipe.abort()
                count += 1
        self.cut_connections += count
        return count

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._set(frozenset())
        # Not by cancelling: a task that never began would leave its connection to nobody.
        while len(asyncio.all_tasks()) > 1:
            for pipe in list(self._pipes):
                pipe.abort()
            await asyncio.sleep(CLOSE_POLL_S)
        await asyncio.sleep(0)  # transports hear that they are gone on the loop's next turn
