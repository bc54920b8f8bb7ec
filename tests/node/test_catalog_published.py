"""The catalog as the API sees it: published by the Raft thread as changes (replica/catalog_publisher.py), put together
on the event loop (api/hub/catalog_view.py)."""

from __future__ import annotations

import pytest

from fifo import commands as c
from quorum.api.hub.catalog_view import CatalogView
from quorum.catalog.commands import DeclareQueue, RemovePolicy, RemoveQueue, SetPolicy
from quorum.catalog.exchanges import Bind, DeclareExchange, DeleteExchange
from quorum.catalog.machine import CatalogMachine
from quorum.catalog.users import RemoveUser, SetPermissions, SetUser
from quorum.node import events as ev
from quorum.node.errors import PageUnreadable
from quorum.node.replica.replica import SYSTEM_GROUP
from support.members.cluster import Cluster

TTL = (("x-message-ttl", 1_000),)


class Listener:
    """What one member publishes, and the view made of it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.view = CatalogView()
        self.changes: list[ev.CatalogChanged] = []
        self.recovery_messages: list[str] = []
        hear = cluster._hear

        def listen(at: str, output: ev.Output) -> None:
            hear(at, output)
            if at == name:
                self.hear(output)

        cluster._hear = listen  # type: ignore[method-assign]
        for output in cluster.members[name].published():
            self.hear(output)

    def hear(self, output: ev.Output) -> None:
        if isinstance(output, ev.CatalogChanged):
            self.changes.append(output)
            self.view.apply(output)
        elif isinstance(output, ev.QueueDeleted):
            self.view.queue_deleted(output.queue)
        elif isinstance(output, ev.StandingChanged):
            self.recovery_messages.append(output.standing)


def assert_equal(view: CatalogView, catalog: CatalogMachine) -> None:
    assert {queue.id: queue for queue in view.queues()} == {queue.id: queue for queue in catalog.queues()}
    assert view.policies.by_name == catalog.policies.by_name
    assert view.users.by_name == catalog.users.by_name
    assert (view.changes, view.removals, view.revision) == (
        catalog.changes,
        catalog.removals,
        catalog.revision,
    )
    assert view.queue_groups == catalog.queue_groups
    known = catalog.exchanges
    assert {each.name: each for each in view.routes.exchanges()} == known.by_name
    assert {each.id: each for each in view.routes.bindings()} == known.bindings
    assert view.routes.removals == known.removals
    for binding in known.bindings.values():
        assert view.routes.find(binding) == binding
        assert binding in view.routes.bindings_of("exchange", binding.source)
    for queue in catalog.queues():
        assert view.queue(queue.name) == queue
        assert view.effective(queue) == catalog.effective(queue)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.ready()
    return made


def test_a_view_follows_the_catalog_change_by_change(cluster: Cluster) -> None:
    listener = Listener(cluster, "n2")
    view, catalog = listener.view, cluster.members["n2"].catalog
    cluster.declare("one")
    cluster.declare("two")
    first = view.queue("one")
    assert first is not None
    for command in (
        SetPolicy("short", "*", 1, TTL),
        SetUser("ann", "secret", False, False),
        SetPermissions("ann", "", "orders.*", ""),
        SetUser("bob", "secret", True, False),
        RemoveUser("bob"),
        RemoveQueue("one"),
        DeclareQueue("one", ()),
        RemovePolicy("short"),
        DeclareQueue("one", TTL),
        DeclareExchange("routes", "topic", ()),
        Bind("routes", "queue", "one", "a.*"),
        Bind("amq.fanout", "exchange", "routes"),
        DeleteExchange("routes"),
        DeclareExchange("routes", "direct", ()),
        Bind("routes", "queue", "two", "k"),
        Bind("routes", "queue", "one", "k"),
        RemoveQueue("one"),
    ):
        cluster.administer(command)
        cluster.settle()
        assert_equal(view, catalog)
    assert view.routes.router.route("routes", "k").queues == ("two",)
    assert view.was_deleted(first)
    cluster.declare("one")
    again = view.queue("one")
    assert again is not None and again.id != first.id
    assert not view.was_deleted(again)
    assert listener.recovery_messages == ["member"]


def test_a_change_says_only_what_has_changed(cluster: Cluster) -> None:
    for number in range(20):
        cluster.administer(DeclareQueue(f"q{number}", ()))
    listener = Listener(cluster, "n2")
    listener.changes.clear()
    cluster.administer(DeclareQueue("new", ()))
    cluster.administer(RemoveQueue("q7"))
    for number in range(8, 20):
        cluster.administer(Bind("amq.topic", "queue", f"q{number}", "k"))
    cluster.settle()
    bindings = [each for change in listener.changes if change.routing for each in change.routing.bindings]
    assert len(bindings) == 12, "each is published once"
    named = [queue.name for change in listener.changes for queue in change.queues]
    assert named == ["new"]
    assert sum(len(change.removed) for change in listener.changes) == 1
    assert not any(change.is_whole or change.policies for change in listener.changes)


def test_steps_that_change_nothing_publish_nothing(cluster: Cluster) -> None:
    cluster.switched()
    listener = Listener(cluster, "n2")
    listener.changes.clear()
    cluster.run(1_000)
    assert listener.changes == []


def test_a_state_that_was_replaced_is_published_whole_and_nothing_before_it_is_here(
    cluster: Cluster,
) -> None:
    cluster.declare("one")
    listener = Listener(cluster, "n2")
    before = listener.view.queue("one")
    assert before is not None
    cluster.members["n2"].lose_state(PageUnreadable(SYSTEM_GROUP, 7, "rotten"))
    assert cluster.members["n2"].catalog.queue("one") is None
    listener.changes.clear()
    cluster.step("n2")
    assert listener.view.queue("one") == before, "what was seen does not go back"
    cluster.until(lambda: listener.changes != [], "it has another state")
    assert listener.changes[0].is_whole
    assert_equal(listener.view, cluster.members["n2"].catalog)


def test_nothing_is_published_while_entries_are_applied_that_were_published_before(cluster: Cluster) -> None:
    listener = Listener(cluster, "n2")
    listener.changes.clear()
    replica = cluster.members["n2"].replicas[SYSTEM_GROUP]
    replica.effects_dispatched_to = replica.raft.applied_index + 1_000
    cluster.administer(DeclareQueue("new", ()), at="n1")
    cluster.until(lambda: cluster.members["n2"].catalog.queue("new") is not None, "it is here")
    assert listener.changes == []
    replica.effects_dispatched_to = replica.raft.applied_index
    cluster.step("n2")
    assert [queue.name for change in listener.changes for queue in change.queues] == ["new"]


def test_a_listener_that_has_heard_nothing_is_told_everything(cluster: Cluster) -> None:
    cluster.declare("one")
    cluster.administer(SetPolicy("short", "*", 1, TTL))
    cluster.administer(SetUser("ann", "secret", False, False))
    cluster.settle()
    late = Listener(cluster, "n2")
    assert [change.is_whole for change in late.changes] == [True]
    assert_equal(late.view, cluster.members["n2"].catalog)


@pytest.mark.parametrize("has_listened", [True, False])
def test_a_queue_that_its_group_has_deleted_is_told_before_the_catalog_knows(
    cluster: Cluster, has_listened: bool
) -> None:
    group, number = cluster.declare("one")
    cluster.settle()
    listener = Listener(cluster, "n2")
    queue = listener.view.queue("one")
    assert queue is not None and not listener.view.was_deleted(queue)
    member = cluster.members["n2"]
    cluster.members[str(cluster.leader(group))].replicas[group].propose_internal(c.DeleteQueue(number))
    cluster.until(lambda: member.queue_machine(group).was_deleted(number), "its group has deleted it")
    assert member.catalog.queue("one") is not None
    if not has_listened:
        listener = Listener(cluster, "n2")
    assert listener.view.was_deleted(queue)


def test_a_member_that_starts_again_publishes_its_whole_catalog(cluster: Cluster) -> None:
    cluster.declare("one")
    cluster.crash("n2")
    cluster.start("n2")
    listener = Listener(cluster, "n2")
    listener.view = CatalogView()
    listener.changes.clear()
    cluster.ready()
    assert listener.changes[0].is_whole
    assert_equal(listener.view, cluster.members["n2"].catalog)


def test_a_queue_that_its_group_has_deleted_is_known_as_such_while_the_catalog_lags_behind() -> None:
    view = CatalogView()
    machine = CatalogMachine((1,))
    n = 0

    def apply(command: object) -> None:
        nonlocal n
        machine.apply(c.Meta(n + 1, 1, 1_000, 2), (c.Operation(0, c.Origin(bytes(16), 1, n), command),))  # type: ignore[arg-type]
        n += 1

    def publish(*removed: int) -> None:
        queues = tuple(queue for queue in machine.take_changes().values() if queue is not None)
        view.apply(ev.CatalogChanged(queues, removed, None, machine.next_queue_id, 0, 0, 0, (1,)))

    apply(c.RegisterProducer(c.Address(1, 1, 1)))
    apply(DeclareQueue("q", ()))
    publish()
    queue = view.queue("q")
    assert queue is not None and not view.was_deleted(queue)
    view.queue_deleted(queue.id)
    assert view.was_deleted(queue)
    publish(queue.id)
    assert view.queue("q") is None and view.was_deleted(queue)
    view.queue_deleted(queue.id)
    assert view._deleted == set(), "nothing is kept of queues that are gone from the catalog"
    view.queue_deleted(queue.id + 1)
    apply(DeclareQueue("later", ()))
    publish()
    later = view.queue("later")
    assert later is not None and view.was_deleted(later), "the group was ahead"
