"""The table of a node's sessions: what leaves when, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fifo.commands import Origin, Wake
from fifo.effects import Ok
from quorum.node import events as ev
from quorum.node.sessions.conversation import RESEND_AFTER_MS
from quorum.node.sessions.session_table import SessionTable
from support.counted_lines import count_lines


@dataclass
class Routes:
    """n2 leads all groups."""

    sent: list[tuple[int, int]] = field(default_factory=list)
    """(group, number of operations) of each frame"""

    def link(self, group: int) -> str:
        return "n2"

    def send(self, group: int, operations: Sequence[bytes]) -> None:
        self.sent.append((group, len(operations)))

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
