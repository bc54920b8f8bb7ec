"""The present selectors of a cluster's consumers and durable subscriptions, for `quorum pipeline selectivity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorum.client.bulk.client import BulkClient
from quorum.client.errors import NotFound
from quorum.spark.pipelines.selectivity import Asked
from quorum.sync import Client
from quorum_selectors import canonical, unparse
from quorum_selectors.known_fields import DEFAULT_FIELD_NAMES


@dataclass(frozen=True, slots=True)
class Present:
    """The present selectors of the queues' consumers and subscriptions, and the filter fields that the queues keep.
    absent: queues that the cluster does not have."""

    asked: tuple[Asked, ...]
    names: Mapping[str, tuple[str, ...]]
    absent: tuple[str, ...]


def of_cluster(client: Client, bulk: BulkClient, queues: Sequence[str]) -> Present:
    """Ask a cluster. Equal selectors of a queue are merged. QuorumError if no member answers."""
    users: dict[tuple[str, bytes], list[str]] = {}
    names: dict[str, tuple[str, ...]] = {}
    absent = []
    for queue in queues:
        try:
            found, subscriptions = client.describe(queue), bulk.subscriptions(queue)
        except NotFound:
            absent.append(queue)
            continue
        for consumer in found.consumers:
            if consumer.filter:
                users.setdefault((queue, consumer.filter), []).append(f"consumer {consumer.consumer_tag}")
        for subscription in subscriptions:
            if subscription.filter:
                users.setdefault((queue, subscription.filter), []).append(
                    f"subscription {subscription.subscription}"
                )
        names[queue] = _kept(found.queue.effective_arguments)
    asked = tuple(
        Asked(encoded, unparse.shown(canonical.decode(encoded)), queue, tuple(sorted(who)))
        for (queue, encoded), who in sorted(users.items())
    )
    return Present(asked, names, tuple(absent))


def _kept(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    if arguments.get("x-filter-enabled") is not True:
        return ()
    given = arguments.get("x-filter-field-names")
    return tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else DEFAULT_FIELD_NAMES
