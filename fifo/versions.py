"""Versions of the machines' behaviour.

A build of this software knows all versions up to CURRENT. A cluster uses the version that all its groups have switched
to. A group switches with a `SetVersion` entry in its log. The group's leader proposes this entry once every member
knows the version (quorum/node/cluster/version_switch.py).

Every Raft entry states the version with which its leader proposed it (`Meta.version`). `apply` handles the entry by the
rules of that version, so an old entry has the same result when it is applied again. If `apply` is changed so that it
does something else with the same state and input, this needs a new version. The code for the old version stays as long
as there may be logs with entries of that version.

| version | since then |
|---|---|
| 1 | the first release |
| 2 | producers are forgotten at once or after some time, never to make room for others |
| 2 | above a limit, or above an owner's share of it, a group refuses new producers |
| 2 | a group takes a producer's messages only in ascending order |
| 2 | the catalog checks what a new member says of itself |
| 2 | new queues and policies have at most 4 KiB of arguments |
| 2 | the last staged batch of a producer is forgotten after some time; above a limit, new producers are refused |
| 2 | the number of consumers of a queue is limited |
| 2 | a subscription that lost its messages because it was silent gets new ones only after it was told of the loss |
| 2 | the catalog has a running hash |
| 2 | the catalog keeps fences of sessions that have ended, and refuses commands that were made from an older state |
| 2 | the queues that an entry touches share its budgets, and an entry hands out a limited number of runs |
| 2 | one owner cannot take all of a queue's consumers, subscriptions, pins and producers of staged batches |
| 2 | an empty batch is not remembered if its producer is unknown and has nothing staged |
| 2 | a producer of staged batches can be forgotten on request; a publication can leave out what was staged too late |
| 2 | matching new messages to selectors has a budget, scans can stop inside a block, reading fields again costs steps |
| 2 | evaluating a message with long texts costs more steps, in proportion to their length |
| 2 | a full queue accepts those messages of an independent batch that fit |
| 2 | a batch may be for several queues; the ranges of accepted numbers that are remembered of a producer are limited |
| 2 | the ranges of accepted numbers of all producers of a group together are limited, and owners share them |
| 2 | the bytes of the selectors of all consumers of a group are limited, and owners share them |
| 2 | consumers have priorities |
| 2 | a queue may have a single active consumer |
| 2 | a queue may have a consumer timeout |
| 2 | a new queue has a delivery limit of 20, unless it is declared with another one |
| 2 | purged, returned and redelivered messages of a queue are counted |
| 2 | a queue may have limits on bytes and consumers, and may be deleted after a time without use |
| 2 | a queue may have priorities, and batches name those of their messages |
| 2 | a queue may have message groups, and batches name those of their messages |
| 2 | the catalog has exchanges and bindings |
| 2 | a session's publishes and settlements may be part of a transaction |
| 2 | a transaction may have parts in several groups |
| 2 | messages may be published with a delay, and a queue may delay those that are requeued |
| 2 | attach numbers, generations of subscriptions and numbers of pins are not used again by other queues |
| 2 | a queue may have a dead-letter target, and keeps its dead messages until the target has them |
| 2 | the catalog has users and their permissions |
| 2 | messages may be immediate: a group refuses those that no consumer can take at once |
| 3 | the runs of a delivery do not depend on how far a member has evaluated the selector |
| 3 | the catalog keeps which user has declared a queue, and limits the queues of a user |
"""

from __future__ import annotations

FIRST = 1
BUDGETED_ARRIVALS = 2
COUNTED_MOVES = 2
EXPIRING_QUEUES = 2
LIMITED_CONSUMERS = 2
LIMITED_DELIVERIES = 2
LIMITED_SELECTORS = 2
PRICED_TEXTS = 2
SHARED_BUDGETS = 2
SHARED_PLACES = 2
TIMED_BATCHES = 2
TOLD_LOSSES = 2
UNIQUE_NUMBERS = 2
EVALUATED_BLOCKS = 3
OWNED_QUEUES = 3
BASE = 2
"""The lowest version with which leaders propose. It needs no switch: a build that knows only lower versions cannot
connect to the other members (replication/network/handshake.py)."""
CURRENT = 3
"""The highest version that this build can apply. Release 0.2.0 has version 2; changes join version 3 until it is
released."""


class UnknownVersion(ValueError):
    """An entry or a state has a version that this build does not know. Only a newer build can apply it."""


def check_version(what: str, version: int, newest: int) -> None:
    """Raises UnknownVersion if a build that knows the versions up to `newest` does not know this one."""
    if not FIRST <= version <= newest:
        raise UnknownVersion(
            f"{what} is of machine version {version}; this build knows {FIRST} to {newest}: start a newer release"
        )
