"""Found by seeded chaos: a queue whose removal overtook its creation stayed in its group for ever."""

from __future__ import annotations

from fifo.commands import CreateQueue, QueueConfig
from support.members.cluster import Cluster


def test_a_queue_that_the_catalog_no_longer_has_is_deleted_when_its_creation_arrives_late() -> None:
    cluster = Cluster()
    cluster.ready()
    places = [cluster.declare(f"q{number}") for number in range(3)]
    group = places[0][0]
    elsewhere = next(queue for other, queue in places if other != group)
    leader = cluster.leader(group)
    assert leader is not None
    cluster.run(1_000)  # everything is carried out, nothing is left to look at
    cluster.members[leader].replicas[group].propose_internal(CreateQueue(elsewhere, QueueConfig("late")))
    machine = cluster.members[leader].queue_machine(group)
    cluster.until(lambda: machine.was_deleted(elsewhere), "the late queue is deleted again", limit_ms=5_000)
    assert machine.queue_ids() == [queue for other, queue in places if other == group]
