"""The bridge between the asyncio thread and the Raft thread.

The hub takes the member's outputs into the event loop, one wake-up for all outputs of a step, and passes each to its
part: sessions (raft_thread.py), answers to requests (member_requests.py), the published catalog (catalog_view.py) and
the state that the member publishes (published_state.py). It never touches the member. Commands that belong to no
client's session use the node's own (own_session.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from quorum.api.hub.catalog_view import CatalogView
from quorum.api.hub.decision_worker import DecisionWorker
from quorum.api.hub.deliveries import BodyReader
from quorum.api.hub.filters import Filters
from quorum.api.hub.member_requests import MemberRequests
from quorum.api.hub.own_session import OwnSession
from quorum.api.hub.published_state import PublishedState
from quorum.api.hub.raft_thread import OpenSessions, RaftInputs, RaftThread
from quorum.api.hub.reading import Workers
from quorum.api.security.access import Access
from quorum.api.shares import ByteWindow, DeliveryWindow, PlacesWindow, PublishWindow
from quorum.api.turns import Turns
from quorum.log import Log
from quorum.node import events as ev
from quorum.node.driver import boottime_s
from quorum.node.wire.batches import BatchLimits

MOST_PLACES = 16_384
"""Queues in which a group has to place batches of several queues, each besides the first one."""
MAX_WAITING_BYTES = 512 << 20
"""Approximate memory of all deliveries that wait for clients, without their bodies: some 3 million ranges of messages.
One address may have half of it."""
_OF_A_SESSION = (ev.Answered, ev.Delivered, ev.Notified, ev.Ended)


class Hub:
    """One per member. Everything but `on_outputs` is called on the event loop."""

    def __init__(
        self,
        node: str,
        log: Log,
        limits: BatchLimits,
        session_window: int,
        node_window: int,
        access: Access | None = None,
        *,
        clock_s: Callable[[], float] = boottime_s,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """node: the id of this node's member. access: None: without a configured administrator.
        clock_s: the member's clock, as its driver reads it."""
        self.node = node
        self.random_bytes = random_bytes
        self.limits = limits
        self.session_window = session_window
        self.loop = asyncio.get_running_loop()
        self.workers = Workers()
        self.turns = Turns()
        self.filters = Filters(self.turns)
        self.reader = BodyReader(log, workers=self.workers)
        self._log = log
        self.received = ByteWindow(node_window, max_waiting=node_window)
        """requests that services have in hand, by the client's address"""
        self.placing = PlacesWindow(MOST_PLACES)
        self.publishing = PublishWindow(node_window)
        self.delivering = DeliveryWindow(MAX_WAITING_BYTES)
        self.catalog = CatalogView()
        self.access = access or Access()
        self.catalog.on_users = self.access.users_changed
        self.published = PublishedState(clock_s)
        inputs = self._inputs = RaftInputs()
        self.sessions = OpenSessions(inputs)
        self.client_sessions: set[int] = set()
        """numbers of the sessions that clients have open; the others are this node's own"""
        self.requests = MemberRequests(inputs, self.catalog)
        self.access.catch_up = self.requests.current_catalog
        self.own_session = OwnSession(
            inputs, self.sessions, self.requests, self.catalog, self.published, self.publishing, random_bytes
        )
        self.decisions = DecisionWorker(self.own_session)
        self._takers: dict[type, Callable[[Any], object]] = {
            ev.Answered: self.sessions.answered,
            ev.Delivered: self.sessions.delivered,
            ev.Notified: self.sessions.notified,
            ev.Ended: self.sessions.ended,
            ev.LeaseGranted: self.published.lease_granted,
            ev.LeaseLapsed: self._lease_lapsed,
            ev.DisksLow: self.published.disks_low,
            ev.StandingChanged: self.published.standing_changed,
            ev.VersionChanged: self.published.version_changed,
            ev.CatalogChanged: self.catalog.apply,
            ev.MessagesDied: self.published.messages_died,
            ev.QueueDeleted: lambda output: self.catalog.queue_deleted(output.queue),
            ev.QueryResult: self.requests.take_result,
            ev.DecisionsDue: self.decisions.take,
        }

    def attach(self, raft_thread: RaftThread) -> None:
        """Begin: inputs go to this thread from now on."""
        self._inputs.attach(raft_thread)
        self.own_session.open()

    def submit(self, *items: ev.Input) -> None:
        self._inputs.submit(*items)

    def submit_soon(self, item: ev.Input) -> None:
        """See RaftInputs.submit_soon."""
        self._inputs.submit_soon(item)

    # ---- outputs

    def on_outputs(self, outputs: list[ev.Output]) -> None:
        """On the Raft thread."""
        self.loop.call_soon_threadsafe(self._dispatch, outputs)

    def _dispatch(self, outputs: Iterable[ev.Output]) -> None:
        for output in outputs:
            number = output.session if isinstance(output, _OF_A_SESSION) else None
            if number is not None and number not in self.sessions:
                continue  # it has ended here
            try:
                self._takers[type(output)](output)
            except Exception as error:
                # a defect; the other outputs of the step must not be lost with it
                structlog.get_logger().critical(
                    "an output was not taken", output=repr(output)[:500], exc_info=error
                )
                if number is not None:
                    self.sessions.fail(number)

    def _lease_lapsed(self, output: ev.LeaseLapsed) -> None:
        self.published.lease_lapsed(output)
        self.sessions.end_consumers({output.group})

    # ---- the end of sessions

    def check_leases(self) -> None:
        """End the sessions with consumers that this node may no longer deliver to, so that they find a node that may.
        The member says the same in time; this is for a Raft thread that is stuck."""
        groups = self.catalog.queue_groups
        lapsed = {group for group in groups if not self.published.may_deliver(group)}
        if lapsed:
            self.sessions.end_consumers(lapsed)

    def leave(self, reason: str) -> None:
        """End all sessions, and the calls that wait: another node can serve them and this one cannot."""
        for session in self.sessions.all():
            if session is not self.own_session:
                session.ended(reason)
        if self.own_session.is_waiting:
            self.own_session.ended(reason)

    async def stop(self) -> None:
        for session in self.sessions.all():
            session.ended("stopping")

    def body_reader(self, cached_bytes: int = 0) -> BodyReader:
        """A reader for a thread of its own. cached_bytes: size of its own cache of batches."""
        return BodyReader(self._log, cached_bytes)
