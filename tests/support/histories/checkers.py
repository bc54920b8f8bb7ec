"""What has to be true of everything that clients were told, over the records of `quorum.histories`.

`quorum.histories.judge` has the six violations. The rules here are about attachments of consumers, which the judge does
not know: in which order an attachment gets messages, the redelivered flag, and what an attachment that is over may
still get. An attachment is named CONSUMER/NUMBER. Deliveries are in the order in which they were recorded.

Each rule fails as well if it saw nothing that it could have judged: an empty proof is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quorum.histories import judge
from quorum.histories.records import CONFIRMED, OK, Record
from quorum.histories.report import KINDS, SHOWN, Report, totals


class Violation(AssertionError):
    """A rule was broken, or there was nothing to judge."""


def require(is_there: object, what: str) -> None:
    if not is_there:
        raise Violation(f"nothing to judge: {what}")


def _refuse(found: list[str], what: str) -> None:
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise Violation(f"{what}: {'; '.join(found[:SHOWN])}{more}")


def _deliveries(records: Sequence[Record]) -> list[Record]:
    found = [each for each in records if each["op"] == "deliver"]
    require(found, "no message was delivered")
    return found


def _messages(record: Record) -> Iterator[tuple[int, str]]:
    """(sequence, PRODUCER:NUMBER) of each message of a delivery."""
    for step in range(record.get("count", 1)):
        yield record["sequence"] + step, f"{record['producer']}:{record['number'] + step}"


def _sequences(record: Record) -> range:
    return range(record["sequence"], record["sequence"] + record.get("count", 1))


def violations(report: Report) -> list[str]:
    """One sentence for each kind of violation in the judge's report."""
    return [
        f"{report.total(kind)} {kind.replace('_', ' ')}: "
        + "; ".join(f"{each.producer}:{each.number} in '{each.queue}': {each.why}" for each in found)
        for kind in KINDS
        if (found := report.culprits.get(kind))
    ]


def first_deliveries_are_in_order(
    records: Sequence[Record], *, across_attachments: bool = True, must_compare: bool = True
) -> None:
    """Among the first deliveries to one consumer, each producer's messages come as it sent them.

    across_attachments: also those to two attachments of the consumer, which it got one after the other. must_compare:
    fail if no consumer got two messages of one producer.
    """
    last: dict[tuple[str, str, str], int] = {}
    wrong: list[str] = []
    compared = 0
    for each in _deliveries(records):
        if each.get("redelivered"):
            continue
        consumer, producer, number = each["consumer"], each["producer"], each["number"]
        who = consumer.rpartition("/")[0] if across_attachments else consumer
        before = last.get((each["queue"], who, producer))
        compared += (before is not None) + each.get("count", 1) - 1
        if before is not None and number <= before:
            wrong.append(f"{who} got {producer}:{number} after {producer}:{before}")
        last[each["queue"], who, producer] = number + each.get("count", 1) - 1
    if must_compare:
        require(compared, "no consumer got two messages of one producer")
    _refuse(wrong, "out of order")


def repeats_are_flagged(records: Sequence[Record]) -> None:
    """A message that somebody got before is flagged as redelivered."""
    seen: dict[str, set[int]] = {}
    wrong: list[str] = []
    for each in _deliveries(records):
        there = seen.setdefault(each["queue"], set())
        if not each.get("redelivered"):
            wrong += [
                f"{key} again, to {each['consumer']}" for place, key in _messages(each) if place in there
            ]
        there.update(_sequences(each))
    _refuse(wrong, "delivered again without the flag")


def nobody_is_handed_what_another_has(records: Sequence[Record], *, must_repeat: bool = False) -> int:
    """Count the messages that moved from one attachment to another, in one queue.

    Once a message of attachment A has been handed to attachment B, A is over: nothing is handed out under it any more,
    and what it held is not settled by it. (Recorded consumers settle and never return, so a message that moves means
    an attachment that has ended.) must_repeat: fail if none moved, because then nothing was shown.
    """
    holder: dict[int, str] = {}
    over: dict[str, tuple[int, str]] = {}
    wrong: list[str] = []
    moved = 0
    for each in _deliveries(records):
        me, at_us = each["consumer"], each["returned_us"]
        for sequence, key in _messages(each):
            if me in over and at_us > over[me][0]:
                wrong.append(f"{key} to {me}, which was over when {over[me][1]}")
            before = holder.get(sequence)
            if before == me:
                wrong.append(f"{key} twice under {me}")
            elif before is not None:
                moved += 1
                over.setdefault(before, (at_us, f"{me} got {key}"))
            holder[sequence] = me
    for each in records:
        if each["op"] == "settle" and each["outcome"] == OK:
            me = each["consumer"]
            if me in over and each["returned_us"] > over[me][0]:
                wrong += [
                    f"sequence {sequence} settled by {me}, whose attachment was over"
                    for sequence in _sequences(each)
                    if holder[sequence] != me
                ]
    _refuse(wrong, "in two hands at once")
    if must_repeat:
        require(moved, "no message moved from one attachment to another")
    return moved


def judged(records: Sequence[Record]) -> Report:
    """The judge's report on a history without violations."""
    require(any(each.get("outcome") == CONFIRMED for each in records), "no message was confirmed")
    require(any(each.get("outcome") == OK for each in records), "no settlement was acknowledged")
    report = judge(records)
    if found := violations(report):
        raise Violation("; ".join(found))
    return report


def check_all(records: Sequence[Record]) -> str:
    """All rules that hold under any fault; a line for people."""
    report = judged(records)
    first_deliveries_are_in_order(records)
    repeats_are_flagged(records)
    moved = nobody_is_handed_what_another_has(records)
    counts = totals(report.lines)
    repeated = sum(each.get("count", 1) for each in records if each.get("redelivered"))
    return (
        f"{counts['confirmed']:,} confirmed, {counts['settled']:,} settled, {repeated:,} redelivered, "
        f"{moved:,} moved to another attachment, none lost, none twice"
    )


def resumed_after(records: Sequence[Record], fault_us: int) -> float:
    """Seconds from a fault to the first confirm of something sent after it."""
    later = [
        each["returned_us"]
        for each in records
        if each["op"] == "publish" and each["outcome"] == CONFIRMED and each["invoked_us"] >= fault_us
    ]
    require(later, "nothing sent after the fault was confirmed")
    return (min(later) - fault_us) / 1e6
