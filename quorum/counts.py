"""Numbers with their nouns, for people."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """The number with its noun: 1 message, 2 messages. several: the plural, if it needs more than an s."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
