"""Which blocks the pager keeps (quorum/node/maintenance/paging.py), over a machine with blocks of 8 messages."""

from __future__ import annotations

import pytest

from fifo.commands import Get
from fifo.limits import SMALL
from fifo.messages.blocks import Block
from fifo.persistence import snapshot
from quorum.log import LogFull
from quorum.node.maintenance import paging
from quorum.node.maintenance.paging import Pager
from support.fifo.world import World

TURN_MS = 100


class Node:
    """A pager, its one group, and time."""

    def __init__(self, target_bytes: int, **queue: object) -> None:
        self.world = World(SMALL)
        self.world.checks = False
        self.world.queue(**queue)
        self.name = self.world.session()
        self.pager = Pager(target_bytes)
        self.now_ms = 0

    def publish(self, count: int, rows: object = ()) -> None:
        self.world.publish(self.name, count, rows)  # type: ignore[arg-type]

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += TURN_MS
            self.pager.turn(self.now_ms, {1: self.world.machine})

    def take(self, count: int) -> None:
        self.world.do(self.name, Get(1, count, settled=True))

    @property
    def warm(self) -> list[int]:
        return [block.number for block in self.world.machine.queues[1].messages.blocks.warm()]

    @property
    def written(self) -> list[int]:
        blocks = self.world.machine.queues[1].messages.blocks
        return [block.number for block in blocks.values() if not isinstance(block, Block) or block.stored]


PLENTY = 1 << 40


def test_full_blocks_that_nobody_reads_are_written_while_there_is_time() -> None:
    node = Node(PLENTY)
    node.publish(41)
    assert node.written == []
    node.turns(1)
    assert node.written == [0, 1, 2, 3, 4]  # 5 is being filled
    assert node.warm == [0, 1, 2, 3, 4, 5]


def test_what_is_about_to_be_consumed_is_not_written() -> None:
    node = Node(PLENTY)
    node.publish(15)
    node.turns(1)
    for _ in range(30):  # 40 messages a second come, and go
        node.publish(4)
        node.take(4)
        node.turns(1)
    node.world.machine.memory.writes = 0
    for _ in range(100):
        node.publish(4)
        node.take(4)
        node.turns(1)
    assert node.world.machine.memory.writes == 0


def test_a_queue_in_memory_has_room_until_the_limit_then_the_farthest_go_first() -> None:
    node = Node(PLENTY)
    node.publish(81)
    node.turns(20)
    assert node.warm == list(range(11))
    node.pager.target_bytes = paging.PLAIN_PART * (node.world.machine.memory.warm_bytes * 2 // 3)
    node.turns(20)
    assert 4 < len(node.warm) < 10
    assert node.warm == [*range(len(node.warm) - 1), 10]  # from the head on, and the one that is being filled


def test_what_a_consumer_reaches_is_there_before_it_asks() -> None:
    node = Node(1)
    node.publish(400)
    node.turns(60)
    assert len(node.warm) <= 2
    loads_asked = 0
    for _ in range(60):
        before = node.world.machine.memory.loads
        node.take(3)
        loads_asked += node.world.machine.memory.loads - before
        node.turns(1)
    assert node.world.machine.memory.loads > 20
    assert loads_asked <= 5  # until the rate was known


def test_blocks_with_columns_stay_up_to_the_whole_target() -> None:
    node = Node(PLENTY, filter_enabled=True)
    for _ in range(10):
        node.publish(8, [{"application-properties.size": n} for n in range(8)])
    node.turns(5)
    warm_bytes = node.world.machine.memory.warm_bytes
    node.pager.target_bytes = 2 * warm_bytes  # far above an eighth
    node.turns(30)
    assert len(node.warm) == len(node.written) + 1
    node.pager.target_bytes = warm_bytes // 2
    node.turns(30)
    assert node.world.machine.memory.warm_bytes <= warm_bytes // 2
    assert 0 < len(node.warm) < len(node.written)


def test_blocks_that_a_scan_has_changed_leave_the_memory_at_the_price_of_their_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scan that finds a message in each block outdates all their pages. A page has no fields, and the summary of the
    fields is known: so many of them can be written in a turn."""
    node = Node(1, filter_enabled=True)
    for _ in range(10):
        node.publish(8, [{"application-properties.key": f"{n}" * 200} for n in range(8)])
    node.turns(60)
    assert len(node.warm) == 1
    node.world.attach(node.name, "c", 100, f"key = '{'3' * 200}'")
    node.world.wake_until_done()
    assert node.warm == list(range(11)) and node.written == [], "read for the scan, and changed by it"
    blocks = node.world.machine.queues[1].messages.blocks
    monkeypatch.setattr(paging, "BYTES_A_TURN", blocks.get(0).memory_bytes())
    node.now_ms += paging.PLAN_MS
    node.turns(1)
    assert len(node.warm) == 1


def test_a_lazy_queue_pages_at_once() -> None:
    node = Node(PLENTY, queue_mode="lazy")
    node.publish(81)
    node.turns(1)
    assert len(node.warm) == 1


def test_on_a_full_disk_everything_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(1)
    node.publish(81)

    def refuse(queue: int, block: int, data: bytes) -> int:
        raise LogFull("no room")

    monkeypatch.setattr(node.world.machine.memory.pages, "write", refuse)
    before = snapshot.encode(node.world.machine)
    node.turns(10)
    assert node.written == []
    assert snapshot.encode(node.world.machine) == before
    monkeypatch.undo()


def test_a_turn_is_bounded() -> None:
    node = Node(1)
    node.publish(2_000)
    machine = node.world.machine
    for _ in range(10):
        before = machine.memory.writes
        node.turns(1)
        assert machine.memory.writes - before <= paging.BLOCKS_A_TURN


def test_a_deleted_queue_leaves_nothing_behind() -> None:
    from fifo.commands import DeleteQueue

    node = Node(1)
    node.publish(81)
    node.turns(5)
    node.world.apply([(None, DeleteQueue(1))])
    node.turns(5)
    assert node.world.machine.memory.warm_bytes == 0
    assert not node.pager._paces


def test_what_is_known_of_a_queue_is_forgotten_when_an_installed_state_is_without_it() -> None:
    node = Node(PLENTY)
    node.publish(3)
    node.turns(1)
    assert list(node.pager._paces) == [(1, 1)]
    node.world.machine = node.world.empty()
    node.turns(1)
    assert not node.pager._paces
