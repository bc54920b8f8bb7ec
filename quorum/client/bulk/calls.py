"""Blocking calls that are retried at another node: channels, deadlines, repeats. Any thread may use them."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import grpc

from quorum.client.connection.endpoints import DEFAULT_TIMEOUT_MS, Channels, parse_url
from quorum.client.connection.tls import problem_now
from quorum.client.errors import ClosedError, TimedOut, TlsError, UnavailableError, from_rpc_error
from quorum.v1 import bulk_pb2_grpc

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
MOST_PAUSE_S = 1.0


class BulkChannels:
    """Endpoints and the channels to them. A copy, also in another process, opens its own channels."""

    def __init__(self, url: str, timeout_ms: int | Callable[[], int] = DEFAULT_TIMEOUT_MS) -> None:
        self._url = url
        self._timeout_ms = timeout_ms
        self._service = parse_url(url)
        self._endpoints = self._service.endpoints
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._channels = Channels(self._service, self._service.open_blocking_channel)
        self._first = self._endpoints[0]
        """the endpoint that answered last"""
        self._is_closed = False
        self.has_answered = False
        """A node has answered, so TLS works."""

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._url, "timeout_ms": self._timeout_ms}

    def __setstate__(self, state: dict[str, Any]) -> None:
        BulkChannels.__init__(self, state["url"], state["timeout_ms"])

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            channels = self._channels.take_all()
        for channel in channels:
            channel.close()

    def _stub(self, endpoint: str) -> Any:
        if self._process != os.getpid():
            self._begin()  # after a fork the channels belong to the parent process
        with self._lock:
            if self._is_closed:
                raise ClosedError("the client has been closed")
            return bulk_pb2_grpc.BulkStub(self._channels.get(endpoint))

    def _in_turn(self, prefer: str) -> Sequence[str]:
        """Each endpoint once: the preferred one, the one that answered last, the others."""
        return tuple(dict.fromkeys((*((prefer,) if prefer else ()), self._first, *self._endpoints)))

    def tls_problem(self, endpoint: str) -> str:
        """What is certainly wrong about TLS with an endpoint; empty if nothing is."""
        found, is_certain = ("", False) if self.has_answered else problem_now(self._service, endpoint)
        return found if is_certain else ""

    def tries(self, doing: str, extra_ms: int = 0, prefer: str = "") -> Tries:
        timeout_ms = self._timeout_ms() if callable(self._timeout_ms) else self._timeout_ms
        return Tries(self, doing, timeout_ms + extra_ms, self._in_turn(prefer))

    def call(self, method: str, request: Any, doing: str, *, extra_ms: int = 0, prefer: str = "") -> Any:
        """Make a call that may be repeated. `request` may be a list of requests, for a stream. extra_ms: time that the
        service may wait before it answers. prefer: an address to try first."""
        tries = self.tries(doing, extra_ms, prefer)
        while True:
            with_node = tries.next(extra_ms)
            try:
                sent = iter(request) if isinstance(request, list) else request
                answer = getattr(with_node.stub, method)(sent, timeout=with_node.left_s)
            except grpc.RpcError as error:
                tries.failed(error)
            else:
                self.has_answered = True
                if not prefer:
                    self._first = with_node.endpoint
                return answer


class Node:
    """One try: the node to ask, and the time for it."""

    def __init__(self, endpoint: str, stub: Any, left_s: float) -> None:
        self.endpoint = endpoint
        self.stub = stub
        self.left_s = left_s


class Tries:
    """The tries of one call at one node after the other, until its deadline."""

    def __init__(self, channels: BulkChannels, doing: str, timeout_ms: int, endpoints: Sequence[str]) -> None:
        self._channels = channels
        self._doing = doing
        self._timeout_ms = timeout_ms
        self._deadline = time.monotonic() + timeout_ms / 1000
        self._endpoints = endpoints
        self._tried = 0
        self._problem: UnavailableError | None = None
        """the latest answer of a node"""
        self._tls_problems: dict[str, str] = {}
        self._share_s = timeout_ms / 1000 / len(endpoints)
        self._pause_s = FIRST_PAUSE_S

    def next(self, extra_ms: int | None = None) -> Node:
        """The node for the next try. extra_ms, for a call: time beyond its share of the timeout; the share keeps a
        silent node from using all of it. None, for a stream: the try has all the time that is left."""
        endpoint = self._endpoints[self._tried % len(self._endpoints)]
        left_s = self._deadline - time.monotonic()
        if extra_ms is not None:
            left_s = min(left_s, self._share_s + extra_ms / 1000)
        return Node(endpoint, self._channels._stub(endpoint), max(left_s, 0.001))

    def progressed(self) -> None:
        """Restart the deadline and the pause, because the stream delivered something."""
        self._deadline = time.monotonic() + self._timeout_ms / 1000
        self._pause_s = FIRST_PAUSE_S
        self._channels.has_answered = True

    def failed(self, error: grpc.RpcError) -> None:
        """Wait until the next try may begin. Raises the error if it is final or the deadline is too close."""
        problem = from_rpc_error(error, self._doing)
        if not isinstance(problem, UnavailableError):
            raise problem from None
        if not isinstance(problem, TimedOut):
            self._problem = problem
            if not problem.reason:
                self._look_at_tls()
        elif time.monotonic() + FIRST_PAUSE_S >= self._deadline:
            raise problem if self._problem is None else self._given_up(self._problem) from None
        self._tried += 1
        if self._tried % len(self._endpoints) == 0:  # every endpoint was tried
            pause = self._pause_s * random.uniform(0.5, 1.0)
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
            if time.monotonic() + pause >= self._deadline:
                raise self._given_up(problem) from None
            time.sleep(pause)

    def _look_at_tls(self) -> None:
        """Raise TlsError if TLS is certainly the cause at every endpoint."""
        endpoint = self._endpoints[self._tried % len(self._endpoints)]
        if found := self._channels.tls_problem(endpoint):
            self._tls_problems[endpoint] = found
            if len(self._tls_problems) == len(self._endpoints):
                raise TlsError(f"{self._doing}: {found}") from None
        else:
            self._tls_problems.pop(endpoint, None)

    def _given_up(self, problem: UnavailableError) -> TimedOut:
        return TimedOut(f"{problem}; no node was available for {self._timeout_ms} ms", reason=problem.reason)


def streamed(tries: Tries, begin: Callable[[Node], Any], take: Callable[[Any], T]) -> Iterator[T]:
    """Yield take(answer) for each answer of a stream. If the stream breaks, begin(node) starts the rest at another
    node; so `take` records the position."""
    while True:
        stream = begin(tries.next())
        has_come = False
        try:
            for answer in stream:
                tries.progressed()
                has_come = True
                yield take(answer)
                tries.progressed()  # the caller's own time does not count
        except grpc.RpcError as error:
            if not has_come or error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                tries.failed(error)
        else:
            return
        finally:
            stream.cancel()
