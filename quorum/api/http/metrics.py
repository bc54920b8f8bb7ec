"""The figures of one member for Prometheus.

A queue's counts are equal on all members of its group, so only the member that leads the group exports them: sums over
the members of a cluster count every message once. `docs/metrics.md` lists all names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from fifo.results import QueueInfo
from quorum import __version__
from quorum.api.http.sums import EVENTS, STATES, Sum, infos
from quorum.api.hub.hub import Hub
from quorum.catalog.queues import CatalogQueue
from quorum.node import queries as q
from quorum.node.replica.replica import SYSTEM_GROUP

MOST_QUEUES = 10_000
"""Queues that one answer shows by name."""


class Families(Collector):
    """The metrics of one answer, as prometheus_client collects them."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def gauge(self, name: str, meaning: str, value: float, **labels: str) -> None:
        self._add(GaugeMetricFamily, name, meaning, value, labels)

    def counter(self, name: str, meaning: str, value: float, **labels: str) -> None:
        """name: without its `_total`."""
        self._add(CounterMetricFamily, name, meaning, value, labels)

    def _add(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        meaning: str,
        value: float,
        labels: dict[str, str],
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(name, meaning, labels=tuple(labels))
        family.add_metric(tuple(labels.values()), value)  # type: ignore[attr-defined]

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


class Metrics:
    """Makes one answer at a time, so that many scrapes cost no more than one after another."""

    def __init__(self, hub: Hub, certificate_ends: Mapping[str, Callable[[], int]]) -> None:
        """certificate_ends: the end of the certificate for each use, in Unix seconds; the functions may read files."""
        self._hub = hub
        self._certificate_ends = certificate_ends
        self._lock = asyncio.Lock()

    async def of_member(self) -> bytes:
        """This member, its groups, and the sums over the queues whose groups it leads."""
        async with self._lock:
            found = await self._hub.requests.query(q.DescribeCluster())
            families = Families()
            _add_member(families, found)
            families.gauge("quorum_sessions", "Open sessions of clients.", len(self._hub.client_sessions))
            led = _led(found)
            for group in found.groups:
                _add_group(families, group, is_led=group.group in led)
            await self._add_sums(families, led)
            for use, end in self._certificate_ends.items():
                families.gauge(
                    "quorum_certificate_end_timestamp_seconds",
                    "When the certificate ends that this member presents.",
                    await asyncio.to_thread(end),
                    use=use,
                )
        registry = _registry(families)
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    async def of_queues(self, prefix: str) -> bytes:
        """Each queue whose name begins so, and whose group this member leads: at most MOST_QUEUES, the first ones by
        name."""
        async with self._lock:
            families = Families()
            led = _led(await self._hub.requests.query(q.DescribeCluster()))
            found = sorted(
                (each for each in self._queues(led) if each.name.startswith(prefix)),
                key=lambda queue: queue.name,
            )
            async for queue, info in infos(self._hub, found[:MOST_QUEUES]):
                _add_queue(families, queue.name, info)
        return generate_latest(_registry(families))

    def _queues(self, groups: frozenset[int]) -> list[CatalogQueue]:
        return [each for each in self._hub.catalog.queues() if each.group in groups]

    async def _add_sums(self, families: Families, led: frozenset[int]) -> None:
        sums = {group: Sum() for group in sorted(led - {SYSTEM_GROUP})}
        async for queue, info in infos(self._hub, self._queues(led)):
            sums[queue.group].add(info)
        for group, found in sums.items():
            label = str(group)
            families.gauge(
                "quorum_queues", "Queues of a group that this member leads.", found.queues, group=label
            )
            families.gauge("quorum_consumers", "Consumers of these queues.", found.consumers, group=label)
            families.gauge(
                "quorum_ready_bytes", "Bytes of their ready messages.", found.ready_bytes, group=label
            )
            for state in STATES:
                families.gauge(
                    "quorum_messages",
                    "Their messages by state.",
                    found.states[state],
                    group=label,
                    state=state,
                )
            for event in EVENTS:
                families.counter(
                    "quorum_message_events",
                    "What has happened to their messages since the queues were declared.",
                    found.events[event],
                    group=label,
                    event=event,
                )
            families.gauge(
                "quorum_dead_letter_problems",
                "Queues whose dead letters their target does not take.",
                found.problems,
                group=label,
            )


def _registry(families: Families) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(families)
    return registry


def _led(found: q.ClusterStatus) -> frozenset[int]:
    """The groups that this member leads. Ids are compared: a member has the name of the one that it replaces."""
    return frozenset(each.group for each in found.groups if each.leader_id == found.id)


def _add_member(families: Families, found: q.ClusterStatus) -> None:
    families.gauge(
        "quorum_build_info",
        "The release of this member, and the machine version that it knows.",
        1,
        version=__version__,
        machine_version=str(found.known_version),
    )
    for standing in q.STANDINGS:
        families.gauge(
            "quorum_standing",
            "1 for what this member is to its cluster.",
            standing == found.standing,
            standing=standing,
        )
    for each in found.members:
        member = each.member
        if member.id != found.id:
            families.gauge(
                "quorum_member_reachable",
                "1 if this member has a connection to the other one.",
                each.is_reachable,
                member=member.id if member.replaces else member.name,
            )
        else:
            _add_disk(families, each)
    for event, count in found.peer_events:
        families.counter(
            "quorum_peer_events",
            "What has happened to the connections with other members.",
            count,
            event=event,
        )


def _add_disk(families: Families, member: q.MemberStatus) -> None:
    disk = member.disk
    if disk is None:
        return
    families.gauge("quorum_disk_free_bytes", "Room on the disk, beside the reserve.", disk.free_bytes)
    families.gauge("quorum_disk_limit_bytes", "Below it the disk is low.", disk.limit_bytes)
    families.gauge("quorum_disk_low", "1 if publishes are refused for lack of room.", disk.is_low)
    families.gauge("quorum_disk_full", "1 if the log takes no more entries.", disk.is_full)
    families.gauge(
        "quorum_disk_slow", "1 if another member should lead, because syncs take too long.", disk.is_slow
    )
    families.gauge(
        "quorum_disk_sync_p99_seconds", "99th percentile of the latest syncs.", disk.sync_p99_us / 1_000_000
    )


def _add_group(families: Families, found: q.GroupStatus, *, is_led: bool) -> None:
    group = str(found.group)
    for name, meaning, value in (
        ("has_leader", "1 if this member knows a leader of the Raft group.", bool(found.leader)),
        ("leads", "1 if this member leads the group.", is_led),
        ("term", "The group's Raft term.", found.term),
        (
            "commit_index",
            "Index of the last entry that is committed, as this member knows.",
            found.commit_index,
        ),
        ("applied_index", "Index of the last entry that this member has applied.", found.applied_index),
        ("unreadable_entries", "Damaged entries of this member that are not repaired yet.", found.unreadable),
        ("fetching_entries", "Entries whose bodies this member fetches from others.", found.fetching),
        (
            "quarantined",
            "1 if this member does not take part in the group, because of damage.",
            found.is_quarantined,
        ),
        ("disputed", "1 if the states of the members differ.", bool(found.disputed)),
    ):
        families.gauge(f"quorum_group_{name}", meaning, value, group=group)
    for each in found.progress:
        families.gauge(
            "quorum_group_behind_entries",
            "Entries of the leader's log that another member is not known to have. Only the leader exports it.",
            max(0, found.last_index - each.match_index),
            group=group,
            member=each.name,
        )
    families.counter(
        "quorum_group_repaired_entries", "Damaged entries that were repaired.", found.repaired, group=group
    )


def _add_queue(families: Families, name: str, info: QueueInfo) -> None:
    for state in STATES:
        families.gauge(
            "quorum_queue_messages",
            "The queue's messages by state.",
            getattr(info, state),
            queue=name,
            state=state,
        )
    families.gauge("quorum_queue_ready_bytes", "Bytes of its ready messages.", info.ready_bytes, queue=name)
    families.gauge("quorum_queue_consumers", "Its consumers.", info.consumers, queue=name)
    families.gauge(
        "quorum_queue_dead_letter_problem",
        "1 if the dead-letter target does not take its dead letters.",
        bool(info.dead_letter_problem),
        queue=name,
    )
    for event in EVENTS:
        families.counter(
            "quorum_queue_message_events",
            "What has happened to its messages since it was declared.",
            getattr(info.totals, event),
            queue=name,
            event=event,
        )
