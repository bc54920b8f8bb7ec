"""Detect compressed messages in Arrow IPC streams before Arrow reads them.

Blocks must not be compressed. Arrow decompresses a message without a limit as it reads it, so that some kilobytes can
become as many gigabytes. Therefore the messages' metadata (flatbuffers, verified by Arrow) are checked first.
"""

from __future__ import annotations

import struct

import pyarrow as pa

_HEADER = 2  # fields of Message
_DATA = 1  # of DictionaryBatch
_COMPRESSION = 3  # of RecordBatch


def has_compressed(data: bytes) -> bool:
    """Whether any message of the stream is compressed. ArrowException if the bytes are not a stream."""
    reader = pa.ipc.MessageReader.open_stream(data)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return False
        if message.type in ("record batch", "dictionary") and _is_compressed(message):
            return True


def _is_compressed(message: pa.ipc.Message) -> bool:
    metadata = message.metadata.to_pybytes()
    try:
        batch = _child(metadata, struct.unpack_from("<I", metadata)[0], _HEADER)
        if message.type == "dictionary":
            batch = _child(metadata, batch, _DATA)
        return bool(_place(metadata, batch, _COMPRESSION))
    except struct.error as error:
        raise pa.ArrowInvalid(f"metadata of {len(metadata)} bytes point beyond their end") from error


def _child(metadata: bytes, table: int, field: int) -> int:
    """Return the offset of the table that a field refers to."""
    place = _place(metadata, table, field)
    if not place:
        raise pa.ArrowInvalid("a message without a record batch")
    return place + int(struct.unpack_from("<I", metadata, place)[0])


def _place(metadata: bytes, table: int, field: int) -> int:
    """Return the offset of a table's field, 0 if it is absent."""
    entries = table - int(struct.unpack_from("<i", metadata, table)[0])
    (size,) = struct.unpack_from("<H", metadata, entries)
    entry = 4 + 2 * field
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, entries + entry)
    return table + int(offset) if offset else 0
