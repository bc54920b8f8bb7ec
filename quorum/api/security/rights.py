"""What each call needs: one table for all methods of all services, by their names in the proto.

A need is a right for the cluster (monitor, administer), or rights for names of queues and exchanges. It is judged for
each request of a call, after the request is parsed and before its service sees it (access.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from quorum.catalog.users import User

CONFIGURE, WRITE, READ = "configure", "write", "read"
ALTERNATE, DEAD_LETTERS = "alternate-exchange", "x-dead-letter-exchange"
"""Arguments that name an exchange to which messages of a queue or exchange go."""
DEAD_LETTER_KEY = "x-dead-letter-routing-key"

Need = tuple[str, str]
"""(right, name). The rights for the cluster have an empty name."""
MONITOR: Need = ("monitor", "")
ADMINISTER: Need = ("administer", "")
Needs = Callable[[Any], Iterable[Need]]
"""What a request needs, all of it."""

ANY = "configure, write or read"
"""Any right for a name."""


def is_met(need: Need, user: User) -> bool:
    right, name = need
    if right == "administer":
        return user.administers
    if right == "monitor":
        return user.may_monitor
    if right == ANY:
        return user.may_monitor or any(user.may(each, name) for each in (CONFIGURE, WRITE, READ))
    return user.may(right, name)


def _nothing(request: Any) -> Iterable[Need]:
    return ()


def _monitor(request: Any) -> Iterable[Need]:
    return (MONITOR,)


def _administer(request: Any) -> Iterable[Need]:
    return (ADMINISTER,)


def _queue(*rights: str) -> Needs:
    """These rights for the request's queue."""

    def needs(request: Any) -> Iterable[Need]:
        return [(right, request.queue) for right in rights]

    return needs


def _declared_queue(request: Any) -> Iterator[Need]:
    yield CONFIGURE, request.queue
    yield from _target(request.queue, request, DEAD_LETTERS)


def _declared_exchange(request: Any) -> Iterator[Need]:
    yield CONFIGURE, request.exchange
    yield from _target(request.exchange, request, ALTERNATE)


def _target(own: str, request: Any, argument: str) -> Iterator[Need]:
    """Messages leave this queue or exchange for another exchange: its own users could not write there. The default
    exchange has no name: write for the queue that its key names. A key alone counts as one for the default exchange,
    because a policy may name that one."""
    arguments = request.arguments
    key = arguments[DEAD_LETTER_KEY].text if argument == DEAD_LETTERS and DEAD_LETTER_KEY in arguments else ""
    if argument in arguments or key:
        exchange = arguments[argument].text if argument in arguments else ""
        yield READ, own
        yield WRITE, exchange or key or own


def _binding(request: Any) -> Iterator[Need]:
    binding = request.binding
    kind = binding.WhichOneof("destination")
    if binding.id or kind is None:  # the id counts, and not the names beside it
        yield ADMINISTER
        return
    yield READ, binding.source
    yield WRITE, getattr(binding, kind)


def published(request: Any) -> Iterable[Need]:
    """A batch needs write for its exchange; for the default exchange, which has no name, write for the queues."""
    if request.exchange:
        return ((WRITE, request.exchange),)
    if request.routing_keys:
        return [(WRITE, key) for key in dict.fromkeys(request.routing_keys)]
    return ((WRITE, request.routing_key),)


def _staged(request: Any) -> Iterable[Need]:
    """Only the first request of a call names the queue."""
    return ((WRITE, request.queue),) if request.queue else ()


BY_METHOD: dict[str, Needs] = {
    "Queue/Session": _nothing,  # services/session_service.py judges its requests
    "Queue/Publish": _queue(WRITE),
    "Queue/Get": _queue(READ),
    "Queue/FindLeader": _queue(ANY),
    "Queue/Browse": _queue(READ),
    "Bulk/OpenSubscription": _queue(READ),
    "Bulk/Reserve": _queue(READ),
    "Bulk/DescribeReservations": _queue(READ),
    "Bulk/ReadReserved": _queue(READ),
    "Bulk/Settle": _queue(READ),
    "Bulk/KeepAlive": _queue(READ),
    "Bulk/ReleaseSubscription": _queue(READ),
    "Bulk/DeleteSubscription": _queue(READ),
    "Bulk/ListSubscriptions": _queue(ANY),
    "Bulk/OpenView": _queue(READ),
    "Bulk/Browse": _queue(READ),
    "Bulk/CloseView": _queue(READ),
    "Bulk/Stage": _staged,
    "Bulk/Publish": _queue(WRITE),
    "Bulk/Discard": _queue(WRITE),
    "Bulk/QueueInfo": _queue(ANY),
    "Admin/DeclareQueue": _declared_queue,
    "Admin/DeleteQueue": _queue(CONFIGURE),
    "Admin/PurgeQueue": _queue(READ),
    "Admin/ListQueues": _monitor,
    "Admin/DescribeQueue": _queue(ANY),
    "Admin/SetPolicy": _administer,
    "Admin/DeletePolicy": _administer,
    "Admin/ListPolicies": _monitor,
    "Admin/DeclareExchange": _declared_exchange,
    "Admin/DeleteExchange": lambda request: ((CONFIGURE, request.exchange),),
    "Admin/ListExchanges": _monitor,
    "Admin/AddBinding": _binding,
    "Admin/RemoveBinding": _binding,
    "Admin/ListBindings": _monitor,
    "Admin/ExportDefinitions": _monitor,
    "Admin/ImportDefinitions": _administer,
    "Admin/ListTransactions": _monitor,
    "Admin/ResolveTransaction": _administer,
    "Admin/ClusterStatus": _monitor,
    "Admin/AddMember": _administer,
    "Admin/RemoveMember": _administer,
    "Admin/DrainMember": _administer,
    "Admin/TransferLeadership": _administer,
    "Admin/RebalanceLeaders": _administer,
    "Admin/SetLeaseTimes": _administer,
    "Admin/SetUser": _administer,
    "Admin/SetPermissions": _administer,
    "Admin/DeleteUser": _administer,
    "Admin/ListUsers": _administer,
    "ServerReflection/ServerReflectionInfo": _nothing,
}
"""By method: the needs of a request, from a user who has logged in."""
OPEN = ("Health/Check", "Health/Watch", "Health/List")
"""Methods that need no log-in."""
AUDITED = frozenset(
    {
        "Admin/DeclareQueue",
        "Admin/DeleteQueue",
        "Admin/PurgeQueue",
        "Admin/SetPolicy",
        "Admin/DeletePolicy",
        "Admin/DeclareExchange",
        "Admin/DeleteExchange",
        "Admin/AddBinding",
        "Admin/RemoveBinding",
        "Admin/ImportDefinitions",
        "Admin/ResolveTransaction",
        "Admin/AddMember",
        "Admin/RemoveMember",
        "Admin/DrainMember",
        "Admin/TransferLeadership",
        "Admin/RebalanceLeaders",
        "Admin/SetLeaseTimes",
        "Admin/SetUser",
        "Admin/SetPermissions",
        "Admin/DeleteUser",
        "Bulk/DeleteSubscription",
    }
)
"""Methods whose requests are written to the log, with who made them."""
