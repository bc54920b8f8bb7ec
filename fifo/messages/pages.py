"""Blocks as bytes, and the pages that hold them.

A page holds one block, in the same bytes as in the snapshot. `Pages` decides where pages are stored. A block's page is
valid until the block is changed. The block's next page then has a new number, and the old page is not read any more.
Which blocks are cold is local: it never changes a reply, an effect or a snapshot.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from fifo.codec import Reader, Writer
from fifo.index_sets import pack
from fifo.messages.blocks import Block, Stored, write_rest
from fifo.messages.due_times import DueTimes
from fifo.messages.runs import NEVER


class Pages(Protocol):
    """The storage of pages. A failure raises, and the member stops. Called by the machines' thread only."""

    def write(self, queue: int, block: int, data: bytes) -> int:
        """Stores a block's bytes. Returns the number of their page, above 0. They can be read at once."""
        ...

    def read(self, page: int) -> bytes | memoryview: ...


class MemoryPages:
    """Pages in a dictionary, for tests and for machines that never page out."""

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.last = 0

    def write(self, queue: int, block: int, data: bytes) -> int:
        self.last += 1
        self.pages[self.last] = data
        return self.last

    def read(self, page: int) -> bytes:
        return self.pages[page]


def write_page(pages: Pages, queue: int, block: Block) -> Stored:
    """Writes a block to a new page, which becomes its valid page."""
    data = bytes(encode_block(block))
    page = pages.write(queue, block.number, data)
    if page <= 0:
        raise ValueError(f"block {block.number} of queue {queue} was written to page {page}; wanted: above 0")
    out = Writer()
    for value in (
        block.number,
        page,
        zlib.crc32(data),
        block.ready_count,
        block.checked_out_count,
        block.first_slot,
        NEVER - block.earliest,
        block.placed,
        block.size_bytes,
    ):
        out.number(value)
    out.blob(pack(block.live_indexes()))
    delayed, dead = None, (block.dead_count, block.dead_bytes)
    if block.dues is not None:
        delayed = block.delayed_count, block.dues.earliest, block.noted_delayed_bytes
    write_rest(out, block.summary, block.noted_bytes, block.ready_levels, delayed, dead)
    block.stored = Stored(bytes(out.data))
    return block.stored


def page_data(pages: Pages, stored: Stored) -> bytes | memoryview:
    """A page's bytes. Raises ValueError if they are not what was written."""
    data = pages.read(stored.page)
    if zlib.crc32(data) != stored.crc:
        raise ValueError(
            f"page {stored.page} of block {stored.number} is not what was written: its CRC is wrong"
        )
    return data


def read_page(pages: Pages, stored: Stored, size: int) -> Block:
    """The block of a page, with that page as its valid one. size: sequences of a block."""
    block = decode_block(Reader(page_data(pages, stored)), size)
    block.stored = stored
    block.summary = stored.summary
    return block


# ---- a block's bytes: a section of the snapshot

HAS_EXPIRIES = 1
HAS_LONG_TEXTS = 2
HAS_PRIORITIES = 4
HAS_SIZES = 8
HAS_DELAYED = 16
HAS_DEAD = 32
HAS_GROUPS = 64
"""The parts at the end of a block's bytes."""


def encode_block(block: Block) -> bytearray:
    out = Writer()
    out.number(block.number)
    out.bits(block.ready)
    out.bits(block.checked_out)
    out.bits(block.redelivered)
    out.number(len(block.copies))
    for pin, copy in block.copies.items():
        out.number(pin)
        out.bits(copy)
    out.number(len(block.failures.planes))
    for plane in block.failures.planes:
        out.bits(plane)
    out.number(block.placed)
    out.number(block.size_bytes)
    out.number(NEVER - block.earliest)
    runs, keys = block.runs, block.live_keys
    for column in (runs.firsts, runs.counts, runs.indexes, runs.operations, runs.ordinals):
        out.column(column)
    out.number(
        (HAS_EXPIRIES if runs.expiries is not None else 0)
        | (HAS_LONG_TEXTS if block.text_factor else 0)
        | (HAS_PRIORITIES if block.levels else 0)
        | (HAS_SIZES if runs.sizes is not None else 0)
        | (HAS_DELAYED if block.dues is not None else 0)
        | (HAS_DEAD if block.deaths else 0)
        | (HAS_GROUPS if keys is not None else 0)
    )
    if runs.expiries is not None:
        out.column(runs.expiries)
    if block.text_factor:
        out.number(block.text_factor)
        out.bits(block.long_texts)
    if block.levels:
        out.number(len(block.levels))
        for priority, level in sorted(block.levels.items()):
            out.number(priority)
            out.bits(level)
    if runs.sizes is not None:
        out.column(runs.sizes)
    if block.dues is not None:
        for column in (block.dues.times, block.dues.firsts, block.dues.counts):
            out.column(column)
    if keys is not None:
        out.column(keys)
    if block.deaths:
        out.number(len(block.deaths))
        for cause, members in sorted(block.deaths.items()):
            out.number(cause)
            out.bits(members)
    return out.data


def decode_block(reader: Reader, size: int) -> Block:
    """Reads a block. size: its number of sequences."""
    block = Block(reader.number(), size)
    block.ready = reader.bits()
    block.checked_out = reader.bits()
    block.redelivered = reader.bits()
    block.copies = {reader.number(): reader.bits() for _ in range(reader.number())}
    block.failures.planes = [reader.bits() for _ in range(reader.number())]
    block.placed = reader.number()
    block.size_bytes = reader.number()
    block.earliest = NEVER - reader.number()
    runs = block.runs
    runs.firsts = reader.column("H")
    runs.counts = reader.column("H")
    runs.indexes = reader.column("Q")
    runs.operations = reader.column("I")
    runs.ordinals = reader.column("I")
    flags = reader.number()
    if flags & HAS_EXPIRIES:
        runs.expiries = reader.column("q")
    if flags & HAS_LONG_TEXTS:
        block.text_factor = reader.number()
        block.long_texts = reader.bits()
    if flags & HAS_PRIORITIES:
        block.levels = {reader.number(): reader.bits() for _ in range(reader.number())}
    if flags & HAS_SIZES:
        runs.sizes = reader.column("I")
    if flags & HAS_DELAYED:
        block.dues = DueTimes(reader.column("q"), reader.column("H"), reader.column("H"))
        block.delayed = block.dues.members
    block.live = block.present.bit_count()
    if flags & HAS_GROUPS:
        block.set_live_keys(reader.column("Q"))
    if flags & HAS_DEAD:
        block.deaths = {reader.number(): reader.bits() for _ in range(reader.number())}
    return block
