"""The table of a node's sessions: what leaves when, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fifo.commands import Address, CloseSession, Origin, Purge, Wake
from fifo.effects import Deliver, Done, Effect, Notify, Ok, QueueExpired, Refused
from quorum.node import events as ev
from quorum.node.sessions import session_table
from quorum.node.sessions.conversation import RESEND_AFTER_MS
from quorum.node.sessions.session_table import (
    LINK_BYTES,
    MOST_LINK_BYTES,
    RESEND_GAP_MS,
    SessionTable,
    _has_room,
)
from quorum.node.wire.operations import encode
from support.counted_lines import count_lines

P = bytes(15) + b"\x01"
"""the producer of session 1"""


@dataclass
class Routes:
    """One member leads all groups."""

    sent: list[tuple[int, int]] = field(default_factory=list)
    """(group, number of operations) of each frame"""
    operations: list[bytes] = field(default_factory=list)
    """those of the last frame"""
    leader: str | None = "n2"

    def link(self, group: int) -> str | None:
        return self.leader

    def send(self, group: int, operations: Sequence[bytes]) -> None:
        self.sent.append((group, len(operations)))
        self.operations = list(operations)

    def times(self) -> dict[int, int]:
        return {}


def table_with_sessions(routes: Routes, count: int) -> SessionTable:
    table = SessionTable(1, 1, routes, ev.Outputs())
    for number in range(1, count + 1):
        table.open(ev.OpenSession(number, number.to_bytes(16, "big"), 1), 0)
    return table


def test_what_a_step_brings_for_a_group_from_all_sessions_leaves_together() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 3)
    for number in (1, 2, 3, 1):
        table.submit(ev.Submit(number, 7, Wake(), None), 0)
    table.submit(ev.Submit(2, 8, Wake(), None), 0)
    table.send_submitted(0)
    assert routes.sent == [(7, 3 + 4), (8, 2)], "a registration for each session, and the operations"
    table.send_submitted(0)
    assert len(routes.sent) == 2


def test_what_was_submitted_before_a_session_ends_is_sent_as_it_is() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    table.submit(ev.Submit(1, 7, Wake(), None), 0)
    table.close(ev.EndSession(1), 0)
    assert routes.sent == [(7, 2)]
    table.send_submitted(0)
    assert routes.sent == [(7, 2), (7, 1)]


def test_only_sessions_with_operations_under_way_are_looked_at_for_resending() -> None:
    routes = Routes()
    idle, busy = 300, 3
    table = table_with_sessions(routes, idle + busy)
    for number in range(1, idle + busy + 1):
        table.submit(ev.Submit(number, 7, Wake(), None), 0)
    table.send_submitted(0)
    for number in range(1, idle + 1):
        for n in (0, 1):
            table.reply(7, Origin(number.to_bytes(16, "big"), 1, n), Ok(), 0)
    table.resend_overdue(7, 500)
    routes.sent.clear()
    assert count_lines(lambda: table.resend_overdue(7, 500)) < 30 * busy
    assert routes.sent == []
    table.resend_overdue(7, RESEND_AFTER_MS + 1)
    assert routes.sent == [(7, 2 * busy)]
    table.resend_overdue(7, RESEND_AFTER_MS + 2)
    assert len(routes.sent) == 1, "it was just sent again"


def submit(table: SessionTable, count: int, session: int = 1) -> None:
    """So many operations of a session, for group 7."""
    for _ in range(count):
        table.submit(ev.Submit(session, 7, Wake(), object()), 0)
    table.send_submitted(0)


def ended(table: SessionTable) -> list[tuple[int, str]]:
    return [(each.session, each.reason) for each in table._outputs.take() if isinstance(each, ev.Ended)]


def test_an_epoch_that_is_not_above_those_known_here_is_fenced_and_the_session_before_goes_on() -> None:
    table = table_with_sessions(Routes(), 0)
    table.open(ev.OpenSession(1, P, 2), 0)
    for number, epoch in ((2, 2), (3, 1)):
        table.open(ev.OpenSession(number, P, epoch), 0)
        assert ended(table) == [(number, "fenced")]
    submit(table, 1)
    assert list(table.by_number) == [1]
    table.open(ev.OpenSession(4, P, 3), 0)
    assert ended(table) == [(1, "fenced")]
    assert list(table.by_number) == [1, 4], "the group has yet to hear of the end of the first"
    table.close(ev.EndSession(4), 0)
    table.open(ev.OpenSession(5, P, 2), 0)
    assert ended(table) == [(5, "fenced")], "its numbers are still in use here"


def test_nothing_is_taken_from_a_session_that_has_ended() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 1)
    table.close(ev.EndSession(1), 0)
    table.send_submitted(0)
    before = list(routes.sent)
    for group, producer in ((9, P), (7, b"q" * 16)):
        table.reply(group, Origin(producer, 1, 0), Ok(), 0)
    for number in (1, 9):
        table.submit(ev.Submit(number, 7, Wake(), "token"), 0)
        table.withdraw(ev.Withdraw(number, 7, "token"), 0)
        table.close(ev.EndSession(number), 0)
    table.send_submitted(0)
    assert routes.sent == before


def test_an_answer_that_was_in_a_snapshot_ends_the_session() -> None:
    """It is not known here how the operations were answered."""
    table = table_with_sessions(Routes(), 1)
    submit(table, 2)
    table.reply(7, Origin(P, 1, 0), Ok(), 0)
    table.reply(7, Origin(P, 1, 0), Done(), 0)
    assert ended(table) == [], "a repeat"
    table.reply(7, Origin(P, 1, 2), Done(), 0)
    assert ended(table) == [(1, "resync")]
    table.reply(7, Origin(P, 1, 3), Ok(), 0)
    assert not table.by_number, "the group has heard of the end"


@pytest.mark.parametrize(("reason", "n"), [("gap", 2), ("not_registered", 1)])
def test_operations_are_sent_again_at_once_after_one_was_lost_but_not_for_each_refusal(
    reason: str, n: int
) -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 2)
    for now_ms, times in ((RESEND_GAP_MS, 1), (RESEND_GAP_MS + 1, 2), (RESEND_GAP_MS + 2, 2)):
        table.reply(7, Origin(P, 1, n), Refused(reason, ""), now_ms)
        assert routes.sent == [(7, 3)] * times
    assert ended(table) == []


def test_a_repeat_sends_nothing_again() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 2)
    table.reply(7, Origin(P, 1, 0), Ok(), 0)
    table.reply(7, Origin(P, 1, 0), Done(), RESEND_GAP_MS + 1)
    assert routes.sent == [(7, 3)]


def test_a_withdrawn_operation_does_nothing_if_it_is_sent_again() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    for token in ("kept", "withdrawn"):
        table.submit(ev.Submit(1, 7, Purge(5, 1), token), 0)
    table.send_submitted(0)
    before = routes.operations
    table.withdraw(ev.Withdraw(1, 7, "withdrawn"), 0)
    table.resend(7, 0)
    assert routes.operations == [*before[:2], encode(Wake(), Origin(P, 1, 2))]


def test_a_withdrawal_from_a_group_that_a_session_never_used_is_nothing() -> None:
    """The operation came after the end of the session."""
    table = table_with_sessions(Routes(), 1)
    submit(table, 1)
    table.close(ev.EndSession(1), 0)
    table.submit(ev.Submit(1, 8, Wake(), "late"), 0)
    table.withdraw(ev.Withdraw(1, 8, "late"), 0)
    assert list(table.by_number[1].conversations) == [7]


def test_a_session_sends_although_one_with_the_same_epoch_had_something_to_send_when_it_ended() -> None:
    """The group had no leader here when it refused the one before."""
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 1)
    routes.leader = None
    table.resend(7, 0)
    table.reply(7, Origin(P, 1, 0), Refused("expired", ""), 0)
    assert ended(table) == [(1, "expired")]
    assert not table.by_number
    table.open(ev.OpenSession(2, P, 1), 0)
    submit(table, 1, session=2)
    routes.leader = "n2"
    table.resend(7, 0)
    assert routes.sent == [(7, 2), (7, 2)]


def test_operations_go_to_a_new_leader_only_from_the_first_unanswered_one_on() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 2)
    submit(table, 1)
    routes.leader = "n3"
    submit(table, 1)
    assert routes.sent == [(7, 2)], "the new leader would refuse a gap"
    table.resend(7, 0)
    assert routes.sent == [(7, 2), (7, 3)]


def test_operations_that_are_answered_before_they_are_sent_again_are_not_sent_again() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 1)
    routes.leader = None
    table.resend(7, 0)
    for n in (0, 1):
        table.reply(7, Origin(P, 1, n), Ok(), 0)
    routes.leader = "n3"
    table.resend(7, 0)
    submit(table, 1)
    assert routes.sent == [(7, 2), (7, 1)]


def test_an_effect_is_for_the_session_with_its_whole_address_while_that_is_open() -> None:
    table = table_with_sessions(Routes(), 2)
    own = Address(1, 1, 1)

    def effects(address: Address) -> list[Effect]:
        return [Deliver(address, 5, "c", 9, 1, ()), Notify(address, 5, "c", 9, "drained")]

    for address in (own, Address(2, 1, 1), Address(1, 2, 1), Address(1, 1, 3)):
        for effect in effects(address):
            table.effect(7, effect)
    table.effect(7, QueueExpired(5))
    deliver, notify = effects(own)
    assert table._outputs.take() == [ev.Delivered(1, 7, deliver), ev.Notified(1, notify)]
    submit(table, 1)
    table.close(ev.EndSession(1), 0)
    for effect in effects(own):
        table.effect(7, effect)
    assert table._outputs.take() == []


def test_only_another_number_of_the_node_restarts_its_sessions() -> None:
    table = table_with_sessions(Routes(), 1)
    table.become(1)
    assert ended(table) == []
    table.become(4)
    assert ended(table) == [(1, "resync")]
    table.open(ev.OpenSession(2, P, 2), 0)
    assert table.by_number[2].address == Address(4, 1, 2)


def test_the_end_of_this_process_in_a_group_ends_the_older_sessions_that_use_the_group() -> None:
    table = table_with_sessions(Routes(), 3)
    for number, group in ((1, 7), (2, 8)):
        table.submit(ev.Submit(number, group, Wake(), None), 0)
    table.declared_down(7, 1)
    assert ended(table) == [(1, "node_down")]
    table.open(ev.OpenSession(4, b"q" * 16, 1), 0)
    assert table.by_number[4].address == Address(1, 2, 4), "a new name of the process"
    table.submit(ev.Submit(4, 7, Wake(), None), 0)
    table.declared_down(7, 1)
    assert ended(table) == []
    table.declared_down(7, 2)
    assert ended(table) == [(4, "node_down")]


def test_the_sessions_that_use_a_group_begin_again_after_its_answers_were_missed() -> None:
    table = table_with_sessions(Routes(), 3)
    for number, group in ((1, 7), (2, 8)):
        table.submit(ev.Submit(number, group, Wake(), None), 0)
    table.answers_missed(7)
    assert ended(table) == [(1, "resync")]


@pytest.mark.parametrize(
    ("refused", "is_declared_down", "reason"),
    [
        ("fenced", False, "fenced"),
        ("fenced", True, "node_down"),
        ("expired", True, "expired"),
        ("not_registered", False, "expired"),
    ],
)
def test_a_session_ends_when_a_group_refuses_its_epoch_and_the_other_groups_hear_of_it(
    refused: str, is_declared_down: bool, reason: str
) -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    for group in (7, 8):
        table.submit(ev.Submit(1, group, Wake(), "token"), 0)
        table.send_submitted(0)
        table.reply(group, Origin(P, 1, 0), Ok(), 0)
    if is_declared_down:
        table.declared_down(9, 1)
    routes.sent.clear()
    table.reply(7, Origin(P, 1, 1), Refused(refused, ""), 0)
    assert ended(table) == [(1, reason)]
    assert table._in_flight["n2"][7] == 0
    table.reply(7, Origin(P, 1, 1), Ok(), 0)
    for group in (7, 8):
        table.resend_overdue(group, 0)
    assert routes.sent == [(8, 1)], "the end"
    for n in (1, 2):
        table.reply(8, Origin(P, 1, n), Ok(), 0)
    assert not table.by_number
    table.resend_overdue(7, RESEND_AFTER_MS + 1)
    assert table._in_flight["n2"].total() == 0
    assert table._outputs.take() == [], "nobody waits for these answers"


def test_a_session_that_is_over_everywhere_is_forgotten_with_its_epoch() -> None:
    table = table_with_sessions(Routes(), 1)
    table.close(ev.EndSession(1), 0)
    assert not table.by_number
    table.open(ev.OpenSession(2, P, 1), 0)
    assert ended(table) == []
    table.submit(ev.Submit(2, 7, Wake(), None), 0)
    table.close(ev.EndSession(2), 0)
    for n in range(3):
        table.reply(7, Origin(P, 1, n), Ok(), 0)
    assert not table.by_number
    table.open(ev.OpenSession(3, P, 1), 0)
    assert ended(table) == []


def test_an_answer_is_told_once_to_the_session_that_waits_for_it() -> None:
    """Nobody waits for the answer to a registration."""
    table = table_with_sessions(Routes(), 1)
    table.submit(ev.Submit(1, 7, Wake(), "token"), 0)
    table.send_submitted(0)
    for n, reply in ((0, Ok()), (1, Ok(5)), (1, Done())):
        table.reply(7, Origin(P, 1, n), reply, 0)
    assert table._outputs.take() == [ev.Answered(1, "token", Ok(5))]


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_group_hears_whether_a_session_ended_cleanly(is_clean: bool) -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 1)
    table.close(ev.EndSession(1, is_clean), 0)
    table.send_submitted(0)
    assert routes.operations == [encode(CloseSession(is_clean), Origin(P, 1, 2))]


def test_a_session_that_the_service_ends_is_not_clean() -> None:
    """Its producer will repeat what was not answered."""
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 1)
    table.answers_missed(7)
    table.resend(7, 0)
    assert routes.operations[-1] == encode(CloseSession(is_clean=False), Origin(P, 1, 2))


def test_operations_are_not_overdue_while_the_group_answers() -> None:
    routes = Routes()
    table = table_with_sessions(routes, 1)
    submit(table, 1)
    table.reply(7, Origin(P, 1, 0), Ok(), RESEND_AFTER_MS)
    table.resend_overdue(7, 2 * RESEND_AFTER_MS)
    assert routes.sent == [(7, 2)]
    table.resend_overdue(7, 2 * RESEND_AFTER_MS + 1)
    assert routes.sent == [(7, 2), (7, 1)]


@pytest.mark.parametrize(
    ("total", "own", "size", "has_room"),
    [
        (0, 0, 2 * MOST_LINK_BYTES, True),
        (1, 0, MOST_LINK_BYTES - 1, True),
        (1, 0, MOST_LINK_BYTES, False),
        (100, 60, LINK_BYTES - 160, True),
        (100, 60, LINK_BYTES - 159, False),
    ],
)
def test_the_room_on_the_way_to_a_leader(total: int, own: int, size: int, has_room: bool) -> None:
    """A group may have as many bytes under way as it leaves free."""
    assert _has_room(total, own, size) is has_room


@pytest.mark.parametrize(("leader", "sent"), [("", 3), ("n2", 1)])
def test_only_another_leader_takes_operations_piece_by_piece(
    leader: str, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica of this node takes everything at once."""
    monkeypatch.setattr(session_table, "LINK_BYTES", 0)
    routes = Routes(leader=leader)
    table = table_with_sessions(routes, 1)
    submit(table, 2)
    assert routes.sent == [(7, sent)]
