"""The client sequences of a producer in one session: they ascend, and the unconfirmed ones are within a window."""

from __future__ import annotations

from fifo.group_machine import MAX_CLIENT_SEQUENCE
from fifo.limits import PRODUCTION
from quorum.api import status


class ProducerNumbers:
    """next: the lowest client sequence above all that the session has used."""

    def __init__(self) -> None:
        self.next = 1

    def check(self, first: int, count: int, lowest_unconfirmed: int) -> None:
        """Raise StatusError if a batch of `count` messages may not have the client sequences from `first` on.

        lowest_unconfirmed: the producer's lowest client sequence without a confirm.
        """
        if first < self.next:
            raise status.invalid(
                "wrong_sequence", f"first_sequence {first} was used before; the next is {self.next}"
            )
        if first + count > MAX_CLIENT_SEQUENCE:
            raise status.invalid(
                "wrong_sequence",
                f"first_sequence {first}; a producer's numbers end at {MAX_CLIENT_SEQUENCE - 1}",
            )
        if not 1 <= lowest_unconfirmed <= first:
            raise status.invalid(
                "wrong_sequence",
                f"lowest_unconfirmed {lowest_unconfirmed}; allowed: 1..{first} (this batch's first_sequence)",
            )
        if first + count - lowest_unconfirmed > PRODUCTION.window:
            raise status.invalid(
                "wrong_sequence",
                f"{first + count - lowest_unconfirmed} messages from lowest_unconfirmed {lowest_unconfirmed} on; "
                f"at most {PRODUCTION.window} may be unconfirmed",
            )

    def may_have(self, first: int, count: int, lowest_unconfirmed: int) -> bool:
        """Whether `check` accepts these numbers."""
        try:
            self.check(first, count, lowest_unconfirmed)
        except status.StatusError:
            return False
        return True

    def use(self, last: int) -> None:
        """Mark the numbers up to `last` as used. Numbers that no producer can have are ignored."""
        if last < MAX_CLIENT_SEQUENCE:
            self.next = max(self.next, last + 1)
