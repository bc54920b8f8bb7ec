"""What changes at a member, as server-sent events for the page: the cluster's status, and what the query names."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from fifo.frozen_dataclasses import dataclass
from quorum.api.http.callers import NoPlace, Place, peer_of
from quorum.api.http.calls import CLUSTER, QUEUE, QUEUES, Call, request_of
from quorum.api.http.errors import NO_PLACE, REFUSALS, Aborted, failed, failed_with, status_of
from quorum.api.http.json_answer import NO_STORE
from quorum.api.http.json_codec import JsonError
from quorum.api.http.sums import AllQueues
from quorum.api.owners import CALLER
from quorum.api.shares import Shares
from quorum.api.status import Code, StatusError
from quorum.catalog.users import User

EVENT_S = 2.0
"""Interval between two events."""
PART_LIMIT_S = 2.0
"""Time limit for the parts of an event that may need a leader."""
MAX_LISTED = 100
"""Maximum number of queues in an event."""
EVENTS_LIMIT_S = 3_600.0
"""Time limit of a stream of events; its client then begins another one."""
PASSING = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.ABORTED)
"""Codes of errors that do not end a stream of events: its next event may be complete again."""

Admit = Callable[[str, Request, str], Awaitable[User | None]]
"""Authenticates the caller of a method: takes the method, the HTTP request and the peer, and returns the user (None if
no user is needed). Raises StatusError if the caller is refused."""
Ask = Callable[[Call, Any, User | None, str], Awaitable[dict[str, Any]]]
"""Makes a call on behalf of a user and a peer, and returns the answer. Raises Aborted or StatusError if the call
fails."""


class Events:
    """The streams of a member. places: of requests; a stream has one until it ends."""

    def __init__(self, places: Shares, all_queues: AllQueues, admit: Admit, ask: Ask) -> None:
        self._places = places
        self._all_queues = all_queues
        self._admit = admit
        self._ask = ask

    async def answer(self, request: Request) -> Response:
        peer = peer_of(request)
        try:
            place = Place(self._places, peer)
        except NoPlace:
            return failed(NO_PLACE)
        try:
            watched = _watched(request.query_params)
            user = await self._admit(CLUSTER.rpc, request, peer)
            place.pass_to(CALLER.get())
            first = await self._event(watched, user, peer)  # a refusal ends the request, and not its stream
        except NoPlace:
            return failed(NO_PLACE)
        except REFUSALS as error:
            place.leave()
            return failed_with(status_of(error))
        except BaseException:
            place.leave()
            raise

        async def stream() -> AsyncIterator[str]:
            end = time.monotonic() + EVENTS_LIMIT_S
            try:
                if request.method == "HEAD":
                    return  # its answer has no body, and its client waits for the end before the next request
                yield _line(first)
                await asyncio.sleep(EVENT_S)
                while time.monotonic() < end and not await request.is_disconnected():
                    user = await self._admit(CLUSTER.rpc, request, peer)
                    yield _line(await self._event(watched, user, peer))
                    await asyncio.sleep(EVENT_S)
            except (Aborted, StatusError):
                return  # it may not go on; the next stream is told why
            finally:
                place.leave()

        return StreamingResponse(stream(), media_type="text/event-stream", headers=NO_STORE)

    async def _event(self, watched: _Watched, user: User | None, peer: str) -> dict[str, Any]:
        """The cluster's status needs no leader. If the other parts get no answer in time, `problem` says so in their
        place."""
        event: dict[str, Any] = {"at_ms": time.monotonic_ns() // 1_000_000}
        event["cluster"] = await self._ask(CLUSTER, CLUSTER.request(), user, peer)
        try:
            async with asyncio.timeout(PART_LIMIT_S):
                for name, call, made in watched.calls:
                    event[name] = await self._ask(call, made, user, peer)
                if watched.has_totals:
                    event["totals"] = await self._all_queues.shown()
        except TimeoutError:
            event["problem"] = "The queues' Raft groups do not answer."
        except (Aborted, StatusError) as error:
            if error.status.code not in PASSING:
                raise
            event["problem"] = error.status.message
        return event


@dataclass(frozen=True, slots=True)
class _Watched:
    """What a stream of events shows beside the cluster. calls: with the name in the event."""

    calls: tuple[tuple[str, Call, Any], ...]
    has_totals: bool


def _watched(query: Any) -> _Watched:
    """JsonError."""
    allowed = ("queue", "totals", "queues", "prefix", "after")
    for name in query:
        if name not in allowed:
            raise JsonError(f"unknown query {name[:64]!r}; allowed: {', '.join(allowed)}")
    calls: list[tuple[str, Call, Any]] = []
    if name := query.get("queue", ""):
        calls.append(("queue", QUEUE, request_of(QUEUE, {"queue": name}, _Plain(), {})))
    if limit := query.get("queues", ""):
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_LISTED):
            raise JsonError(f"queues: wanted: a whole number from 1 to {MAX_LISTED}")
        listed = [("limit", limit), ("prefix", query.get("prefix", "")), ("after", query.get("after", ""))]
        calls.append(("queues", QUEUES, request_of(QUEUES, {}, _Plain(listed), {})))
    totals = query.get("totals", "false")
    if totals not in ("true", "false"):
        raise JsonError("totals: wanted: true or false")
    return _Watched(tuple(calls), totals == "true")


class _Plain(list[tuple[str, str]]):
    """A query."""

    def multi_items(self) -> list[tuple[str, str]]:
        return self


def _line(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"
