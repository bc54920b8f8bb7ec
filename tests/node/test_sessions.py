"""A session's conversation with a group: numbers, answers, repeats (quorum/node/sessions/conversation.py)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fifo.commands import (
    NODE,
    UNKNOWN,
    Address,
    CloseSession,
    Commit,
    Decide,
    Enqueue,
    InTransaction,
    Operation,
    Origin,
    Prepare,
    Purge,
    RegisterProducer,
    Settle,
    Wake,
)
from fifo.effects import Done, Ok, Refused
from quorum.node.sessions.conversation import Conversation, Session
from quorum.node.wire.operations import Command, command_parts, encode

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = Address(1, 2, 3)


def conversation() -> Conversation:
    talk = Conversation(1, b"p" * 16, 1, ADDRESS)
    talk.start()
    return talk


def decoded(operations: list[bytes]) -> list[Operation]:
    return Command(b"".join(command_parts(operations, 0, 1))).decode()


def numbers(operations: list[bytes]) -> list[int]:
    return [each.origin.n for each in decoded(operations) if each.origin is not None]


def sent_again(talk: Conversation) -> list[bytes]:
    talk.rewind()
    return sent(talk)


def sent(talk: Conversation) -> list[bytes]:
    operations = []
    while talk.has_unsent:
        operations.append(talk.send_next())
    return operations


def test_operations_are_numbered_densely_after_the_registration() -> None:
    talk = conversation()
    talk.number(Purge(1), "a")
    talk.number(Purge(1), "b")
    assert numbers(sent_again(talk)) == [0, 1, 2]


def test_what_is_answered_is_not_sent_again() -> None:
    talk = conversation()
    talk.number(Purge(1), "a")
    talk.number(Purge(1), "b")
    assert talk.answer(0, Ok()) == (True, None)
    assert talk.answer(1, Ok()) == (True, "a")
    assert numbers(sent_again(talk)) == [2]


def test_an_answer_leaves_the_later_operations_under_way() -> None:
    talk = conversation()
    for token in "abc":
        talk.number(Purge(1), token)
    sent(talk)
    talk.number(Purge(1), "d")
    talk.answer(0, Ok())
    assert numbers(sent(talk)) == [4]


def test_a_repeat_and_a_gap_answer_nothing() -> None:
    talk = conversation()
    talk.answer(0, Ok())
    talk.number(Purge(1), "a")
    talk.number(Purge(1), "b")
    assert talk.answer(0, Done()) == (False, None)
    assert talk.answer(2, Refused("gap", "")) == (False, None)
    assert talk.answer(1, Refused("not_found", "")) == (True, "a")
    assert talk.answer(2, Ok()) == (True, "b")
    assert talk.answer(3, Refused("gap", "")) == (False, None), "nothing is under way"


def test_a_gap_of_the_next_number_is_what_the_machine_says_of_the_command() -> None:
    talk = conversation()
    talk.answer(0, Ok())
    talk.number(Purge(1), "a")
    assert talk.answer(1, Refused("gap", "chunk 1 of a part that has 0")) == (True, "a")


def test_a_session_talks_to_each_group_by_itself() -> None:
    session = Session(1, b"p" * 16, 1, ADDRESS)
    one = session.conversation(1)
    assert numbers(sent(one)) == [0]
    assert session.conversation(1) is one
    assert not sent(one)
    other = session.conversation(2)
    assert other is not one
    assert numbers(sent(other)) == [0]


def test_a_session_registers_with_the_time_that_was_known_when_it_was_opened() -> None:
    """Its group refuses it if the producer may have been forgotten since then."""
    session = Session(1, b"p" * 16, 3, ADDRESS, 9, {1: 500})
    for group, heard_ms in ((1, 500), (2, 0)):
        [register] = decoded(sent(session.conversation(group)))
        assert register.command == RegisterProducer(ADDRESS, 9, heard_ms)


@pytest.mark.parametrize(
    ("is_registered", "n", "reason", "is_ended"),
    [
        (True, 1, "fenced", True),
        (True, 1, "expired", True),
        (True, 1, "not_registered", True),
        (True, 1, "gap", False),
        (True, 1, "queue_full", False),
        (False, 0, "limit", True),
        (False, 0, "expired", True),
        (False, 1, "fenced", True),
        (False, 1, "expired", False),
        (False, 1, "not_registered", False),
    ],
)
def test_a_refusal_ends_the_epoch_if_the_group_will_take_nothing_more_of_it(
    is_registered: bool, n: int, reason: str, is_ended: bool
) -> None:
    """While the registration has no answer, it may just have been lost, and is sent again."""
    talk = conversation()
    talk.number(Purge(1), "a")
    if is_registered:
        talk.answer(0, Ok())
    assert talk.is_ended_by(n, Refused(reason, "")) is is_ended
    if is_registered:
        talk.answer(1, Ok())
        assert talk.is_ended_by(n, Refused(reason, "")) is is_ended


def test_closing_tells_every_group_and_is_finished_when_all_have_heard() -> None:
    session = Session(1, b"p" * 16, 1, ADDRESS)
    for group in (1, 2):
        session.conversation(group).answer(0, Ok())
    assert [each.group for each in session.close()] == [1, 2]
    assert not session.is_finished()
    session.conversations[1].answer(1, Ok())
    session.conversations[2].answer(1, Ok())
    assert session.is_finished()


@pytest.mark.parametrize(
    ("owner", "kept"), [(UNKNOWN, [RegisterProducer, Settle]), (NODE, [RegisterProducer])]
)
def test_a_session_that_closes_keeps_its_settlements_but_no_batch_and_no_part_of_a_transaction(
    owner: int, kept: list[type]
) -> None:
    """The client has sent the settlement, and has closed without an outcome of the publish."""
    session = Session(1, b"p" * 16, 1, ADDRESS, owner)
    talk = session.conversation(1)
    settlement, publish = Settle(1, "c", 5, ((1, 1),)), Enqueue(1, 1, 1, 1, 4)
    talk.number(settlement, "settled")
    talk.number(publish, "published", b"body")
    for command in (InTransaction(1, settlement), Commit(1), Prepare(2, 1, 1, 1), Decide(3, 1, 1, (2,))):
        talk.number(command, "in a transaction")
    session.close()
    empty = [Wake] * (7 - len(kept))
    commands = [each.command for each in decoded(sent(talk))]
    assert [type(each) for each in commands[:-1]] == [*kept, *empty]
    assert commands[-1] == CloseSession(is_clean=owner == NODE), "a node's own producer is not used again"
    assert [talk.answer(n, Ok()) for n in range(8)] == [(True, None)] * 8, "nobody waits any more"


def test_what_is_on_its_way_counts_until_it_is_answered_or_sent_again() -> None:
    talk = conversation()
    for token in "abc":
        talk.number(Purge(1), token)
    sizes = [talk.next_size()]
    talk.send_next()
    sizes.append(talk.next_size())
    talk.send_next()
    assert talk.in_flight_bytes == sum(sizes)
    talk.answer(0, Ok())
    assert talk.in_flight_bytes == sizes[1]
    talk.rewind()
    assert (talk.in_flight_bytes, talk.has_unsent) == (0, True)
    assert talk.answer(1, Ok()) == (True, "a"), "the first sending had arrived after all"
    assert numbers(sent(talk)) == [2, 3]
    talk.answer(2, Ok())
    talk.answer(3, Ok())
    assert (talk.in_flight_bytes, talk.sent_count) == (0, 0)


def test_only_the_numbering_uses_the_words_that_end_a_session() -> None:
    words = {"fenced", "expired", "not_registered"}
    numbering = {"fifo/numbering.py", "fifo/producers.py", "fifo/group_machine.py"}
    found = set()
    for folder in ("fifo", "quorum/catalog"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "Refused":
                    continue
                if isinstance(node.args[0], ast.Constant) and node.args[0].value in words:
                    found.add(str(file.relative_to(ROOT)))
    assert found == numbering


def test_a_withdrawn_operation_gives_its_number_to_nothing_when_it_is_sent_again() -> None:
    talk = Conversation(1, b"p" * 16, 1, ADDRESS)
    for token in ("kept", "withdrawn", "answered"):
        talk.number(Purge(7, 1), token)
    before = [talk.send_next() for _ in range(3)]
    talk.withdraw("withdrawn")
    talk.withdraw("a token that was answered before")
    talk.rewind()
    after = [talk.send_next() for _ in range(3)]
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] == encode(Wake(), Origin(b"p" * 16, 1, 1))
    for n in range(3):
        assert talk.answer(n, Ok())[0]
    assert talk.withdrawn == set(), "nothing is kept"
    talk.withdraw("late")
    assert talk.withdrawn == set()


def test_an_operation_stays_withdrawn_after_others_were_answered() -> None:
    talk = conversation()
    talk.number(Purge(7, 1), "answered")
    talk.number(Purge(7, 1), "withdrawn")
    sent(talk)
    talk.withdraw("withdrawn")
    for n in (0, 1):
        assert talk.answer(n, Ok())[0]
    assert sent_again(talk) == [encode(Wake(), Origin(b"p" * 16, 1, 2))]


def test_late_withdrawals_are_dropped_also_while_operations_are_always_under_way() -> None:
    talk = conversation()
    talk.number(Purge(1), 0)
    talk.withdraw(0)
    for number in range(1, 1_000):
        talk.number(Purge(1), number)
        assert talk.answer(number - 1, Ok(0))[0]
        talk.withdraw(number - 2)
        talk.withdraw(number)
        assert len(talk.withdrawn) <= 2 * len(talk.unanswered)
        assert number in talk.withdrawn


def test_an_operation_that_is_withdrawn_before_it_is_sent_does_nothing() -> None:
    talk = Conversation(1, b"p" * 16, 1, ADDRESS)
    talk.number(Purge(7, 1), "withdrawn")
    talk.withdraw("withdrawn")
    assert talk.send_next() == encode(Wake(), Origin(b"p" * 16, 1, 0))
