"""The limits that the service sets for a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Limits:
    """Limits of a session, from Opened."""

    window_bytes: int = 8 * 1024 * 1024
    max_message_bytes: int = 16 * 1024 * 1024
    max_batch_messages: int = 65_536
    max_window_messages: int = 65_536
    max_batch_bytes: int = 18 * 1024 * 1024
    max_window_ranges: int = 4_096
    """Batches from the lowest undecided number on, one with several queues counted once for each change of the queue:
    the service remembers as many ranges of a producer's numbers in each group of queues."""
