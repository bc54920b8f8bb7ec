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
    """The limits of the machines; the defaults are those of production. A limit that several owners share (shares.py)
    bounds their sum."""

    block_bits: int = 14
    """A block has 2^block_bits sequences."""
    block_size: int = field(init=False)
    slot_mask: int = field(init=False)
    """A sequence's slot in its block."""

    # ---- what one entry may do
    block_budget: int = 64
    """Blocks that one entry may pass: a million messages, at 16,384 a block; about 1 ms where bit sets decide."""
    message_budget: int = 65_536
    """Messages that one entry may hand out: those of 16 blocks, or some hundred batches that the nodes have to read."""
    run_budget: int = 4_096
    """Runs that one entry may hand out: some ten microseconds each. A message that was published alone is a run."""
    step_budget: int = 131_072
    """Steps (`expression.steps`) that scans may spend in one entry, on evaluating messages and reading their fields.
    They count for all messages that a scan passes, evaluated or not. The limit is four blocks for a comparison, or some
    milliseconds. The last block may exceed it."""
    arrival_budget: int = 262_144
    """Steps that one entry may spend on looking up arrivals for all caught-up groups: for a batch of 500 messages, 500
    a message."""
    shared_steps: int = 4_096
    """The most steps that looking up a message may cost for all groups that share the scan: an entry moves the scan by
    at least 64 messages."""
    quantum: int = 1_024
    """Messages that a turn may take while other consumers wait: some batches, or a few milliseconds of a consumer's
    work."""
    wake_queues: int = 256
    """Queues that one Wake continues. They share one budget; queues that get none of it keep their places."""
    ended_per_entry: int = 256
    """Sessions of lost nodes that one entry ends."""
    forgotten_per_entry: int = 64
    """Expired producers that one entry forgets; at the system group, one registration."""
    looked_up_messages: int = 65_536
    """The largest publication of staged messages whose fields are read and looked up in its own entry: with bodies of
    1 KiB some 50 ms."""
    looked_up_chunks: int = 64
    looked_up_bytes: int = 64 << 20

    # ---- prices in steps, and their units (read_costs.py)
    read_steps: int = 1
    """A message of a batch: a tenth of a microsecond for a field or two."""
    read_single_steps: int = 24
    """A message that was published alone: three or four microseconds."""
    read_batch_steps: int = 192
    """A batch of several messages: some numpy calls for each of its fields, whatever its size."""
    read_entry_steps: int = 96
    """A Raft entry: finding, reading and taking it apart."""
    read_bytes: int = 1_024
    """Bytes of bodies and long texts that a step reads: an entry is read and checked as a whole."""
    text_bytes: int = 256
    """Bytes of text that a step of evaluation reads: some tenths of a microsecond for the most expensive pattern."""
    fewest: int = 16
    """Evaluating a few messages costs about as much as evaluating this many."""

    # ---- producers and sessions (numbering.py, producers.py)
    window: int = 65_536
    """The most numbers of a producer from its lowest unconfirmed one on."""
    max_accepted: int = 4_096
    """Ranges of accepted numbers that a group remembers of a producer. Numbers have gaps where other groups have the
    messages between them."""
    max_ranges: int = 262_144
    """Ranges of accepted numbers that a group remembers of all producers of clients together, but for the first range
    of each: 4 MB of memory, and 2 MB of every checkpoint. Owners share them."""
    max_targeted: int = 65_536
    """Messages of a batch, counted once for each of their queues."""
    max_producers: int = 10_000
    """Producers of clients that a group remembers."""
    max_fences: int = 10_000
    """Fences of forgotten producers. Above, the oldest fence is dropped."""
    remembered_ms: int = 27 * 3600 * 1000
    """Group time may run ahead of true time by a tenth: 24 hours of true time are at most 26.4 hours of group time."""

    max_selector_bytes: int = 32 << 20
    """Bytes of the selectors of all attached consumers of a group: as many in memory, and in every checkpoint. Owners
    share them."""

    # ---- of one queue
    max_checked_out: int = 65_536
    """Messages that one consumer may have checked out. The limit bounds the work of detaching the consumer."""
    max_consumers: int = 16_384
    """Consumers, including those of Get. The limit bounds all work that visits every consumer."""
    max_get: int = 10_000
    """Messages that one Get may take: a reply, not a subscription."""
    max_subscriptions: int = 256
    """Durable subscriptions, including deleted ones that still hold messages."""
    max_reserved: int = 65_536
    """Messages of one reservation. The limit bounds the work of ending it."""
    max_reservations: int = 64
    """Reservations of one subscription."""
    max_outstanding: int = 1_048_576
    """Messages that one subscription may hold: at most 20 bytes each, in memory and in every snapshot."""
    max_released: int = 64
    """Ranges of released offsets that a subscription remembers. Above, the oldest two are joined into one."""
    max_claimed: int = 512
    """Dead messages with numbers: one batch to the target, some ten milliseconds of the worker. Each may be a claim of
    its own, of some 10 bytes in every snapshot."""
    max_pins: int = 16
    """Pins, including ended ones whose copies are not removed yet."""
    max_copy_bytes: int = 16 << 20
    """Bytes of the copies of all pins: those of 8,000 full blocks, or 130 million messages. Above, the oldest pin
    ends."""
    filed_places: int = 262_144
    """Places (a message group in a block) up to which ready messages are filed: some 300 bytes of memory each. Further
    messages wait until some of these have left."""
    file_steps: int = 32
    """Steps of filing a place: some microseconds. An entry files some 4,000 places, or 64 times `file_slots` messages
    of one group."""
    file_slots: int = 2_048
    """Sequences that are filed at a time."""
    staged_parts: int = 4_096
    staged_chunks: int = 16_384
    staged_bytes: int = 8 << 30
    staged_messages: int = 16_384 * 8_192
    """Staged messages: 16,384 chunks of 8,192 messages, or 8,192 blocks that one entry may have to make."""
    staged_ttls: int = 65_536
    """Stretches of staged messages with the same time to live, at least one a chunk. Each becomes a run of its own."""
    part_ms: int = 6 * 3600 * 1000
    """Time that a staged part waits for its next chunk, or to be published."""
    known_producers: int = 10_000
    """Producers whose last staged batch a queue remembers."""

    # ---- transactions (transactions.py)
    transaction_window: int = 256
    """How far a producer's transactions may be apart: beginning one says that the producer knows the outcome of the one
    with the number that is so much lower, and of all before. Their outcomes are forgotten then."""
    open_transactions: int = 4_096
    """Open transactions of a group; owners share them."""
    transaction_ms: int = 5 * 60 * 1000
    """Time from the beginning of a transaction to its commit."""
    transaction_queues: int = 64
    transaction_operations: int = 4_096
    """Batches, counted once for each of their queues, and settlements."""
    transaction_messages: int = 65_536
    """Messages that it publishes, counted once for each of their queues, and messages that it settles."""
    transaction_bytes: int = 64 << 20
    transaction_ranges: int = 16_384
    """Ranges of messages: of those that it publishes, neighbours with the same queue, time to live and delay; of those
    that it settles, neighbouring tags. A commit takes some microseconds for each."""
    embargoed_ranges: int = 262_144
    """The same of all open transactions of a group, some 20 bytes each in memory and in every snapshot; owners share
    them."""
    embargoed_bytes: int = 8 << 30
    """Bytes that all open transactions of a group publish; owners share them."""

    # ---- local: what this build knows, and memory and single queries
    newest_version: int = CURRENT
    """The highest version that the machines apply (fifo/versions.py). It decides nothing but that: what a machine does
    follows from the version of each entry."""
    prepared_ms: int = 10_000
    """Time after which a group asks for the decision about a part that it has prepared."""
    finishing_ms: int = 2_000
    """Time after which a group tells its decision once more to those that may not have heard it."""
    decisions_at_a_time: int = 64
    """Decisions that a leader asks each other group for, and that it tells each, at a time."""
    matched_bytes: int = 32 << 20
    """Memory for the match sets of one queue."""
    few_stretches: int = 64
    """Stretches of a batch up to which they are added one by one. Above, numpy adds all of a block at once."""
    sparse_matches: int = 1_024
    """Members up to which a match set is kept as ordinals: 2 bytes each, less than a bit set of a block."""
    few_messages: int = 16
    """Messages up to which they are looked up and evaluated one by one. Above, doing so for all at once is cheaper."""
    column_bytes: int = 64 << 20
    """Approximate memory for the fields of one block. Fields above the limit are read again, part by part: a field that
    few messages have takes up to twenty times its bytes."""
    dense_columns: int = 64
    """Columns of a block; later fields are kept as runs (quorum_selectors.block_columns)."""
    read_singles: int = 1_024
    """Batches of one message that are decoded together."""
    reserved_blocks: int = 64
    """Blocks that one page of a reservation visits: each may be cold."""
    page_runs: int = 2_048
    """Runs of one page of a browse or a reservation: some milliseconds."""
    source_bytes: int = 1 << 20
    """Bytes that are read at a time of a snapshot that is not in memory, or one section if that is longer."""

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
    max_accepted=5,
    max_ranges=6,
    max_targeted=30,
    max_fences=2,
    remembered_ms=600,
    max_checked_out=40,
    max_selector_bytes=1_000,
    max_consumers=12,
    max_subscriptions=5,
    max_reserved=12,
    max_reservations=4,
    max_outstanding=25,
    max_claimed=5,
    max_pins=5,
    filed_places=6,
    file_steps=2,
    file_slots=5,
    staged_parts=5,
    staged_chunks=12,
    staged_bytes=6_000,
    staged_messages=70,
    staged_ttls=40,
    part_ms=150,
    known_producers=4,
    transaction_window=4,
    open_transactions=14,
    transaction_ms=60,
    transaction_queues=2,
    transaction_operations=5,
    transaction_messages=24,
    transaction_bytes=2_000,
    transaction_ranges=9,
    embargoed_ranges=70,
    embargoed_bytes=12_000,
    matched_bytes=1_200,
    source_bytes=250,
    sparse_matches=3,
    few_messages=2,
    few_stretches=2,
    dense_columns=2,
)
