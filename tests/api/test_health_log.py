"""What an operator reads in a member's log about standing and leaders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from structlog.testing import capture_logs

from quorum.api.health_log import MEETING_S, NO_LEADER_S, UNREACHABLE_S, HealthLog
from quorum.node.queries import Health, Leadership


def health(leaders: dict[int, tuple[str, int]] | None = None, standing: str = "member") -> Health:
    found = {group: Leadership(*each) for group, each in (leaders or {}).items()}
    return Health(standing, True, "", found)


def said(*steps: tuple[float, Health]) -> list[dict[str, Any]]:
    """What is logged, if the health is so at these times."""
    with capture_logs() as logs:
        log = HealthLog()
        for now_s, each in steps:
            log.follow(each, now_s)
    return [dict(line) for line in logs]


def test_every_leader_is_named_once() -> None:
    first = health({0: ("n1", 2), 1: ("n2", 2)})
    lines = said((0, first), (1, first), (2, health({0: ("n1", 2), 1: ("n3", 5)})))
    assert [(line["group"], line["leader"], line["term"]) for line in lines] == [
        (0, "n1", 2),
        (1, "n2", 2),
        (1, "n3", 5),
    ]
    assert {line["event"] for line in lines} == {"leader of a group"}


def test_an_election_is_no_warning_and_a_lost_majority_is_one() -> None:
    led, lost = health({1: ("n2", 2)}), health({1: ("", 3), 2: ("", 3)})
    lines = said((0, led), (1, lost), (1 + NO_LEADER_S / 2, lost))
    assert len(lines) == 1
    lines = said((0, led), (1, lost), (1 + NO_LEADER_S, lost), (2 + NO_LEADER_S, lost), (9, led))
    [_, warning] = lines
    assert (warning["event"], warning["groups"], warning["log_level"]) == (
        "groups without a leader",
        [1, 2],
        "warning",
    )
    assert "majority" in warning["meaning"]


def test_a_leader_that_comes_back_in_a_later_term_is_named_again() -> None:
    lines = said((0, health({1: ("n2", 2)})), (1, health({1: ("", 3)})), (2, health({1: ("n2", 4)})))
    assert [line["term"] for line in lines] == [2, 4]


def test_founding_members_that_meet_are_no_warning() -> None:
    meeting = health(standing="meeting")
    assert said((0, meeting), (MEETING_S / 2, meeting), (MEETING_S, health())) == []
    [line] = said((0, meeting), (MEETING_S, meeting), (MEETING_S + 1, meeting))
    assert line["event"] == "not serving" and line["standing"] == "meeting"


def test_a_member_that_was_removed_says_so_at_once() -> None:
    lines = said((0, health()), (1, health(standing="removed")), (2, health(standing="removed")))
    assert [line["standing"] for line in lines] == ["removed"]


def test_a_member_that_restarts_is_not_said_to_wait_while_it_reads_its_log() -> None:
    waiting = Health("waiting", False, "", {}, is_catching_up=True)
    assert said((0, waiting), (90, waiting), (91, health())) == []
    [line] = said((0, Health("waiting", False, "", {})))
    assert line["standing"] == "waiting", "a node that joins says so at once"


def reaching(**others: bool) -> Health:
    return Health("member", True, "", {}, others=others)


def test_a_member_that_cannot_be_reached_is_one_warning_and_its_return_is_told() -> None:
    lost, found = reaching(n2=False, n3=True), reaching(n2=True, n3=True)
    later_s = UNREACHABLE_S + 1
    assert said((0, found), (1, lost), (UNREACHABLE_S / 2, found), (9, found)) == [], "a restart is none"
    warning, back = said(
        (0, found), (1, lost), (later_s, lost), (later_s + 9, lost), (20, found), (30, found)
    )
    assert (warning["event"], warning["log_level"]) == ("member cannot be reached", "warning")
    assert (warning["member"], warning["reachable"]) == ("n2", "2 of 3 members")
    assert (back["event"], back["member"], back["after_s"]) == ("member can be reached again", "n2", 19.0)


def test_of_a_member_that_is_refused_only_the_refusal_is_told() -> None:
    """Another line has told the reason. When it no longer answers at all, that is told."""
    lost, later_s = reaching(n2=False, n3=True), UNREACHABLE_S + 1
    refused = replace(lost, refused=frozenset({"n2"}))
    assert said((0, refused), (later_s, refused), (99, refused), (100, reaching(n2=True))) == []
    [line] = said((0, refused), (later_s, refused), (9, lost), (10, lost))
    assert (line["event"], line["member"]) == ("member cannot be reached", "n2")


def test_each_loss_is_told_and_a_member_that_was_removed_does_not_come_back() -> None:
    lost, later_s = reaching(n2=False), UNREACHABLE_S + 1
    lines = said((0, lost), (later_s, lost), (later_s + 1, reaching()), (later_s + 9, reaching(n2=True)))
    assert [line["event"] for line in lines] == ["member cannot be reached"]
    twice = said((0, lost), (later_s, lost), (10, reaching(n2=True)), (20, lost), (20 + later_s, lost))
    assert [line["log_level"] for line in twice] == ["warning", "info", "warning"]
