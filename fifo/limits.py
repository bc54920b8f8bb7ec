"""The limits of the machines: block size, budgets of an entry, and how many of each thing may exist.

One frozen record is given to a `GroupMachine` and handed down to its parts. A machine reads no limit from anywhere
else, and nothing replaces a limit later.

The limits are part of the machine's version. They decide where budgets end and what is refused, and the size of a block
is in every page and snapshot. Members with different limits therefore diverge. A new value in `PRODUCTION` needs a
new version of the machine (fifo/versions.py), and the old value stays for entries of the old one. The fields under
`local` are the exception: they bound memory, and change no reply, effect or snapshot.

`PRODUCTION` is what members run with. With `SMALL` a few dozen messages reach every edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fifo.versions import CURRENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The defaults are those of production. Where several owners share a number (shares.py), it is their sum."""

    block_bits: int = 14
    """A block has 2^block_bits sequences."""
    block_size: int = field(init=False)
    slot_mask: int = field(init=False)
    """A sequence's slot in its block."""

    # ---- what one entry may do
    block_budget: int = 64
    """Blocks one entry may pass: at 16,384 messages each, a million; about 1 ms where bit sets decide."""
    message_budget: int = 65_536
    """Messages one entry may hand out: 16 blocks' worth, or some hundred batches for the nodes to read."""
    run_budget: int = 4_096
    """Runs one entry may hand out: some ten microseconds each. A message that was published alone is a run."""
    step_budget: int = 131_072
    """Steps of evaluation (`expression.steps`) for the messages that scans may pass in one entry, counted for all that
    are there, evaluated or not, and for reading their fields: four blocks for a comparison, some milliseconds. The last
    block may go beyond."""
    arrival_budget: int = 262_144
    """Steps for looking up what arrives, for all groups that have seen everything: 500 a message of a batch of 500."""
    shared_steps: int = 4_096
    """The cost of looking up a message, at most, for all groups that share the scan: an entry moves it by 64 messages
    at least."""
    quantum: int = 1_024
    """Messages a turn may take where others wait, too: some batches, a few milliseconds of a consumer's work."""
    wake_queues: int = 256
    """Queues one Wake continues. They share one budget, and those that it is not enough for keep their places."""
    ended_per_entry: int = 256
    """Sessions of a lost node that one entry ends."""
    forgotten_per_entry: int = 64
    """Producers whose time is over that one entry forgets."""
    looked_up_messages: int = 65_536
    """What a publication of staged messages may have at most to be fetched and looked up in its own entry: with bodies
    of 1 KiB some 50 ms."""
    looked_up_chunks: int = 64
    looked_up_bytes: int = 64 << 20

    # ---- what steps are counted for (read_costs.py)
    read_steps: int = 1
    """A message of a batch: a tenth of a microsecond for a field or two."""
    read_single_steps: int = 24
    """A message that was published alone: three or four microseconds."""
    read_batch_steps: int = 192
    """A batch of several messages: some numpy calls for each of its fields, whatever its size."""
    read_entry_steps: int = 96
    """A Raft entry: finding, reading and taking it apart."""
    read_bytes: int = 1_024
    """Bytes of bodies and long texts that are read for a step: an entry is read and checked as a whole."""
    text_bytes: int = 256
    """Bytes of text that a step of evaluation looks at: some tenths of a microsecond for the dearest pattern."""
    fewest: int = 16
    """Evaluating a few messages costs about as much as evaluating this many."""

    # ---- producers and sessions (producers.py)
    window: int = 65_536
    """How far a producer's numbers may reach above its lowest unconfirmed one: bounds the ranges remembered for it."""
    max_producers: int = 10_000
    """Clients' producers that a group remembers."""
    max_fences: int = 10_000
    """Fences of forgotten producers. Above, the oldest fence is dropped."""
    remembered_ms: int = 27 * 3600 * 1000
    """Group time may run ahead of true time by a tenth: 24 hours of true time are at most 26.4 hours of it."""

    # ---- of one queue
    max_held: int = 65_536
    """Messages one consumer may hold. More are not handed out to it, so that its end is bounded work."""
    max_consumers: int = 16_384
    """Consumers, those of Get among them. Whatever goes through them all is bounded work."""
    max_get: int = 10_000
    """Messages one Get may take: a reply, not a subscription."""
    max_subscriptions: int = 256
    """Durable subscriptions, those that are deleted but still hold something among them."""
    max_reserved: int = 65_536
    """Messages of one reservation, so that its end is bounded work."""
    max_reservations: int = 64
    """Reservations of one subscription."""
    max_outstanding: int = 1_048_576
    """Messages one subscription may hold: 20 bytes each in the worst case, in memory and in every snapshot."""
    max_released: int = 64
    """Ranges of released offsets that a subscription remembers; of more, the oldest two are told as one."""
    max_pins: int = 16
    """Pins, those whose copies are not removed yet among them."""
    max_copy_bytes: int = 16 << 20
    """The copies of all pins: of 8,000 full blocks, 130 million messages. Above, the oldest pin ends."""
    staged_parts: int = 4_096
    staged_chunks: int = 16_384
    staged_bytes: int = 8 << 30
    staged_messages: int = 16_384 * 8_192
    """Chunks of 8,192 messages each: 8,192 blocks that one entry may have to make."""
    staged_ttls: int = 65_536
    """Stretches of messages with the same time to live, each chunk at least one: each becomes a run of its own."""
    part_ms: int = 6 * 3600 * 1000
    """A staged part waits so long for another chunk, or to be published."""
    known_producers: int = 10_000
    """Producers whose last staged batch a queue remembers."""

    # ---- local: what this build knows, and memory and single looks
    newest_version: int = CURRENT
    """The highest version that the machines apply (fifo/versions.py). It decides nothing but that: what a machine does
    follows from the version of each entry."""
    matched_bytes: int = 32 << 20
    """For the sets of what one queue's selectors have matched."""
    sparse_matches: int = 1_024
    """Up to so many members 2 bytes each are less than a bit set of a block."""
    few_messages: int = 16
    """Up to so many messages are evaluated one by one; above, all at once is cheaper."""
    column_bytes: int = 64 << 20
    """What the fields of one block may take in memory, about. What is more is read again, one part after the other: a
    field that few messages have takes up to twenty times its bytes."""
    dense_columns: int = 64
    """Columns of a block; later fields are kept as runs (quorum_selectors.block_columns)."""
    read_singles: int = 1_024
    """Batches of one message that are decoded together."""
    reserved_blocks: int = 64
    """Blocks that one look at a reservation goes through: each may be cold."""
    source_bytes: int = 1 << 20
    """Of a snapshot that is not in memory so many bytes are read at a time, or one section if it is longer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", 1 << self.block_bits)
        object.__setattr__(self, "slot_mask", (1 << self.block_bits) - 1)


PRODUCTION = Limits()

SMALL = Limits(
    block_bits=3,
    block_budget=4,
    message_budget=20,
    run_budget=10,
    step_budget=24,
    arrival_budget=60,
    shared_steps=17,
    quantum=3,
    looked_up_messages=12,
    looked_up_chunks=3,
    looked_up_bytes=1_000,
    read_steps=1,
    read_single_steps=2,
    read_batch_steps=3,
    read_entry_steps=2,
    read_bytes=250,
    text_bytes=6,
    fewest=2,
    max_fences=2,
    remembered_ms=600,
    max_held=40,
    max_consumers=12,
    max_subscriptions=5,
    max_reserved=12,
    max_reservations=4,
    max_outstanding=25,
    max_pins=5,
    staged_parts=5,
    staged_chunks=12,
    staged_bytes=6_000,
    staged_messages=70,
    staged_ttls=40,
    part_ms=150,
    known_producers=4,
    matched_bytes=1_200,
    source_bytes=250,
    sparse_matches=3,
    few_messages=2,
    dense_columns=2,
)
