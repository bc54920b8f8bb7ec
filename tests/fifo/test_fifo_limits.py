"""The limits of production belong to the machine's version; those of tests reach every edge."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, fields, replace

import pytest

from fifo.limits import PRODUCTION, SMALL, Limits
from fifo.versions import CURRENT

LOCAL = (
    "decisions_at_a_time",
    "finishing_ms",
    "prepared_ms",
    "matched_bytes", "sparse_matches", "few_messages", "few_stretches", "column_bytes", "dense_columns", "read_singles",
    "reserved_blocks", "page_runs", "source_bytes", "newest_version",
)  # fmt: skip

SINCE_VERSION_2 = {
    "block_bits": 14, "block_size": 16_384, "slot_mask": 16_383,
    "block_budget": 64, "message_budget": 65_536, "run_budget": 4_096, "step_budget": 131_072,
    "arrival_budget": 262_144, "shared_steps": 4_096, "quantum": 1_024,
    "wake_queues": 256, "ended_per_entry": 256, "forgotten_per_entry": 64,
    "looked_up_messages": 65_536, "looked_up_chunks": 64, "looked_up_bytes": 67_108_864,
    "read_steps": 1, "read_single_steps": 24, "read_batch_steps": 192, "read_entry_steps": 96,
    "read_bytes": 1_024, "text_bytes": 256, "fewest": 16,
    "window": 65_536, "max_accepted": 4_096, "max_ranges": 262_144, "max_targeted": 65_536,
    "max_producers": 10_000, "max_fences": 10_000, "remembered_ms": 97_200_000,
    "max_selector_bytes": 33_554_432, "max_checked_out": 65_536, "max_consumers": 16_384, "max_get": 10_000,
    "max_subscriptions": 256, "max_reserved": 65_536, "max_reservations": 64, "max_outstanding": 1_048_576,
    "max_released": 64, "max_claimed": 512, "max_pins": 16, "max_copy_bytes": 16_777_216,
    "filed_places": 262_144, "file_steps": 32, "file_slots": 2_048,
    "staged_parts": 4_096, "staged_chunks": 16_384, "staged_bytes": 8_589_934_592,
    "staged_messages": 134_217_728, "staged_ttls": 65_536, "part_ms": 21_600_000, "known_producers": 10_000,
    "transaction_window": 256, "transaction_ms": 300_000, "transaction_queues": 64, "transaction_operations": 4_096,
    "transaction_messages": 65_536, "transaction_bytes": 67_108_864, "transaction_ranges": 16_384,
    "open_transactions": 4_096, "embargoed_ranges": 262_144, "embargoed_bytes": 8_589_934_592,
}  # fmt: skip


def test_what_members_decide_by_changes_with_the_version_only() -> None:
    assert CURRENT == 3, "a new version may have other limits: they get a table of their own"
    assert {name: value for name, value in asdict(PRODUCTION).items() if name not in LOCAL} == SINCE_VERSION_2


def test_the_small_limits_are_not_above_those_of_production() -> None:
    small, production = asdict(SMALL), asdict(PRODUCTION)
    assert [name for name in small if small[name] > production[name]] == []


def test_a_limit_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError):
        replace(PRODUCTION, block_bit=3)  # type: ignore[call-arg]
    with pytest.raises((FrozenInstanceError, TypeError)):
        PRODUCTION.quantum = 3  # type: ignore[misc]


def test_the_size_of_a_block_follows_from_its_bits() -> None:
    limits = replace(PRODUCTION, block_bits=5)
    assert (limits.block_size, limits.slot_mask) == (32, 31)
    assert {field.name for field in fields(Limits) if not field.init} == {"block_size", "slot_mask"}
