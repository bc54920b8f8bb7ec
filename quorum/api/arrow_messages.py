"""Arrow IPC streams before they are read: which of their messages are compressed.

Blocks are not compressed. Arrow unpacks what says it is as it reads it, whatever it comes to: some kilobytes become as
many gigabytes. So the messages' metadata (flatbuffers, which Arrow has verified) are looked at before.
"""

from __future__ import annotations

import struct

import pyarrow as pa

_HEADER = 2  # fields of Message
_DATA = 1  # of DictionaryBatch
_COMPRESSION = 3  # of RecordBatch


def has_compressed(data: bytes) -> bool:
    """Whether any message of a stream is. ArrowException for what is no stream."""
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
    """Where the table begins that a field refers to."""
    place = _place(metadata, table, field)
    if not place:
        raise pa.ArrowInvalid("a message without a record batch")
    return place + int(struct.unpack_from("<I", metadata, place)[0])


def _place(metadata: bytes, table: int, field: int) -> int:
    """Where a field of a table stands, 0 if it has none."""
    entries = table - int(struct.unpack_from("<i", metadata, table)[0])
    (size,) = struct.unpack_from("<H", metadata, entries)
    entry = 4 + 2 * field
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, entries + entry)
    return table + int(offset) if offset else 0
