"""The wire form of the operations of durable subscriptions and pins (kinds 20 to 27; see operations.py).

    open      = timeout u64, start u8, on_expiry u8, selector length u32, name, selector, owner u64
    reserve   = generation u64, after u64, max_messages u64, max_bytes u64, name
    settle    = generation u64, to u64, name
    keep      = generation u64, name
    delete    = name, generation u64 (nothing: any)
    release   = generation u64, name, last u64 (nothing: any)
    pin       = ttl u64, owner u64
    unpin     = pin u64

A name is a length u16 and UTF-8. As of version 1 there are no owners.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from fifo import commands as c

STARTS = ("earliest", "latest")
ON_EXPIRY = ("release", "discard", "keep")

_OPEN = struct.Struct("<QBBI")
_RESERVE = struct.Struct("<QQQQ")
_SETTLE = struct.Struct("<QQ")
_U64 = struct.Struct("<Q")
_U16 = struct.Struct("<H")


def _name(text: str) -> bytes:
    data = text.encode()
    return _U16.pack(len(data)) + data


def _read_name(data: memoryview) -> tuple[str, memoryview]:
    (length,) = _U16.unpack_from(data)
    rest = data[_U16.size :]
    if len(rest) < length:
        raise ValueError("a name is cut off")
    return str(rest[:length], "utf-8"), rest[length:]


def _only_name(data: memoryview) -> str:
    name, rest = _read_name(data)
    if len(rest):
        raise ValueError(f"{len(rest)} bytes after a name")
    return name


def read_owner(data: memoryview) -> int:
    """The owner at the end of an operation; there is none as of version 1."""
    if not len(data):
        return c.UNKNOWN
    (owner,) = _U64.unpack(data)
    return int(owner)


def _optional(value: int | None) -> bytes:
    """A number at the end of an operation; nothing for None, and as of version 1."""
    return b"" if value is None else _U64.pack(value)


def _read_optional(data: memoryview) -> int | None:
    if not len(data):
        return None
    (value,) = _U64.unpack(data)
    return int(value)


def _open(x: c.OpenSubscription) -> bytes:
    start, expiry = STARTS.index(x.start), ON_EXPIRY.index(x.on_expiry)
    head = _OPEN.pack(x.timeout_ms, start, expiry, len(x.selector))
    return b"".join((head, _name(x.subscription), x.selector, _U64.pack(x.owner), _optional(x.found)))


def _decode_open(data: memoryview, queue: int) -> c.OpenSubscription:
    timeout_ms, start, expiry, length = _OPEN.unpack_from(data)
    name, rest = _read_name(data[_OPEN.size :])
    selector, owner = bytes(rest[:length]), read_owner(rest[length : length + _U64.size])
    found = _read_optional(rest[length + _U64.size :])
    if len(selector) != length:
        raise ValueError(f"a selector of {len(selector)} bytes, not {length}")
    return c.OpenSubscription(
        queue,
        name,
        selector,
        STARTS[start],  # type: ignore[arg-type]
        timeout_ms,
        ON_EXPIRY[expiry],  # type: ignore[arg-type]
        owner,
        found,
    )


def _reserve(x: c.Reserve) -> bytes:
    return _RESERVE.pack(x.generation, x.after, x.max_messages, x.max_bytes) + _name(x.subscription)


def _decode_reserve(data: memoryview, queue: int) -> c.Reserve:
    return c.Reserve(queue, _only_name(data[_RESERVE.size :]), *_RESERVE.unpack_from(data))


def _settle(x: c.SettleReserved) -> bytes:
    return _SETTLE.pack(x.generation, x.to) + _name(x.subscription)


def _decode_settle(data: memoryview, queue: int) -> c.SettleReserved:
    return c.SettleReserved(queue, _only_name(data[_SETTLE.size :]), *_SETTLE.unpack_from(data))


def _keep(x: c.KeepSubscription) -> bytes:
    return _U64.pack(x.generation) + _name(x.subscription)


def _decode_keep(data: memoryview, queue: int) -> c.KeepSubscription:
    return c.KeepSubscription(queue, _only_name(data[_U64.size :]), *_U64.unpack_from(data))


def _release(x: c.ReleaseSubscription) -> bytes:
    return _U64.pack(x.generation) + _name(x.subscription) + _optional(x.last)


def _decode_release(data: memoryview, queue: int) -> c.ReleaseSubscription:
    (generation,) = _U64.unpack_from(data)
    name, rest = _read_name(data[_U64.size :])
    return c.ReleaseSubscription(queue, name, generation, _read_optional(rest))


def _decode_pin(data: memoryview, queue: int) -> c.Pin:
    (ttl_ms,) = _U64.unpack_from(data)
    return c.Pin(queue, ttl_ms, read_owner(data[_U64.size :]))


def _delete(x: c.DeleteSubscription) -> bytes:
    return _name(x.subscription) + _optional(x.generation)


def _decode_delete(data: memoryview, queue: int) -> c.DeleteSubscription:
    name, rest = _read_name(data)
    return c.DeleteSubscription(queue, name, _read_optional(rest))


TABLE: tuple[tuple[int, type, Callable[..., bytes], Callable[[memoryview, int], object]], ...] = (
    (20, c.OpenSubscription, _open, _decode_open),
    (21, c.Reserve, _reserve, _decode_reserve),
    (22, c.SettleReserved, _settle, _decode_settle),
    (23, c.KeepSubscription, _keep, _decode_keep),
    (24, c.ReleaseSubscription, _release, _decode_release),
    (25, c.DeleteSubscription, _delete, _decode_delete),
    (26, c.Pin, lambda x: _U64.pack(x.ttl_ms) + _U64.pack(x.owner), _decode_pin),
    (27, c.Unpin, lambda x: _U64.pack(x.pin), lambda d, q: c.Unpin(q, *_U64.unpack(d))),
)
