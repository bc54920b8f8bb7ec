"""Staged parts, the last batches, and the embargo as bytes: a part of a queue's head in snapshots and checkpoints."""

from __future__ import annotations

from array import array

from fifo.codec import Reader, Writer
from fifo.limits import Limits
from fifo.persistence.layouts import GROUP_KEYS, LAST_BATCHES, OWNER, PARTS, PRIORITIES, TEXTS, USED_MS
from fifo.persistence.transactions import read_embargo, write_embargo
from fifo.staging import Staging


def encode_staging(staging: Staging, version: int) -> bytearray:
    """version: the group's."""
    out = Writer(version)
    PARTS.write(out, staging.parts)
    LAST_BATCHES.write(out, staging.last_batches)
    USED_MS.write_each(out, staging.last_batches.values())
    OWNER.write_each(out, staging.last_batches.values())
    parts, embargo = staging.parts.values(), staging.embargo
    has_keys = bool(embargo.parts) or any(part.group_keys for part in parts)
    has_priorities = has_keys or any(part.priorities for part in parts)
    if has_priorities or any(any(part.texts) for part in parts):
        TEXTS.write_each(out, parts)
    if has_priorities:
        PRIORITIES.write_each(out, parts)
    if has_keys:
        GROUP_KEYS.write_each(out, parts)
    if embargo.parts:
        write_embargo(out, embargo)
    return out.data


def decode_staging(data: bytes, limits: Limits, version: int) -> Staging:
    """Raises ValueError if the bytes end too early. Earlier builds wrote no times, owners, text factors and embargo."""
    reader, found = Reader(data, version), Staging(limits)
    found.parts = PARTS.read(reader)
    for part in found.parts.values():
        part.texts = array("I", bytes(4 * len(part.counts)))
        part.rows, part.size_bytes = sum(part.counts), sum(part.sizes)
        found.chunk_count += len(part.indexes)
        found.rows += part.rows
        found.size_bytes += part.size_bytes
        found.ttl_count += len(part.ttls)
    last_batches = LAST_BATCHES.read(reader)
    USED_MS.read_each(reader, last_batches.values())
    OWNER.read_each(reader, last_batches.values())
    if not reader.is_at_end():
        TEXTS.read_each(reader, found.parts.values())
    if not reader.is_at_end():
        PRIORITIES.read_each(reader, found.parts.values())
    if not reader.is_at_end():
        GROUP_KEYS.read_each(reader, found.parts.values())
    if not reader.is_at_end():
        read_embargo(reader, found.embargo)
    for producer, last in last_batches.items():
        found.know(producer, last)
    return found
