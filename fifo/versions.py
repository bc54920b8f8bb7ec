"""Versions of the machines' behaviour.

A build knows the versions up to CURRENT. A cluster uses the one that its groups have switched to, by a `SetVersion` in
each group's log, which leaders propose once every member knows it (quorum/node/cluster/version_switch.py).

Every Raft entry states the version with which its leader proposed it (`Meta.version`). `apply` follows that version, so
an old entry replays as it was applied. A change of what `apply` does for the same state and input is therefore a new
version, and the old branch stays for as long as logs of that version may exist.

| version | since then |
|---|---|
| 1 | the first release |
| 2 | producers are forgotten at once or by time, never to make room; past a limit or a share new ones are refused |
| 2 | a group takes a producer's messages only in ascending order |
| 2 | the catalog checks what a new member says of itself |
| 2 | new queues and policies have at most 4 KiB of arguments |
| 2 | the last staged batch of a producer is forgotten by time; past a limit new producers are refused |
| 2 | the consumers of a queue are limited |
| 2 | a subscription that lost what it held by its silence reserves again only once it has been told |
| 2 | the catalog has a running hash |
| 2 | the catalog keeps fences of sessions that have ended, and refuses commands that were made from an older state |
| 2 | the queues of an entry share its budgets, and the runs that it hands out are limited |
| 2 | owners share the consumers, subscriptions, pins and producers of staged batches of a queue |
| 2 | an empty batch of a producer that has nothing staged and is not known is not remembered |
| 2 | looking up arrivals has a budget, scans stop within blocks, and reading fields again counts as steps |
| 2 | evaluating a message with long texts costs more steps, in proportion to their length |
"""

from __future__ import annotations

FIRST = 1
BUDGETED_ARRIVALS = 2
LIMITED_CONSUMERS = 2
PRICED_TEXTS = 2
SHARED_BUDGETS = 2
SHARED_PLACES = 2
TIMED_BATCHES = 2
TOLD_LOSSES = 2
BASE = 2
"""Leaders propose with this version at least. It needs no switch, because no build that knows less can speak to the
other members (replication/network/handshake.py)."""
CURRENT = 2
"""The highest version that this build can apply."""


class UnknownVersion(ValueError):
    """An entry or a state is of a version that this build does not know: it has to be applied by a newer build."""


def check_version(what: str, version: int, newest: int) -> None:
    """UnknownVersion unless a build that knows the versions up to `newest` can apply this one."""
    if not FIRST <= version <= newest:
        raise UnknownVersion(
            f"{what} is of machine version {version}; this build knows {FIRST} to {newest}: start a newer release"
        )
